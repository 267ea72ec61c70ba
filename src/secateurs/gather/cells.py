"""Gathering by cells: our own first stage, and the default.

A kept query embedding looks into the `nprobe` cells whose centroids are nearest to it. A document's approximate score
is the sum, over the kept embeddings, of the best such cell that it has an embedding in; where it is in none of them,
the nearest cell not looked into stands in, because it can hardly be better than that. The best `candidates` go on to
exact scoring, most promising first.

    cell_centroids.npy   (cells, dim) int8, in steps of the int8 store, dim rounded up to a multiple of four
    cell_offsets.npy     (cells + 1,) int64: cell c lists cell_documents[cell_offsets[c]:cell_offsets[c + 1]]
    cell_documents.npy   (listed,) int32: numbers of documents, ascending within a cell, each once
    embedding_cells.npy  (embeddings,) uint32: the cell of each embedding; store residual4 only
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError
from ..maxsim import round_query, whole_dwords
from ..records import SearchPlan
from ..simd import LANES, any_larger, compiled, fill, load, multiply_add, pack, splat, store
from .clustering import cluster
from .files import CELLS_OF_EMBEDDINGS, CENTROIDS, DOCUMENTS, OFFSETS

_TILE = 64  # blocks of sixteen centroids that stay in the second-level cache while all kept embeddings meet them
_NEVER = -(2**30)  # less than any product


def build(
    folder: Path,
    offsets: NDArray[np.int64],
    token_ids: NDArray[np.int32],
    rows: NDArray[np.int8],
    keep_cells: bool = False,
    on_progress: Callable[[int], None] = lambda embeddings: None,
) -> None:
    """Cluster int8 rows and write the files above. Lists go to disk as they come; centroids are kept in memory."""
    total = int(offsets[-1])
    homes = None
    if keep_cells:
        homes = np.lib.format.open_memmap(folder / CELLS_OF_EMBEDDINGS, mode="w+", dtype=np.uint32, shape=(total,))
    centroids, listed, cells_so_far = [], [], 0
    lists = folder / "staged.lists"
    with lists.open("wb") as file:
        for cells in cluster(lambda some: whole_dwords(rows[some]), token_ids):
            edges = np.concatenate([[0], np.cumsum(cells.sizes)])
            documents = (np.searchsorted(offsets, cells.rows, side="right") - 1).astype(np.int32)
            first_time = np.ones(len(documents), dtype=bool)
            first_time[1:] = documents[1:] != documents[:-1]
            first_time[edges[:-1]] = True
            file.write(documents[first_time].tobytes())
            if homes is not None:
                homes[cells.rows] = cells_so_far + np.repeat(np.arange(len(cells.sizes)), cells.sizes)
            centroids.append(cells.centroids)
            listed.append(np.add.reduceat(first_time, edges[:-1], dtype=np.int64))
            cells_so_far += len(cells.sizes)
            on_progress(len(cells.rows))
    np.save(folder / CENTROIDS, np.concatenate(centroids))
    np.save(folder / OFFSETS, np.concatenate([[0], np.cumsum(np.concatenate(listed))]).astype(np.int64))
    np.save(folder / DOCUMENTS, np.memmap(lists, dtype=np.int32, mode="r"))
    lists.unlink()


class Cells:
    def __init__(self, segment: Path, documents: int) -> None:
        if not (segment / CENTROIDS).is_file():
            raise SecateursError(
                f'{segment.parent.parent} was built without gather="cells": build it again with  --gather cells'
            )
        centroids = np.load(segment / CENTROIDS)
        self._width = centroids.shape[1]
        self._packed, self._start = pack(centroids)
        self._start[len(centroids) :] = _NEVER
        self._cells = len(centroids)
        self._offsets = np.asarray(np.load(segment / OFFSETS, mmap_mode="r"))
        self._listed = np.asarray(np.load(segment / DOCUMENTS, mmap_mode="r"))
        self._documents = documents
        self._own = threading.local()  # each thread's sums: 16 bytes per document, made once

    def gather(self, embeddings: NDArray[np.float32], plan: SearchPlan) -> tuple[NDArray[np.int64], int]:
        kept = len(embeddings)
        if kept == 0:
            return np.empty(0, dtype=np.int64), 0
        rounded, unit = round_query(embeddings)
        fours = np.zeros((-(-kept // 4) * 4, self._width), dtype=np.int8)
        fours[:kept, : rounded.shape[1]] = rounded
        nprobe = min(plan.nprobe, self._cells)
        one_more = min(nprobe + 1, self._cells)  # the nearest cell not looked into
        cells = np.zeros((len(fours), one_more), dtype=np.int32)
        products = np.full((len(fours), one_more), _NEVER, dtype=np.int32)
        _probe(fours, kept, self._packed, self._start, cells, products)
        sums, found = self._workspace()
        count = _add_up(
            cells[:kept],
            products[:kept],
            nprobe,
            unit,
            self._offsets,
            self._listed,
            sums,
            sums.view(np.float32),
            found,
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
    found: NDArray[np.int64],
) -> int:
    """Approximate scores above that of a document nobody saw; found[i] becomes (score's bits, inverted number).

    `seen` and `sums` are two views of one (documents, 2) array, so that a document costs one cache line: in seen[:, 0]
    the last query embedding that saw the document, in sums[:, 1] its score. Bits of positive floats order like the
    floats. Both are left zero.
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
    last = len(seen) - 1
    for i in range(count):
        document = found[i]
        found[i] = (np.int64(seen[document, 1]) << 32) | (last - document)
        seen[document, 0] = 0
        seen[document, 1] = 0
    return count
