"""`ShardBackend`: what runs the methods of each shard. In this process, local_shards.py; on Ray, ray_shards.py."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

LOG = logging.getLogger("secateurs.cluster")

Arguments = Mapping[int, tuple[Any, ...]]  # shard number -> arguments of the method
Commits = Mapping[int, int]  # shard number -> the newest commit that the caller knows of


class ShardBackend(Protocol):
    def read(self, method: str, commits: Commits, arguments: Arguments, partial: bool) -> dict[int, Any]:
        """Run a method of Shard that reads, on all shards that have arguments, at the same time.

        With `partial`, shards that cannot be reached are left out. Without it they raise an error.
        """

    def work(self, method: str, shard: int, commit: int, arguments: tuple[Any, ...]) -> Any:
        """Run a method of Shard that has no time limit: a write, a compaction, a check.

        Such methods run apart from `read`, so that searches do not wait for them. If the process that runs one dies,
        it is run again.
        """

    def close(self) -> None:
        """Release threads, files and actors. Closing again does nothing."""
