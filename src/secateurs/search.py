"""The whole pipeline on one screen:

query -> encoder -> filter -> importance order -> keep p -> gather candidates -> exact MaxSim with all -> ranking
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .effort import plan as make_plan
from .frequencies import Frequencies
from .importance import Positions, order_positions
from .records import (
    EncodedText,
    Hit,
    Ranking,
    SearchPlan,
    SearchSettings,
    SearchStats,
)
from .threads import in_order

if TYPE_CHECKING:
    from .index import Index
    from .storage.documents import StoredDocument
    from .storage.snapshot import Snapshot


def search(index: Index, query: str | EncodedText, settings: SearchSettings) -> Ranking:
    watch = Stopwatch()
    snapshot = index.snapshot
    encoded = index.encode_query(query)
    watch.lap("encode")
    prepared = prepare(snapshot, encoded, settings, watch)
    watch.lap("prune")
    hits, seen, scored = find(snapshot, encoded, prepared, watch)
    return Ranking(
        hits=tuple(hits),
        query=encoded,
        kept=tuple(prepared.kept.tolist()),
        plan=prepared.plan,
        stats=SearchStats(
            query_embeddings=len(encoded),
            embeddings_kept=len(prepared.kept),
            documents_gathered=seen,
            documents_scored=scored,
            documents_in_index=len(snapshot),
            documents_matching=prepared.matching,
            milliseconds=watch.laps,
        ),
    )


def find(snapshot: Snapshot, query: EncodedText, prepared: Prepared, watch: Stopwatch) -> tuple[list[Hit], int, int]:
    """The k best, how many documents were gathered, and how many of them scored."""
    k = prepared.plan.k
    documents, seen = gather(snapshot, query, prepared)
    watch.lap("gather")
    scores = np.empty(0)
    if len(documents):
        query_for_rows = snapshot.store.prepare(query.embeddings, prepared.ordered)
        scores = snapshot.score(query_for_rows, documents, k)
    watch.lap("score")
    hits = _best(snapshot, documents, scores, k)
    watch.lap("fetch")
    return hits, seen, len(documents)


class Prepared(NamedTuple):
    """Everything that is decided before the first document is looked at."""

    plan: SearchPlan
    frequencies: Frequencies
    ordered: Positions  # all positions of the query, most important first
    allowed: NDArray[np.bool_] | None  # which documents may be found; None: all
    matching: int  # so many

    @property
    def kept(self) -> Positions:
        return self.ordered[: self.plan.p]


def prepare(
    snapshot: Snapshot,
    query: EncodedText,
    settings: SearchSettings,
    watch: Stopwatch | None = None,
    ordered: Positions | None = None,
) -> Prepared:
    """`ordered` is given where frequencies beyond this snapshot's have decided already."""
    allowed, matching, frequencies = snapshot.live, len(snapshot), snapshot.frequencies
    if settings.where is not None:
        filtered = snapshot.filtered(settings.where)
        allowed, matching = filtered.allowed, filtered.count
        if settings.frequencies == "matching":
            frequencies = filtered.frequencies
    if watch is not None:
        watch.lap("filter")
    plan = make_plan(settings, query, snapshot.prepared, len(snapshot), matching)
    if ordered is None:
        ordered = order_positions(plan.order, query, frequencies)
    return Prepared(plan, frequencies, ordered, allowed, matching)


def gather(snapshot: Snapshot, query: EncodedText, prepared: Prepared) -> tuple[NDArray[np.int64], int]:
    """The documents to score, and how many they were chosen from."""
    plan, embeddings = prepared.plan, query.embeddings[prepared.kept]
    documents, seen = snapshot.gatherer(plan.gather).gather(embeddings, plan, prepared.allowed)
    if plan.where is not None and len(documents) < min(plan.k, prepared.matching):
        # Whoever matches has a right to be found.
        return snapshot.gatherer("exhaustive").gather(embeddings, plan, prepared.allowed)
    return documents, seen


def search_many(
    index: Index, queries: Iterable[str | EncodedText], settings: SearchSettings, threads: int | None = None
) -> Iterator[Ranking]:
    """Rankings in the order of the queries, several at a time: kernels and encoder work outside Python's lock."""
    return in_order(search, ((index, query, settings) for query in queries), threads)


def candidates(index: Index, query: str | EncodedText, settings: SearchSettings) -> list[str]:
    """The first stage alone: docnos of the documents that a search with these settings would score."""
    snapshot = index.snapshot
    encoded = index.encode_query(query)
    return snapshot.docnos(gather(snapshot, encoded, prepare(snapshot, encoded, settings))[0])


def score(index: Index, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
    """The second stage alone: Eq. 1 with all query embeddings, for any documents."""
    snapshot = index.snapshot
    encoded = index.encode_query(query)
    numbers = snapshot.numbers(docnos)
    if len(numbers) == 0:
        return []
    scores: list[float] = snapshot.score(snapshot.store.prepare(encoded.embeddings), numbers).tolist()
    return scores


def _best(snapshot: Snapshot, documents: NDArray[np.int64], scores: NDArray[np.float64], k: int) -> list[Hit]:
    """The k best; equal scores go by docno, so that a ranking never depends on luck."""
    if len(scores) > k:
        # Keep every document that ties with the k-th, and let the docnos decide.
        some = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        documents, scores = documents[some], scores[some]
    contenders: list[tuple[float, str, StoredDocument]] = []
    for segment, places, local in snapshot.by_segment(documents):
        numbers, minus = local.tolist(), (-scores[places]).tolist()
        if len(numbers) > 2 * k:  # very many ties: the docnos alone settle them before any text is read
            ranked = sorted(zip(minus, segment.documents.docnos(numbers), numbers, strict=True))[:k]
            numbers, minus = [number for _, _, number in ranked], [score for score, _, _ in ranked]
        stored = segment.documents.get(numbers)
        contenders += [(score, found.docno, found) for score, found in zip(minus, stored, strict=True)]
    best = sorted(contenders, key=lambda contender: contender[:2])[:k]
    return [Hit(docno, -minus, found.text, found.metadata) for minus, docno, found in best]


def warm_up(index: Index) -> None:
    """Kernels are compiled and files are read by the first search: better now than while somebody waits."""
    one = EncodedText(np.zeros((1, index.dim), np.float32), np.zeros(1, np.int32), np.zeros(1, np.uint8))
    for gather in index.prepared:
        if gather != "exhaustive":  # which would read all there is, and has no kernel of its own
            search(index, one, SearchSettings(gather=gather))


class Stopwatch:
    def __init__(self) -> None:
        self._last = perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.laps[stage] = (now - self._last) * 1000
        self._last = now
