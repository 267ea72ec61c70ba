"""The pipeline of every search, over one index or over shards:

encode -> filter -> weigh -> order -> plan -> prune -> gather -> score -> rank -> judge

`search` makes all decisions once, for the whole collection (`decide`), and then gathers, scores and ranks (`find`): in
one snapshot, or in each shard, whose rankings are merged. `judge` adds the relevance to the hits that were found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .cancellation import count_score_work, stop_if_cancelled
from .costs import LONG, SHORT, Costs, Shape, fit, spend
from .effort import PLACES, make_plan
from .frequencies import Frequencies
from .fusion import Scores, best_fused, fetch
from .gather import check_text, gatherer
from .gather.bm25 import WordCounts, distinct, weigh_words
from .gather.text import count_words, split_query
from .importance import order_positions, worths
from .pruning import keep
from .rankings import Facets, Hit, Ranking, SearchStats
from .records import EncodedText, Positions, TokenKind
from .relevance import Curve, relevances
from .settings import GatherName, SearchPlan, SearchSettings, ways
from .storage.documents import StoredDocument
from .storage.facets import Counts, check_facets, count_facets, known_facets, ranked_facets
from .storage.snapshot import Snapshot
from .threads import in_order
from .weights import weigh

_TIMED_QUERIES = 8  # for `costs_of`, in turn: the rows of a query that is asked again are in the CPU's cache
_PAIRS_AT_ONCE = 1 << 21  # documents times query embeddings between two looks whether the search was cancelled


class Matching(NamedTuple):
    """The documents that a filter lets through; without a filter, all of them."""

    documents: int  # how many
    frequencies: Frequencies  # token frequencies that decide the order and the weights
    allowed: NDArray[np.bool_] | None = None  # (documents,); None: all, or over shards known by each shard only


class Decision(NamedTuple):
    """Everything that is decided before gathering."""

    query: EncodedText  # in full, with the weights of its embeddings
    plan: SearchPlan
    ordered: Positions  # all positions of the query, most important first
    kept: Positions  # those to gather with
    matching: Matching


class Found(NamedTuple):
    """The k best documents, after those that `offset` leaves out, and what it took to find them."""

    hits: tuple[Hit, ...]
    gathered: int  # documents that a kept embedding found
    scored: int  # of those, scored exactly
    plan: SearchPlan  # what was done: it differs from the decision's plan after a fallback to exhaustive
    shards_missing: int = 0
    scores: Scores | None = None  # with fuse: of all that were scored; the hits are then those that can be the best


class Searched(Protocol):
    """What a search runs over: a snapshot of one index (OneIndex, below), or the shards of a collection."""

    def __len__(self) -> int: ...

    @property
    def shards(self) -> int: ...

    @property
    def gatherers(self) -> Sequence[GatherName]: ...

    @property
    def places(self) -> Mapping[str, float]:
        """Of the efforts on the ladder of effort.py."""

    def filter(self, settings: SearchSettings) -> Matching: ...

    def count_words(self, words: tuple[str, ...], settings: SearchSettings, matching: Matching) -> WordCounts:
        """What BM25 must know of the documents whose frequencies count."""

    def costs(self) -> Costs:
        """Of a search in the index, or in each shard at the same time."""

    def find(self, decision: Decision, settings: SearchSettings, watch: Stopwatch) -> Found: ...

    def facets(self, settings: SearchSettings, matching: Matching) -> Mapping[str, Counts]:
        """Of each key of `settings.facets` the values, counted in the documents that match."""


class Searchable(Protocol):
    """What `search` needs of an index."""

    @property
    def encoder_spec(self) -> Mapping[str, Any]: ...

    def load(self, query: object) -> float: ...

    def encode_query(self, query: str | EncodedText) -> EncodedText: ...

    def searched(self) -> Searched: ...


def search(index: Searchable, query: str | EncodedText, settings: SearchSettings) -> Ranking:
    loading = index.load(query)
    watch = Stopwatch()
    encoded = index.encode_query(query)
    watch.lap("encode")
    searched = index.searched()
    decision = decide(searched, encoded, settings, watch)
    found = searched.find(decision, settings, watch)
    facets: Facets = {}
    if settings.facets:
        facets = ranked_facets(searched.facets(settings, decision.matching))
        watch.lap("facets")
    return make_ranking(index, searched, decision, found, facets, watch.laps, loading)


def make_ranking(
    index: Searchable,
    searched: Searched,
    decision: Decision,
    found: Found,
    facets: Facets,
    milliseconds: Mapping[str, float],
    loading: float = 0.0,
) -> Ranking:
    return Ranking(
        hits=judge(found.hits, decision.query, found.plan, Curve.of(index.encoder_spec)),
        query=decision.query,
        kept=tuple(decision.kept.tolist()),
        plan=found.plan,
        stats=SearchStats(
            query_embeddings=len(decision.query),
            embeddings_kept=len(decision.kept),
            documents_gathered=found.gathered,
            documents_scored=found.scored,
            documents_in_index=len(searched),
            documents_matching=decision.matching.documents,
            milliseconds=milliseconds,
            loading_milliseconds=loading,
            shards_missing=found.shards_missing,
        ),
        facets=facets,
    )


def search_many(
    index: Searchable, queries: Iterable[str | EncodedText], settings: SearchSettings, threads: int | None = None
) -> Iterator[Ranking]:
    """Rankings in the order of the queries, on several threads: kernels and encoder release Python's lock."""
    return in_order(search, ((index, query, settings) for query in queries), threads)


def decide(
    searched: Searched, query: EncodedText, settings: SearchSettings, watch: Stopwatch | None = None
) -> Decision:
    """Filter, weigh, order, plan and prune."""
    watch = watch or Stopwatch()
    matching = searched.filter(settings)
    watch.lap("filter")
    if settings.weights is not None:
        query = weigh(query, matching.frequencies)
    ordered = order_positions(settings.order, query, matching.frequencies)
    worth = worths(query, matching.frequencies)[ordered]
    plan = make_plan(
        settings,
        worth,
        searched.gatherers,
        len(searched),
        matching.documents,
        searched.shards,
        searched.places,
    )
    if plan.budget_ms is not None and matching.documents:
        plan = spend(plan, worth, len(query), searched.costs())
    if "text" in ways(plan.gather) or plan.fuse is not None:
        words = split_query(query)
        plan = replace(plan, words=weigh_words(words, searched.count_words(distinct(words), settings, matching)))
    kept = keep(ordered, plan.p)
    watch.lap("prune")
    return Decision(query, plan, ordered, kept, matching)


def judge(hits: Sequence[Hit], query: EncodedText, plan: SearchPlan, curve: Curve | None) -> tuple[Hit, ...]:
    """The hits with their relevance, less those below a threshold."""
    least_score = -np.inf if plan.min_score is None else plan.min_score
    least_relevance = plan.min_relevance or 0.0
    exact = [hit.score if hit.exact_score is None else hit.exact_score for hit in hits]
    judged = zip(hits, relevances(query, exact, curve), strict=True)
    return tuple(
        Hit(hit.docno, hit.score, hit.text, hit.metadata, relevance, hit.exact_score, hit.text_score)
        for hit, relevance in judged
        if hit.score >= least_score and relevance >= least_relevance
    )


class OneIndex:
    """A snapshot behind the protocol `Searched`."""

    shards = 1

    def __init__(self, snapshot: Snapshot, places: Mapping[str, float] | None = None) -> None:
        """`places` are those that the index has measured, unless they are given."""
        self.snapshot = snapshot
        self.gatherers = snapshot.gatherers
        self.places = places or places_of(snapshot)

    def __len__(self) -> int:
        return len(self.snapshot)

    def filter(self, settings: SearchSettings) -> Matching:
        snapshot = self.snapshot
        if settings.where is None:
            return Matching(len(snapshot), snapshot.frequencies, snapshot.live)
        filtered = snapshot.filtered(settings.where)
        of_matching = settings.frequencies == "matching"
        return Matching(filtered.count, filtered.frequencies if of_matching else snapshot.frequencies, filtered.allowed)

    def count_words(self, words: tuple[str, ...], settings: SearchSettings, matching: Matching) -> WordCounts:
        check_text(self.snapshot.path, settings.gather, self.gatherers)
        of_matching = settings.frequencies == "matching"
        return count_words(self.snapshot, words, matching.allowed if of_matching else self.snapshot.live)

    def costs(self) -> Costs:
        return costs_of(self.snapshot)

    def find(self, decision: Decision, settings: SearchSettings, watch: Stopwatch) -> Found:
        found, plan = find(self.snapshot, decision, watch), decision.plan
        if found.scores is None:
            return found
        return found._replace(hits=best_fused([(found.hits, found.scores)], plan.offset, plan.depth))

    def facets(self, settings: SearchSettings, matching: Matching) -> Mapping[str, Counts]:
        check_facets(settings.facets, known_facets(self.snapshot, settings.facets))
        return count_facets(self.snapshot, settings.facets, matching.allowed)


def places_of(snapshot: Snapshot) -> Mapping[str, float]:
    measured = snapshot.manifest.calibration
    return PLACES if measured is None else measured.places


def find(snapshot: Snapshot, decision: Decision, watch: Stopwatch) -> Found:
    """Gather, score and rank."""
    documents, gathered, plan = gather(snapshot, decision)
    watch.lap("gather")
    fused = plan.fuse is not None
    scores = score(snapshot, decision.query, documents, decision.ordered, None if fused else plan.depth, plan)
    documents = documents[: len(scores)]
    both = Scores.of(snapshot, plan.words, documents, scores) if fused and plan.words is not None else None
    watch.lap("score")
    if both is None:
        hits = rank(snapshot, documents, scores, plan.depth)[plan.offset :]
    else:
        hits = fetch(snapshot, documents, both, plan.depth)
    watch.lap("fetch")
    return Found(tuple(hits), gathered, len(documents), plan, scores=both)


def gather(snapshot: Snapshot, decision: Decision) -> tuple[NDArray[np.int64], int, SearchPlan]:
    """The documents to score, how many they were chosen from, and the plan as it was done."""
    plan, matching = decision.plan, decision.matching
    if matching.documents == 0:
        return np.empty(0, dtype=np.int64), 0, plan
    if "cells" in ways(plan.gather) and plan.nprobe > snapshot.cells:
        each = plan.nprobe_each and tuple(min(nprobe, snapshot.cells) for nprobe in plan.nprobe_each)
        plan = replace(plan, nprobe=snapshot.cells, nprobe_each=each)
    query, kept = decision.query, decision.kept
    documents, gathered = gatherer(snapshot, plan.gather).gather(query, kept, plan, matching.allowed)
    if plan.where is not None and plan.gather != "text" and gathered < min(plan.depth, matching.documents):
        # If fewer than are needed of the matching documents were gathered, score all of them. By text, the others have
        # no word of the query.
        plan = replace(plan, gather="exhaustive", patience=None, nprobe_each=None)
        documents, gathered = gatherer(snapshot, plan.gather).gather(query, kept, plan, matching.allowed)
    return documents, gathered, plan


def scored(snapshot: Snapshot, decision: Decision) -> NDArray[np.int64]:
    """The documents that a search scores."""
    documents, _, plan = gather(snapshot, decision)
    if plan.patience is None:
        return documents
    return documents[: len(score(snapshot, decision.query, documents, decision.ordered, plan.depth, plan))]


def score(
    snapshot: Snapshot,
    query: EncodedText,
    documents: NDArray[np.int64],
    ordered: Positions | None = None,
    k: int | None = None,
    plan: SearchPlan | None = None,
) -> NDArray[np.float64]:
    """Eq. 1 with all query embeddings, each with its weight.

    With k, only the k best need be right; `ordered` makes that faster. If the plan has patience, documents come in the
    order of their approximate scores, and only so many of them are scored as it takes until the best no longer change.
    """
    if len(documents) == 0 or not snapshot.embedded:  # without embeddings, no dimensions to compare either
        return np.full(len(documents), -np.inf)
    prepared = snapshot.store.prepare(query.weighted, ordered)
    at_once = max(_PAIRS_AT_ONCE // max(len(query), 1), 1)
    patience = None if plan is None else plan.patience
    following = at_once if patience is None else min(patience + patience // 2, at_once)
    scores = np.empty(len(documents))
    done, reached = 0, -np.inf
    while done < len(documents):
        stop_if_cancelled()
        part = documents[done : done + following]
        count_score_work(len(part), len(query))
        scores[done : done + len(part)] = snapshot.score(prepared, part, k, reached)
        done += len(part)
        if k is not None and done >= k:
            reached = _kth_best(scores[:done], k)
        if plan is not None and patience is not None:
            if _is_settled(scores[:done], plan.depth, patience):
                break
            following = min(max(patience // 2, 1), at_once)
    return scores[:done]


def _is_settled(scores: NDArray[np.float64], k: int, patience: int) -> bool:
    """Whether none of the last `patience` scores is among the k best."""
    if len(scores) < k + patience:
        return False
    return bool(scores[-patience:].max() < _kth_best(scores, k))


def _kth_best(scores: NDArray[np.float64], k: int) -> float:
    return float(np.partition(scores, len(scores) - k)[len(scores) - k])


def rank(snapshot: Snapshot, documents: NDArray[np.int64], scores: NDArray[np.float64], k: int) -> list[Hit]:
    """The k best. Equal scores are ordered by docno, so that a ranking is deterministic."""
    if len(scores) > k:
        # Keep every document that ties with the k-th: docnos decide among them.
        contending = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        documents, scores = documents[contending], scores[contending]
    contenders: list[tuple[float, str, StoredDocument]] = []
    for segment, places, local in snapshot.by_segment(documents):
        numbers, minus = local.tolist(), (-scores[places]).tolist()
        if len(numbers) > 2 * k:  # very many ties: read the docnos alone before any text
            ranked = sorted(zip(minus, segment.documents.docnos(numbers), numbers, strict=True))[:k]
            numbers, minus = [number for _, _, number in ranked], [score for score, _, _ in ranked]
        stored = segment.documents.get(numbers)
        contenders += [(score, found.docno, found) for score, found in zip(minus, stored, strict=True)]
    best = sorted(contenders, key=lambda contender: contender[:2])[:k]
    return [Hit(docno, -minus, found.text, found.metadata) for minus, docno, found in best]


def costs_of(snapshot: Snapshot) -> Costs:
    """Fitted when a budget is first given, by searching for embeddings of the index itself; a few dozen searches."""
    segments = [segment for _, segment in snapshot.embedded]
    listed = sum(len(segment.lists.documents) for segment in segments)
    embeddings = sum(segment.record.embeddings for segment in segments)
    documents = sum(len(segment) for segment in segments)
    shape = Shape(documents, snapshot.cells, listed / max(snapshot.cells, 1), embeddings / max(documents, 1))
    if not segments:
        return Costs(shape, (0.0,) * 5)

    def fitted() -> Costs:
        # The machine is the same after a commit, but costs that were fitted on few documents say little about many.
        name = f"costs, {documents.bit_length() // 2}"
        return snapshot.keep_for_good(name, lambda: _fit_costs(snapshot, shape))

    # Through `keep`, so that searches at the same time do not fit, and time each other.
    return snapshot.keep("costs", fitted)._replace(shape=shape)


def _fit_costs(snapshot: Snapshot, shape: Shape) -> Costs:
    segment = snapshot.embedded[0][1]
    numbers = np.linspace(0, segment.record.embeddings - 1, _TIMED_QUERIES * LONG).astype(np.int64)
    segment.check_rows(numbers, numbers + 1)
    kinds = np.full(LONG, TokenKind.WORD, dtype=np.uint8)
    kinds[0] = TokenKind.SUMMARY  # where documents have summaries, each that is found costs a comparison

    def query(number: int, length: int) -> EncodedText:
        rows = numbers[number::_TIMED_QUERIES][:length]
        return EncodedText(
            snapshot.store.decode(segment.rows[rows]), np.asarray(segment.token_ids[rows]), kinds[: len(rows)]
        )

    searched, settings = OneIndex(snapshot), SearchSettings(gather="cells")
    queries = {length: cycle([query(number, length) for number in range(_TIMED_QUERIES)]) for length in (SHORT, LONG)}

    def milliseconds(kept: int, nprobe: int, candidates: int, length: int) -> float:
        watch = Stopwatch()
        decision = decide(searched, next(queries[length]), settings)
        watch.lap("decide")
        # Without patience, as with a budget: otherwise fewer documents would be scored than are counted.
        plan = replace(decision.plan, p=kept, nprobe=nprobe, nprobe_each=None, candidates=candidates, patience=None)
        find(snapshot, decision._replace(plan=plan, kept=decision.ordered[:kept]), watch)
        return sum(watch.laps.values())

    for length in (SHORT, LONG):  # what is timed later is in memory then: an index that was just opened may not be
        for _ in range(_TIMED_QUERIES):
            milliseconds(8, 128, 2048, length)
    fitted = fit(shape, milliseconds)
    asked = query(0, LONG)
    plan = replace(decide(searched, asked, settings).plan, budget_ms=1.0)
    watch = Stopwatch()
    spend(plan, np.ones(len(asked)), len(asked), fitted)
    watch.lap("spend")
    return fitted.plus(watch.laps["spend"])


class Stopwatch:
    def __init__(self) -> None:
        self._last = perf_counter()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        now = perf_counter()
        self.laps[stage] = (now - self._last) * 1000
        self._last = now
