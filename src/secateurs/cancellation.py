"""Stopping a search: from another thread, or because it would score more than it may.

stop = Event()
with cancelled_by(stop):
    index.search(...)          # raises CancelledError soon after another thread has called stop.set()
with score_work_up_to(1_000_000):
    index.search(...)          # raises ScoreWorkError before it scores more documents x query embeddings

The engine calls `stop_if_cancelled` between steps and blocks of work, and `count_score_work` before it scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Event, Lock

from .errors import CancelledError

_stop: ContextVar[Event | None] = ContextVar("stop", default=None)


class ScoreWorkError(CancelledError):
    """A search that would score more than it may. `work` is what it would have scored, as far as it is known."""

    def __init__(self, work: int) -> None:
        super().__init__(f"the search would score more than it may: documents x query embeddings = {work:,}")
        self.work = work


class _ScoreWork:
    """Shared by the threads of one search over shards."""

    def __init__(self, most: int) -> None:
        self._most, self._counted, self._lock = most, 0, Lock()

    def count(self, work: int) -> None:
        with self._lock:
            self._counted += work
            if self._counted > self._most:
                raise ScoreWorkError(self._counted)


_score_work: ContextVar[_ScoreWork | None] = ContextVar("score_work", default=None)


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


@contextmanager
def score_work_up_to(most: int) -> Iterator[None]:
    """Inside this context, and in the local shards that it searches, at most this many documents x query embeddings
    are scored. Shards on Ray, in other processes, have no limit."""
    token = _score_work.set(_ScoreWork(most))
    try:
        yield
    finally:
        _score_work.reset(token)


def count_score_work(documents: int, query_embeddings: int) -> None:
    """Raise if these are too many to score, together with those that were scored before in the same context."""
    score_work = _score_work.get()
    if score_work is not None:
        score_work.count(documents * query_embeddings)
