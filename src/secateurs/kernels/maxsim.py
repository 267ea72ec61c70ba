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

from .decoding import CodedRows, decode_rows, prefetch_rows
from .heap import replace_lowest
from .maxima import sixteen_maxima, thirty_two_maxima
from .simd import HAS_VNNI, LANES, compiled, pack, round_query

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
class FloatQuery:
    """A query against float16 or float32 rows."""

    packed: Any  # numkong.PackedMatrix, (query embeddings, dim) of the rows' type; None for an empty query
    count: int


PreparedQuery = Int8Query | FloatQuery


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
        if isinstance(rows, CodedRows):
            _score_coded(*rows.parts, starts, ends, *lanes, scores)
        elif isinstance(rows, np.ndarray) and rows.shape[1] % 4 == 0:
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
    """Scores of documents from their rows in place."""
    products = np.empty(len(start) + LANES, dtype=np.int32)
    values = np.empty((3, len(positions)))
    for i in range(len(starts)):
        following = starts[min(i + 1, len(starts) - 1)]
        place = starts[i], ends[i], following
        scores[i] = _score_document(
            rows, place, packed, start, positions, scale, bias, bounds, best, slack, products, values
        )


@compiled
def _score_coded(
    codes: NDArray[np.uint8],
    numbers: NDArray[np.uint16],
    table: NDArray[np.int8],
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
    """The same from codes. A document is decoded into an array that stays in the first-level cache."""
    products = np.empty(len(start) + LANES, dtype=np.int32)
    values = np.empty((3, len(positions)))
    longest = 0
    for i in range(len(starts)):
        longest = max(longest, ends[i] - starts[i])
    rows = np.empty((longest, 2 * codes.shape[1]), dtype=np.uint8)
    for i in range(len(starts)):
        following = min(i + 1, len(starts) - 1)
        prefetch_rows(codes, numbers, starts[following], ends[following])
        decode_rows(codes, numbers, table, starts[i], ends[i], rows)
        place = 0, ends[i] - starts[i], -1
        scores[i] = _score_document(
            rows, place, packed, start, positions, scale, bias, bounds, best, slack, products, values
        )


@compiled
def _score_document(
    rows: NDArray[Any],
    place: tuple[int, int, int],
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    positions: NDArray[np.int64],
    scale: NDArray[np.float64],
    bias: NDArray[np.float64],
    bounds: NDArray[np.void],
    best: NDArray[np.float64],
    slack: float,
    products: NDArray[np.int32],
    values: NDArray[np.float64],
) -> float:
    """The score of the document at `place`: rows begin to end, int8 or uint8 with 128 added; and where the next begins.

    The similarities are added in the order of the query's positions, so that a score depends neither on what else is
    scored nor on the lanes' order. `products` and `values` are room to work in.
    """
    begin, end, following = place
    blocks = len(start) // LANES
    count = len(positions)
    # Blocks between two chances to drop the document. The sums of two blocks fit into 32 registers and not into 16:
    # with 16, two blocks at once take twice as long as one after the other.
    stride = 2 if HAS_VNNI and len(bounds) == 0 else 1
    similarity, by_position, most = values[0], values[1], values[2]
    upper_bound = slack
    for block in range(0, blocks, stride):
        if stride == 1 or block + 1 == blocks:
            sixteen_maxima(rows, begin, end, following, packed, start, block, products)
        else:
            thirty_two_maxima(rows, begin, end, following, packed, start, block, products)
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
            return -np.inf
    for at in range(count):
        by_position[positions[at]] = similarity[at]
    total = 0.0
    for position in range(count):
        total += by_position[position]
    if len(best) and total > best[0]:
        replace_lowest(best, total)
    return total


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
