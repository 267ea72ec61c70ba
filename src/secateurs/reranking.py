"""Re-ranking: exact MaxSim of texts that are in no index, such as those that another system found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .cancellation import stop_if_cancelled
from .encoders import Encoder
from .errors import UsageError
from .kernels.maxsim import maxsim
from .records import EncodedText, check_query_text, is_blank
from .relevance import Curve, relevances


class RerankedText(NamedTuple):
    number: int  # of the text, among those that were given
    score: float  # Eq. 1 with all query embeddings; minus infinity if the text is blank
    relevance: float  # between 0 and 1, as that of a hit


def rerank(encoder: Encoder, query: str | EncodedText, texts: Sequence[str]) -> list[RerankedText]:
    """All texts, best first; equal scores in the order in which they were given.

    Nothing is rounded or merged, so that the scores of texts that an index has too differ a little from those of the
    index.
    """
    if isinstance(query, str):
        check_query_text(query)
        query = encoder.encode_query(query)
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise UsageError("rerank takes several texts, such as a list of them")
    scores = np.full(len(texts), -np.inf)  # (texts,)
    # An encoder gives the blank text embeddings of its special tokens, which would match the query somehow.
    numbers = [number for number, text in enumerate(texts) if not is_blank(text)]
    start, weighted = np.zeros(1, dtype=np.int64), query.weighted
    encoded_texts = encoder.encode_documents(texts[number] for number in numbers)
    for number, encoded in zip(numbers, encoded_texts, strict=True):  # one at a time: embeddings take much memory
        stop_if_cancelled()
        scores[number] = maxsim(weighted, encoded.embeddings, start, np.array([len(encoded)]))[0]
    by_number = relevances(query, scores.tolist(), Curve.of(encoder.spec))
    return [
        RerankedText(number, float(scores[number]), by_number[number])
        for number in np.argsort(-scores, kind="stable").tolist()
    ]
