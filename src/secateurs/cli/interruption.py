"""Ctrl-C: a command ends with a sentence that says what is true then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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


@contextmanager
def on_interrupt(consequence: Callable[[], str]) -> Iterator[None]:
    """Within this block, Ctrl-C also says what `consequence` finds to be true then; an empty text says nothing."""
    try:
        yield
    except KeyboardInterrupt as error:
        found = consequence()
        raise InterruptedCommandError(f": {found}" if found else "") from error


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
