"""A search answer in the form of ColBERTv2's server, which `dspy.ColBERTv2` and other clients read."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, Field

from .answers import SearchAnswer


class Passage(BaseModel):
    """A hit. Beside the fields of ColBERTv2's server it has `relevance` and `metadata`."""

    text: str
    pid: str = Field(description="The docno")
    rank: int = Field(description="1 is the best")
    score: float
    prob: float = Field(description="exp(score) divided by its sum over these passages")
    relevance: float = Field(description="From 0 to 1, to compare between queries")
    metadata: dict[str, Any]


class ColBERTv2Answer(BaseModel):
    query: str
    topk: list[Passage] = Field(description="Best first")

    @classmethod
    def of(cls, query: str, found: SearchAnswer) -> ColBERTv2Answer:
        # exp of a score overflows above 709, so that the largest is subtracted: the quotients are the same. A document
        # without embeddings has the score minus infinity.
        best = max((hit.score for hit in found.hits if math.isfinite(hit.score)), default=0.0)
        exponentials = [math.exp(hit.score - best) for hit in found.hits]
        total = sum(exponentials) or 1.0
        passages = [
            Passage(
                text=hit.text,
                pid=hit.docno,
                rank=hit.rank,
                score=hit.score,
                prob=exponential / total,
                relevance=hit.relevance,
                metadata=hit.metadata,
            )
            for hit, exponential in zip(found.hits, exponentials, strict=True)
        ]
        return cls(query=query, topk=passages)
