"""Attention of the positions of a text to each other: softmax(queries keys) values, for each head of 32 dimensions.

Positions are computed in groups of 36, and six of a group at once, so that what is read of keys and values is used
six times while it is in registers, and often while it is in the cache. Keys are packed in blocks of 32, dimension by
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
_GROUP = 36  # positions that share a pass over the keys
_ROWS = 6  # of a group at once: with sixteen columns, their sums fit into 12 of the 16 registers of the smallest CPU
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
                for j in range(0, padded, LANES):
                    for r in range(0, rows, _ROWS):
                        _multiply_keys(queries, r, keys, j, weights, padded)
                for r in range(rows):
                    _softmax(weights, r * padded, seen, padded)
                for r in range(0, rows, _ROWS):
                    for half in range(0, HEAD, LANES):
                        position = start + first + r
                        _mix_values(weights, r, padded, values, seen, context, position, rows - r, head + half, half)


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
    """The products of six queries from r on with the sixteen keys from j on."""
    a0 = a1 = a2 = a3 = a4 = a5 = everywhere(np.float32(0))
    query = r * HEAD
    block = j // HEAD * HEAD * HEAD + j % HEAD
    for d in range(HEAD):
        key = load_floats(keys, block + d * HEAD)
        a0 = fused(load_everywhere(queries, query + d), key, a0)
        a1 = fused(load_everywhere(queries, query + HEAD + d), key, a1)
        a2 = fused(load_everywhere(queries, query + 2 * HEAD + d), key, a2)
        a3 = fused(load_everywhere(queries, query + 3 * HEAD + d), key, a3)
        a4 = fused(load_everywhere(queries, query + 4 * HEAD + d), key, a4)
        a5 = fused(load_everywhere(queries, query + 5 * HEAD + d), key, a5)
    place = r * padded + j
    store_floats(weights, place, a0)
    store_floats(weights, place + padded, a1)
    store_floats(weights, place + 2 * padded, a2)
    store_floats(weights, place + 3 * padded, a3)
    store_floats(weights, place + 4 * padded, a4)
    store_floats(weights, place + 5 * padded, a5)


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
    column: int,
    half: int,
) -> None:
    """Sixteen columns of the values' sums by the weights of row r and the five after it, as far as there are rows."""
    a0 = a1 = a2 = a3 = a4 = a5 = everywhere(np.float32(0))
    row = r * padded
    for j in range(seen):
        value = load_floats(values, j * HEAD + half)
        a0 = fused(load_everywhere(weights, row + j), value, a0)
        a1 = fused(load_everywhere(weights, row + padded + j), value, a1)
        a2 = fused(load_everywhere(weights, row + 2 * padded + j), value, a2)
        a3 = fused(load_everywhere(weights, row + 3 * padded + j), value, a3)
        a4 = fused(load_everywhere(weights, row + 4 * padded + j), value, a4)
        a5 = fused(load_everywhere(weights, row + 5 * padded + j), value, a5)
    store_floats(context[position], column, a0)
    if rows > 1:
        store_floats(context[position + 1], column, a1)
    if rows > 2:
        store_floats(context[position + 2], column, a2)
    if rows > 3:
        store_floats(context[position + 3], column, a3)
    if rows > 4:
        store_floats(context[position + 4], column, a4)
    if rows > 5:
        store_floats(context[position + 5], column, a5)
