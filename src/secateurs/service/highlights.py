"""Which words of a document matched, and how much each adds to its score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..contract import AnyIndex
from ..errors import SecateursError
from ..frequencies import Frequencies
from ..importance import match_rarity
from ..records import EncodedText
from .answers import DocumentToken, Highlight, SimilarityMap

Span = tuple[int, int] | None


@runtime_checkable
class _KnowsSpans(Protocol):
    """An encoder that can say where in a text its embeddings come from. Without it there is no highlighting."""

    def document_spans(self, text: str) -> tuple[NDArray[np.int32], Sequence[Span]]: ...


def highlights(
    index: AnyIndex, query: EncodedText, frequencies: Frequencies, docno: str, text: str
) -> list[Highlight] | None:
    """The matched pieces in the order of the text, or None where the encoder cannot tell."""
    try:
        similarities, token_ids = index.similarities(query, docno)
    except SecateursError:
        return None  # deleted between the search and now
    spans = _spans(index, text, token_ids)
    if spans is None:
        return None
    rarity = match_rarity(token_ids, query, frequencies)  # (document tokens,)
    best = similarities.argmax(axis=0) if len(similarities) else np.empty(0, dtype=np.int64)
    found = []
    for row in np.unique(best).tolist():
        span = spans[row]
        if span is not None:
            positions = np.flatnonzero(best == row)
            shares = similarities[row, positions]
            found.append(
                Highlight(
                    start=span[0],
                    end=span[1],
                    contribution=float((query.all_weights[positions] * shares).sum()),
                    positions=positions.tolist(),
                    similarities=shares.tolist(),
                    rarity=float(rarity[row]),
                )
            )
    return found


def similarity_map(index: AnyIndex, query: EncodedText, docno: str) -> SimilarityMap:
    similarities, token_ids = index.similarities(query, docno)
    text = index.get(docno).text
    spans = _spans(index, text, token_ids) or [None] * len(token_ids)
    return SimilarityMap(
        text=text,
        document_tokens=[
            DocumentToken(
                token=index.token_text(token_id), start=span[0] if span else None, end=span[1] if span else None
            )
            for token_id, span in zip(token_ids.tolist(), spans, strict=True)
        ],
        similarities=similarities.round(4).tolist(),
    )


def _spans(index: AnyIndex, text: str, token_ids: NDArray[np.int32]) -> Sequence[Span] | None:
    if not index.has_encoder:
        return None
    encoder = index.encoder
    if not isinstance(encoder, _KnowsSpans):
        return None
    expected, spans = encoder.document_spans(text)
    # A document may have brought its embeddings: then its tokens are not those of its text.
    return spans if np.array_equal(expected, token_ids) else None
