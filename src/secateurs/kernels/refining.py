"""MaxSim on int8 rows and their refinements: all documents on the rows, then the best few on both.

A code of 8 bits says where in the step of its int8 row a value lies, to 1/128 step. In steps:

    |row| < 127     value = row + (code - 64) / 128
    |row| = 127     value = sign(row) * (126.5 + 128 (code / 255)^2)     what int8 clips, up to twice its scale

Multiplied by 128, both are whole numbers that fit into int16. The query is split into two planes of whole numbers, each
embedding on a scale of its own: q = unit * (128 high + low). A similarity is

    unit * step * (high . value  +  low . value / 128)         values in steps / 128, the second product rounded down

Integers have one sum in whatever order they are added, so a refined score does not depend on what else is scored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import maxsim
from .maxsim import Int8Query, prepare_int8
from .simd import LANES, add_shifted, compiled, fill, larger, load, multiply_add_pairs, prefetch, splat_pair, store

BITS = 7
FINENESS = 1 << BITS  # values are whole numbers of steps / 128
_CLIPPED = np.rint(FINENESS * (126.5 + 128 * (np.arange(256) / 255) ** 2)).astype(np.int16)  # (256,) where |row| = 127
_FARTHEST = int(_CLIPPED[-1])
_FEW = 6  # deviations that a document's two scores differ by less than, where a query has few embeddings


@dataclass(frozen=True, slots=True)
class RefinedQuery:
    """A query for both: `coarse` for the int8 rows, the rest for refined values."""

    coarse: Int8Query
    high: NDArray[np.int16]  # (query embeddings, dim)
    low: NDArray[np.int16]  # (query embeddings, dim)
    scale: NDArray[np.float64]  # (query embeddings,)
    packed: NDArray[np.int16]  # both as lanes are loaded, filled up with zeros: (blocks, dim / 2, 2 planes, 16, 2)
    slack: float  # a document whose int8 score is lower than the k-th best by more is not refined

    @property
    def bias(self) -> NDArray[np.float64]:
        return self.coarse.bias


AnyQuery: TypeAlias = maxsim.PreparedQuery | RefinedQuery


@dataclass(frozen=True, slots=True)
class RefinedRows:
    """int8 rows with their codes. Reads like an array of float32, (embeddings, dim), in steps."""

    rows: NDArray[np.int8]  # (embeddings, dim)
    codes: NDArray[np.uint8]  # (embeddings, dim)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows.shape[0], self.rows.shape[1]

    def __getitem__(self, numbers: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        return refined_values(self.rows[numbers], self.codes[numbers]).astype(np.float32) / np.float32(FINENESS)


def encode_refinements(values: NDArray[np.float32], rows: NDArray[np.int8]) -> NDArray[np.uint8]:
    """The codes of values, (rows, dim), in steps, whose int8 rows are `rows`: (rows, dim)."""
    within = np.rint((values - rows) * FINENESS) + FINENESS // 2
    beyond = np.rint(255 * np.sqrt(np.maximum(np.abs(values) - np.float32(126.5), 0) / 128))
    codes: NDArray[np.uint8] = np.clip(np.where(np.abs(rows) == 127, beyond, within), 0, 255).astype(np.uint8)
    return codes


def refined_values(rows: NDArray[np.int8], codes: NDArray[np.uint8]) -> NDArray[np.int16]:
    """(rows, dim), in steps / 128."""
    values = np.zeros(rows.shape, dtype=np.int16)
    _refine(rows, codes, 0, len(rows), _CLIPPED, values)
    return values


def prepare_refined(
    query: NDArray[np.float32],
    centre: NDArray[np.float32],
    step: float,
    positions: NDArray[np.int64] | None = None,
    reach: tuple[float, float] | None = None,
) -> RefinedQuery:
    """As maxsim.prepare_int8; without `reach` every document is refined.

    If the errors of the dimensions are independent, a similarity on int8 rows is wrong by |q| step / sqrt(12) because
    the row is rounded, and by unit |row| / sqrt(12) because the query is. These are standard deviations. The errors of
    one document's similarities are not independent, so the slack goes by the sum of their deviations. For few
    embeddings the sum is little more than the deviation of a whole score, so the slack is at least six times the root
    of the sum of squares.
    """
    coarse = prepare_int8(query, centre, step, positions, reach)
    count, dim = query.shape
    high, low = np.empty((count, dim), dtype=np.int16), np.empty((count, dim), dtype=np.int16)
    packed = np.zeros(-(-count // LANES) * LANES * -(-dim // 2) * 4, dtype=np.int16)
    unit, length = np.empty(count), np.empty(count)
    _split(query, high, low, packed, unit, length)
    slack = np.inf
    if reach is not None:
        deviations = np.hypot(length * step, coarse.unit * reach[1]) / 12**0.5  # (query embeddings,)
        slack = max(float(deviations.sum()), _FEW * float(np.linalg.norm(deviations)))
    return RefinedQuery(coarse, high, low, unit * step, packed, slack)


def score_refined(
    query: RefinedQuery,
    rows: RefinedRows,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    k: int | None,
    check: Callable[[NDArray[np.int64], NDArray[np.int64]], None],
    reached: float = -np.inf,
) -> NDArray[np.float64]:
    """The refined score of each document; with k, minus infinity for those that cannot be among the k best.

    `check` is called with the documents' bounds before their codes are read. `reached` is a score that k other
    documents have at least.
    """
    contends = starts < ends
    if k is not None:
        coarse = maxsim.score(query.coarse, rows.rows, starts, ends, k, query.slack)
        if len(coarse) > k:
            reached = max(reached, np.partition(coarse, len(coarse) - k)[len(coarse) - k])
        contends &= coarse >= reached - query.slack
    starts, ends = starts[contends], ends[contends]
    check(starts, ends)
    refined = np.empty(len(starts))
    _score_refined(rows.rows, rows.codes, starts, ends, _CLIPPED, query.packed, query.scale, query.bias, refined)
    scores = np.full(len(contends), -np.inf)
    scores[contends] = refined
    return scores


def refined_similarities(query: RefinedQuery, rows: NDArray[np.int8], codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(rows, query embeddings): what `score_refined` takes the maxima of."""
    values = refined_values(rows, codes).astype(np.int64)
    products = values @ query.high.T.astype(np.int64) + ((values @ query.low.T.astype(np.int64)) >> BITS)
    return products * query.scale + query.bias


@compiled
def _split(
    query: NDArray[np.float32],
    high: NDArray[np.int16],
    low: NDArray[np.int16],
    packed: NDArray[np.int16],
    unit: NDArray[np.float64],
    length: NDArray[np.float64],
) -> None:
    """A query into its two planes, also packed; the unit and the length of each embedding."""
    count, dim = query.shape
    pairs = (dim + 1) // 2
    # Two limits keep every product of the high plane, with what the low plane adds to it, below 2^31.
    most = FINENESS * ((2**31 - 1) / _FARTHEST - dim)
    for i in range(count):
        largest, total, squares = 1e-12, 0.0, 0.0
        for d in range(dim):
            value = np.float64(abs(query[i, d]))
            largest, total, squares = max(largest, value), total + value, squares + value * value
        unit[i] = max(largest / 32767, total / most)
        length[i] = np.sqrt(squares)
        finer = np.int64(0)
        for d in range(dim):
            rounded = np.int64(np.rint(np.float64(query[i, d]) / unit[i]))
            high[i, d] = (rounded + FINENESS // 2) >> BITS
            low[i, d] = rounded - (np.int64(high[i, d]) << BITS)
            finer += abs(np.int64(low[i, d]))
        if finer * _FARTHEST >= 2**31:  # only beyond a thousand dimensions
            low[i] = 0
        for d in range(dim):
            at = (i // LANES * pairs + d // 2) * 4 * LANES + i % LANES * 2 + d % 2
            packed[at], packed[at + 2 * LANES] = high[i, d], low[i, d]


@compiled
def _refine(
    rows: NDArray[np.int8],
    codes: NDArray[np.uint8],
    begin: int,
    end: int,
    clipped: NDArray[np.int16],
    values: NDArray[np.int16],
) -> None:
    """The first lines of `values` from rows begin to end. Values wider than rows keep what is in their last columns."""
    dim = rows.shape[1]
    for row in range(begin, end):
        line = row - begin
        farthest = np.int16(0)
        for d in range(dim):
            coarse = np.int16(rows[row, d])
            values[line, d] = np.int16(coarse * 128 + np.int16(codes[row, d]) - 64)
            farthest = max(farthest, abs(coarse))
        if farthest == 127:  # about one row in a hundred
            for d in range(dim):
                if rows[row, d] == 127:
                    values[line, d] = clipped[codes[row, d]]
                elif rows[row, d] == -127:
                    values[line, d] = -clipped[codes[row, d]]


@compiled
def _score_refined(
    rows: NDArray[np.int8],
    codes: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    clipped: NDArray[np.int16],
    packed: NDArray[np.int16],
    scale: NDArray[np.float64],
    bias: NDArray[np.float64],
    scores: NDArray[np.float64],
) -> None:
    """Scores of documents that have rows, in the order of the query's positions."""
    count, width = len(scale), (rows.shape[1] + 1) // 2 * 2
    blocks = (count + LANES - 1) // LANES
    products = np.empty(blocks * LANES, dtype=np.int32)
    longest = 0
    for i in range(len(starts)):
        longest = max(longest, ends[i] - starts[i])
    values = np.zeros((longest, width), dtype=np.int16)
    for i in range(len(starts)):
        following = min(i + 1, len(starts) - 1)  # documents are anywhere in memory
        for line in range(starts[following] * codes.shape[1], ends[following] * codes.shape[1], 64):
            prefetch(codes, line)
        _refine(rows, codes, starts[i], ends[i], clipped, values)
        for block in range(blocks):
            _sixteen_refined_maxima(values, ends[i] - starts[i], packed, block, products)
        total = 0.0
        for position in range(count):
            total += products[position] * scale[position] + bias[position]
        scores[i] = total


@compiled
def _sixteen_refined_maxima(
    values: NDArray[np.int16], count: int, packed: NDArray[np.int16], block: int, products: NDArray[np.int32]
) -> None:
    """Over the first `count` lines, the largest product with each lane of a block. Four lines at a time.

    After the last line the last line is taken again: it changes no maximum.
    """
    line_bytes, pairs = 2 * values.shape[1], values.shape[1] // 2
    size = 4 * LANES
    last = count - 1
    maxima, nothing = fill(np.int32(-(2**31))), fill(np.int32(0))
    bits = np.int32(BITS)
    for line in range(0, count, 4):
        at0, at1 = line * line_bytes, min(line + 1, last) * line_bytes
        at2, at3 = min(line + 2, last) * line_bytes, min(line + 3, last) * line_bytes
        high0, high1, high2, high3 = nothing, nothing, nothing, nothing
        low0, low1, low2, low3 = nothing, nothing, nothing, nothing
        for pair in range(pairs):
            high = load(packed, (block * pairs + pair) * 2 * size)
            low = load(packed, ((block * pairs + pair) * 2 + 1) * size)
            pair0, pair1 = splat_pair(values, at0 + 4 * pair), splat_pair(values, at1 + 4 * pair)
            pair2, pair3 = splat_pair(values, at2 + 4 * pair), splat_pair(values, at3 + 4 * pair)
            high0, low0 = multiply_add_pairs(high0, pair0, high), multiply_add_pairs(low0, pair0, low)
            high1, low1 = multiply_add_pairs(high1, pair1, high), multiply_add_pairs(low1, pair1, low)
            high2, low2 = multiply_add_pairs(high2, pair2, high), multiply_add_pairs(low2, pair2, low)
            high3, low3 = multiply_add_pairs(high3, pair3, high), multiply_add_pairs(low3, pair3, low)
        maxima = larger(maxima, larger(add_shifted(high0, low0, bits), add_shifted(high1, low1, bits)))
        maxima = larger(maxima, larger(add_shifted(high2, low2, bits), add_shifted(high3, low3, bits)))
    store(products, block * size, maxima)
