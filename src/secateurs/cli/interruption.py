"""How a command ends at Ctrl-C: with a sentence that says what is true then, and exit code 130."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from typer.core import TyperGroup

from ..storage.manifest import MANIFEST


class InterruptedCommandError(Exception):
    """A command was interrupted; the text, if any, says what that means for the user's data."""


class Commands(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        """As always, but an interruption passes typer, which would end the process without a word."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise InterruptedCommandError from error
        except Exception as error:  # typer's own class for wrong usage has no public name
            message, command = getattr(error, "message", None), getattr(getattr(error, "ctx", None), "info_name", None)
            if command in ("search", "explain", "rerank") and str(message).startswith("Got unexpected extra argument"):
                error.message = f"{message}: put the query in quotes"  # type: ignore[attr-defined]
            raise


def end_process(code: int) -> NoReturn:
    """End without waiting for threads, after the functions that are registered with atexit.

    A normal exit waits for the encoder's threads, and aborts (exit code 134) if C++ threads are still running. The
    interrupted command has removed its unfinished files, or kept what it can go on with, before this is called, and
    these threads write no files.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
    finally:
        os._exit(code)


@contextmanager
def on_interrupt(consequence: Callable[[], str]) -> Iterator[None]:
    """Within this block, Ctrl-C also says what `consequence` finds to be true then; an empty text says nothing."""
    try:
        yield
    except (KeyboardInterrupt, RuntimeError) as error:
        if not is_interruption(error):
            raise
        found = "; ".join(filter(None, [consequence(), *notes_of(error)]))
        raise InterruptedCommandError(f": {found}" if found else "") from error


def is_interruption(error: BaseException) -> bool:
    """Also where Ctrl-C came while Python's own threading released a lock: that raises a RuntimeError on top of it."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)


def notes_of(error: BaseException) -> list[str]:
    """What the library has added to an error: an interrupted build says what is kept of it."""
    return list(getattr(error, "__notes__", ()))


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Within this block, Ctrl-C also says whether the index was changed: whether its manifest is another."""
    before = _manifest(path)

    def consequence() -> str:
        if before is None and not path.exists():
            return f"there is no index at {path}"
        if not is_index(path):
            return ""  # shards, of which some may be changed
        if _manifest(path) == before:
            return f"{path} was not changed"
        return f"{path} was changed already"

    with on_interrupt(consequence):
        yield


def is_index(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def _manifest(path: Path) -> bytes | None:
    try:
        return (path / MANIFEST).read_bytes()
    except OSError:
        return None
