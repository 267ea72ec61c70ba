"""Token-aware cells: one small k-means per token type.

Embeddings of one wordpiece are close to each other, so clustering each type separately needs a few comparisons per
embedding, where one k-means over all embeddings needs one per cell. A cell then holds nearly one word, which suits an
order by token frequency. A type gets cells by how often it occurs and how far its embeddings spread. A type with very
many cells is split in two steps; a collection without token ids has one type for everything and is clustered that way.

All arithmetic is on int8 rows around the collection's mean, in integers: the cells are the same on any machine and for
any number of threads. In memory are one number per embedding, the centroids, and a batch of rows per thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..threads import in_order
from .simd import (
    LANES,
    compiled,
    fill,
    larger,
    load,
    multiply_add,
    pack,
    splat,
    store,
    where_larger,
)

Rows = NDArray[Any]  # numbers of rows, int32 where that is enough
Read = Callable[[Rows], NDArray[np.int8]]  # those rows, int8, a multiple of four wide

CELLS_PER_ROOT = 32  # cells = this times the root of the number of embeddings: probing and scanning stay in balance
_ITERATIONS = 5
_ROWS_PER_CELL = 48  # rows that a centroid is learnt from
_MOST_CELLS_AT_ONCE = 256  # a larger budget is split first
_BATCH = 65_536  # rows in a thread's hands
_DEEPEST = 4  # splits of splits
_SPREAD_SAMPLE = 32  # rows that tell how far a type spreads


class Clusters(NamedTuple):
    """Cells: their centroids, and the rows that belong to them, cell after cell."""

    centroids: NDArray[np.int8]  # (cells, dim)
    sizes: NDArray[np.int64]  # (cells,)
    rows: Rows


def cluster(
    read: Read,
    token_ids: NDArray[np.int32],
    cells: int | None = None,
    threads: int | None = None,
    finer: Mapping[int, int] = MappingProxyType({}),
) -> Iterator[Clusters]:
    """All rows in cells, a batch of cells at a time, in the order of the token ids.

    `finer` has the token ids that get at least so many cells, whatever their share.
    """
    if cells is None:
        cells = int(CELLS_PER_ROOT * len(token_ids) ** 0.5)
    order, bounds = _by_type(token_ids)
    budgets = _budgets(read, order, bounds, cells)
    for token_id, least in finer.items():
        rows = token_ids[order[bounds[:-1]]] == token_id
        budgets[rows] = np.minimum(np.maximum(budgets[rows], least), -(-np.diff(bounds)[rows] // 4))
    batches = _batches(read, order, bounds, budgets, threads)
    return in_order(_cluster_batch, ((read, *batch) for batch in batches), threads, ahead=2)


def _by_type(token_ids: NDArray[np.int32]) -> tuple[Rows, NDArray[np.int64]]:
    """Row numbers ordered by token id, and where each type begins among them."""
    types, counts = np.unique(token_ids, return_counts=True)
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    order = np.empty(len(token_ids), dtype=np.int32 if len(token_ids) < 2**31 else np.int64)
    _counting_sort(np.asarray(token_ids), types, bounds[:-1].copy(), order)
    return order, bounds


@compiled
def _counting_sort(
    keys: NDArray[np.int32], types: NDArray[np.int32], starts: NDArray[np.int64], order: NDArray[Any]
) -> None:
    for row in range(len(keys)):
        slot = np.searchsorted(types, keys[row])
        order[starts[slot]] = row
        starts[slot] += 1


def _budgets(read: Read, order: NDArray[Any], bounds: NDArray[np.int64], cells: int) -> NDArray[np.int64]:
    """Cells per type: one each, and the rest by frequency times spread; at least four rows per cell."""
    counts = np.diff(bounds)
    weight = np.zeros(len(counts), dtype=np.int64)  # integers: the same on any machine
    for first in range(0, len(counts), 1024):
        types = slice(first, first + 1024)
        sampled = np.minimum(counts[types], _SPREAD_SAMPLE)
        edges = np.concatenate([[0], np.cumsum(sampled)])
        within = np.arange(edges[-1]) - np.repeat(edges[:-1], sampled)
        step = within * np.repeat(counts[types], sampled) // np.repeat(sampled, sampled)
        rows = read(order[np.repeat(bounds[:-1][types], sampled) + step]).astype(np.int64)
        sums = np.add.reduceat(rows, edges[:-1], axis=0)
        squares = np.add.reduceat((rows**2).sum(axis=1), edges[:-1])
        variance = (squares - (sums**2).sum(axis=1) / sampled) / sampled
        weight[types] = counts[types] * np.sqrt(np.maximum(variance, 0)).round(3) * 1000
    spare = max(cells - len(counts), 0)
    share = 1 + (spare * (weight / max(int(weight.sum()), 1))).astype(np.int64)
    budgets: NDArray[np.int64] = np.minimum(share, -(-counts // 4))
    return budgets


def _batches(
    read: Read, order: Rows, bounds: NDArray[np.int64], budgets: NDArray[np.int64], threads: int | None
) -> Iterator[tuple[Rows, NDArray[np.int64], NDArray[np.int64]]]:
    """Work for one thread: rows, where each type begins among them, cells for each."""
    first = 0
    while first < len(budgets):
        if budgets[first] > _MOST_CELLS_AT_ONCE:
            rows = order[bounds[first] : bounds[first + 1]]
            for part, budget in _split(read, rows, int(budgets[first]), threads):
                yield part, np.array([0, len(part)]), np.array([budget])
            first += 1
            continue
        last = first + 1
        while (
            last < len(budgets) and budgets[last] <= _MOST_CELLS_AT_ONCE and bounds[last + 1] - bounds[first] <= _BATCH
        ):
            last += 1
        yield order[bounds[first] : bounds[last]], bounds[first : last + 1] - bounds[first], budgets[first:last]
        first = last


def _split(read: Read, rows: Rows, budget: int, threads: int | None, depth: int = 0) -> Iterator[tuple[Rows, int]]:
    """A large budget in parts that are small enough. Rows that are all equal stay in one part."""
    if budget <= _MOST_CELLS_AT_ONCE or depth == _DEEPEST:
        yield rows, min(budget, _MOST_CELLS_AT_ONCE)
        return
    parts = min(int(np.ceil(budget**0.5)), _MOST_CELLS_AT_ONCE)
    sample = rows[:: max(1, len(rows) // (parts * _ROWS_PER_CELL * 4))]
    centroids = _cluster_batch(read, sample, np.array([0, len(sample)]), np.array([parts])).centroids
    if len(centroids) == 1:
        yield rows, 1
        return
    order, bounds = _by_type(assign(read, rows, centroids, threads))
    for begin, end in pairwise(bounds.tolist()):
        share = max(1, round(budget * (end - begin) / len(rows)))
        yield from _split(read, rows[order[begin:end]], share, threads, depth + 1)


def assign(read: Read, rows: Rows, centroids: NDArray[np.int8], threads: int | None) -> NDArray[np.int32]:
    """The nearest centroid of each row, a block of rows at a time."""
    packed, start = pack_for_distances(centroids)

    def nearest(first: int) -> NDArray[np.int32]:
        block = read(rows[first : first + _BATCH])
        home = np.empty(len(block), dtype=np.int32)
        _nearest(block, packed, start, home)
        return home

    return np.concatenate(list(in_order(nearest, ((first,) for first in range(0, len(rows), _BATCH)), threads)))


def pack_for_distances(centroids: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Packed centroids, with accumulators that make the largest product that of the nearest centroid.

    |row - centroid|^2 = |row|^2 - 2 (row . centroid - |centroid|^2 / 2). Lanes behind the last can never win.
    """
    packed, start = pack(centroids)
    start[: len(centroids)] -= half_squares(centroids)
    start[len(centroids) :] = np.iinfo(np.int32).min // 2
    return packed, start


def half_squares(centroids: NDArray[np.int8]) -> NDArray[np.int32]:
    """|centroid|^2 / 2 of each, rounded down."""
    squares: NDArray[np.int32] = np.einsum("ij,ij->i", centroids, centroids, dtype=np.int32)  # without a wider copy
    return squares // 2


def _cluster_batch(read: Read, rows: Rows, bounds: NDArray[np.int64], budgets: NDArray[np.int64]) -> Clusters:
    most = int(budgets.sum())
    large = len(rows) > _BATCH  # then it is one type alone: learn from a sample, and assign the rest block by block
    learnt = rows
    if large:
        wanted = min(most * _ROWS_PER_CELL, len(rows))
        learnt = rows[np.arange(wanted) * len(rows) // wanted]
        bounds = np.array([0, len(learnt)])
    vectors = read(learnt)
    centroids = np.zeros((most, vectors.shape[1]), dtype=np.int8)
    home = np.empty(len(learnt), dtype=np.int32)
    _k_means(vectors, bounds, budgets, centroids, home)
    if large:
        home = assign(read, rows, centroids, threads=1)
    order, edges = _by_type(home)
    used = home[order[edges[:-1]]]
    return Clusters(centroids[used], np.diff(edges), rows[order])


@compiled
def _k_means(
    vectors: NDArray[np.int8],
    bounds: NDArray[np.int64],
    budgets: NDArray[np.int64],
    centroids: NDArray[np.int8],
    home: NDArray[np.int32],
) -> None:
    """Cluster vectors[bounds[t]:bounds[t + 1]] into budgets[t] cells, for every t. Clusters are numbered throughout."""
    dim = vectors.shape[1]
    groups = dim // 4
    first = 0
    for t in range(len(budgets)):
        cells = budgets[t]
        count = bounds[t + 1] - bounds[t]
        type_vectors = vectors[bounds[t] : bounds[t + 1]]
        sampled = min(count, cells * _ROWS_PER_CELL)
        sample = np.empty((sampled, dim), dtype=np.int8)
        for i in range(sampled):
            sample[i] = type_vectors[i * count // sampled]
        blocks = (cells + LANES - 1) // LANES
        packed = np.zeros(blocks * groups * 4 * LANES, dtype=np.int8)
        start = np.full(blocks * LANES, np.int32(-(2**30)), dtype=np.int32)
        nearest = np.zeros(sampled, dtype=np.int32)
        for iteration in range(_ITERATIONS + 1):
            if iteration == 0:
                for c in range(cells):
                    centroids[first + c] = sample[c * sampled // cells]
                    if cells > 1:
                        _put(centroids[first + c], c, packed, start)
                if cells > 1:
                    continue
            elif cells > 1:
                _nearest(sample, packed, start, nearest)
            sums = np.zeros((cells, dim), dtype=np.int32)
            members = np.zeros(cells, dtype=np.int32)
            for i in range(sampled):
                c = nearest[i]
                members[c] += 1
                for d in range(dim):
                    sums[c, d] += sample[i, d]
            for c in range(cells):
                if members[c] > 0:
                    for d in range(dim):
                        centroids[first + c, d] = np.int8(round(sums[c, d] / members[c]))
                    if cells > 1:
                        _put(centroids[first + c], c, packed, start)
            if cells == 1:
                break
        if cells == 1:
            home[bounds[t] : bounds[t + 1]] = first
        else:
            _nearest(type_vectors, packed, start, home[bounds[t] : bounds[t + 1]])
            for i in range(bounds[t], bounds[t + 1]):
                home[i] += first
        first += cells


@compiled
def _put(vector: NDArray[np.int8], place: int, packed: NDArray[np.int8], start: NDArray[np.int32]) -> None:
    """A centroid into its lane, as `pack_for_distances` does for many."""
    groups = len(vector) // 4
    base = (place // LANES) * groups * 4 * LANES + (place % LANES) * 4
    total, squared = np.int64(0), np.int64(0)
    for d in range(len(vector)):
        value = np.int64(vector[d])
        packed[base + (d // 4) * 4 * LANES + d % 4] = vector[d]
        total += value
        squared += value * value
    start[place] = -128 * total - squared // 2


@compiled
def _nearest(
    vectors: NDArray[np.int8], packed: NDArray[np.int8], start: NDArray[np.int32], nearest: NDArray[np.int32]
) -> None:
    """For each vector the packed column whose product, added to its start, is largest; the first of equals."""
    dim = vectors.shape[1]
    groups = dim // 4
    blocks = len(start) // LANES
    last = len(vectors) - 1
    values = np.empty(4 * LANES, dtype=np.int32)
    places = np.empty(4 * LANES, dtype=np.int32)
    lowest = fill(np.int32(-(2**31)))
    for row in range(0, len(vectors), 4):
        at0, at1 = row * dim, min(row + 1, last) * dim
        at2, at3 = min(row + 2, last) * dim, min(row + 3, last) * dim
        best0, best1, best2, best3 = lowest, lowest, lowest, lowest
        where0, where1, where2, where3 = lowest, lowest, lowest, lowest
        for block in range(blocks):
            sum0 = load(start, block * 4 * LANES)
            sum1, sum2, sum3 = sum0, sum0, sum0
            for group in range(groups):
                column = load(packed, (block * groups + group) * 4 * LANES)
                sum0 = multiply_add(sum0, splat(vectors, at0 + 4 * group), column)
                sum1 = multiply_add(sum1, splat(vectors, at1 + 4 * group), column)
                sum2 = multiply_add(sum2, splat(vectors, at2 + 4 * group), column)
                sum3 = multiply_add(sum3, splat(vectors, at3 + 4 * group), column)
            here = fill(np.int32(block))
            where0, best0 = where_larger(sum0, best0, here, where0), larger(sum0, best0)
            where1, best1 = where_larger(sum1, best1, here, where1), larger(sum1, best1)
            where2, best2 = where_larger(sum2, best2, here, where2), larger(sum2, best2)
            where3, best3 = where_larger(sum3, best3, here, where3), larger(sum3, best3)
        store(values, 0, best0)
        store(values, 4 * LANES, best1)
        store(values, 8 * LANES, best2)
        store(values, 12 * LANES, best3)
        store(places, 0, where0)
        store(places, 4 * LANES, where1)
        store(places, 8 * LANES, where2)
        store(places, 12 * LANES, where3)
        for i in range(min(4, len(vectors) - row)):
            chosen = places[i * LANES] * LANES
            value = values[i * LANES]
            for lane in range(1, LANES):
                column_number = places[i * LANES + lane] * LANES + lane
                if values[i * LANES + lane] > value or (values[i * LANES + lane] == value and column_number < chosen):
                    value = values[i * LANES + lane]
                    chosen = column_number
            nearest[row + i] = chosen
