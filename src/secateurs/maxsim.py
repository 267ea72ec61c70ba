"""Exact MaxSim, Eq. 1: for every query embedding the best dot product in the document, added up.

`score` is the fast way, over stored int8 or float16 rows; `maxsim` is its plain twin over float32, for reading and
for checking. A document without embeddings has nothing to match and scores minus infinity; callers never gather one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numba
import numkong
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .index.stores import PreparedQuery

_ROWS_PER_BLOCK = 8192  # products of one block, (8192, 32) int32 = 1 MiB, stay in the second-level cache


def maxsim(
    query: NDArray[np.float32], rows: NDArray[np.float32], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The score of each document; document i is rows[starts[i]:ends[i]]. Five lines of NumPy."""
    scores = np.full(len(starts), -np.inf)
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if start < end:
            scores[i] = (rows[start:end].astype(np.float64) @ query.T.astype(np.float64)).max(axis=0).sum()
    return scores


def score(
    query: PreparedQuery,
    rows: NDArray[np.int8] | NDArray[np.float16],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.float64]:
    """The same scores from stored rows: SIMD dot products a block at a time, then a segment maximum."""
    scores = np.zeros(len(starts))
    if len(query.scale):
        for first, last in _blocks(starts, ends):
            block, bounds = _read(rows, starts[first:last], ends[first:last])
            if len(block):
                products = np.asarray(numkong.dots_packed(block, query.packed))  # (rows, query embeddings)
                _sum_of_maxima(products, bounds, query.scale, scores[first:last])
    scores += query.bias.sum()
    scores[starts == ends] = -np.inf
    return scores


def similarities(query: PreparedQuery, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Every query embedding with every row, (rows, query embeddings): what `score` takes the maxima of."""
    if len(rows) == 0 or len(query.scale) == 0:
        return np.zeros((len(rows), len(query.scale)))
    return np.asarray(numkong.dots_packed(rows, query.packed)) * query.scale + query.bias


def _blocks(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Runs of documents with about _ROWS_PER_BLOCK rows each, and at least one document."""
    if len(starts) == 0:
        return []
    block = (np.cumsum(ends - starts) - 1) // _ROWS_PER_BLOCK
    edges = (np.flatnonzero(np.diff(block)) + 1).tolist()
    return list(zip([0, *edges], [*edges, len(starts)], strict=True))


def _read(
    rows: NDArray[Any], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The documents' rows end to end, and where each document begins among them."""
    bounds = np.concatenate([[0], np.cumsum(ends - starts)])
    if np.array_equal(starts[1:], ends[:-1]):  # neighbours on disk: no copy
        return rows[starts[0] : ends[-1]], bounds
    return rows[np.repeat(starts - bounds[:-1], ends - starts) + np.arange(bounds[-1])], bounds


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Compile once per machine where the result can be kept, and once per process where no folder is writable."""
    try:
        kept: Callable[..., None] = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        kept = numba.njit(nogil=True)(function)
    return kept


@_compiled
def _sum_of_maxima(
    products: NDArray[Any],
    bounds: NDArray[np.int64],
    scale: NDArray[np.float64],
    scores: NDArray[np.float64],
) -> None:
    """scores[i]: over the query embeddings, the sum of the largest product with any row of document i.

    The maximum starts from the document's first row, not from zero: a floor would win when all are negative. The sum
    runs in the same order for every document, so that a score does not depend on what else is scored with it.
    """
    positions = len(scale)
    best = np.empty(positions, dtype=products.dtype)
    for i in range(len(scores)):
        for row in range(bounds[i], bounds[i + 1]):
            for j in range(positions):
                if row == bounds[i] or products[row, j] > best[j]:
                    best[j] = products[row, j]
        if bounds[i] < bounds[i + 1]:
            for j in range(positions):
                scores[i] += scale[j] * best[j]
