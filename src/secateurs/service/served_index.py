"""An index as it is served: the library's verbs, with a cache of the encodings of recent queries."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from cachetools import LRUCache

from ..cancellation import stop_if_cancelled
from ..contract import AnyIndex
from ..errors import DuplicateDocumentError, SecateursError, UsageError
from ..hit_fields import chosen_fields
from ..importance import word_rarity
from ..rankings import Hit, Ranking
from ..records import Document, EncodedText, TokenKind
from ..refresh import ThrottledRefresh
from ..search import Decision, decide
from ..settings import SearchSettings, ways
from .answers import (
    ChangesAnswer,
    CurveAnswer,
    CurvePoint,
    DocumentAnswer,
    ExplainAnswer,
    FacetValue,
    FieldAnswer,
    FieldsAnswer,
    Highlight,
    HitAnswer,
    InfoAnswer,
    QueryToken,
    SearchAnswer,
    SearchesAnswer,
    TokenMatch,
)
from .highlights import highlights, similarity_map
from .limits import Limits
from .metrics import Metrics
from .problems import Problem
from .request_work import Allowance, Work
from .written_documents import check_documents, conflict

_CACHE_BYTES = 16 << 20  # about 1,300 queries of 32 embeddings
_MOST_POINTS = 32
_RUNS = 2  # of each point of a curve: the quicker one is less disturbed by other work on the machine

_LOG = logging.getLogger("secateurs.service")


class _EncodedQuery(NamedTuple):
    query: EncodedText
    milliseconds: float  # of encoding
    loading_milliseconds: float  # of the model, before that


def query_cache(most_bytes: int) -> LRUCache[str, EncodedText]:
    """Encodings by text, limited by bytes: a query may have many embeddings. The least recently used is dropped."""
    return LRUCache(most_bytes, getsizeof=lambda encoded: encoded.embeddings.nbytes)


class ServedIndex:
    """Searches take `allowed`: how much work they may be."""

    def __init__(self, name: str, index: AnyIndex, metrics: Metrics) -> None:
        self.name, self.index = name, index
        self._metrics = metrics
        self._cache: LRUCache[str, EncodedText] = query_cache(_CACHE_BYTES)
        self._cache_lock = Lock()
        self._writing = Lock()
        self._newest = ThrottledRefresh(name, index.refresh, _LOG)
        metrics.documents.labels(name).set_function(lambda: len(index))

    @property
    def stale(self) -> bool:
        """Whether another process has written what cannot be read: an earlier state is served."""
        return self._newest.problem is not None

    def search(
        self,
        query: str | EncodedText,
        settings: Mapping[str, Any],
        details: bool,
        allowed: Allowance,
        fields: Collection[str] | None = None,
    ) -> SearchAnswer:
        encoded = self._encode(query, settings, allowed)
        allowed.check(self._estimate(encoded.query, settings), settings)
        with allowed.limited_scoring():
            return self._answer(encoded, settings, details, fields)

    def search_many(
        self,
        queries: Sequence[str],
        settings: Mapping[str, Any],
        details: bool,
        allowed: Allowance,
        fields: Collection[str] | None = None,
    ) -> SearchesAnswer:
        """One after the other, because other requests wait for threads too. The work of all is limited together."""
        allowed.check_texts(queries, "queries")
        encoded = []
        for number, query in enumerate(queries):
            stop_if_cancelled()
            encoded.append(self._encode(query, settings, allowed, f"queries.{number}"))
        work = [self._estimate(query.query, settings) for query in encoded]
        allowed.check(Work.of_all(work), settings, "queries")
        with allowed.limited_scoring():
            first = self._answer(encoded[0], settings, details, fields)
            rankings = [first]
            without_facets = {**settings, "facets": ()}  # they are the same for every query
            for other in encoded[1:]:
                answer = self._answer(other, without_facets, details, fields)
                rankings.append(answer.model_copy(update={"facets": first.facets}))
        return SearchesAnswer(rankings=rankings)

    def _answer(
        self, encoded: _EncodedQuery, settings: Mapping[str, Any], details: bool, fields: Collection[str] | None
    ) -> SearchAnswer:
        stop_if_cancelled()
        ranking = self._search(encoded, settings)
        self._metrics.search(self.name, ranking.stats)
        decision = self.index.decide(encoded.query, **settings) if details else None
        return SearchAnswer(
            hits=[
                HitAnswer(
                    rank=rank,
                    highlights=self._highlights(decision, hit) if decision else None,
                    **chosen_fields(hit, fields),
                )
                for rank, hit in enumerate(ranking, start=ranking.plan.offset + 1)
            ],
            kept=list(ranking.kept),
            plan=asdict(ranking.plan),
            stats=ranking.stats,
            search_milliseconds=ranking.stats.search_milliseconds,
            facets={
                key: [FacetValue(value=value, documents=documents) for value, documents in values]
                for key, values in ranking.facets.items()
            },
            tokens=self._tokens(decision, ranking) if decision else None,
        )

    def explain(
        self, query: str, docno: str, settings: Mapping[str, Any], with_map: bool, allowed: Allowance
    ) -> ExplainAnswer:
        encoded = self._encode(query, settings, allowed).query
        # Each kept embedding gathers alone, then all of them together.
        allowed.check(self._estimate(encoded, settings).times(gather=2, score=1), settings)
        with self._finding(docno), allowed.limited_scoring():
            explanation = self.index.explain(encoded, docno, **settings)
            similarities = similarity_map(self.index, encoded, docno) if with_map else None
        return ExplainAnswer(
            docno=docno,
            score=explanation.score if np.isfinite(explanation.score) else None,
            relevance=explanation.relevance,
            gathered=explanation.gathered,
            text_score=explanation.text_score,
            rank=explanation.rank,
            documents_scored=explanation.documents_scored,
            tokens=[
                TokenMatch(**asdict(token) | {"similarity": token.similarity if token.match_positions else None})
                for token in explanation.tokens
            ],
            map=similarities,
        )

    def curve(self, query: str, settings: Mapping[str, Any], allowed: Allowance) -> CurveAnswer:
        """The query with every p beside the unpruned ranking; with fewer values of p, if a query has very many
        embeddings or every p would be more work than the limits allow."""
        with allowed.limited_scoring():
            return self._curve(query, settings, allowed)

    def _curve(self, query: str, settings: Mapping[str, Any], allowed: Allowance) -> CurveAnswer:
        encoded, unpruned = self._encode(query, settings, allowed), {**settings, "p": None}
        count, limits = len(encoded.query), allowed.limits
        most = _MOST_POINTS if limits is None else self._points_within(limits, encoded.query, unpruned)
        full = self._search(encoded, unpruned)
        wanted = {hit.docno for hit in full}
        points = []
        for p in np.unique(np.linspace(1, count, min(count, most)).round().astype(int)).tolist():
            stop_if_cancelled()
            runs = [full]
            if full.plan.gather not in (
                "exhaustive",
                "text",
            ):  # there p changes nothing, and searching again would only take time
                runs = [self._search(encoded, {**settings, "p": p}) for _ in range(_RUNS)]
            pruned = runs[0]
            stats = pruned.stats
            points.append(
                CurvePoint(
                    p=p,
                    documents_gathered=stats.documents_gathered,
                    documents_scored=stats.documents_scored,
                    overlap=len(wanted & {hit.docno for hit in pruned}) / max(len(wanted), 1),
                    milliseconds=min(run.stats.search_milliseconds for run in runs),
                )
            )
        return CurveAnswer(
            k=full.plan.k, gather=full.plan.gather, documents_in_index=full.stats.documents_in_index, points=points
        )

    def get(self, docno: str) -> DocumentAnswer:
        self._refresh()
        with self._finding(docno):
            document = self.index.get(docno)
        return DocumentAnswer(docno=docno, text=document.text, metadata=dict(document.metadata))

    def add(self, documents: Sequence[Document]) -> ChangesAnswer:
        return self._write(documents, replacing=False)

    def update(self, documents: Sequence[Document]) -> ChangesAnswer:
        return self._write(documents, replacing=True)

    def delete(self, docno: str) -> ChangesAnswer:
        with self._writing:
            changes = self.index.delete([docno])
        if changes.missing:
            raise self._missing(docno)
        return ChangesAnswer(**asdict(changes))

    def delete_where(self, where: str) -> ChangesAnswer:
        with self._writing:
            return ChangesAnswer(**asdict(self.index.delete(where=where)))

    def update_metadata(self, changes: Mapping[str, Mapping[str, Any]]) -> ChangesAnswer:
        with self._writing:
            return ChangesAnswer(**asdict(self.index.update_metadata(changes)))

    def fields(self) -> FieldsAnswer:
        self._refresh()
        found = self.index.fields()
        return FieldsAnswer(fields={key: FieldAnswer(**asdict(field)) for key, field in found.items()})

    def info(self) -> InfoAnswer:
        self._refresh()
        facts = self.index.info()
        del facts["path"]  # clients do not learn where it is on the server
        if "model" in facts["encoder"]:
            facts["encoder"]["model"] = Path(facts["encoder"]["model"]).name
        if "shards" in facts:  # nor the names of machines
            facts["shards_missing"] = sum(shard["missing"] for shard in facts["shards"])
            facts["shards"] = len(facts["shards"])
        return InfoAnswer(name=self.name, **facts)

    def _search(self, encoded: _EncodedQuery, settings: Mapping[str, Any]) -> Ranking:
        """A search, with the times of encoding and loading counted where the library counts them."""
        ranking = self.index.search(encoded.query, **settings)
        stats = ranking.stats
        timed = replace(
            stats,
            milliseconds={**stats.milliseconds, "encode": stats.milliseconds["encode"] + encoded.milliseconds},
            loading_milliseconds=stats.loading_milliseconds + encoded.loading_milliseconds,
        )
        return replace(ranking, stats=timed)

    def _estimate(self, query: EncodedText, settings: Mapping[str, Any]) -> Work:
        """The work of a search. It decides again what is done, but the index remembers the result of the filter."""
        searched = self.index.searched()
        decision = decide(searched, query, SearchSettings.of(settings))
        return Work.of(decision, len(query), len(searched), searched.shards)

    def _points_within(self, limits: Limits, query: EncodedText, unpruned: Mapping[str, Any]) -> int:
        """How many points of a curve the limits allow: two at least, or it is refused."""
        work = self._estimate(query, unpruned)
        if work.gather == 0:  # exhaustive or text, so that there is one search
            work.check(limits, unpruned)
            return _MOST_POINTS
        # Beside the unpruned search each point is searched _RUNS times, with half of the embeddings on average.
        work.times(gather=1 + _RUNS, score=1 + 2 * _RUNS).check(limits, unpruned)
        by_gathering = (limits.gather_work / work.gather - 1) * 2 / _RUNS
        by_scoring = (limits.score_work / max(work.score, 1) - 1) / _RUNS
        return max(2, min(_MOST_POINTS, int(by_gathering), int(by_scoring)))

    def _check(self, query: str | EncodedText, settings: Mapping[str, Any], place: str) -> None:
        """Refuse what the library would refuse with the name of a folder in its message."""
        self._refresh()
        gather = settings.get("gather", SearchSettings.gather)
        if gather != "auto" and not ways(gather) <= set(self.index.gatherers):
            raise Problem.of_field("gather", f"{self.name} is prepared for {', '.join(self.index.gatherers)} only")
        fuse = settings.get("fuse")
        if fuse is not None and "text" not in self.index.gatherers:
            raise Problem.of_field("fuse", f"{self.name} is not prepared for text")
        if ("text" in ways(gather) or fuse is not None) and not isinstance(query, str):
            field = "gather" if "text" in ways(gather) else "fuse"
            raise Problem.of_field(field, "needs the text of the query: send query instead of embeddings")
        if isinstance(query, str) and not self.index.has_encoder:
            raise Problem.of_field(place, f"{self.name} was built without an encoder: search with embeddings")

    def _write(self, documents: Sequence[Document], replacing: bool) -> ChangesAnswer:
        check_documents(self.index, documents)
        write = self.index.update if replacing else self.index.add
        with self._writing:
            try:
                return ChangesAnswer(**asdict(write(documents, progress=False)))
            except DuplicateDocumentError as error:
                raise conflict(self.index, documents, replacing) from error

    def _encode(
        self, query: str | EncodedText, settings: Mapping[str, Any], allowed: Allowance, place: str = "query"
    ) -> _EncodedQuery:
        """The encoded query, after a check of what the library would refuse too. `place` names it in a problem."""
        self._check(query, settings, place)
        allowed.check_query(query, settings.get("where"), settings.get("facets", ()))
        loading = self.index.load(query)
        started = time.perf_counter()
        encoded = self._recent(query) if isinstance(query, str) else None
        if encoded is None:
            try:
                encoded = self.index.encode_query(query)
            except UsageError as error:
                raise Problem.of_field(place if isinstance(query, str) else "embeddings", str(error)) from error
            if isinstance(query, str):
                with self._cache_lock, suppress(ValueError):  # larger than the whole cache
                    self._cache[query] = encoded
        return _EncodedQuery(encoded, (time.perf_counter() - started) * 1000, loading)

    def _recent(self, query: str) -> EncodedText | None:
        with self._cache_lock:
            encoded = self._cache.get(query)
        self._metrics.cached.labels("no" if encoded is None else "yes").inc()
        return encoded

    def _highlights(self, decision: Decision, hit: Hit) -> list[Highlight] | None:
        stop_if_cancelled()
        return highlights(self.index, decision.query, decision.matching.frequencies, hit.docno, hit.text)

    def _tokens(self, decision: Decision, ranking: Ranking) -> list[QueryToken]:
        query, frequencies = ranking.query, decision.matching.frequencies
        counts = frequencies.collection_frequency(query.token_ids)
        rarity = word_rarity(query, frequencies)
        weights = query.all_weights
        kept = set(ranking.kept)
        return [
            QueryToken(
                position=position,
                token=self.index.token_text(int(query.token_ids[position])),
                kind=TokenKind(query.token_kinds[position]).name.lower(),
                collection_frequency=int(counts[position]),
                importance=importance,
                kept=position in kept,
                rarity=float(rarity[position]),
                weight=float(weights[position]),
            )
            for importance, position in enumerate(decision.ordered.tolist(), start=1)
        ]

    def _missing(self, docno: str) -> Problem:
        return Problem.of_field("docno", f"there is no document {docno!r} in {self.name}", status=404)

    @contextmanager
    def _finding(self, docno: str) -> Iterator[None]:
        """A document that is not there is 404, also if it is deleted at this moment."""
        try:
            yield
        except SecateursError as error:
            if docno in self.index:
                raise
            raise self._missing(docno) from error

    def _refresh(self) -> None:
        """See what other processes have written, not more often than each second.

        Not while this process writes: a slow look at an older state must not replace the state just written.
        """
        if self._newest.is_due and self._writing.acquire(blocking=False):
            try:
                self._newest.run()
            finally:
                self._writing.release()
