"""Cancelling a search from another thread: the engine calls `stop_if_cancelled` between steps and blocks of work.

stop = Event()
with cancelled_by(stop):
    index.search(...)          # raises CancelledError soon after another thread has called stop.set()
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event

from .errors import CancelledError

_stop: ContextVar[Event | None] = ContextVar("stop", default=None)


@contextmanager
def cancelled_by(stop: Event) -> Iterator[None]:
    """Inside this context, and in this thread, work stops when the event is set."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def stop_if_cancelled() -> None:
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise CancelledError("the search was cancelled")
