"""Relevance: a number between 0 and 1 beside the exact score, which can be compared between queries.

A score is a sum over the query's embeddings, so that it grows with their number and their weights. Its most is reached
where every query embedding finds itself in the document:

    s = score / sum_i w_i |q_i|

For embeddings of length 1 without weights, s is the mean of the best similarities. Similarities of unrelated texts are
high, and how high is a property of the encoder. The curve of an encoder that was calibrated takes care of that:

    relevance = 1 / (1 + exp(-steepness (s - middle)))

Of an encoder without a curve, relevance is s, cut off at 0 and 1. docs/relevance.md has what was measured.

Relevance is a function of the query and of the score alone. Other documents, filters and shards do not change it, and
it costs no work beyond the sum above.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from .records import EncodedText


class Curve(NamedTuple):
    """The logistic curve of an encoder."""

    middle: float  # the s that has the relevance 0.5
    steepness: float

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Curve | None:
        """That of the encoder with this spec, under "relevance"; None if it was not calibrated."""
        constants = spec.get("relevance")
        return None if constants is None else cls(*constants)


def relevances(query: EncodedText, scores: Sequence[float], curve: Curve | None) -> list[float]:
    """The relevance of each score; the query has the weights that were used in the scores."""
    lengths = np.linalg.norm(query.embeddings.astype(np.float64), axis=1)  # (positions,)
    most = float(query.all_weights @ lengths)
    # A document without embeddings has the score minus infinity. If nothing counts in the score, nothing is relevant.
    shares = np.array(scores) / most if most > 0 else np.full(len(scores), -np.inf)  # (scores,)
    if curve is not None:
        # Within these bounds the curve is 0 or 1 to all digits that are ever shown, and exp does not overflow.
        shares = 1 / (1 + np.exp(-np.clip(curve.steepness * (shares - curve.middle), -500, 500)))
    clipped: list[float] = np.clip(shares, 0.0, 1.0).tolist()
    return clipped
