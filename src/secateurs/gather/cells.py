"""Gathering by cells: our own first stage, and the default.

A kept query embedding probes the cells whose centroids are nearest to it, `nprobe` of them or fewer. A document's
approximate score is the sum, over the kept embeddings, of the similarity of the best probed cell that lists it; if none
lists it, the similarity of the nearest cell that was not probed is imputed, which is an upper estimate. The best
`candidates` go on to exact scoring, the highest approximate score first.

If the encoder has a summary (TokenKind.SUMMARY), a special token that stands for the whole text, every document that
was found also gets the exact similarity of its summary with that of the query. That of the query need not be kept: if
it is, it finds documents by its cells too. It counts up to three times, because the query's MASKs prefer much the same
documents and gathering does not compare them (docs/importance.md has the measurements).

    cell_centroids.npy   (cells, dim) int8, in steps of the int8 store, dim rounded up to a multiple of four
    cell_groups.npy      (cells,) int32: the group of each cell, see kernels/probing.py; from 200,000 cells on
    cell_offsets.npy     (cells + 1,) int64: cell c lists cell_documents[cell_offsets[c]:cell_offsets[c + 1]]
    cell_documents.npy   (listed,) int32: numbers of documents, ascending within a cell, each once
    summaries.npy        (documents, width) uint8: the row of each document's summary; if documents have one

The first two belong to the codebook, which all segments share, so that a query is compared with each centroid once;
the others belong to a segment. storage/cell_lists.py makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..kernels.cell_scores import add_points, add_summary_points, packed_width, take_points
from ..kernels.probing import Centroids
from ..kernels.simd import round_query
from ..records import EncodedText, Positions, TokenKind
from ..settings import SearchPlan
from ..storage.cell_lists import CellLists
from ..storage.snapshot import Snapshot
from ..threads import usable_cores

_EVERY_DOCUMENT = np.zeros(0, dtype=bool)
_EMBEDDINGS_AT_ONCE = 32  # query embeddings between two looks whether the search was cancelled
_MASKS_PER_SUMMARY = 4  # MASKs for which a summary counts once more
_MOST_MASKS = 8  # that make a summary count more


class _Segment(NamedTuple):
    first: int  # the number of its first document; segments are numbered one after another
    documents: int
    lists: CellLists
    summaries: NDArray[np.uint8] | None  # (documents, width)


class _Batch(NamedTuple):
    """Query embeddings with their nearest cells, as add_points takes them."""

    first: int  # embeddings in batches before
    cells: NDArray[np.int32]
    products: NDArray[np.int32]
    nprobe: NDArray[np.int64]  # (query embeddings,)
    unit: NDArray[np.float64]  # (query embeddings,); 0 for a summary, whose points are exact and come later


class _Summary(NamedTuple):
    rounded: NDArray[np.int8]  # (width,), filled up with zeros
    unit: float


class CellGatherer:
    def __init__(
        self,
        centroids: Centroids,
        segments: Sequence[_Segment],
        documents: int,
        workspaces: Workspaces | None = None,
    ) -> None:
        self._centroids = centroids
        self._segments = segments
        self._documents = documents
        self._workspaces = workspaces or Workspaces()

    @classmethod
    def over(cls, snapshot: Snapshot) -> CellGatherer:
        segments = [
            _Segment(first, len(segment), segment.lists, segment.summaries) for first, segment in snapshot.embedded
        ]
        workspaces = snapshot.keep_for_good("workspaces", Workspaces)
        return cls(snapshot.codebook.cells, segments, int(snapshot.firsts[-1]), workspaces)

    def gather(
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        with self.find(query, kept, plan, allowed) as keys:
            return self.best(keys, plan.candidates), len(keys)

    @contextmanager
    def find(
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """A key for each document that a kept embedding finds; they may be read inside this context."""
        if len(kept) == 0:
            yield np.empty(0, dtype=np.int64)
            return
        nprobe = np.minimum(plan.nprobe_each or [plan.nprobe] * len(kept), self._centroids.count)
        batches, summary = self._probe(query, kept, nprobe)
        with self._workspaces.borrow(self._documents) as (sums, found):
            gathered = 0
            for segment in self._segments:
                gathered += self._add_segment(segment, batches, summary, sums, found[gathered:], allowed)
            yield found[:gathered]

    def best(self, keys: NDArray[np.int64], candidates: int) -> NDArray[np.int64]:
        """The numbers of the documents with the highest keys, best first; equal sums by number."""
        if len(keys) > candidates:
            keys = np.partition(keys, len(keys) - candidates)[len(keys) - candidates :]
        return self.numbers(np.sort(keys)[::-1])

    def numbers(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._documents - 1 - (keys & 0xFFFFFFFF)

    def _probe(
        self, query: EncodedText, kept: Positions, nprobe: NDArray[np.int64]
    ) -> tuple[list[_Batch], _Summary | None]:
        """The nearest cells of each kept embedding; and the query's summary, if documents have one to compare."""
        embeddings = query.weighted[kept]
        at = self._summary_position(query)
        is_summary = np.zeros(len(kept), dtype=bool) if at is None else kept == at
        batches = []
        for first in range(0, len(kept), _EMBEDDINGS_AT_ONCE):
            stop_if_cancelled()
            part = slice(first, first + _EMBEDDINGS_AT_ONCE)
            rounded, unit = round_query(embeddings[part])
            # the cells to probe, and the nearest that is not probed
            wanted = min(int(nprobe[part].max()) + 1, self._centroids.count)
            cells, products = self._centroids.nearest(rounded, wanted)
            batches.append(_Batch(first, cells, products, nprobe[part], np.where(is_summary[part], 0.0, unit)))
        return batches, None if at is None else _summary(query, at)

    def _summary_position(self, query: EncodedText) -> int | None:
        """That of the query's first summary; None if it has none, or if a segment has none."""
        positions = np.flatnonzero(query.token_kinds == TokenKind.SUMMARY)
        if len(positions) == 0 or any(segment.summaries is None for segment in self._segments):
            return None
        return int(positions[0])

    def _add_segment(
        self,
        segment: _Segment,
        batches: Sequence[_Batch],
        summary: _Summary | None,
        sums: NDArray[np.int32],
        found: NDArray[np.int64],
        allowed: NDArray[np.bool_] | None,
    ) -> int:
        """Keys of the segment's gathered documents, in `found`; gives how many."""
        first, documents, lists, summaries = segment
        seen = sums[first : first + documents]
        count = 0
        for batch in batches:
            stop_if_cancelled()
            count = add_points(*batch, lists.offsets, lists.documents, seen, seen.view(np.float32), found, count)
        if summary is not None and summaries is not None:
            add_summary_points(found, count, summaries, summary.rounded, summary.unit, seen.view(np.float32))
        allowed_here = _EVERY_DOCUMENT if allowed is None else allowed[first : first + documents]
        kept: int = take_points(found, count, seen, allowed_here, self._documents - 1 - first)
        return kept


def _summary(query: EncodedText, at: int) -> _Summary:
    (rounded,), (unit,) = round_query(query.weighted[at : at + 1])
    filled = np.zeros(packed_width(len(rounded)), dtype=np.int8)
    filled[: len(rounded)] = rounded
    return _Summary(filled, float(unit) * times_counted(query))


def times_counted(query: EncodedText) -> float:
    """How often the summary's similarity counts: for itself, and for the MASKs."""
    is_mask = query.token_kinds == TokenKind.MASK
    masks = float(is_mask.sum() if query.weights is None else query.weights[is_mask].sum())
    return 1 + min(masks, _MOST_MASKS) / _MASKS_PER_SUMMARY


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
