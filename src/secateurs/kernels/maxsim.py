"""Exact MaxSim, Eq. 1: for every query embedding the best dot product in the document, added up.

`score` is the fast way, over stored rows; `maxsim` is its plain twin over float32, for reading and for checking. A
document without embeddings has nothing to match and scores minus infinity; callers never gather one.

int8 rows are scored in place, sixteen query embeddings at a time, and only the running maxima are written. After each
sixteen, the kernel drops a document if the most that the other query embeddings can add (see `bounds_of_the_rest`)
leaves it outside the k best so far. A dropped document scores minus infinity; no other score, and no ranking, changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from .heap import replace_lowest
from .simd import (
    LANES,
    compiled,
    fill,
    larger,
    load,
    multiply_add,
    pack,
    prefetch,
    round_query,
    splat,
    store,
)

_ROWS_PER_BLOCK = 8192  # products of one block, (8192, 32) float32 = 1 MiB, stay in the second-level cache
_MANY = 2000  # documents from which on dropping documents early saves time

# What bounds one later query embedding m by its nearest among the first sixteen, j: see bounds_of_the_rest.
REST = np.dtype(
    [
        ("nearest", np.int64),  # j
        ("along", np.float64),  # a / |j|
        ("across", np.float64),  # |v|
        ("inverse_length", np.float64),  # 1 / |j|; 0 where j says nothing about m
        ("turning_point", np.float64),  # the largest y that counts
        ("longest", np.float64),  # the longest stored embedding
        ("hidden_nearest", np.float64),  # what rounding can have hidden from the similarity with j
        ("hidden", np.float64),  # what rounding can have hidden from the similarity with m
    ]
)


@dataclass(frozen=True, slots=True)
class Int8Query:
    """A query against int8 rows: position i has similarity  bias[i] + scale[i] * (rounded[i] . row)  with a row."""

    rounded: NDArray[np.int8]  # (query embeddings, dim)
    unit: NDArray[np.float64]  # (query embeddings,) what one step of the rounded is worth
    scale: NDArray[np.float64]  # (query embeddings,)
    bias: NDArray[np.float64]  # (query embeddings,)
    positions: NDArray[np.int64]  # (query embeddings,) which position is in which lane
    packed: NDArray[np.int8]  # simd.pack of the rounded embeddings, in the order of `positions`
    start: NDArray[np.int32]  # (lanes,)
    exact: NDArray[np.float32]  # (query embeddings, dim)
    reach: tuple[float, float] | None  # the longest stored embedding, the largest distance of one from the centre

    def bounds(self) -> NDArray[np.void]:
        """Of the query embeddings after the first sixteen lanes; empty without `reach`."""
        if self.reach is None or len(self.positions) <= LANES:
            return np.zeros(0, dtype=REST)
        lost = np.linalg.norm(self.exact - self.rounded * self.unit[:, None], axis=1)
        hidden = lost[self.positions] * self.reach[1]
        return bounds_of_the_rest(self.exact[self.positions].astype(np.float64), hidden, self.reach[0])


@dataclass(frozen=True, slots=True)
class Float16Query:
    packed: Any  # numkong.PackedMatrix, (query embeddings, dim); None for an empty query
    count: int


PreparedQuery = Int8Query | Float16Query


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
    rows: Any,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    k: int | None = None,
    slack: float = 0.0,
) -> NDArray[np.float64]:
    """The same scores from stored rows.

    With `k`, a document that cannot come within `slack` of the k-th best may get minus infinity.
    """
    scores = np.zeros(len(starts))
    if isinstance(query, Int8Query):
        best, bounds = np.empty(0), np.zeros(0, dtype=REST)
        if k is not None and len(starts) >= max(_MANY, k):
            best, bounds = np.full(k, -np.inf), query.bounds()  # a heap, the lowest in front
        positions = query.positions
        lanes = query.packed, query.start, positions, query.scale[positions], query.bias[positions], bounds, best, slack
        if isinstance(rows, np.ndarray) and rows.shape[1] % 4 == 0:
            _score_int8(rows, starts, ends, *lanes, scores)
        else:
            for documents, block, edges in _blocks(rows, starts, ends):
                _score_int8(whole_dwords(block), edges[:-1], edges[1:], *lanes, scores[documents])
    elif query.count:
        for documents, block, edges in _blocks(rows, starts, ends):
            products = np.asarray(numkong.dots_packed(block, query.packed))  # (rows, query embeddings)
            _sum_of_maxima(products, edges, scores[documents])
    scores[starts == ends] = -np.inf
    return scores


def similarities(query: PreparedQuery, rows: NDArray[Any]) -> NDArray[np.float64]:
    """Every query embedding with every row, (rows, query embeddings): what `score` takes the maxima of."""
    if isinstance(query, Int8Query):
        products = rows.astype(np.int32) @ query.rounded.T.astype(np.int32)
        return products * query.scale + query.bias
    if len(rows) == 0 or query.count == 0:
        return np.zeros((len(rows), query.count))
    return np.asarray(numkong.dots_packed(rows, query.packed)).astype(np.float64)


def prepare_int8(
    query: NDArray[np.float32],
    centre: NDArray[np.float32],
    step: float,
    positions: NDArray[np.int64] | None = None,
    reach: tuple[float, float] | None = None,
) -> Int8Query:
    """Round a query for rows that are  (embedding - centre) / step.

    positions   the order of the lanes, most important first, so that a document that cannot win is dropped early
    reach       the longest stored embedding, and the largest distance of an embedding from the centre; without it no
                document is dropped early
    """
    rounded, unit = round_query(query)
    if positions is None:
        positions = np.arange(len(query))
    bias = query.astype(np.float64) @ centre
    return Int8Query(rounded, unit, unit * step, bias, positions, *pack(rounded[positions]), query, reach)


def bounds_of_the_rest(query: NDArray[np.float64], hidden: NDArray[np.float64], longest: float) -> NDArray[np.void]:
    """For each query embedding m after the first sixteen, a bound by its nearest among the first sixteen, j: (rest,).

    Split m along and across j, m = a j + v. If y is the largest j . e over the embeddings e of a document, then

        m . e  =  a (j . e) + v . e   <=   a y + |v| sqrt(longest^2 - (y / |j|)^2)

    for y up to a |j|^2 longest / |m|, the turning point, where the bound reaches its maximum |m| longest. `hidden` is
    what the rounding of the query can have hidden from each similarity.
    """
    first, rest = query[:LANES], query[LANES:]
    length = np.maximum(np.linalg.norm(first, axis=1), 1e-12)
    shadows = rest @ first.T / length  # (rest, first)
    near = shadows.argmax(axis=1)
    along = np.maximum(shadows[np.arange(len(rest)), near], 0)
    whole = np.maximum(np.linalg.norm(rest, axis=1), 1e-12)
    length = length[near]
    across = np.sqrt(np.maximum(whole**2 - along**2, 0))
    bounds = np.zeros(len(rest), dtype=REST)
    bounds["nearest"] = near
    bounds["along"] = along / length
    bounds["across"] = across
    bounds["inverse_length"] = np.where(along > 0, 1 / length, 0)  # m turned away from all of the first sixteen: 0
    bounds["turning_point"] = along * length * longest / whole
    bounds["longest"] = longest
    bounds["hidden_nearest"] = hidden[near]
    bounds["hidden"] = hidden[LANES:] + 1e-6
    return bounds


def _blocks(
    rows: Any, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[tuple[slice, NDArray[Any], NDArray[np.int64]]]:
    """Runs of documents with about _ROWS_PER_BLOCK rows each: which, their rows end to end, where each begins."""
    block = (np.cumsum(ends - starts) - 1) // _ROWS_PER_BLOCK
    edges = (np.flatnonzero(np.diff(block)) + 1).tolist()
    for first, last in pairwise([0, *edges, len(starts)]):
        begin, end = starts[first:last], ends[first:last]
        bounds = np.concatenate([[0], np.cumsum(end - begin)])
        if bounds[-1] == 0:
            continue
        if np.array_equal(begin[1:], end[:-1]):  # neighbours on disk: no copy
            yield slice(first, last), rows[begin[0] : end[-1]], bounds
        else:
            yield slice(first, last), rows[np.repeat(begin - bounds[:-1], end - begin) + np.arange(bounds[-1])], bounds


def whole_dwords(rows: NDArray[np.int8]) -> NDArray[np.int8]:
    """Rows with zeros behind, a multiple of four wide."""
    missing = -rows.shape[1] % 4
    return np.pad(rows, ((0, 0), (0, missing))) if missing else rows


@compiled
def _score_int8(
    rows: NDArray[np.int8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    positions: NDArray[np.int64],
    scale: NDArray[np.float64],
    bias: NDArray[np.float64],
    bounds: NDArray[np.void],
    best: NDArray[np.float64],
    slack: float,
    scores: NDArray[np.float64],
) -> None:
    """Scores of documents from their rows in place.

    The similarities are added in the order of the query's positions, so that a score depends neither on what else is
    scored nor on the lanes' order.
    """
    blocks = len(start) // LANES
    count = len(positions)
    stride = 1 if len(bounds) else 2  # blocks between two chances to drop the document
    products = np.empty((blocks + 1) * LANES, dtype=np.int32)
    similarity = np.empty(count)
    by_position = np.empty(count)
    most = np.empty(count)
    for i in range(len(starts)):
        following = starts[min(i + 1, len(starts) - 1)]
        upper_bound = slack
        dropped = False
        for block in range(0, blocks, stride):
            if stride == 1 or block + 1 == blocks:
                _sixteen_maxima(rows, starts[i], ends[i], following, packed, start, block, products)
            else:
                _thirty_two_maxima(rows, starts[i], ends[i], following, packed, start, block, products)
            first, last = block * LANES, min((block + stride) * LANES, count)
            for at in range(first, last):
                similarity[at] = scale[at] * products[at] + bias[at]
            if len(bounds) == 0:
                continue
            for at in range(first, last):
                upper_bound += similarity[at] - (most[at] if block else 0.0)
            for m in range(len(bounds)) if block == 0 else range(0):
                bound = bounds[m]
                y = min(similarity[bound.nearest] + bound.hidden_nearest, bound.turning_point)
                remainder = max(bound.longest**2 - (y * bound.inverse_length) ** 2, 0.0)
                most[LANES + m] = bound.along * y + bound.across * np.sqrt(remainder) + bound.hidden
                upper_bound += most[LANES + m]
            if block + 1 < blocks and upper_bound < best[0]:
                dropped = True
                break
        if dropped:
            scores[i] = -np.inf
            continue
        for at in range(count):
            by_position[positions[at]] = similarity[at]
        total = 0.0
        for position in range(count):
            total += by_position[position]
        scores[i] = total
        if len(best) and total > best[0]:
            replace_lowest(best, total)


@compiled
def _thirty_two_maxima(
    rows: NDArray[np.int8],
    begin: int,
    end: int,
    following: int,
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    block: int,
    products: NDArray[np.int32],
) -> None:
    """Over rows begin to end, the largest product with each lane of two blocks. Four rows at a time.

    After the last row the last row is taken again: it changes no maximum. The next document begins at row `following`;
    its cache lines are prefetched, because documents are anywhere in memory.
    """
    dim = rows.shape[1]
    groups = dim // 4
    size = 4 * LANES
    last = end - 1
    lowest = fill(np.int32(-(2**31)))
    maxima0, maxima1 = lowest, lowest
    first0, second0 = load(start, block * size), load(start, (block + 1) * size)
    for row in range(begin, end, 4):
        for line in range(0, 4 * dim, 64):
            prefetch(rows, (following + row - begin) * dim + line)
        at0, at1 = row * dim, min(row + 1, last) * dim
        at2, at3 = min(row + 2, last) * dim, min(row + 3, last) * dim
        sum0, sum1, sum2, sum3 = first0, first0, first0, first0
        sum4, sum5, sum6, sum7 = second0, second0, second0, second0
        for group in range(groups):
            first = load(packed, (block * groups + group) * size)
            second = load(packed, ((block + 1) * groups + group) * size)
            row0 = splat(rows, at0 + 4 * group)
            row1 = splat(rows, at1 + 4 * group)
            row2 = splat(rows, at2 + 4 * group)
            row3 = splat(rows, at3 + 4 * group)
            sum0 = multiply_add(sum0, row0, first)
            sum1 = multiply_add(sum1, row1, first)
            sum2 = multiply_add(sum2, row2, first)
            sum3 = multiply_add(sum3, row3, first)
            sum4 = multiply_add(sum4, row0, second)
            sum5 = multiply_add(sum5, row1, second)
            sum6 = multiply_add(sum6, row2, second)
            sum7 = multiply_add(sum7, row3, second)
        maxima0 = larger(maxima0, larger(larger(sum0, sum1), larger(sum2, sum3)))
        maxima1 = larger(maxima1, larger(larger(sum4, sum5), larger(sum6, sum7)))
    store(products, block * size, maxima0)
    store(products, (block + 1) * size, maxima1)


@compiled
def _sixteen_maxima(
    rows: NDArray[np.int8],
    begin: int,
    end: int,
    following: int,
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    block: int,
    products: NDArray[np.int32],
) -> None:
    """The same for one block. Eight rows at a time, because as many sums hide how long one addition takes."""
    dim = rows.shape[1]
    groups = dim // 4
    size = 4 * LANES
    last = end - 1
    maxima = fill(np.int32(-(2**31)))
    start0 = load(start, block * size)
    for row in range(begin, end, 8):
        for line in range(0, 8 * dim if block == 0 else 0, 64):
            prefetch(rows, (following + row - begin) * dim + line)
        at0, at1 = row * dim, min(row + 1, last) * dim
        at2, at3 = min(row + 2, last) * dim, min(row + 3, last) * dim
        at4, at5 = min(row + 4, last) * dim, min(row + 5, last) * dim
        at6, at7 = min(row + 6, last) * dim, min(row + 7, last) * dim
        sum0, sum1, sum2, sum3 = start0, start0, start0, start0
        sum4, sum5, sum6, sum7 = start0, start0, start0, start0
        for group in range(groups):
            query = load(packed, (block * groups + group) * size)
            sum0 = multiply_add(sum0, splat(rows, at0 + 4 * group), query)
            sum1 = multiply_add(sum1, splat(rows, at1 + 4 * group), query)
            sum2 = multiply_add(sum2, splat(rows, at2 + 4 * group), query)
            sum3 = multiply_add(sum3, splat(rows, at3 + 4 * group), query)
            sum4 = multiply_add(sum4, splat(rows, at4 + 4 * group), query)
            sum5 = multiply_add(sum5, splat(rows, at5 + 4 * group), query)
            sum6 = multiply_add(sum6, splat(rows, at6 + 4 * group), query)
            sum7 = multiply_add(sum7, splat(rows, at7 + 4 * group), query)
        maxima = larger(maxima, larger(larger(sum0, sum1), larger(sum2, sum3)))
        maxima = larger(maxima, larger(larger(sum4, sum5), larger(sum6, sum7)))
    store(products, block * size, maxima)


@compiled
def _sum_of_maxima(products: NDArray[np.float32], bounds: NDArray[np.int64], scores: NDArray[np.float64]) -> None:
    """scores[i]: over the query embeddings, the sum of the largest product with any row of document i.

    The maximum starts from the document's first row, not from zero: a floor would win when all are negative. The sum
    runs in the same order for every document, so that a score does not depend on what else is scored with it.
    """
    positions = products.shape[1]
    best = np.empty(positions, dtype=products.dtype)
    for i in range(len(scores)):
        for row in range(bounds[i], bounds[i + 1]):
            for j in range(positions):
                if row == bounds[i] or products[row, j] > best[j]:
                    best[j] = products[row, j]
        if bounds[i] < bounds[i + 1]:
            for j in range(positions):
                scores[i] += best[j]
