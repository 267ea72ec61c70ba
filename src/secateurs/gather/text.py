"""Gathering by the text of the query: documents that have any of its words, the best by BM25 (bm25.py) first.

`candidates` of them go on to exact scoring. gather="cells+text" takes as many by their text and as many by their cells.
storage/words.py says what a word is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..errors import UsageError
from ..records import EncodedText, Positions
from ..settings import QueryWords, SearchPlan
from ..storage.segments import Segment
from ..storage.snapshot import Snapshot
from ..storage.words import split_words
from .bm25 import WordCounts, shares
from .cells import CellGatherer


class TextGatherer:
    def __init__(self, snapshot: Snapshot) -> None:
        self._segments = snapshot.segments
        self._embedded = np.concatenate([np.diff(segment.offsets) > 0 for segment in snapshot.segments])

    @property
    def documents(self) -> int:
        return len(self._embedded)

    def gather(
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        found, scores = self.find(plan, allowed)
        return best(found, scores, plan.candidates), len(found)

    def find(
        self, plan: SearchPlan, allowed: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The documents that have a word of the query, and their scores."""
        assert plan.words is not None
        scores = score_words(self._segments, plan.words)
        has_word = (scores > 0) & self._embedded
        found = np.flatnonzero(has_word if allowed is None else has_word & allowed)
        return found, scores[found]


class CellsAndText:
    """What either gathers: first what the cells choose, then what only the text does."""

    def __init__(self, cells: CellGatherer, text: TextGatherer) -> None:
        self._cells, self._text = cells, text

    def gather(
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        found, scores = self._text.find(plan, allowed)
        by_text = best(found, scores, plan.candidates)
        with self._cells.find(query, kept, plan, allowed) as keys:
            by_cells = self._cells.best(keys, plan.candidates)
            is_in = np.zeros(self._text.documents, dtype=bool)  # what either finds
            is_in[found] = is_in[self._cells.numbers(keys)] = True
        gathered = int(is_in.sum())
        is_in[:] = False  # and then what the cells choose
        is_in[by_cells] = True
        return np.concatenate([by_cells, by_text[~is_in[by_text]]]), gathered


def best(documents: NDArray[np.int64], scores: NDArray[np.float64], candidates: int) -> NDArray[np.int64]:
    """Those with the highest scores, best first; equal scores by number."""
    if len(documents) > candidates:
        contending = scores >= np.partition(scores, len(scores) - candidates)[len(scores) - candidates]
        documents, scores = documents[contending], scores[contending]
    return documents[np.lexsort((documents, -scores))[:candidates]]


def split_query(query: EncodedText) -> list[str]:
    if query.text is None:
        raise UsageError(
            'gather="text" and fuse need the text of the query: search for a text, or give the EncodedText its text, '
            "as EncodedText(..., text=...)"
        )
    return split_words(query.text)


def score_words(segments: Sequence[Segment], query: QueryWords) -> NDArray[np.float64]:
    """(documents,): BM25 of each document, also of deleted ones; 0 if it has no word of the query."""
    parts = [np.zeros(0)]
    for segment in segments:
        scores, lengths = np.zeros(len(segment)), segment.documents.lengths
        postings = segment.documents.postings(query.words)
        for weight, (numbers, counts) in zip(query.weights, postings, strict=True):
            stop_if_cancelled()
            scores[numbers] += shares(weight, counts, lengths[numbers], query.mean_length)
        parts.append(scores)
    return np.concatenate(parts)


def count_words(snapshot: Snapshot, words: tuple[str, ...], allowed: NDArray[np.bool_] | None) -> WordCounts:
    """What BM25 must know of the documents that are allowed, of all without `allowed`; deleted ones are not."""
    if "text" not in snapshot.manifest.gather:  # an index without embeddings: gathering finds nothing in any way
        return WordCounts(0, 0, (0,) * len(words))
    parts = []
    for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False):
        stop_if_cancelled()
        here = None if allowed is None else allowed[first : first + len(segment)]
        lengths, postings = segment.documents.lengths, [found.numbers for found in segment.documents.postings(words)]
        if here is None:
            having, length = [len(numbers) for numbers in postings], lengths.sum(dtype=np.int64)
        else:
            having, length = [here[numbers].sum() for numbers in postings], lengths[here].sum(dtype=np.int64)
        documents = len(segment) if here is None else int(here.sum())
        parts.append(WordCounts(documents, int(length), tuple(map(int, having))))
    return WordCounts.sum(parts, len(words))
