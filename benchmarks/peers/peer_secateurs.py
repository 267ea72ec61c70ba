"""Secateurs itself: cells, at several efforts and with several numbers of kept query embeddings.

The index is what the built-in encoder makes by default: merged documents, a background, and the kinds of tokens.

The setting {"read": true} is no search. It reads the rows that the default search would score, once, and so tells how
fast scoring could be if it were nothing but memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import common
import numba
import numpy as np

PACKAGE = "secateurs"
GATHER = "cells"
STORE = "int8"
DEFAULT: dict[str, Any] = {}
SWEEP: list[dict[str, Any]] = [
    {"effort": "fast"},
    {"effort": "exact"},
    *({"p": p} for p in (1, 2, 3, 4, 6, 8, 16, None)),
    {"candidates": 128},
    {"nprobe": 64, "candidates": 512},
    {"read": True},
]


class Query(NamedTuple):
    encoded: Any
    starts: np.ndarray  # rows of the documents that the default search scores
    ends: np.ndarray


def prepare(data: common.Data) -> common.Data:
    import secateurs.storage.indexing  # noqa: F401 - so that the import is not timed

    return data


def documents(data: common.Data) -> Iterator[Any]:
    from secateurs import Document, EncodedText

    kinds = np.load(data.folder / "token_kinds.npy", mmap_mode="r")
    for place, (start, end) in enumerate(zip(data.starts, data.ends, strict=True)):
        encoded = EncodedText(data.embeddings[start:end], data.token_ids[start:end], kinds[start:end])
        yield Document(str(place), encoded=encoded)


def build(data: common.Data, index: Path, **options: Any) -> None:
    from secateurs import Index
    from secateurs.encoders.built_in import LAYERS

    Index.build(
        index / "index.sec",
        documents(data),
        encoder=None,
        store=STORE,
        gather=GATHER,
        merge=LAYERS["colbert-small"].merge,
        background="english",
        progress=False,
        **options,
    )


def load(index: Path) -> Any:
    from secateurs import Index

    return Index(index / "index.sec")


def queries(data: Path, loaded: Any) -> list[Query]:
    from secateurs import EncodedText
    from secateurs.gather import gatherer

    names = ("queries.npy", "query_token_ids.npy", "query_token_kinds.npy")
    rows, token_ids, token_kinds = (np.load(data / name) for name in names)
    (segment,) = loaded.snapshot.segments
    file = data / "query_weights.npy"
    weights = np.load(file) if file.exists() else np.ones(len(rows), dtype=np.float32)
    prepared = []
    for a, b in pairwise(np.load(data / "query_offsets.npy")):
        encoded = EncodedText(rows[a:b], token_ids[a:b], token_kinds[a:b], weights=weights[a:b])
        decision = loaded.decide(encoded, gather=GATHER)
        found, _ = gatherer(loaded.snapshot, GATHER).gather(encoded, decision.kept, decision.plan)
        prepared.append(Query(encoded, segment.offsets[found], segment.offsets[found + 1]))
    return prepared


def search(loaded: Any, query: Query, k: int, read: bool = False, **setting: Any) -> Any:
    if read:
        rows = loaded.snapshot.segments[0].embeddings.rows
        return _read(rows.reshape(-1).view(np.int64), query.starts, query.ends, rows.shape[1] // 8)
    return loaded.search(query.encoded, k, gather=GATHER if setting.get("effort") != "exact" else "auto", **setting)


@numba.njit(nogil=True)
def _read(words: np.ndarray, starts: np.ndarray, ends: np.ndarray, width: int) -> int:
    total = 0
    for i in range(len(starts)):
        for at in range(starts[i] * width, ends[i] * width):
            total += words[at]
    return total


def positions(result: Any) -> list[int]:
    return [int(hit.docno) for hit in result] if not isinstance(result, int) else []


def tell(result: Any) -> dict[str, float]:
    if isinstance(result, int):
        return {}
    stats = result.stats
    return {"kept": stats.embeddings_kept, "scored": stats.documents_scored, **stats.milliseconds}


if __name__ == "__main__":
    common.main(sys.modules[__name__])
