"""Which words of a document matched a query, and how much each match tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .encoders import Encoder
from .errors import SecateursError
from .explain import best_matches
from .frequencies import Frequencies
from .importance import match_rarity, word_rarity
from .records import EncodedText

Span = tuple[int, int] | None


@runtime_checkable
class _KnowsSpans(Protocol):
    """An encoder that can say where in a text its embeddings come from. Without it there are no matches to show."""

    def document_spans(self, text: str) -> tuple[NDArray[np.int32], Sequence[Span]]: ...


class Matched(Protocol):
    """What finding matches needs of an index."""

    @property
    def has_encoder(self) -> bool: ...

    @property
    def encoder(self) -> Encoder: ...

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A piece of a document's text that is the best match of at least one query embedding."""

    start: int  # in characters of the text
    end: int
    positions: NDArray[np.int64]  # (matched,) positions of the query that it is the best match of
    similarities: NDArray[np.float64]  # (matched,)
    places: NDArray[np.int64]  # (matched,) of how many places of the text that holds: more than one if they were merged
    rarity: float  # of its token, from 0 to 1: see importance.match_rarity
    strength: float  # similarity times rarity, of the words it matches the best; 0 if it matches no word

    def contribution(self, query: EncodedText) -> float:
        """What it adds to the score of the document: weight times similarity, split between merged places."""
        return float((query.all_weights[self.positions] * self.similarities / self.places).sum())


def find_matches(
    index: Matched, query: EncodedText, frequencies: Frequencies, docno: str, text: str
) -> list[Match] | None:
    """In the order of the text, or None where the encoder cannot tell.

    The rarity of a pair of words is that of the more common of the two: that "what" matches "The" tells nothing.
    """
    try:
        similarities, token_ids = index.similarities(query, docno)
    except SecateursError:
        return None  # deleted between the search and now
    spans = spans_of(index, text, token_ids)
    if spans is None:
        return None
    of_query, of_document = word_rarity(query, frequencies), match_rarity(token_ids, query, frequencies)
    best = best_matches(similarities)  # (positions of the document, query embeddings)
    places = best.sum(axis=0)
    found = []
    for i in np.flatnonzero(best.any(axis=1)).tolist():
        span = spans[i]
        if span is not None:
            positions = np.flatnonzero(best[i])
            shares = similarities[i, positions]
            telling = np.minimum(of_query[positions], of_document[i])  # 0 for what is not a word
            strength = float((np.maximum(shares, 0) * telling).max())
            rarity = float(of_document[i])
            found.append(Match(span[0], span[1], positions, shares, places[positions], rarity, strength))
    return found


def spans_of(index: Matched, text: str, token_ids: NDArray[np.int32]) -> Sequence[Span] | None:
    """Where in the text each token of a document is, None for specials; None altogether if nobody knows."""
    if not index.has_encoder:
        return None
    encoder = index.encoder
    if not isinstance(encoder, _KnowsSpans):
        return None
    expected, spans = encoder.document_spans(text)
    # A document may have brought its embeddings: then its tokens are not those of its text.
    return spans if np.array_equal(expected, token_ids) else None
