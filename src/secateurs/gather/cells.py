"""Gathering by cells: our own first stage, and the default.

A kept query embedding looks into the `nprobe` cells whose centroids are nearest to it. A document's approximate score
is the sum, over the kept embeddings, of the best such cell that it has an embedding in; where it is in none of them,
the nearest cell not looked into stands in, because it can hardly be better than that. The best `candidates` go on to
exact scoring, most promising first.

    cell_centroids.npy   (cells, dim) int8, in steps of the int8 store, dim rounded up to a multiple of four
    cell_groups.npy      (cells,) int32: the group of each cell, see probing.py; only where there are very many cells
    cell_offsets.npy     (cells + 1,) int64: cell c lists cell_documents[cell_offsets[c]:cell_offsets[c + 1]]
    cell_documents.npy   (listed,) int32: numbers of documents, ascending within a cell, each once
    embedding_cells.npy  (embeddings,) uint32: the cell of each embedding; store residual4 only

The first two belong to the codebook, which all segments share, so that a query looks at the centroids once; the others
to a segment. How they are made is in cell_lists.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.maxsim import round_query
from ..kernels.probing import Centroids
from ..kernels.simd import compiled
from ..records import SearchPlan

_ALL = np.zeros(0, dtype=bool)


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
        if len(embeddings) == 0:
            return np.empty(0, dtype=np.int64), 0
        rounded, unit = round_query(embeddings)
        nprobe = min(plan.nprobe, self._centroids.count)
        one_more = min(nprobe + 1, self._centroids.count)  # the nearest cell not looked into
        cells, products = self._centroids.nearest(rounded, one_more)
        sums, found = self._workspace()
        count = 0
        for first, documents, lists in self._segments:
            part = sums[first : first + documents]
            count += _add_up(
                cells,
                products,
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
