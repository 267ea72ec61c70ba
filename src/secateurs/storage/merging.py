"""Fewer embeddings per document: those that are alike become one, before anything is stored.

    merge = 0.95    embeddings of the same token whose cosine is above 0.95 become their mean
    pool = 2        at most half as many embeddings as positions: the nearest become their mean, within a token first

Only words are merged, never special tokens. A mean gets the mean length of its embeddings, which is 1 for an encoder.
Positions of the text stay what they are: each has its token, and positions that were merged have the same embedding.
The segment writer stores equal embeddings once (see position_rows.py).

A document is merged once, when it comes from the encoder or from the user. What is read back from an index and stored
again is not merged again, because means of means would drift.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ..encoders import Encoder
from ..errors import UsageError
from ..kernels.merging import group_nearest, group_repeats
from ..records import EncodedText, TokenKind
from ..settings import Merge

_COMPARED = 512  # groups of a token with which an embedding is compared: only long documents have more
_POOLED_AT_ONCE = 2048  # groups: time and memory grow with the square, so longer documents are pooled piece by piece


@runtime_checkable
class _SaysWhatToMerge(Protocol):
    """An encoder whose description has a threshold: which cosines mean "alike" is a property of an encoder."""

    merge: float | None


def choose_merge(merge: Merge, encoder: Encoder | None) -> float | None:
    """The threshold to use: "auto" is what the encoder's description says, and none if it says nothing."""
    if isinstance(merge, str) and merge == "auto":
        return encoder.merge if isinstance(encoder, _SaysWhatToMerge) else None
    check_merge(merge)
    return merge if merge is None else float(merge)


def check_merge(merge: object) -> None:
    is_number = isinstance(merge, int | float) and not isinstance(merge, bool)
    if merge is not None and not (is_number and 0 < merge < 1):  # type: ignore[operator]
        raise UsageError(f'merge is a cosine between 0 and 1, "auto", or None to merge nothing, not {merge!r}')


def check_pool(pool: object) -> None:
    if isinstance(pool, bool) or not isinstance(pool, int) or pool < 1:
        raise UsageError(f"pool is a whole number of at least 1, which pools nothing, not {pool!r}")


def merge_alike(document: EncodedText, merge: float | None, pool: int = 1) -> EncodedText:
    """The document with the mean of its group at each position."""
    words = np.flatnonzero(document.token_kinds == TokenKind.WORD)
    if (merge is None and pool == 1) or len(words) < 2:
        return document
    units, token_ids = document.embeddings[words], document.token_ids[words]
    lengths = np.linalg.norm(units, axis=1)  # (words,)
    units /= np.maximum(lengths, 1e-12)[:, None]  # in place: a long document has many
    groups, count = np.arange(len(words)), len(words)
    if merge is not None:
        count = group_repeats(units, token_ids, np.argsort(token_ids, kind="stable"), merge, _COMPARED, groups)
    if pool > 1:
        groups, count = _pool(units, token_ids, groups, count, -(-len(words) // pool))
    if count == len(words):
        return document
    means, sizes = _means(units, groups, count)
    mean_lengths = np.bincount(groups, lengths, count) / sizes
    means *= (mean_lengths / np.maximum(np.linalg.norm(means, axis=1), 1e-12))[:, None].astype(np.float32)
    together = sizes[groups] > 1  # an embedding alone stays as it is, to the last bit
    merged = document.embeddings.copy()
    merged[words[together]] = means[groups[together]]
    return replace(document, embeddings=merged)


def _pool(
    units: NDArray[np.float32], token_ids: NDArray[np.int32], groups: NDArray[np.int64], count: int, left: int
) -> tuple[NDArray[np.int64], int]:
    """Join groups until about `left` are left. Gives the group of each embedding, and how many there are."""
    if count <= left:
        return groups, count
    means, sizes = _means(units, groups, count)
    tokens = np.empty(count, dtype=np.int32)
    tokens[groups[::-1]] = token_ids[::-1]  # that of a group's first embedding: so far all of them have the same
    joined = np.empty(count, dtype=np.int64)
    for first in range(0, count, _POOLED_AT_ONCE):
        part = slice(first, first + _POOLED_AT_ONCE)
        size = len(means[part])
        group_nearest(means[part], sizes[part], tokens[part], -(-left * size // count), joined[part])
        joined[part] += first
    numbers, renumbered = np.unique(joined, return_inverse=True)
    return renumbered[groups], len(numbers)


def _means(
    units: NDArray[np.float32], groups: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(groups, dim): the mean of each; and how many embeddings each has, (groups,)."""
    sizes = np.bincount(groups, minlength=count).astype(np.float32)
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(count))
    sums = np.add.reduceat(units[order], starts, axis=0)
    return (sums / sizes[:, None]).astype(np.float32), sizes
