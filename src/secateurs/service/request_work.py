"""How much work a request is, estimated before it is done, and counted when it is about to score.

It decides two things: whether a request without a key is refused, and on which threads it runs. Large requests have
separate threads and a separate queue, so that a small request does not wait for many large ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..cancellation import ScoreWorkError, score_work_up_to
from ..records import EncodedText
from ..search import Decision
from ..settings import SearchPlan
from .limits import Limits
from .problems import Problem

# What a small request is at most. A prune curve is large; so is a search with a larger body, without a look into it.
_SMALL_QUERY = 256  # characters
_SMALL_FILTER = 256  # characters
_SMALL_TEXTS = 1_024  # characters of all texts, or queries, of a request
_SHORTEST_TEXT = 64  # characters: a shorter text counts as much, because each has special tokens and a call
_SMALL_EMBEDDINGS = 64  # of a query sent as embeddings
_SMALL_HITS = 100
_SMALL_GATHER = 50_000
_SMALL_SCORE = 500_000
SMALL_BODY = 2_048  # bytes


class LargeRequestError(Exception):
    """The request belongs on the threads for large requests."""


class TooMuchWork(Problem):
    """More work than a client without a key may ask for. Clients that cannot have a key are told `reason` only."""

    def __init__(self, setting: str, counted: str, limit: str, work: int, most: int) -> None:
        """`setting` is what the client can change, `limit` a field of Limits."""
        self.setting, self.limit = setting, limit
        self.reason = f"{counted} = {work:,}, the limit {limit} is {most:,}"
        message = f"too much work without a key: {self.reason}. A key lifts it"
        super().__init__(422, f"{setting}: {message}", [(setting, message)])


class Work(NamedTuple):
    """An estimate of what a request costs, from what is decided before a search looks at the first document."""

    plan: SearchPlan
    hits: int  # that are found, also those that an offset leaves out
    gather: int  # query embeddings that gather x cells, or partitions of faiss, that each looks into
    score: int  # documents that are scored x query embeddings

    @classmethod
    def of(cls, decision: Decision, query_embeddings: int, documents: int, shards: int = 1) -> Work:
        """`documents` is the number of documents in the index, in all of its shards."""
        plan, kept, matching = decision.plan, len(decision.kept), decision.matching.documents
        if matching == 0:
            return cls(plan, 0, 0, 0)
        if plan.gather == "exhaustive":
            return cls(plan, plan.depth, 0, matching * query_embeddings)
        if plan.gather == "text":  # no embedding gathers
            return cls(plan, plan.depth, 0, min(plan.candidates * shards, matching) * query_embeddings)
        cells = (sum(plan.nprobe_each) if plan.nprobe_each else kept * plan.nprobe) * shards
        by_effort = {"cells": plan.candidates, "cells+text": 2 * plan.candidates}
        scored = by_effort.get(plan.gather, kept * plan.k_prime)
        # Under a filter, a search that gathers fewer than k documents scores every matching document. This is expected
        # if the cells that are looked into, with a document each, hold fewer than k matching documents.
        if plan.where is not None and cells * matching < plan.depth * documents:
            scored = matching
        return cls(plan, plan.depth, cells, min(scored * shards, matching) * query_embeddings)

    @classmethod
    def of_all(cls, parts: Sequence[Work]) -> Work:
        """Of a request with several queries."""
        return cls(parts[0].plan, *(sum(counts) for counts in zip(*(part[1:] for part in parts), strict=True)))

    def times(self, gather: int, score: int) -> Work:
        """Of a request that gathers and scores several times."""
        return self._replace(gather=self.gather * gather, score=self.score * score)

    def check(self, limits: Limits, settings: Mapping[str, Any], field: str | None = None) -> None:
        """Raise a problem that names the limit, and the setting, or the field, that the client can change."""
        if self.gather > limits.gather_work:
            name = "nprobe" if settings.get("nprobe") else "query" if settings.get("p", "auto") == "auto" else "p"
            name = "effort" if name == "query" and settings.get("effort") == "thorough" else name
            name = "budget_ms" if settings.get("budget_ms") else name
            counted = f"query embeddings that gather x {self.plan.nprobe:,} cells that each looks into"
            raise TooMuchWork(field or name, counted, "gather_work", self.gather, limits.gather_work)
        if self.score > limits.score_work:
            name = "k"
            if settings.get("effort") == "exact":
                name = "effort"
            elif settings.get("gather") == "exhaustive":
                name = "gather"
            elif self.plan.gather == "faiss":
                name = "k_prime"
            elif settings.get("candidates"):
                name = "candidates"
            elif settings.get("effort") == "thorough":
                name = "effort"
            elif settings.get("budget_ms"):
                name = "budget_ms"
            raise _too_much_to_score(field or name, self.score, limits)


class Allowance(NamedTuple):
    """How much work a request may be."""

    limits: Limits | None  # None: the client has a key
    only_small: bool  # whether it is on the threads for small requests

    def check_query(self, query: str | EncodedText, where: str | None, facets: Sequence[str] = ()) -> None:
        """Before the query is encoded and the filter is evaluated, which takes long for long ones."""
        most = _SMALL_QUERY if isinstance(query, str) else _SMALL_EMBEDDINGS
        if self.only_small and (len(query) > most or len(where or "") > _SMALL_FILTER or facets):
            raise LargeRequestError

    def check(self, work: Work, settings: Mapping[str, Any], field: str | None = None) -> None:
        if self.limits is not None:
            work.check(self.limits, settings, field)
        if self.only_small and (work.hits > _SMALL_HITS or work.gather > _SMALL_GATHER or work.score > _SMALL_SCORE):
            raise LargeRequestError

    def check_texts(self, texts: Iterable[str], field: str) -> None:
        """Before they are encoded."""
        work = sum(max(len(text), _SHORTEST_TEXT) for text in texts)
        if self.limits is not None and work > self.limits.encode_work:
            counted = f"characters to encode, at least {_SHORTEST_TEXT} for each text,"
            raise TooMuchWork(field, counted, "encode_work", work, self.limits.encode_work)
        if self.only_small and work > _SMALL_TEXTS:
            raise LargeRequestError

    @contextmanager
    def limited_scoring(self) -> Iterator[None]:
        """Inside this context a search stops before it scores more than is allowed.

        Only a search under a filter scores more than its estimate: every matching document, if fewer than k of them
        were gathered.
        """
        limits = [_SMALL_SCORE] if self.only_small else []
        limits += [self.limits.score_work] if self.limits is not None else []
        if not limits:
            yield
            return
        try:
            with score_work_up_to(min(limits)):
                yield
        except ScoreWorkError as error:
            if self.limits is not None and error.work > self.limits.score_work:
                raise _too_much_to_score("where", error.work, self.limits) from error
            raise LargeRequestError from error


def _too_much_to_score(setting: str, work: int, limits: Limits) -> TooMuchWork:
    return TooMuchWork(setting, "documents to score x query embeddings", "score_work", work, limits.score_work)
