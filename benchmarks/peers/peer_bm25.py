"""BM25 (bm25s) to find documents by their words, then exact MaxSim over the best of them.

The ranking by MaxSim is that of this package, so what differs from Secateurs is only who gathers.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
import peer_secateurs

PACKAGE = "bm25s"
peer_secateurs.GATHER = "exhaustive"
DEFAULT: dict[str, Any] = {"candidates": 1000}
SWEEP: list[dict[str, Any]] = [{"candidates": n} for n in (100, 256, 4000)]


class Query(NamedTuple):
    text: str
    encoded: Any


def prepare(data: common.Data) -> Any:
    import bm25s  # noqa: F401 - so that the import is not timed

    places = common.document_numbers(data.folder)
    texts = [json.loads(line) for line in (data.folder / "texts.jsonl").open(encoding="utf-8")]
    return peer_secateurs.prepare(data), [texts[place] for place in places]


def build(documents: Any, index: Path, **options: Any) -> None:
    import bm25s

    data, texts = documents
    peer_secateurs.build(data, index)
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    retriever.save(index / "bm25")


def load(index: Path) -> Any:
    import bm25s

    return bm25s.BM25.load(index / "bm25"), peer_secateurs.load(index)


def queries(data: Path, loaded: Any) -> list[Query]:
    texts = json.loads((data / "queries.json").read_text())
    made = peer_secateurs.queries(data, loaded[1])
    return [Query(text, one.encoded) for text, one in zip(texts, made, strict=True)]


def search(loaded: Any, query: Query, k: int, candidates: int) -> Any:
    import bm25s

    retriever, index = loaded
    words = bm25s.tokenize([query.text], show_progress=False)
    (segment,) = index.snapshot.segments
    found, scores = retriever.retrieve(words, k=min(candidates, len(segment)), show_progress=False)
    documents = np.sort(found[0][scores[0] > 0]).astype(np.int64)
    exact = segment.score(index.snapshot.store.prepare(query.encoded.embeddings), documents, k)
    return documents[np.argsort(-exact, kind="stable")[:k]], len(documents)


def positions(result: Any) -> np.ndarray:
    return result[0]


def tell(result: Any) -> dict[str, float]:
    return {"scored": result[1]}


if __name__ == "__main__":
    common.main(sys.modules[__name__])
