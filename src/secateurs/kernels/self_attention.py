"""Attention of the positions of a text to each other: softmax(queries keys) values, for each head of 32 dimensions.

Positions are computed in groups of 32, and four of a group at once, so that what is read of keys and values is used
four times while it is in registers, and often while it is in the cache. Keys are packed in blocks of 32, dimension by
dimension.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .floats import (
    everywhere,
    fused,
    larger,
    largest_of,
    load_everywhere,
    load_floats,
    store_floats,
    sum_of,
    two_to_the,
)
from .products import product_values
from .simd import LANES, compiled

HEAD = 2 * LANES
_GROUP = 32  # positions that share a pass over the keys
_ROWS = 4
_NEVER = np.float32(-1e30)
_LOWEST = np.float32(-100)  # powers below are as good as 0, and numbers near float32's smallest are slow


def attention_room(positions: int) -> NDArray[np.float32]:
    """Work space of `attend` for a text of so many positions."""
    return np.zeros((2 * HEAD + _GROUP) * _padded(positions) + _GROUP * HEAD, dtype=np.float32)


@compiled
def _padded(positions: int) -> int:
    return (positions + HEAD - 1) // HEAD * HEAD


@compiled
def attend(
    starts: NDArray[np.int64],  # (texts,): the first position of each
    lengths: NDArray[np.int64],  # (texts,): positions
    attended: NDArray[np.int64],  # (texts,): so many positions, the first of the text, are attended to
    products: NDArray[np.int32],  # (positions, 3 * width): query times log2(e) / sqrt(HEAD), key, value
    scales: tuple[NDArray[np.float32], ...],  # scale, sums and bias of the products: see transformer.py
    multiplied: Any,  # transformer.Rounded
    context: NDArray[np.float32],  # (positions, width): the result
    room: NDArray[np.float32],
) -> None:
    width = context.shape[1]
    for text in range(len(starts)):
        start = starts[text]
        length = lengths[text]
        seen = attended[text]
        padded = _padded(seen)
        keys = room[: HEAD * padded]  # (padded / 32, HEAD, 32)
        values = room[HEAD * padded : 2 * HEAD * padded]  # (padded, HEAD)
        weights = room[2 * HEAD * padded : (2 * HEAD + _GROUP) * padded]  # (_GROUP, padded)
        queries = room[(2 * HEAD + _GROUP) * padded :]  # (_GROUP, HEAD)
        for head in range(0, width, HEAD):
            for i in range(seen):
                _read(products, scales, multiplied, start + i, width + head, queries, 0)
                _read(products, scales, multiplied, start + i, 2 * width + head, values, i * HEAD)
                place = np.uintp(i // HEAD * HEAD * HEAD + i % HEAD)  # unsigned, so that no index is checked
                for d in range(HEAD):
                    keys[place + np.uintp(d * HEAD)] = queries[d]
            for i in range(seen, padded):
                for d in range(HEAD):
                    keys[i // HEAD * HEAD * HEAD + i % HEAD + d * HEAD] = np.float32(0)
            for first in range(0, length, _GROUP):
                rows = min(_GROUP, length - first)
                for r in range((rows + _ROWS - 1) // _ROWS * _ROWS):  # the last may be computed more than once
                    _read(products, scales, multiplied, start + first + min(r, rows - 1), head, queries, r * HEAD)
                for j in range(0, padded, HEAD):
                    for r in range(0, rows, _ROWS):
                        _multiply_keys(queries, r, keys, j, weights, padded)
                for r in range(rows):
                    _softmax(weights, r * padded, seen, padded)
                for r in range(0, rows, _ROWS):
                    _mix_values(weights, r, padded, values, seen, context, start + first + r, rows - r, head)


@compiled
def _read(
    products: NDArray[np.int32],
    scales: tuple[NDArray[np.float32], ...],
    multiplied: Any,
    i: int,
    column: int,
    result: NDArray[np.float32],
    place: int,
) -> None:
    """The HEAD values from a column on, of position i, to `place` in the result."""
    step = everywhere(multiplied.steps[i])
    least = everywhere(multiplied.least[i])
    for half in range(0, HEAD, LANES):
        store_floats(result, place + half, product_values(products[i], column + half, step, least, scales))


@compiled
def _multiply_keys(
    queries: NDArray[np.float32],
    r: int,
    keys: NDArray[np.float32],
    j: int,
    weights: NDArray[np.float32],
    padded: int,
) -> None:
    """The products of four queries from r on with the 32 keys from j on."""
    a0 = a1 = a2 = a3 = everywhere(np.float32(0))
    b0 = b1 = b2 = b3 = everywhere(np.float32(0))
    query = r * HEAD
    block = j * HEAD
    for d in range(HEAD):
        a = load_floats(keys, block + d * HEAD)
        b = load_floats(keys, block + d * HEAD + LANES)
        q0 = load_everywhere(queries, query + d)
        q1 = load_everywhere(queries, query + HEAD + d)
        q2 = load_everywhere(queries, query + 2 * HEAD + d)
        q3 = load_everywhere(queries, query + 3 * HEAD + d)
        a0, b0 = fused(q0, a, a0), fused(q0, b, b0)
        a1, b1 = fused(q1, a, a1), fused(q1, b, b1)
        a2, b2 = fused(q2, a, a2), fused(q2, b, b2)
        a3, b3 = fused(q3, a, a3), fused(q3, b, b3)
    _put(weights, r * padded + j, a0, b0)
    _put(weights, (r + 1) * padded + j, a1, b1)
    _put(weights, (r + 2) * padded + j, a2, b2)
    _put(weights, (r + 3) * padded + j, a3, b3)


@compiled
def _softmax(weights: NDArray[np.float32], row: int, seen: int, padded: int) -> None:
    """2 ** weight over their sum, of the `seen` weights from `row` on; the rest up to `padded` is almost 0."""
    for j in range(row + seen, row + padded):
        weights[j] = _NEVER
    top = load_floats(weights, row)
    for j in range(row + LANES, row + padded, LANES):
        top = larger(top, load_floats(weights, j))
    highest = everywhere(largest_of(top))
    lowest = everywhere(_LOWEST)
    total = everywhere(np.float32(0))
    for j in range(row, row + padded, LANES):
        power = two_to_the(larger(load_floats(weights, j) - highest, lowest))
        total = total + power
        store_floats(weights, j, power)
    factor = everywhere(np.float32(1) / sum_of(total))
    for j in range(row, row + padded, LANES):
        store_floats(weights, j, load_floats(weights, j) * factor)


@compiled
def _mix_values(
    weights: NDArray[np.float32],
    r: int,
    padded: int,
    values: NDArray[np.float32],
    seen: int,
    context: NDArray[np.float32],
    position: int,
    rows: int,
    head: int,
) -> None:
    """The sums of the values by the weights of row r and the three after it, as far as there are rows."""
    a0 = a1 = a2 = a3 = everywhere(np.float32(0))
    b0 = b1 = b2 = b3 = everywhere(np.float32(0))
    row = r * padded
    for j in range(seen):
        a = load_floats(values, j * HEAD)
        b = load_floats(values, j * HEAD + LANES)
        w0 = load_everywhere(weights, row + j)
        w1 = load_everywhere(weights, row + padded + j)
        w2 = load_everywhere(weights, row + 2 * padded + j)
        w3 = load_everywhere(weights, row + 3 * padded + j)
        a0, b0 = fused(w0, a, a0), fused(w0, b, b0)
        a1, b1 = fused(w1, a, a1), fused(w1, b, b1)
        a2, b2 = fused(w2, a, a2), fused(w2, b, b2)
        a3, b3 = fused(w3, a, a3), fused(w3, b, b3)
    _put(context[position], head, a0, b0)
    if rows > 1:
        _put(context[position + 1], head, a1, b1)
    if rows > 2:
        _put(context[position + 2], head, a2, b2)
    if rows > 3:
        _put(context[position + 3], head, a3, b3)


@compiled
def _put(row: NDArray[np.float32], first: int, a: Any, b: Any) -> None:
    """Two vectors, one after the other."""
    store_floats(row, first, a)
    store_floats(row, first + LANES, b)
