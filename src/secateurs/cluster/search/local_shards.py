"""Where the shards are, and how they are asked: all at once, each on its own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from ...errors import SecateursError, UsageError
from ...threads import usable_cores
from ..layout import Layout
from .shard import Shard

LOG = logging.getLogger("secateurs.cluster")

Arguments = Mapping[int, tuple[Any, ...]]  # by the number of the shard
Commits = Mapping[int, int]  # the newest that is known of each shard


class Fleet(Protocol):
    def ask(self, method: str, commits: Commits, arguments: Arguments, partial: bool) -> dict[int, Any]:
        """One of Shard's methods, on all shards that arguments are given for. With `partial`, those that cannot be
        reached are left out; without, that is an error."""

    def work(self, method: str, shard: int, commit: int, arguments: tuple[Any, ...]) -> Any:
        """A method that takes as long as it takes, such as a write. If whoever did it is lost, it is done again."""

    def close(self) -> None: ...


class LocalFleet:
    """All shards in this process, on threads."""

    def __init__(self, path: Path, layout: Layout) -> None:
        for record in layout.shards:
            if record.node is not None and not (path / record.name).is_dir():
                raise SecateursError(
                    f"{record.name} of {path} is on the disk of node {record.node!r}: ask the cluster, with  --ray  "
                    "of secateurs search, info or serve, or with ShardedIndex(path, ray=...)"
                )
        self._names = [record.name for record in layout.shards]
        self._pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="secateurs-shards")
        self._shards = list(self._pool.map(Shard, [str(path / name) for name in self._names]))

    def ask(self, method: str, commits: Commits, arguments: Arguments, partial: bool) -> dict[int, Any]:
        running = {
            number: self._pool.submit(getattr(self._shards[number], method), commits[number], *given)
            for number, given in arguments.items()
        }
        answers = {}
        for number, future in running.items():
            try:
                answers[number] = future.result()
            except UsageError:
                raise
            except (SecateursError, OSError) as error:
                if not partial:
                    raise
                LOG.warning("%s is left out: %s", self._names[number], error)
        return answers

    def work(self, method: str, shard: int, commit: int, arguments: tuple[Any, ...]) -> Any:
        return self._pool.submit(getattr(self._shards[shard], method), commit, *arguments).result()

    def close(self) -> None:
        self._pool.shutdown()
