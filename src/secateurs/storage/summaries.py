"""The rows of the documents' summary tokens, one per document, side by side.

A summary is a special token whose embedding stands for the whole text (TokenKind.SUMMARY). Gathering by cells compares
the query's summary with that of every document it finds, exactly: a row per document is little to read, and all rows of
summaries would lie in few cells otherwise (gather/cells.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..kernels.cell_scores import pack_summaries, packed_width
from ..records import TokenKind
from .file_names import SUMMARIES
from .files import new_array
from .position_rows import TextPositions

_CELLS_PER_ROOT = 8  # cells of summaries = this times the root of the number of documents
_BLOCK = 65_536  # rows copied at a time


def summary_rows(
    offsets: NDArray[np.int64], positions: TextPositions, token_kinds: NDArray[np.uint8]
) -> NDArray[np.int64] | None:
    """(documents,): the row of each document's first position of kind SUMMARY, -1 for a document without embeddings.

    None if a document has embeddings and none of them is a summary, or if there is no embedding at all.
    """
    summaries = np.flatnonzero(np.asarray(token_kinds) == TokenKind.SUMMARY)
    starts, ends = positions.offsets[:-1], positions.offsets[1:]
    nearest = np.searchsorted(summaries, starts)
    if len(summaries) == 0:
        return None
    first = summaries[np.minimum(nearest, len(summaries) - 1)]
    has_summary = (nearest < len(summaries)) & (first < ends)
    if not np.array_equal(has_summary, ends > starts):
        return None
    rows = first if positions.rows is None else offsets[:-1] + positions.rows[first]
    return np.where(has_summary, rows, -1)


def cells_of_summaries(token_ids: NDArray[np.int32], summaries: NDArray[np.int64]) -> dict[int, int]:
    """How many cells the token ids of summaries need, so that a query's summary finds few documents in each."""
    types = np.unique(token_ids[summaries[summaries >= 0]])
    return dict.fromkeys(types.tolist(), _CELLS_PER_ROOT * isqrt(len(summaries)))


def write_summaries(folder: Path, rows: NDArray[np.int8], summaries: NDArray[np.int64]) -> None:
    """The given rows, 0 for a document that has none."""
    written = new_array(folder / SUMMARIES, np.uint8, (len(summaries), packed_width(rows.shape[1])))
    for first in range(0, len(summaries), _BLOCK):
        block = summaries[first : first + _BLOCK]
        packed = pack_summaries(rows[np.maximum(block, 0)])
        written[first : first + len(block)] = np.where((block >= 0)[:, None], packed, 0)


def merge_summaries(folder: Path, parts: Sequence[tuple[NDArray[np.uint8] | None, NDArray[np.int64]]]) -> None:
    """Of several segments as those of one: each with the numbers of the documents that stay.

    If a segment has no summaries, nothing is written.
    """
    kept = [summaries[numbers] for summaries, numbers in parts if summaries is not None and len(numbers)]
    if kept and all(summaries is not None for summaries, numbers in parts if len(numbers)):
        np.save(folder / SUMMARIES, np.concatenate(kept))
