"""fuse="rrf": hits in the order of two rankings, by the exact score and by BM25, instead of by the exact score alone.

    fused = 1 / (60 + rank by exact score) + 1 / (60 + rank by BM25)         (Cormack, Clarke & Buettcher, SIGIR 2009)

Both rankings are of all documents that were scored, in all shards. The rank of a document is one more than the number
of documents with a higher score. A document that has no word of the query has no rank by BM25, and no second term.
Equal fused scores are ordered by the exact score, then by docno.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .gather.text import score_words
from .rankings import Hit
from .settings import QueryWords
from .storage.snapshot import Snapshot

_CONSTANT = 60  # that of the paper


class Scores(NamedTuple):
    """Of all documents that were scored."""

    exact: NDArray[np.float64]  # (documents,)
    text: NDArray[np.float64]  # (documents,): BM25, 0 without a word of the query

    @classmethod
    def of(
        cls, snapshot: Snapshot, words: QueryWords, documents: NDArray[np.int64], exact: NDArray[np.float64]
    ) -> Scores:
        return cls(exact, score_words(snapshot.segments, words)[documents] if len(documents) else np.zeros(0))

    @classmethod
    def of_all(cls, parts: Iterable[Scores]) -> Scores:
        exact, text = zip(*parts, strict=True)
        return cls(np.concatenate(exact), np.concatenate(text))

    def fuse(self, exact: NDArray[np.float64], text: NDArray[np.float64]) -> NDArray[np.float64]:
        """The fused score of documents among all, from their two scores."""
        return _share(exact, self.exact) + np.where(text > 0, _share(text, self.text), 0.0)

    def better_than(self, exact: float, text: float) -> int:
        """How many documents are before a document that has these scores, without those that have the same."""
        fused = self.fuse(self.exact, self.text)
        (its,) = self.fuse(np.array([exact]), np.array([text]))
        return int(((fused > its) | ((fused == its) & (self.exact > exact))).sum())

    def contenders(self, k: int) -> NDArray[np.int64]:
        """Which documents can be among the k best of all shards: fewer than k are at least as good by both scores."""
        kept: list[int] = []
        best_texts: list[float] = []  # the k highest BM25 of documents that come before, ascending
        equal: list[float] = []  # of documents with the same two scores, which only their docnos can order
        last = None
        better = 0
        for i in np.lexsort((-self.text, -self.exact)).tolist():
            exact, text = float(self.exact[i]), float(self.text[i])
            if (exact, text) != last:
                for earlier in equal:
                    insort(best_texts, earlier)
                best_texts, equal, last = best_texts[-k:], [], (exact, text)
                better = len(best_texts) - bisect_left(best_texts, text)
            if better < k:
                kept.append(i)
            equal.append(text)
        return np.array(kept, dtype=np.int64)


def fetch(snapshot: Snapshot, documents: NDArray[np.int64], scores: Scores, k: int) -> list[Hit]:
    """The contenders with both scores, in no order."""
    hits = []
    contending = scores.contenders(k)
    exact_scores, text_scores = scores.exact[contending], scores.text[contending]
    for segment, places, numbers in snapshot.by_segment(documents[contending]):
        both = zip(exact_scores[places].tolist(), text_scores[places].tolist(), strict=True)
        for (exact, text), found in zip(both, segment.documents.get(numbers.tolist()), strict=True):
            hits.append(Hit(found.docno, exact, found.text, found.metadata, exact_score=exact, text_score=text))
    return hits


def best_fused(parts: Sequence[tuple[Sequence[Hit], Scores]], offset: int, depth: int) -> tuple[Hit, ...]:
    """The `depth` best of all shards without the first `offset`, from the contenders of each and all its scores."""
    hits = [hit for contenders, _ in parts for hit in contenders]
    if not hits:
        return ()
    exact = np.array([hit.exact_score for hit in hits])
    text = np.array([hit.text_score for hit in hits])
    fused = Scores.of_all(scores for _, scores in parts).fuse(exact, text).tolist()
    ranked = [replace(hit, score=score) for hit, score in zip(hits, fused, strict=True)]
    return tuple(sorted(ranked, key=lambda hit: (-hit.score, -(hit.exact_score or 0.0), hit.docno))[offset:depth])


def _share(scores: NDArray[np.float64], among: NDArray[np.float64]) -> NDArray[np.float64]:
    better = len(among) - np.searchsorted(np.sort(among), scores, side="right")
    return 1.0 / (_CONSTANT + 1 + better)
