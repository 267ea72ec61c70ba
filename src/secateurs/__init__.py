"""Secateurs: gather with the few query embeddings that matter, score with all of them.

Public names are imported when they are first used, so that `import secateurs` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .background import Background
    from .cluster.build.builder import build_shards
    from .cluster.search.sharded_index import ShardedIndex
    from .encoders import Encoder, load_encoder
    from .errors import SecateursError
    from .explain import Explanation
    from .frequencies import Frequencies
    from .index import Index
    from .pruning import prune
    from .rankings import (
        Hit,
        Ranking,
        SearchStats,
    )
    from .records import (
        Changes,
        Document,
        EncodedText,
        Field,
        TokenKind,
    )
    from .reranking import RerankedText, rerank
    from .settings import (
        SearchSettings,
    )

_HOME = {
    "Background": ".background",
    "Changes": ".records",
    "Document": ".records",
    "EncodedText": ".records",
    "Encoder": ".encoders",
    "Explanation": ".explain",
    "Field": ".records",
    "Frequencies": ".frequencies",
    "Hit": ".rankings",
    "Index": ".index",
    "Ranking": ".rankings",
    "RerankedText": ".reranking",
    "SearchSettings": ".settings",
    "SearchStats": ".rankings",
    "SecateursError": ".errors",
    "ShardedIndex": ".cluster.search.sharded_index",
    "TokenKind": ".records",
    "build_shards": ".cluster.build.builder",
    "load_encoder": ".encoders",
    "prune": ".pruning",
    "rerank": ".reranking",
}

__all__ = [
    "__version__",
    "Background",
    "Changes",
    "Document",
    "EncodedText",
    "Encoder",
    "Explanation",
    "Field",
    "Frequencies",
    "Hit",
    "Index",
    "Ranking",
    "RerankedText",
    "SearchSettings",
    "SearchStats",
    "SecateursError",
    "ShardedIndex",
    "TokenKind",
    "build_shards",
    "load_encoder",
    "prune",
    "rerank",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'secateurs' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
