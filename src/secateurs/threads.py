"""Work on several cores, in order, without reading the whole input ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from .errors import UsageError

_T = TypeVar("_T")
_AHEAD = 8  # pieces of work waiting per thread, so that none is idle
_granted: ContextVar[int | None] = ContextVar("granted", default=None)


def usable_cores() -> int:
    """The cores this process may use: in a container fewer than the machine has; inside `granted_cores`, as many."""
    granted = _granted.get()
    if granted is not None:
        return granted
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


@contextmanager
def granted_cores(count: int) -> Iterator[None]:
    """Inside this context, and in this thread, `usable_cores` returns `count`: for tasks under a scheduler."""
    token = _granted.set(count)
    try:
        yield
    finally:
        _granted.reset(token)


def in_order(
    work: Callable[..., _T], items: Iterable[tuple[Any, ...]], threads: int | None = None, ahead: int = _AHEAD
) -> Generator[_T]:
    """work(*item) for every item, in the order of the items. If the caller stops reading, the rest is cancelled."""
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise UsageError(f"threads is a whole number of at least 1, or None for all cores, not {threads!r}")
    return _in_order(work, items, threads or usable_cores(), ahead)


def _in_order(work: Callable[..., _T], items: Iterable[tuple[Any, ...]], threads: int, ahead: int) -> Generator[_T]:
    running: deque[Future[_T]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="secateurs") as pool:
        try:
            for item in items:
                running.append(pool.submit(work, *item))
                if len(running) > ahead * threads:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
