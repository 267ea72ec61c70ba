"""Gathering by cells: our own first stage, and the default.

A kept query embedding looks into the `nprobe` cells whose centroids are nearest to it. A document's approximate score
is the sum, over the kept embeddings, of the best such cell that it has an embedding in; where it is in none of them,
the nearest cell not looked into stands in, because it can hardly be better than that. The best `candidates` go on to
exact scoring, most promising first.

    cell_centroids.npy   (cells, dim) int8, in steps of the int8 store, dim rounded up to a multiple of four
    cell_offsets.npy     (cells + 1,) int64: cell c lists cell_documents[cell_offsets[c]:cell_offsets[c + 1]]
    cell_documents.npy   (listed,) int32: numbers of documents, ascending within a cell, each once
    embedding_cells.npy  (embeddings,) uint32: the cell of each embedding; store residual4 only

The first file belongs to the codebook, which all segments share, so that a query looks at the centroids once; the
others to a segment. How they are made is in cell_lists.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..maxsim import round_query
from ..records import SearchPlan
from ..simd import LANES, any_larger, compiled, fill, load, multiply_add, pack, splat, store

_TILE = 64  # blocks of sixteen centroids that stay in the second-level cache while all kept embeddings meet them
_NEVER = -(2**30)  # less than any product
_ALL = np.zeros(0, dtype=bool)


class Centroids:
    """All cells' centroids, laid out for the kernel."""

    def __init__(self, centroids: NDArray[np.int8]) -> None:
        self.width = centroids.shape[1]
        self.count = len(centroids)
        self.packed, self.start = pack(centroids)
        self.start[self.count :] = _NEVER


class Lists(NamedTuple):
    """Which documents of one segment are in which cell."""

    offsets: NDArray[np.int64]  # (cells + 1,)
    documents: NDArray[np.int32]


class Cells:
    """Over segments whose documents are numbered one after another: each is (its first number, documents, lists)."""

    def __init__(self, centroids: Centroids, segments: Sequence[tuple[int, int, Lists]], documents: int) -> None:
        self._centroids = centroids
        self._segments = segments
        self._documents = documents
        self._own = threading.local()  # each thread's sums: 16 bytes per document, made once

    def gather(
        self, embeddings: NDArray[np.float32], plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        kept = len(embeddings)
        if kept == 0:
            return np.empty(0, dtype=np.int64), 0
        rounded, unit = round_query(embeddings)
        fours = np.zeros((-(-kept // 4) * 4, self._centroids.width), dtype=np.int8)
        fours[:kept, : rounded.shape[1]] = rounded
        nprobe = min(plan.nprobe, self._centroids.count)
        one_more = min(nprobe + 1, self._centroids.count)  # the nearest cell not looked into
        cells = np.zeros((len(fours), one_more), dtype=np.int32)
        products = np.full((len(fours), one_more), _NEVER, dtype=np.int32)
        _probe(fours, kept, self._centroids.packed, self._centroids.start, cells, products)
        sums, found = self._workspace()
        count = 0
        for first, documents, lists in self._segments:
            part = sums[first : first + documents]
            count += _add_up(
                cells[:kept],
                products[:kept],
                nprobe,
                unit,
                lists.offsets,
                lists.documents,
                part,
                part.view(np.float32),
                _ALL if allowed is None else allowed[first : first + documents],
                self._documents - 1 - first,
                found[count:],
            )
        keys = found[:count]
        if count > plan.candidates:
            keys = np.partition(keys, count - plan.candidates)[count - plan.candidates :]
        keys = np.sort(keys)[::-1]  # best first; equal sums by number
        return self._documents - 1 - (keys & 0xFFFFFFFF), count

    def _workspace(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        if not hasattr(self._own, "arrays"):
            sums = np.zeros((self._documents, 2), dtype=np.int32)
            self._own.arrays = sums, np.empty(self._documents + 1, dtype=np.int64)
        arrays: tuple[NDArray[np.int32], NDArray[np.int64]] = self._own.arrays
        return arrays


@compiled
def _probe(
    queries: NDArray[np.int8],
    kept: int,
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    cells: NDArray[np.int32],
    products: NDArray[np.int32],
) -> None:
    """For each query embedding the nprobe cells with the largest products, best first; of equals, the first cell.

    Nothing is written but what beats the last place, so that all the products never exist at once.
    """
    width = queries.shape[1]
    groups = width // 4
    blocks = len(start) // LANES
    last = cells.shape[1] - 1
    sixteen = np.empty(LANES, dtype=np.int32)
    for tile in range(0, blocks, _TILE):
        for first in range(0, kept, 4):
            at0 = first * width
            at1, at2, at3 = at0 + width, at0 + 2 * width, at0 + 3 * width
            bar0 = fill(products[first, last])
            bar1 = fill(products[first + 1, last])
            bar2 = fill(products[first + 2, last])
            bar3 = fill(products[first + 3, last])
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
                    bar0 = fill(_insert(sixteen, block, cells[first], products[first]))
                if any_larger(sum1, bar1):
                    store(sixteen, 0, sum1)
                    bar1 = fill(_insert(sixteen, block, cells[first + 1], products[first + 1]))
                if any_larger(sum2, bar2):
                    store(sixteen, 0, sum2)
                    bar2 = fill(_insert(sixteen, block, cells[first + 2], products[first + 2]))
                if any_larger(sum3, bar3):
                    store(sixteen, 0, sum3)
                    bar3 = fill(_insert(sixteen, block, cells[first + 3], products[first + 3]))


@compiled
def _insert(sixteen: NDArray[np.int32], block: int, cells: NDArray[np.int32], products: NDArray[np.int32]) -> Any:
    """Put what beats the last place where it belongs, and give the new last place."""
    last = len(products) - 1
    for lane in range(LANES):
        product = sixteen[lane]
        if product > products[last]:
            place = last
            while place > 0 and products[place - 1] < product:
                products[place] = products[place - 1]
                cells[place] = cells[place - 1]
                place -= 1
            products[place] = product
            cells[place] = block * LANES + lane
    return products[last]


@compiled
def _add_up(
    cells: NDArray[np.int32],
    products: NDArray[np.int32],
    nprobe: int,
    unit: NDArray[np.float64],
    offsets: NDArray[np.int64],
    listed: NDArray[np.int32],
    seen: NDArray[np.int32],
    sums: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    last: int,
    found: NDArray[np.int64],
) -> int:
    """Approximate scores of one segment's documents; found[i] becomes (score's bits, last - document).

    `seen` and `sums` are two views of one (documents, 2) array, so that a document costs one cache line: in seen[:, 0]
    the last query embedding that saw the document, in sums[:, 1] its score above that of a document nobody saw. Bits
    of positive floats order like the floats. Both are left zero. An empty `allowed` allows every document.
    """
    count = 0
    nothing = np.float32(0)
    for i in range(len(cells)):
        lowest = products[i, products.shape[1] - 1]
        for j in range(nprobe):
            gain = np.float32(unit[i] * (products[i, j] - lowest))
            for at in range(offsets[cells[i, j]], offsets[cells[i, j] + 1]):
                document = listed[at]
                last_seen = seen[document, 0]
                found[count] = document  # kept only if it is new: nothing here branches on what no CPU can guess
                count += last_seen == 0
                sums[document, 1] += gain if last_seen != i + 1 else nothing  # cells come best first: the first counts
                seen[document, 0] = i + 1
    everyone = len(allowed) == 0
    kept = 0
    for i in range(count):
        document = found[i]
        found[kept] = (np.int64(seen[document, 1]) << 32) | (last - document)
        kept += everyone or allowed[document]
        seen[document, 0] = 0
        seen[document, 1] = 0
    return kept
