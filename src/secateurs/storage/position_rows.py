"""Positions of a text, and the rows that hold their embeddings.

A document has a row for each embedding that is different. Positions whose embeddings are equal share a row: repeats
that were merged (merging.py), or embeddings that happen to be the same. The rows of a document are numbered in the
order in which they first occur, so a document without equal embeddings has as many rows as positions, in the same
order.

Tokens belong to positions, and so do frequencies: merging changes neither. Everything that is compared with a query
belongs to rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..frequencies import Frequencies
from ..kernels.merging import equal_rows
from .file_names import OFFSETS, POSITION_OFFSETS, POSITION_ROWS

_DOCUMENTS_PER_BLOCK = 8192
_Float = TypeVar("_Float", np.float16, np.float32)


class TextPositions(NamedTuple):
    """Of all documents of a segment, end to end."""

    offsets: NDArray[np.int64]  # (documents + 1,): document i is positions offsets[i] to offsets[i + 1]
    rows: NDArray[Any] | None  # (positions,): the row of each, counted from its document's first; None: in their order


def share_equal(rows: NDArray[_Float]) -> tuple[NDArray[_Float], NDArray[np.int64]]:
    """The different rows of one document, and which of them each position has, (positions,)."""
    groups = np.zeros(len(rows), dtype=np.int64)
    if rows.size == 0:
        return rows[:1], groups
    missing = -rows.shape[1] % (8 // rows.itemsize)  # to whole words of eight bytes
    words = np.pad(rows, ((0, 0), (0, missing))).view(np.int64)
    count = equal_rows(words, groups)
    if count == len(rows):
        return rows, groups
    firsts = np.empty(count, dtype=np.int64)
    firsts[groups[::-1]] = np.arange(len(rows))[::-1]
    return rows[firsts], groups


def write_positions(
    folder: Path, offsets: NDArray[np.int64], position_offsets: NDArray[np.int64], rows: NDArray[Any]
) -> TextPositions:
    """The offsets of the documents among the rows; and among the positions, if any positions share a row."""
    np.save(folder / OFFSETS, offsets)
    if np.array_equal(offsets, position_offsets):
        return TextPositions(offsets, None)
    most = int(np.diff(offsets).max(initial=0))
    small = np.asarray(rows, dtype=np.uint16 if most <= 1 << 16 else np.uint32)
    np.save(folder / POSITION_OFFSETS, position_offsets)
    np.save(folder / POSITION_ROWS, small)
    return TextPositions(position_offsets, small)


def rows_of_all(offsets: NDArray[np.int64], positions: TextPositions, first: int, last: int) -> NDArray[np.int64]:
    """For the positions of documents `first` to `last`: their rows in the segment."""
    begin, end = positions.offsets[first], positions.offsets[last]
    if positions.rows is None:
        return np.arange(begin, end)
    lengths = np.diff(positions.offsets[first : last + 1])
    rows: NDArray[np.int64] = np.repeat(offsets[first:last], lengths) + positions.rows[begin:end]
    return rows


def tokens_of_rows(
    offsets: NDArray[np.int64],
    positions: TextPositions,
    token_ids: NDArray[np.int32],
    frequencies: Frequencies,
) -> NDArray[np.int32]:
    """(rows,): the token of each row; where several positions share it, the rarest of their tokens."""
    if positions.rows is None:
        return token_ids
    tokens = np.empty(int(offsets[-1]), dtype=np.int32)
    for first in range(0, len(offsets) - 1, _DOCUMENTS_PER_BLOCK):
        last = min(first + _DOCUMENTS_PER_BLOCK, len(offsets) - 1)
        rows = rows_of_all(offsets, positions, first, last)
        block = np.asarray(token_ids[positions.offsets[first] : positions.offsets[last]])
        order = np.argsort(-frequencies.collection_frequency(block), kind="stable")
        tokens[rows[order]] = block[order]  # the rarest is written last
    return tokens
