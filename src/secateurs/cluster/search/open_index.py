"""Open an index, or pull it from the Hub, whether it is one folder or a collection in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...contract import AnyIndex
from ...errors import UsageError
from ...index import Index
from ...storage.manifest import SHARDS
from ...transfer.hub import Repository
from ...transfer.pulling import pull_index
from ..hub import pull_shards
from ..layout import is_sharded
from .sharded_index import ShardedIndex


def open_index(path: str | Path, ray: str | None = None, replicas: int = 1, **options: Any) -> AnyIndex:
    """An Index or a ShardedIndex, as the folder says. The options are those of ShardedIndex."""
    if is_sharded(Path(path)):
        return ShardedIndex(path, ray=ray, replicas=replicas, **options)
    index = Index(path)
    if ray is not None or replicas != 1:
        raise UsageError(
            f"{path} is one index, and --ray and --replicas are for collections in shards: make one with  "
            "secateurs shard build"
        )
    return index


def pull_any(repo: str, path: str | Path, revision: str | None, overwrite: bool, progress: bool | None = None) -> None:
    """As the repository says."""
    repository = Repository(repo, revision).open()
    pull = pull_shards if SHARDS in repository.files else pull_index
    pull(repository, Path(path), overwrite, progress)
