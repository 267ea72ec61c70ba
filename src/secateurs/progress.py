"""Progress bars for long work: on standard error, only when a person is watching, and never an error if not."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(
    description: str, total: int | None, unit: str, shown: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """Give a function that takes how many more are done. `shown=None` shows the bar on a terminal only."""
    if not (sys.stderr.isatty() if shown is None else shown):
        yield lambda more: None
        return
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
                progress.update(task, rate=f"{speed:,.0f} {unit}/s")

        yield advance
