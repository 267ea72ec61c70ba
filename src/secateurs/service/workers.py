"""Threads to search on, so that the event loop is free to take requests and to refuse them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

from ..cancellation import cancelled_by
from .problems import Problem

_T = TypeVar("_T")


class Workers:
    """A fixed number of threads with a short queue. Work that does not fit into the queue is refused at once."""

    def __init__(self, what: str, threads: int, most: int, seconds: float | None = None) -> None:
        """`most` is what may run and wait together. Without `seconds`, work is always finished, as a write must be."""
        self._what, self._threads, self._most, self._seconds = what, threads, most, seconds
        self._unfinished = 0

    def __enter__(self) -> Workers:
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"secateurs-{self._what.replace(' ', '-')}")
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for what runs. What has not begun is dropped, unless it must be finished."""
        self._pool.shutdown(wait=True, cancel_futures=self._seconds is not None)

    async def run(
        self, work: Callable[..., _T], *arguments: Any, gone: Callable[[], Awaitable[None]] | None = None
    ) -> _T:
        """The result of the work, done on a thread. `gone` returns when the client has gone away.

        Work with a time limit is cancelled when that has passed, or when the client has gone: it is dropped if it
        waits, and if it runs it stops at its next call of `stop_if_cancelled` and gives its thread back.
        """
        if self._unfinished >= self._most:
            raise Problem.too_many(self._what)
        loop, stop = asyncio.get_running_loop(), Event()
        self._unfinished += 1
        if self._seconds is None:
            future = self._pool.submit(work, *arguments)
        else:
            future = self._pool.submit(_cancellable, stop, work, *arguments)
        # Counted until the thread is free again, which is later than the answer if the work was cancelled.
        future.add_done_callback(lambda done: _from_thread(loop, self._finished))
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(_retrieve_error)
        if self._seconds is None:
            return await asyncio.shield(waiting)
        watching: list[asyncio.Future[Any]] = [asyncio.ensure_future(gone())] if gone is not None else []
        try:
            await asyncio.wait({waiting, *watching}, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            if any(watcher.done() for watcher in watching):
                raise Problem(499, "given up: the client has gone away")
            raise Problem(
                503,
                f"not finished after {self._seconds:g} seconds: ask for less, or try again later",
                headers={"Retry-After": "5"},
            )
        finally:
            stop.set()
            future.cancel()
            for watcher in watching:
                watcher.cancel()

    def _finished(self) -> None:
        self._unfinished -= 1


def _cancellable(stop: Event, work: Callable[..., _T], *arguments: Any) -> _T:
    with cancelled_by(stop):
        return work(*arguments)


def _retrieve_error(done: asyncio.Future[Any]) -> None:
    """asyncio logs an error that is never retrieved, as that of cancelled work would be."""
    if not done.cancelled():
        done.exception()


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)
