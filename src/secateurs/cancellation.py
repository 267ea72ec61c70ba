"""Stopping a search whose result is not wanted any longer: it looks here between its steps.

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
    """Inside the `with`, and in this thread, work stops when the event is set."""
    token = _stop.set(stop)
    try:
        yield
    finally:
        _stop.reset(token)


def stop_if_cancelled() -> None:
    stop = _stop.get()
    if stop is not None and stop.is_set():
        raise CancelledError("cancelled: the result is not wanted any longer")


def can_be_cancelled() -> bool:
    return _stop.get() is not None
