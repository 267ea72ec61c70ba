"""How much work a request is, estimated before it is done, and the answer if that is more than the limits allow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..records import SearchPlan
from ..search import Decision
from .limits import Limits
from .problems import Problem


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
        cells = kept * plan.nprobe * shards
        scored = plan.candidates if plan.gather == "cells" else kept * plan.k_prime
        # Under a filter, a search that gathers fewer than k documents scores every matching one. That is to be expected
        # if the share of the filter, at one document for each cell, is less than k.
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
            counted = "documents to score x query embeddings"
            raise _too_much(name, counted, "score_work", self.score, limits.score_work)


def _too_much(setting: str, counted: str, limit: str, work: int, most: int) -> Problem:
    message = f"too much work without a key: {counted} = {work:,}, the limit {limit} is {most:,}. A key lifts it"
    return Problem.of_field(setting, message)
