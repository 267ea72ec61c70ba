"""Work on several cores, in order, without reading the whole input ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from .errors import UsageError

_T = TypeVar("_T")
_AHEAD = 8  # pieces of work waiting per thread, so that none is idle


def usable_cores() -> int:
    """The cores this process may use, which in a container can be fewer than the machine has.

    OMP_NUM_THREADS limits them further: Ray sets it to the number of cores that it gave to a task.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(allowed)) if allowed.isdecimal() and int(allowed) else cores


def in_order(
    work: Callable[..., _T], items: Iterable[tuple[Any, ...]], threads: int | None = None, ahead: int = _AHEAD
) -> Iterator[_T]:
    """work(*item) for every item, in the order of the items. What has not begun is dropped when nobody reads on."""
    if threads is not None and threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    return _in_order(work, items, threads or usable_cores(), ahead)


def _in_order(work: Callable[..., _T], items: Iterable[tuple[Any, ...]], threads: int, ahead: int) -> Iterator[_T]:
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
