"""Which cells are nearest to a query embedding?

Below 200,000 cells, a kernel compares the query embedding with every centroid: exact, and nothing to build. From there
on, reading all centroids from memory takes too long. Neighbouring centroids then form groups of about 64; the kernel
compares the query embedding with the groups' centres, and a second kernel with the members of the best 128 groups or
more. Nearly all of the nearest cells are among them: benchmarks/probing.py measures how many, beside a graph over the
centroids.

Groups are ranked by the product with their centre plus a term for their spread: the farther the members are from the
centre, the nearer the nearest of them may be to the query embedding.

Embeddings that are added are put into the cell with the nearest centroid, and groups find that too: among the members
of the 64 groups with the nearest centres. The same kernel finds the nearest centroid if each sum begins
with minus half the squared length of the centroid. benchmarks/assigning.py measures how often it is the nearest of all.

While a kernel runs, a heap holds the best cells of each query embedding as keys, `product << 32 | complement of the
cell`: keys order by product, and equal products by the lower cell. A cell that enters costs the logarithm of nprobe.
"""

from __future__ import annotations

from functools import cached_property
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .clustering import cluster, half_squares, pack_for_distances
from .heap import replace_lowest
from .simd import (
    LANES,
    any_larger,
    compiled,
    fill,
    load,
    multiply_add,
    pack,
    prefetch,
    splat,
    store,
)

MANY_CELLS = 200_000  # from here on they are grouped
_CELLS_PER_GROUP = 64
_GROUPS_PROBED = 128  # at least; and twice the root of their number, without which a million cells cost some recall
_GROUPS_NEAR = 64  # whose members an added embedding is compared with
_REACH = 65  # weight of a group's spread: about three times the size of a rounded query embedding's numbers
_TILE = 64  # blocks of sixteen centroids that stay in the second-level cache for all kept embeddings
_NEVER = -(2**30)  # less than any product
_LOW_HALF = 0xFFFFFFFF


def group_cells(centroids: NDArray[np.int8]) -> NDArray[np.int32] | None:
    """The group of each cell, or None where there are too few cells for groups to pay."""
    if len(centroids) < MANY_CELLS:
        return None
    groups = np.empty(len(centroids), dtype=np.int32)
    nameless = np.zeros(len(centroids), dtype=np.int32)
    so_far = 0
    for clusters in cluster(lambda rows: centroids[rows], nameless, len(centroids) // _CELLS_PER_GROUP):
        groups[clusters.rows] = so_far + np.repeat(np.arange(len(clusters.sizes)), clusters.sizes)
        so_far += len(clusters.sizes)
    return groups


class Centroids:
    """All cells' centroids, laid out for the kernel."""

    def __init__(self, centroids: NDArray[np.int8], groups: NDArray[np.int32] | None = None) -> None:
        self.count, self.width = centroids.shape
        self._layout = _Flat(centroids) if groups is None else _Grouped(centroids, groups)

    def nearest(self, rounded: NDArray[np.int8], wanted: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """For each rounded query embedding so many cells, best first, and their products."""
        kept = len(rounded)
        fours = np.zeros((-(-kept // 4) * 4, self.width), dtype=np.int8)
        fours[:kept, : rounded.shape[1]] = rounded
        return self._layout.probe(fours, kept, wanted)

    def assign(self, rows: NDArray[np.int8]) -> NDArray[np.int32]:
        """For each row, int8 (rows, width), the cell with the nearest centroid in the groups with the nearest centres.

        There must be groups: without them, clustering.assign compares a row with every centroid.
        """
        assert isinstance(self._layout, _Grouped)
        fours = np.zeros((-(-len(rows) // 4) * 4, self.width), dtype=np.int8)
        fours[: len(rows)] = rows
        return self._layout.assign(fours, len(rows))


class _Flat:
    def __init__(self, centroids: NDArray[np.int8]) -> None:
        self._packed, self._start = pack(centroids)
        self._start[len(centroids) :] = _NEVER

    def probe(self, fours: NDArray[np.int8], kept: int, wanted: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        best = _empty_heaps(len(fours), wanted)
        _probe(fours, kept, self._packed, self._start, best)
        return _best_first(best[:kept])


class _Grouped:
    """Centroids group after group, each group from the beginning of a block of lanes; and the groups' centres."""

    def __init__(self, centroids: NDArray[np.int8], groups: NDArray[np.int32]) -> None:
        self._centroids = centroids
        sizes = np.bincount(groups)
        self._first_block = np.concatenate([[0], np.cumsum(-(-sizes // LANES))])  # (groups + 1,)
        order = np.argsort(groups, kind="stable")
        first = np.cumsum(sizes) - sizes
        lanes = np.repeat(self._first_block[:-1] * LANES - first, sizes) + np.arange(len(order))
        padded = np.zeros((self._first_block[-1] * LANES, centroids.shape[1]), dtype=np.int8)
        padded[lanes] = centroids[order]
        self._cell_of_lane = np.full(len(padded), -1, dtype=np.int32)
        self._cell_of_lane[lanes] = order
        self._packed, self._start = pack(padded)
        self._start[self._cell_of_lane < 0] = _NEVER
        sums = np.zeros((len(sizes), centroids.shape[1]), dtype=np.int64)
        squares = np.zeros(len(sizes), dtype=np.int64)
        _add_members(centroids, groups, sums, squares)
        self._centres = np.rint(sums / sizes[:, None]).astype(np.int8)  # (groups, width)
        self._packed_centres, self._start_centres = pack(self._centres)
        spread = np.sqrt(sizes * squares - (sums**2).sum(axis=1)) / sizes  # root of the mean squared distance
        self._start_centres[: len(sizes)] += (_REACH * spread).astype(np.int32)
        self._start_centres[len(sizes) :] = _NEVER
        self._count = len(sizes)

    def probe(self, fours: NDArray[np.int8], kept: int, wanted: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        probed = max(_GROUPS_PROBED, 2 * isqrt(self._count), wanted)  # a group has at least one cell
        best = _empty_heaps(len(fours), wanted)
        if 4 * probed > self._count:  # groups would save nothing
            _probe(fours, kept, self._packed, self._start, best)
        else:
            self._probe_best(fours, kept, probed, self._start_centres, self._start, best)
        lanes, products = _best_first(best[:kept])
        return self._cell_of_lane[lanes], products

    def assign(self, fours: NDArray[np.int8], kept: int) -> NDArray[np.int32]:
        best = _empty_heaps(len(fours), 1)
        self._probe_best(fours, kept, min(_GROUPS_NEAR, self._count), *self._starts_of_distances, best)
        lanes, _ = _best_first(best[:kept])
        return self._cell_of_lane[lanes[:, 0]]

    def _probe_best(
        self,
        fours: NDArray[np.int8],
        kept: int,
        probed: int,
        start_centres: NDArray[np.int32],
        start: NDArray[np.int32],
        best: NDArray[np.int64],
    ) -> None:
        """Into the heaps, the best members of so many groups with the best centres."""
        best_groups = _empty_heaps(len(fours), probed)
        _probe(fours, kept, self._packed_centres, start_centres, best_groups)
        groups, _ = _best_first(best_groups[:kept])
        _probe_groups(fours, kept, self._packed, start, self._first_block, groups, best)

    @cached_property
    def _starts_of_distances(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Of the centres and of the members: with them the largest sum is that of the nearest, see clustering.py."""
        _, centres = pack_for_distances(self._centres)
        start = self._start.copy()
        is_cell = self._cell_of_lane >= 0
        start[is_cell] -= half_squares(self._centroids)[self._cell_of_lane[is_cell]]
        return centres, start


def _empty_heaps(queries: int, wanted: int) -> NDArray[np.int64]:
    """(queries, wanted) keys that any cell beats."""
    return np.full((queries, wanted), _NEVER << 32, dtype=np.int64)


def _best_first(heaps: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Cells and products of the keys, the largest key first."""
    keys = np.sort(heaps, axis=1)[:, ::-1]
    return (_LOW_HALF - (keys & _LOW_HALF)).astype(np.int32), (keys >> 32).astype(np.int32)


@compiled
def _add_members(
    centroids: NDArray[np.int8], groups: NDArray[np.int32], sums: NDArray[np.int64], squares: NDArray[np.int64]
) -> None:
    """Into each group's sums (groups, width) and sum of squares (groups,)."""
    for cell in range(len(centroids)):
        group = groups[cell]
        for d in range(centroids.shape[1]):
            value = np.int64(centroids[cell, d])
            sums[group, d] += value
            squares[group] += value * value


@compiled
def _probe(
    queries: NDArray[np.int8],
    kept: int,
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    best: NDArray[np.int64],
) -> None:
    """For each query embedding the cells with the largest products, in its heap: best is (queries, wanted).

    Only a product that beats the lowest of the heap is written, so that all the products never exist at once.
    """
    width = queries.shape[1]
    groups = width // 4
    blocks = len(start) // LANES
    sixteen = np.empty(LANES, dtype=np.int32)
    for tile in range(0, blocks, _TILE):
        for first in range(0, kept, 4):
            at0 = first * width
            at1, at2, at3 = at0 + width, at0 + 2 * width, at0 + 3 * width
            bar0 = fill(_lowest(best[first]))
            bar1 = fill(_lowest(best[first + 1]))
            bar2 = fill(_lowest(best[first + 2]))
            bar3 = fill(_lowest(best[first + 3]))
            for block in range(tile, min(tile + _TILE, blocks)):
                sum0 = load(start, block * 4 * LANES)
                sum1 = sum0
                sum2 = sum0
                sum3 = sum0
                for group in range(groups):
                    column = load(packed, (block * groups + group) * 4 * LANES)
                    sum0 = multiply_add(sum0, splat(queries, at0 + 4 * group), column)
                    sum1 = multiply_add(sum1, splat(queries, at1 + 4 * group), column)
                    sum2 = multiply_add(sum2, splat(queries, at2 + 4 * group), column)
                    sum3 = multiply_add(sum3, splat(queries, at3 + 4 * group), column)
                if any_larger(sum0, bar0):
                    store(sixteen, 0, sum0)
                    bar0 = fill(_enter(sixteen, block, best[first]))
                if any_larger(sum1, bar1):
                    store(sixteen, 0, sum1)
                    bar1 = fill(_enter(sixteen, block, best[first + 1]))
                if any_larger(sum2, bar2):
                    store(sixteen, 0, sum2)
                    bar2 = fill(_enter(sixteen, block, best[first + 2]))
                if any_larger(sum3, bar3):
                    store(sixteen, 0, sum3)
                    bar3 = fill(_enter(sixteen, block, best[first + 3]))


@compiled
def _lowest(heap: NDArray[np.int64]) -> np.int32:
    """The product that a cell must beat to enter."""
    return np.int32(heap[0] >> 32)


@compiled
def _enter(sixteen: NDArray[np.int32], block: int, heap: NDArray[np.int64]) -> Any:
    """Put the cells of a block that beat the lowest product into the heap; give the new lowest product."""
    for lane in range(LANES):
        if sixteen[lane] > _lowest(heap):
            replace_lowest(heap, (np.int64(sixteen[lane]) << 32) | (_LOW_HALF - (block * LANES + lane)))
    return _lowest(heap)


@compiled
def _probe_groups(
    queries: NDArray[np.int8],
    kept: int,
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    first_block: NDArray[np.int64],
    groups: NDArray[np.int32],
    best: NDArray[np.int64],
) -> None:
    """As `_probe`, but each query embedding is compared with the members of its groups only. Cells are lane numbers."""
    width = queries.shape[1]
    dwords = width // 4
    last_group = groups.shape[1] - 1
    sixteen = np.empty(LANES, dtype=np.int32)
    for i in range(kept):
        bar = fill(_lowest(best[i]))
        for g in range(last_group + 1):
            following = groups[i, min(g + 1, last_group)]
            for line in range(first_block[following] * dwords, first_block[following + 1] * dwords):
                prefetch(packed, line * 4 * LANES)
            for block in range(first_block[groups[i, g]], first_block[groups[i, g] + 1]):
                total = load(start, block * 4 * LANES)
                for dword in range(dwords):
                    column = load(packed, (block * dwords + dword) * 4 * LANES)
                    total = multiply_add(total, splat(queries, i * width + 4 * dword), column)
                if any_larger(total, bar):
                    store(sixteen, 0, total)
                    bar = fill(_enter(sixteen, block, best[i]))
