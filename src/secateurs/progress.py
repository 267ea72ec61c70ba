"""How far long work is, on standard error: a bar on a terminal, elsewhere a line every half minute; counts in words."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

_SECONDS_BETWEEN_LINES = 30.0

Advance = Callable[[int], None]


@contextmanager
def progress_bar(description: str, total: int | None, unit: str, shown: bool | None = None) -> Iterator[Advance]:
    """Give a function that takes how many more are done.

    shown=None shows a bar on a terminal, and lines elsewhere; True always shows a bar; False shows nothing.
    """
    if shown is False:
        yield lambda more: None
    elif shown or sys.stderr.isatty():
        with _bar(description, total, unit) as advance:
            yield advance
    else:
        yield _lines(description, total, unit)


@contextmanager
def _bar(description: str, total: int | None, unit: str) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(description, total=total, rate="")

        def advance(more: int) -> None:
            progress.update(task, advance=more)
            speed = progress.tasks[0].finished_speed or progress.tasks[0].speed
            if speed:
                progress.update(task, rate=f"{_rate(speed)} {unit}/s")

        yield advance


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun: "1 document", "2,000 documents"."""
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"


def _rate(speed: float) -> str:
    """Not rounded to 0: a long document may take minutes."""
    return f"{speed:,.0f}" if speed >= 1 else f"{speed:.2g}"


def _lines(description: str, total: int | None, unit: str) -> Advance:
    """For a log: work that takes less than half a minute writes nothing."""
    started = last_line = monotonic()
    done = 0

    def advance(more: int) -> None:
        nonlocal done, last_line
        done += more
        now = monotonic()
        if now - last_line >= _SECONDS_BETWEEN_LINES:
            last_line = now
            of_total = "" if total is None else f" of {total:,}"
            rate = f"{_rate(done / (now - started))} {unit}/s"
            print(f"{description}: {done:,}{of_total} ({rate})", file=sys.stderr, flush=True)

    return advance
