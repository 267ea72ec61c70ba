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

The first two belong to the codebook, which all segments share, so that a query meets each centroid once; the others
belong to a segment. How they are made is in storage/cell_lists.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..kernels.cell_scores import add_up
from ..kernels.maxsim import round_query
from ..kernels.probing import Centroids
from ..records import SearchPlan
from ..storage.cell_lists import CellLists
from ..storage.snapshot import Snapshot
from ..threads import usable_cores

_EVERY_DOCUMENT = np.zeros(0, dtype=bool)


class CellGatherer:
    """Over segments whose documents are numbered one after another: each is (its first number, documents, lists)."""

    def __init__(
        self,
        centroids: Centroids,
        segments: Sequence[tuple[int, int, CellLists]],
        documents: int,
        workspaces: Workspaces | None = None,
    ) -> None:
        self._centroids = centroids
        self._segments = segments
        self._documents = documents
        self._workspaces = workspaces or Workspaces()

    @classmethod
    def over(cls, snapshot: Snapshot) -> CellGatherer:
        lists = [(first, len(segment), segment.lists) for first, segment in snapshot.embedded]
        workspaces = snapshot.keep_for_good("workspaces", Workspaces)
        return cls(snapshot.codebook.cells, lists, int(snapshot.firsts[-1]), workspaces)

    def gather(
        self, embeddings: NDArray[np.float32], plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        if len(embeddings) == 0:
            return np.empty(0, dtype=np.int64), 0
        rounded, unit = round_query(embeddings)
        nprobe = min(plan.nprobe, self._centroids.count)
        one_more = min(nprobe + 1, self._centroids.count)  # the nearest cell that is not probed
        cells, products = self._centroids.nearest(rounded, one_more)
        with self._workspaces.borrow(self._documents) as (sums, found):
            count = 0
            for first, documents, lists in self._segments:
                own_sums = sums[first : first + documents]
                count += add_up(
                    cells,
                    products,
                    nprobe,
                    unit,
                    lists.offsets,
                    lists.documents,
                    own_sums,
                    own_sums.view(np.float32),
                    _EVERY_DOCUMENT if allowed is None else allowed[first : first + documents],
                    self._documents - 1 - first,
                    found[count:],
                )
            keys = found[:count]
            if count > plan.candidates:
                keys = np.partition(keys, count - plan.candidates)[count - plan.candidates :]
            keys = np.sort(keys)[::-1]  # best first; equal sums by number
        return self._documents - 1 - (keys & 0xFFFFFFFF), count


class Workspaces:
    """Arrays for the sums of one search: 16 bytes per document, used again by the next search.

    There are as many as searches run at once. Between searches at most one per core is kept, also over commits.
    """

    def __init__(self) -> None:
        self._free: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        self._lock = Lock()

    @contextmanager
    def borrow(self, documents: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """(documents, 2) zeros, which must be zeros again afterwards, and room for one more number than documents."""
        with self._lock:
            arrays = self._free.pop() if self._free else None
        if arrays is None or len(arrays[0]) < documents:
            room = documents + documents // 8  # so that a few additions need no new arrays
            arrays = np.zeros((room, 2), dtype=np.int32), np.empty(room + 1, dtype=np.int64)
        yield arrays[0][:documents], arrays[1]  # after an error they are not used again: they may not be zeros
        with self._lock:
            if len(self._free) < usable_cores():
                self._free.append(arrays)
