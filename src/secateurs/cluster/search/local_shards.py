"""All shards in this process, each call on a thread of a pool."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

from ...errors import CancelledError, SecateursError, UsageError
from ...threads import usable_cores
from ..layout import Layout
from .backend import LOG, Arguments, Commits
from .shard import Shard


class LocalShards:
    def __init__(self, path: Path, layout: Layout) -> None:
        for record in layout.shards:
            if record.node is not None and not (path / record.name).is_dir():
                raise SecateursError(
                    f"{record.name} of {path} is on the disk of node {record.node!r}: use the cluster, with  --ray  "
                    "of secateurs search, info or serve, or with ShardedIndex(path, ray=...)"
                )
        self._names = [record.name for record in layout.shards]
        # Two pools: with one, as many compactions, or writes that wait for a lock, as there are threads would leave
        # none to search with.
        self._readers = ThreadPoolExecutor(usable_cores(), thread_name_prefix="secateurs-shard-reads")
        self._workers = ThreadPoolExecutor(usable_cores(), thread_name_prefix="secateurs-shard-work")
        self.shards: list[Shard] = []
        try:
            self.shards += self._readers.map(Shard, [str(path / name) for name in self._names])
        except BaseException:
            self.close()
            raise

    def read(self, method: str, commits: Commits, arguments: Arguments, partial: bool) -> dict[int, Any]:
        running = {
            number: self._submit(self._readers, number, method, commits[number], shard_arguments)
            for number, shard_arguments in arguments.items()
        }
        answers = {}
        for number, future in running.items():
            try:
                answers[number] = future.result()
            except (UsageError, CancelledError):
                raise
            except (SecateursError, OSError) as error:
                if not partial:
                    raise
                LOG.warning("%s is left out: %s", self._names[number], error)
        return answers

    def work(self, method: str, shard: int, commit: int, arguments: tuple[Any, ...]) -> Any:
        return self._submit(self._workers, shard, method, commit, arguments).result()

    def _submit(
        self, pool: ThreadPoolExecutor, shard: int, method: str, commit: int, arguments: tuple[Any, ...]
    ) -> Future[Any]:
        # In the caller's context, so that a search that is cancelled stops in its shards too.
        return pool.submit(copy_context().run, getattr(self.shards[shard], method), commit, *arguments)

    def close(self) -> None:
        self._readers.shutdown()
        self._workers.shutdown()
        for shard in self.shards:
            shard.close()
