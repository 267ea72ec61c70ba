"""BM25 (Robertson & Zaragoza, 2009), by which gather="text" orders documents:

    sum over the words of the query of   idf(word) * tf * (K1 + 1) / (tf + K1 * (1 - B + B * length / mean length))
    idf(word) = log(1 + (documents - df + 0.5) / (df + 0.5))

tf is how often the document has the word, df how many documents have it. This idf is positive for every word. A word
that the query has twice counts twice. All counts are those of the live documents of the whole collection, whichever
segments and shards they are in; with frequencies="matching", those of the documents that the filter lets through.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..settings import QueryWords

K1, B = 1.2, 0.75


class WordCounts(NamedTuple):
    """Of the documents of an index, or of all shards."""

    documents: int
    length: int  # of all their texts, in words
    having: tuple[int, ...]  # documents that have each word of the query

    @classmethod
    def sum(cls, parts: Iterable[WordCounts], words: int) -> WordCounts:
        listed = list(parts)
        having = np.sum([part.having for part in listed], axis=0, dtype=int).tolist() if listed else [0] * words
        return cls(sum(part.documents for part in listed), sum(part.length for part in listed), tuple(having))


def distinct(query: Sequence[str]) -> tuple[str, ...]:
    """Its words, each once, in the order in which they first come."""
    return tuple(dict.fromkeys(query))


def weigh_words(query: Sequence[str], counts: WordCounts) -> QueryWords:
    """`counts` is of the distinct words of the query."""
    occurrences = Counter(query)
    weights = tuple(
        times * math.log1p((counts.documents - df + 0.5) / (df + 0.5))
        for times, df in zip(occurrences.values(), counts.having, strict=True)
    )
    return QueryWords(tuple(occurrences), weights, counts.length / max(counts.documents, 1))


def shares(weight: float, frequencies: NDArray[Any], lengths: NDArray[Any], mean_length: float) -> NDArray[np.float64]:
    """What a word adds to the score of each document: (documents,), as the frequencies and lengths."""
    relative = lengths / max(mean_length, 1e-9)
    return weight * frequencies * (K1 + 1) / (frequencies + K1 * (1 - B + B * relative))
