"""A BERT encoder: token ids to states, in one call that holds no lock.

Matrix products are of bytes. A row that goes into a product is rounded in 255 steps between its least and its greatest
value, so what a token becomes depends on its text alone, whatever texts are computed with it:

    x = step * q + least        sum of x w  =  step * scale * (sum of q w)  +  least * scale * (sum of w)

with int8 weights and a scale per column. `sums` are the scale * (sum of w). Everything else is float32. The rows of
several texts lie end to end. Widths are multiples of 64, and attention heads have 32 dimensions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .floats import (
    everywhere,
    fused,
    larger,
    largest_of,
    load_floats,
    smaller,
    smallest_of,
    store_bytes,
    store_floats,
    sum_of,
)
from .products import ROW_KIND, TILE, TILE_SETTINGS, close_tiles, multiply, open_tiles, product_values
from .self_attention import attend, attention_room
from .simd import LANES, compiled

_BLOCK = 96  # rows that are multiplied with all columns before the next rows are, while they are in the cache
_EPSILON = np.float32(1e-12)

# GELU is x * (1/2 + t P(t^2)), t = x between -4.2 and 4.2: to 8e-5 with this polynomial, whose greatest error is least.
_REACH = np.float32(4.2)
_GELU = np.array(  # highest power first
    [
        *(4.92418036e-11, -4.79589601e-9, 2.07253618e-7, -5.28964064e-6, 8.98364369e-5),
        *(-1.08646047e-3, 9.74094155e-3, -6.62220775e-2, 3.98834579e-1),
    ],
    dtype=np.float32,
)


class Product(NamedTuple):
    """The weights of a matrix product, of each layer."""

    packed: NDArray[np.int8]  # (layers, depth * columns): see products.pack_weights
    scale: NDArray[np.float32]  # (layers, columns)
    sums: NDArray[np.float32]
    bias: NDArray[np.float32]


class Weights(NamedTuple):
    words: NDArray[np.uint8]  # (vocabulary, width)
    word_scale: NDArray[np.float32]  # (2,): a word is scale * (bytes - zero)
    places: NDArray[np.float32]  # (places, width)
    first_norm: NDArray[np.float32]  # (2, width): gain, shift
    attention: Product  # width -> 3 * width: query (times log2(e) / sqrt(32)), key, value
    mixing: Product  # width -> width
    mixing_norm: NDArray[np.float32]  # (layers, 2, width)
    inner: Product  # width -> inner width
    outer: Product  # inner width -> width
    outer_norm: NDArray[np.float32]  # (layers, 2, width)


class Rounded(NamedTuple):
    rows: NDArray[np.integer]  # (positions, width), of products.ROW_KIND
    steps: NDArray[np.float32]  # (positions,)
    least: NDArray[np.float32]


class Room(NamedTuple):
    """Work space for texts of so many positions in all."""

    states: NDArray[np.float32]  # (positions, width): the result
    state: Rounded
    context: NDArray[np.float32]
    mixed: Rounded
    inner: Rounded
    products: NDArray[np.int32]  # (positions * inner width or 3 * width,)
    attention: NDArray[np.float32]


def make_room(weights: Weights, positions: int) -> Room:
    width, inner = weights.places.shape[1], weights.inner.scale.shape[1]

    def rounded(columns: int) -> Rounded:
        numbers = np.zeros((2, positions), dtype=np.float32)
        return Rounded(np.zeros((positions + 2 * TILE, columns), dtype=ROW_KIND), numbers[0], numbers[1])

    return Room(
        np.zeros((positions, width), dtype=np.float32),
        rounded(width),
        np.zeros((positions, width), dtype=np.float32),
        rounded(width),
        rounded(inner),
        np.zeros((positions + 2 * TILE) * max(inner, 3 * width), dtype=np.int32),
        attention_room(positions),
    )


@compiled
def forward(
    token_ids: NDArray[np.int64],  # (positions,)
    places: NDArray[np.int64],  # (positions,): rows of weights.places
    starts: NDArray[np.int64],  # (texts,): the first position of each
    lengths: NDArray[np.int64],  # (texts,): positions
    attended: NDArray[np.int64],  # (texts,): so many positions, the first of the text, are attended to
    weights: Weights,
    room: Room,  # its states are the result
    tiles: bool,  # products.tiles_allowed()
) -> None:
    positions = len(token_ids)
    width = room.states.shape[1]
    inner = room.inner.rows.shape[1]
    wide = room.products[: (positions + 2 * TILE) * 3 * width].reshape(positions + 2 * TILE, 3 * width)
    narrow = room.products[: (positions + 2 * TILE) * width].reshape(positions + 2 * TILE, width)
    deep = room.products[: (positions + 2 * TILE) * inner].reshape(positions + 2 * TILE, inner)
    if tiles:
        open_tiles(TILE_SETTINGS)
    embed_tokens(token_ids, places, weights, room)
    for layer in range(len(weights.mixing_norm)):
        for first in range(0, positions, _BLOCK):
            last = min(first + _BLOCK, positions)
            multiply(first, last, room.state.rows, weights.attention.packed[layer], wide, tiles)
        product = weights.attention
        scales = product.scale[layer], product.sums[layer], product.bias[layer]
        attend(starts, lengths, attended, wide, scales, room.state, room.context, room.attention)
        for first in range(0, positions, _BLOCK):
            last = min(first + _BLOCK, positions)
            for i in range(first, last):
                round_row(room.context[i], room.mixed, i)
            multiply(first, last, room.mixed.rows, weights.mixing.packed[layer], narrow, tiles)
            add_and_normalise(
                first, last, narrow, weights.mixing, layer, room.mixed, weights.mixing_norm, room.states, room.state
            )
            multiply(first, last, room.state.rows, weights.inner.packed[layer], deep, tiles)
            gelu(first, last, deep, weights.inner, layer, room.state, room.inner)
            multiply(first, last, room.inner.rows, weights.outer.packed[layer], narrow, tiles)
            add_and_normalise(
                first, last, narrow, weights.outer, layer, room.inner, weights.outer_norm, room.states, room.state
            )
    if tiles:
        close_tiles()


@compiled
def embed_tokens(token_ids: NDArray[np.int64], places: NDArray[np.int64], weights: Weights, room: Room) -> None:
    """The states before the first layer, and what they are rounded."""
    width = room.states.shape[1]
    row = np.empty(width, dtype=np.float32)
    scale = everywhere(weights.word_scale[0])
    zero = everywhere(weights.word_scale[1])
    for i in range(len(token_ids)):
        word = weights.words[token_ids[i]]
        place = weights.places[places[i]]
        for j in range(0, width, LANES):
            store_floats(row, j, fused(load_floats(word, j) - zero, scale, load_floats(place, j)))
        normalise(row, weights.first_norm, room.states[i])
        round_row(room.states[i], room.state, i)


@compiled
def add_and_normalise(
    first: int,
    last: int,
    products: NDArray[np.int32],
    weights: Product,
    layer: int,
    multiplied: Rounded,
    norm: NDArray[np.float32],
    states: NDArray[np.float32],
    state: Rounded,
) -> None:
    """states = normalised(states + product + bias) from position `first` to `last`, and what they are rounded."""
    width = states.shape[1]
    row = np.empty(width, dtype=np.float32)
    scales = weights.scale[layer], weights.sums[layer], weights.bias[layer]
    for i in range(first, last):
        step = everywhere(multiplied.steps[i])
        least = everywhere(multiplied.least[i])
        product = products[i]
        for j in range(0, width, LANES):
            store_floats(row, j, product_values(product, j, step, least, scales) + load_floats(states[i], j))
        normalise(row, norm[layer], states[i])
        round_row(states[i], state, i)


@compiled
def gelu(
    first: int,
    last: int,
    products: NDArray[np.int32],
    weights: Product,
    layer: int,
    multiplied: Rounded,
    result: Rounded,
) -> None:
    """GELU(product + bias), rounded, from position `first` to `last`."""
    width = products.shape[1]
    row = np.empty(width, dtype=np.float32)
    scales = weights.scale[layer], weights.sums[layer], weights.bias[layer]
    high = everywhere(_REACH)
    low = everywhere(-_REACH)
    for i in range(first, last):
        step = everywhere(multiplied.steps[i])
        least = everywhere(multiplied.least[i])
        product = products[i]
        for j in range(0, width, LANES):
            value = product_values(product, j, step, least, scales)
            near = smaller(larger(value, low), high)
            squared = near * near
            power = everywhere(_GELU[0])
            for k in range(1, 9):
                power = fused(power, squared, everywhere(_GELU[k]))
            store_floats(row, j, value * fused(near, power, everywhere(np.float32(0.5))))
        round_row(row, result, i)


@compiled
def normalise(row: NDArray[np.float32], norm: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    """Mean 0 and variance 1, then times norm[0] plus norm[1]."""
    width = row.shape[0]
    gain, shift = norm[0], norm[1]
    total = everywhere(np.float32(0))
    for j in range(0, width, LANES):
        total = total + load_floats(row, j)
    mean = everywhere(sum_of(total) / np.float32(width))
    total = everywhere(np.float32(0))
    for j in range(0, width, LANES):
        away = load_floats(row, j) - mean
        total = fused(away, away, total)
    factor = everywhere(np.float32(1) / np.sqrt(sum_of(total) / np.float32(width) + _EPSILON))
    for j in range(0, width, LANES):
        scaled = (load_floats(row, j) - mean) * factor
        store_floats(result, j, fused(scaled, load_floats(gain, j), load_floats(shift, j)))


@compiled
def round_row(row: NDArray[np.float32], rounded: Rounded, i: int) -> None:
    """Row i of `rounded`, with its step and its least value."""
    width = row.shape[0]
    low = load_floats(row, 0)
    high = low
    for j in range(LANES, width, LANES):
        values = load_floats(row, j)
        low = smaller(low, values)
        high = larger(high, values)
    least = smallest_of(low)
    step = max((largest_of(high) - least) / np.float32(255), _EPSILON)
    rounded.steps[i] = step
    rounded.least[i] = least
    inverse = everywhere(np.float32(1) / step)
    start = everywhere(least)
    bytes_of_row = rounded.rows[i]
    for j in range(0, width, LANES):
        store_bytes(bytes_of_row, j, (load_floats(row, j) - start) * inverse)
