"""The whole pipeline on one screen:

query -> encoder -> importance order -> keep p -> gather candidates -> exact MaxSim with all -> ranking
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .effort import plan as make_plan
from .importance import order_positions
from .records import EncodedText, Hit, Ranking, SearchSettings, SearchStats
from .threads import in_order

if TYPE_CHECKING:
    from .index.documents import StoredDocument
    from .index.index import Index


def search(index: Index, query: str | EncodedText, settings: SearchSettings) -> Ranking:
    watch = _Stopwatch()
    encoded = index.encode_query(query)
    watch.lap("encode")
    plan = make_plan(settings, encoded, index.prepared, len(index))
    ordered = order_positions(plan.order, encoded, index.frequencies)
    kept = ordered[: plan.p]
    watch.lap("prune")
    gathered = [segment.gatherer(plan.gather).gather(encoded.embeddings[kept], plan) for segment in index.segments]
    documents = [some for some, _ in gathered]
    watch.lap("gather")
    scores = [
        segment.score(segment.store.prepare(encoded.embeddings, ordered), some, plan.k) if len(some) else np.empty(0)
        for segment, some in zip(index.segments, documents, strict=True)
    ]
    watch.lap("score")
    hits = _best(index, documents, scores, plan.k)
    watch.lap("fetch")
    return Ranking(
        hits=tuple(hits),
        query=encoded,
        kept=tuple(kept.tolist()),
        plan=plan,
        stats=SearchStats(
            query_embeddings=len(encoded),
            embeddings_kept=len(kept),
            documents_gathered=sum(count for _, count in gathered),
            documents_scored=sum(map(len, documents)),
            documents_in_index=len(index),
            milliseconds=watch.laps,
        ),
    )


def search_many(
    index: Index, queries: Iterable[str | EncodedText], settings: SearchSettings, threads: int | None = None
) -> Iterator[Ranking]:
    """Rankings in the order of the queries, several at a time: kernels and encoder work outside Python's lock."""
    return in_order(search, ((index, query, settings) for query in queries), threads)


def candidates(index: Index, query: str | EncodedText, settings: SearchSettings) -> list[str]:
    """The first stage alone: docnos of the documents that a search with these settings would score."""
    encoded = index.encode_query(query)
    plan = make_plan(settings, encoded, index.prepared, len(index))
    kept = order_positions(plan.order, encoded, index.frequencies)[: plan.p]
    docnos: list[str] = []
    for segment in index.segments:
        some, _ = segment.gatherer(plan.gather).gather(encoded.embeddings[kept], plan)
        docnos += segment.documents.docnos(some.tolist())
    return docnos


def score(index: Index, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
    """The second stage alone: Eq. 1 with all query embeddings, for any documents."""
    encoded = index.encode_query(query)
    located = [index.locate(docno) for docno in docnos]
    scores = np.empty(len(located))
    for segment in index.segments:
        some = [i for i, (home, _) in enumerate(located) if home is segment]
        numbers = np.array([located[i][1] for i in some], dtype=np.int64)
        scores[some] = segment.score(segment.store.prepare(encoded.embeddings), numbers)
    return scores.tolist()


def _best(
    index: Index, gathered: Sequence[NDArray[np.int64]], scores: Sequence[NDArray[np.float64]], k: int
) -> list[Hit]:
    """The k best over all segments; equal scores go by docno, so that a ranking never depends on luck."""
    everything = np.concatenate([np.empty(0), *scores])
    if len(everything) > k:
        # Keep every document that ties with the k-th, and let the docnos decide.
        threshold = np.partition(everything, len(everything) - k)[len(everything) - k]
        chosen = [np.flatnonzero(score >= threshold) for score in scores]
    else:
        chosen = [np.arange(len(score)) for score in scores]
    contenders: list[tuple[float, str, StoredDocument]] = []
    for segment, documents, score, some in zip(index.segments, gathered, scores, chosen, strict=True):
        numbers, minus = documents[some].tolist(), (-score[some]).tolist()
        if len(numbers) > 2 * k:  # very many ties: the docnos alone settle them before any text is read
            ranked = sorted(zip(minus, segment.documents.docnos(numbers), numbers, strict=True))[:k]
            numbers, minus = [number for _, _, number in ranked], [score for score, _, _ in ranked]
        stored = segment.documents.get(numbers)
        contenders += [(score, found.docno, found) for score, found in zip(minus, stored, strict=True)]
    best = sorted(contenders, key=lambda contender: contender[:2])[:k]
    return [Hit(docno, -minus, found.text, found.metadata) for minus, docno, found in best]


class _Stopwatch:
    def __init__(self) -> None:
        self._last = perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.laps[stage] = (now - self._last) * 1000
        self._last = now
