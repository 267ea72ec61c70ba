"""Which rows decide the int8 scale: a sample that does not depend on the order of the documents or on shards."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAMPLE = 200_000  # rows, about
_DOCUMENTS = 8_192  # whose rows are drawn at a time
_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio: its multiples are spread evenly modulo 2^64


def sample_bound(total: int) -> int:
    """The bound with which `sampled_rows` draws about SAMPLE of `total` rows, or all of them if there are fewer."""
    return min(2**64 * SAMPLE // max(total, 1), 2**64 - 1)


def sampled_rows(hashes: NDArray[np.uint64], offsets: NDArray[np.int64], bound: int) -> NDArray[np.int64]:
    """A sample of the documents' rows. Whether a row is in it depends only on its docno's hash and its position.

    So a collection in shards draws the same rows as one index of it, whatever the order and the number of shards.
    """
    drawn = []
    for first in range(0, len(hashes), _DOCUMENTS):
        edges = offsets[first : first + _DOCUMENTS + 1]
        lengths = np.diff(edges)
        positions = np.arange(edges[0], edges[-1]) - np.repeat(edges[:-1], lengths)
        numbers = np.repeat(hashes[first : first + _DOCUMENTS], lengths) + positions.astype(np.uint64) * _STRIDE
        drawn.append(np.flatnonzero(numbers <= np.uint64(bound)) + edges[0])
    return np.concatenate(drawn) if drawn else np.empty(0, dtype=np.int64)
