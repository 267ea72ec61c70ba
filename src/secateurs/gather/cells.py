"""Gathering by cells: our own first stage, and the default.

A kept query embedding probes the `nprobe` cells whose centroids are nearest to it. A document's approximate score is
the sum, over the kept embeddings, of the similarity of the best probed cell that lists it; if none lists it, the
similarity of the nearest cell that was not probed is imputed, which is an upper estimate. The best `candidates` go on
to exact scoring, the highest approximate score first.

    cell_centroids.npy   (cells, dim) int8, in steps of the int8 store, dim rounded up to a multiple of four
    cell_groups.npy      (cells,) int32: the group of each cell, see kernels/probing.py; from 200,000 cells on
    cell_offsets.npy     (cells + 1,) int64: cell c lists cell_documents[cell_offsets[c]:cell_offsets[c + 1]]
    cell_documents.npy   (listed,) int32: numbers of documents, ascending within a cell, each once
    embedding_cells.npy  (embeddings,) uint32: the cell of each embedding; store residual4 only

The first two belong to the codebook, which all segments share, so that a query is compared with each centroid once;
the others belong to a segment. storage/cell_lists.py makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..kernels.cell_scores import add_points, take_points
from ..kernels.probing import Centroids
from ..kernels.simd import round_query
from ..records import EncodedText, Positions, SearchPlan
from ..storage.cell_lists import CellLists
from ..storage.snapshot import Snapshot
from ..threads import usable_cores

_EVERY_DOCUMENT = np.zeros(0, dtype=bool)
_EMBEDDINGS_AT_ONCE = 32  # query embeddings between two looks whether the search was cancelled


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
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        if len(kept) == 0:
            return np.empty(0, dtype=np.int64), 0
        embeddings = query.weighted[kept]
        nprobe = min(plan.nprobe, self._centroids.count)
        batches = []
        for first in range(0, len(embeddings), _EMBEDDINGS_AT_ONCE):
            stop_if_cancelled()
            rounded, unit = round_query(embeddings[first : first + _EMBEDDINGS_AT_ONCE])
            # nprobe cells, and the nearest that is not probed
            cells, products = self._centroids.nearest(rounded, min(nprobe + 1, self._centroids.count))
            batches.append((first, cells, products, nprobe, unit))
        with self._workspaces.borrow(self._documents) as (sums, found):
            gathered = 0
            for segment in self._segments:
                gathered += self._add_segment(segment, batches, sums, found[gathered:], allowed)
            keys = found[:gathered]
            if gathered > plan.candidates:
                keys = np.partition(keys, gathered - plan.candidates)[gathered - plan.candidates :]
            keys = np.sort(keys)[::-1]  # best first; equal sums by number
        return self._documents - 1 - (keys & 0xFFFFFFFF), gathered

    def _add_segment(
        self,
        segment: tuple[int, int, CellLists],
        batches: Sequence[tuple[int, NDArray[np.int32], NDArray[np.int32], int, NDArray[np.float64]]],
        sums: NDArray[np.int32],
        found: NDArray[np.int64],
        allowed: NDArray[np.bool_] | None,
    ) -> int:
        """Keys of the segment's gathered documents, in `found`; gives how many."""
        first, documents, lists = segment
        seen = sums[first : first + documents]
        count = 0
        for batch in batches:
            stop_if_cancelled()
            count = add_points(*batch, lists.offsets, lists.documents, seen, seen.view(np.float32), found, count)
        allowed_here = _EVERY_DOCUMENT if allowed is None else allowed[first : first + documents]
        kept: int = take_points(found, count, seen, allowed_here, self._documents - 1 - first)
        return kept


class Workspaces:
    """Arrays for the sums of a search: 16 bytes per document, and an eighth more. The next search uses them again.

    Searches that run at once have an array each. Between searches at most one per core is kept, also over commits.
    """

    def __init__(self) -> None:
        self._free: list[tuple[NDArray[np.int32], NDArray[np.int64]]] = []
        self._most = usable_cores()
        self._lock = Lock()

    @contextmanager
    def borrow(self, documents: int) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
        """(documents, 2) zeros, which must be zeros again afterwards, and room for documents + 1 numbers."""
        with self._lock:
            arrays = self._free.pop() if self._free else None
        if arrays is None or len(arrays[0]) < documents:
            room = documents + documents // 8  # so that a few additions need no new arrays
            arrays = np.zeros((room, 2), dtype=np.int32), np.empty(room + 1, dtype=np.int64)
        yield arrays[0][:documents], arrays[1]  # after an exception they are dropped: they may not be zeros
        with self._lock:
            if len(self._free) < self._most:
                self._free.append(arrays)
