"""Threads to search on, so that the event loop is free to take requests and to refuse them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from .problems import Problem

_T = TypeVar("_T")


class Workers:
    """A fixed number of threads with a short queue. What does not fit is refused, not kept waiting."""

    def __init__(self, what: str, threads: int, most: int, seconds: float | None = None) -> None:
        """`most` is what may run and wait together; without `seconds` work is always finished, as a write must be."""
        self._what, self._threads, self._most, self._seconds = what, threads, most, seconds
        self._unfinished = 0

    def __enter__(self) -> Workers:
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"secateurs-{self._what}")
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for what runs, and drop what has not begun, unless it must be finished."""
        self._pool.shutdown(wait=True, cancel_futures=self._seconds is not None)

    async def run(self, work: Callable[..., _T], *arguments: Any) -> _T:
        if self._unfinished >= self._most:
            raise Problem.too_many(self._what)
        loop = asyncio.get_running_loop()
        self._unfinished += 1
        future = self._pool.submit(work, *arguments)
        # Counted until the thread is done: a search that nobody waits for any longer still keeps its thread busy.
        future.add_done_callback(lambda done: _from_thread(loop, self._finished))
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(_looked_at)
        if self._seconds is None:
            return await asyncio.shield(waiting)
        finished, _ = await asyncio.wait([waiting], timeout=self._seconds)
        if not finished:
            future.cancel()  # if it has not begun
            raise Problem(
                503,
                f"not finished after {self._seconds:g} seconds: ask for less, or try again later",
                headers={"Retry-After": "5"},
            )
        return waiting.result()

    def _finished(self) -> None:
        self._unfinished -= 1


def _looked_at(done: asyncio.Future[Any]) -> None:
    """Nobody waits any longer for work that was given up, and asyncio would complain about its error."""
    if not done.cancelled():
        done.exception()


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
