"""What a table of results was made from and with, so that it can be made again elsewhere."""

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
        **coverage(index, topics, relevant_grade),
        "queries_and_qrels": topics.fingerprint(),
        "measures": measures,
        "relevant_grade": relevant_grade,
    }


def coverage(index: Index, topics: Topics, relevant_grade: int) -> dict[str, int]:
    """How many of the queries and of the documents that judgements name are there.

    A relevant document that is not in the index cannot be found, and lowers every measure of recall.
    """
    judged: set[str] = set()
    relevant: set[str] = set()
    for qid in topics.queries:
        judged.update(topics.qrels[qid])
        relevant |= topics.relevant(qid, relevant_grade)
    missing = {docno for docno in judged if docno not in index}
    return {
        "unjudged_queries": topics.unjudged_queries or 0,
        "judged_qids_without_query": topics.judged_qids_without_query or 0,
        "judged_documents": len(judged),
        "judged_documents_not_in_index": len(missing),
        "relevant_documents_not_in_index": len(missing & relevant),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
