"""How much work a request is, estimated before it is done, and counted when it is about to score.

It decides two things: whether a request without a key is refused, and on which threads it runs. Large requests have
separate threads and a separate queue, so that a small request does not wait for many large ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..cancellation import ScoreWorkError, score_work_up_to
from ..records import EncodedText, SearchPlan
from ..search import Decision
from .limits import Limits
from .problems import Problem

# What a small request is at most. A prune curve is large; so is a search with a larger body, without a look into it.
_SMALL_QUERY = 256  # characters
_SMALL_FILTER = 256  # characters
_SMALL_EMBEDDINGS = 64  # of a query sent as embeddings
_SMALL_HITS = 100
_SMALL_GATHER = 50_000
_SMALL_SCORE = 500_000
SMALL_BODY = 2_048  # bytes


class LargeRequestError(Exception):
    """The request belongs on the threads for large requests."""


class Work(NamedTuple):
    """An estimate of what a request costs, from what is decided before a search looks at the first document."""

    plan: SearchPlan
    gather: int  # query embeddings that gather x cells, or partitions of faiss, that each looks into
    score: int  # documents that are scored x query embeddings

    @classmethod
    def of(cls, decision: Decision, query_embeddings: int, documents: int, shards: int = 1) -> Work:
        """`documents` is the number of documents in the index, in all of its shards."""
        plan, kept, matching = decision.plan, len(decision.kept), decision.matching.documents
        if matching == 0:
            return cls(plan, 0, 0)
        if plan.gather == "exhaustive":
            return cls(plan, 0, matching * query_embeddings)
        if plan.gather == "text":  # no embedding gathers
            return cls(plan, 0, min(plan.candidates * shards, matching) * query_embeddings)
        cells = (sum(plan.nprobe_each) if plan.nprobe_each else kept * plan.nprobe) * shards
        by_effort = {"cells": plan.candidates, "cells+text": 2 * plan.candidates}
        scored = by_effort.get(plan.gather, kept * plan.k_prime)
        # Under a filter, a search that gathers fewer than k documents scores every matching document. This is expected
        # if the cells that are looked into, with a document each, hold fewer than k matching documents.
        if plan.where is not None and cells * matching < plan.k * documents:
            scored = matching
        return cls(plan, cells, min(scored * shards, matching) * query_embeddings)

    def times(self, gather: int, score: int) -> Work:
        """Of a request that gathers and scores several times."""
        return self._replace(gather=self.gather * gather, score=self.score * score)

    def check(self, limits: Limits, settings: Mapping[str, Any]) -> None:
        """Raise a problem that names the limit, and the setting that the client can change."""
        if self.gather > limits.gather_work:
            name = "nprobe" if settings.get("nprobe") else "query" if settings.get("p", "auto") == "auto" else "p"
            name = "effort" if name == "query" and settings.get("effort") == "thorough" else name
            name = "budget_ms" if settings.get("budget_ms") else name
            counted = f"query embeddings that gather x {self.plan.nprobe:,} cells that each looks into"
            raise _too_much(name, counted, "gather_work", self.gather, limits.gather_work)
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
            raise _too_much_to_score(name, self.score, limits)


class Allowance(NamedTuple):
    """How much work a request may be."""

    limits: Limits | None  # None: the client has a key
    only_small: bool  # whether it is on the threads for small requests

    def check_query(self, query: str | EncodedText, where: str | None) -> None:
        """Before the query is encoded and the filter is evaluated, which takes long for long ones."""
        most = _SMALL_QUERY if isinstance(query, str) else _SMALL_EMBEDDINGS
        if self.only_small and (len(query) > most or len(where or "") > _SMALL_FILTER):
            raise LargeRequestError

    def check(self, work: Work, settings: Mapping[str, Any]) -> None:
        if self.limits is not None:
            work.check(self.limits, settings)
        if self.only_small and (work.plan.k > _SMALL_HITS or work.gather > _SMALL_GATHER or work.score > _SMALL_SCORE):
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


def _too_much_to_score(setting: str, work: int, limits: Limits) -> Problem:
    return _too_much(setting, "documents to score x query embeddings", "score_work", work, limits.score_work)


def _too_much(setting: str, counted: str, limit: str, work: int, most: int) -> Problem:
    message = f"too much work without a key: {counted} = {work:,}, the limit {limit} is {most:,}. A key lifts it"
    return Problem.of_field(setting, message)
