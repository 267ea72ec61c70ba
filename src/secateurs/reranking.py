"""Re-ranking: exact MaxSim of texts that are in no index, such as those that another system found."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .cancellation import stop_if_cancelled
from .encoders import DEFAULT_MODEL, Encoder, load_encoder
from .errors import UsageError
from .kernels.maxsim import maxsim
from .progress import progress_bar
from .records import EncodedText, check_query_text, is_blank
from .relevance import Curve, relevances


class RerankedText(NamedTuple):
    number: int  # of the text, among those that were given
    score: float  # Eq. 1 with all query embeddings; minus infinity if the text is blank
    relevance: float  # between 0 and 1, as that of a hit


# A model that is given by its name is kept for the next call: loading it takes longer than re-ranking a few texts.
_load = functools.lru_cache(maxsize=1)(load_encoder)


def rerank(
    query: str | EncodedText,
    texts: Sequence[str],
    encoder: Encoder | str = DEFAULT_MODEL,
    *,
    progress: bool | None = False,
) -> list[RerankedText]:
    """All texts, best first; equal scores in the order in which they were given.

    `encoder` is an Encoder, such as `index.encoder`, or a model's name or folder. An EncodedText must come from the
    same encoder. Nothing is rounded or merged, so that the scores of texts that an index has too differ a little from
    those of the index. The texts are encoded on all cores; `progress` is as that of `Index.build`.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise UsageError("rerank takes several texts, such as a list of them")
    if not isinstance(query, str | EncodedText):
        raise UsageError(f"a query is a text or an EncodedText, not {type(query).__name__}")
    if isinstance(query, str):
        check_query_text(query)
    encoder = _load(encoder) if isinstance(encoder, str) else encoder
    query = encoder.encode_query(query) if isinstance(query, str) else query
    scores = np.full(len(texts), -np.inf)  # (texts,)
    # An encoder gives the blank text embeddings of its special tokens, which would match the query somehow.
    numbers = [number for number, text in enumerate(texts) if not is_blank(text)]
    start, weighted = np.zeros(1, dtype=np.int64), query.weighted
    encoded_texts = encoder.encode_documents(texts[number] for number in numbers)
    with progress_bar("re-ranking", len(numbers), "texts", progress) as advance:
        for number, encoded in zip(numbers, encoded_texts, strict=True):  # one at a time: embeddings take much memory
            stop_if_cancelled()
            if encoded.embeddings.shape[1] != weighted.shape[1]:
                dimensions = f"{weighted.shape[1]} dimensions, those of the encoder {encoded.embeddings.shape[1]}"
                raise UsageError(f"the query's embeddings have {dimensions}")
            scores[number] = maxsim(weighted, encoded.embeddings, start, np.array([len(encoded)]))[0]
            advance(1)
    by_number = relevances(query, scores.tolist(), Curve.of(encoder.spec))
    return [
        RerankedText(number, float(scores[number]), by_number[number])
        for number in np.argsort(-scores, kind="stable").tolist()
    ]
