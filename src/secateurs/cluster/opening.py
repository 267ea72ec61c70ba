"""An index, whether it is one folder or a collection in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

from ..index.index import Index
from .layout import is_sharded
from .sharded import ShardedIndex

AnyIndex: TypeAlias = Index | ShardedIndex


def open_index(path: str | Path, **options: Any) -> AnyIndex:
    """Open whichever is there. The options are those of ShardedIndex, and say nothing to one index."""
    return ShardedIndex(path, **options) if is_sharded(Path(path)) else Index(path)
