"""What made a table of results, so that somebody else can make it again."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from datetime import UTC, datetime
from typing import Any

from ..index import Index
from ..threads import usable_cores
from ..version import __version__
from .topics import Topics

_LIBRARIES = (
    "numpy",
    "scipy",
    "numba",
    "numkong",
    "faiss-cpu",
    "onnxruntime",
    "tokenizers",
    "sentence-transformers",
    "ir-measures",
    "pytrec-eval-terrier",
    "bm25s",
    "pyarrow",
)


def provenance(index: Index, topics: Topics, measures: list[str], relevant_grade: int) -> dict[str, Any]:
    """Versions, machine, index and queries, in plain values."""
    facts = index.info()
    return {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "secateurs": __version__,
        "python": platform.python_version(),
        "libraries": {name: version for name in _LIBRARIES if (version := _version(name))},
        "machine": {"system": sys.platform, "processor": platform.machine(), "cores": usable_cores()},
        "index": {
            name: facts[name]
            for name in ("path", "documents", "embeddings", "token_types", "store", "gather", "encoder", "written_by")
        },
        "queries": len(topics),
        "queries_and_qrels": topics.fingerprint(),
        "measures": measures,
        "relevant_grade": relevant_grade,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
