"""Which documents are in which cell: of new cells, of cells that are there already, or merged from several segments.

All three write cell_offsets.npy and cell_documents.npy of one segment; the first also fills `embedding_cells`, an array
for the cell of each embedding, if it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.clustering import assign, cluster
from ..kernels.maxsim import whole_dwords
from ..kernels.probing import Centroids
from ..threads import in_order
from .file_names import CELL_DOCUMENTS, CELL_OFFSETS

EmbeddingCells = NDArray[np.uint32]  # (embeddings,)
_BLOCK = 65_536  # rows compared at a time
_PART = 4_096  # of a block, for one thread
_SAMPLE = 64  # the distance between rows and their centroids is measured on one row in so many


class CellLists(NamedTuple):
    """Which documents of one segment are in which cell."""

    offsets: NDArray[np.int64]  # (cells + 1,)
    documents: NDArray[np.int32]  # (listed,) ascending within a cell


def make_cells(
    folder: Path,
    offsets: NDArray[np.int64],
    token_ids: NDArray[np.int32],
    rows: Any,
    embedding_cells: EmbeddingCells | None,
    finer: Mapping[int, int],
    on_progress: Callable[[int], None] = lambda embeddings: None,
) -> tuple[NDArray[np.int8], float]:
    """Cluster int8 rows; give the centroids, and the mean squared distance to expect of other rows of their kind.

    `finer` has the token ids that get at least so many cells.

    A centroid is the mean of its rows and so nearer to them than to others: without the row itself, the mean of n rows
    would be n / (n - 1) times as far from it. Lists go to disk as they come; centroids are kept in memory.
    """
    centroids, listed, cells_so_far = [], [], 0
    distances, counted = 0.0, 0
    lists = folder / "staged.lists"
    with lists.open("wb") as file:
        for cells in cluster(lambda numbers: whole_dwords(rows[numbers]), token_ids, finer=finer):
            edges = np.concatenate([[0], np.cumsum(cells.sizes)])
            documents = (np.searchsorted(offsets, cells.rows, side="right") - 1).astype(np.int32)
            first_time = np.ones(len(documents), dtype=bool)
            first_time[1:] = documents[1:] != documents[:-1]
            first_time[edges[:-1]] = True
            file.write(documents[first_time].tobytes())
            cell_of_row = np.repeat(np.arange(len(cells.sizes)), cells.sizes)  # among these cells
            if embedding_cells is not None:
                embedding_cells[cells.rows] = cells_so_far + cell_of_row
            sample = np.flatnonzero(cells.sizes[cell_of_row] > 1)[::_SAMPLE]
            n = cells.sizes[cell_of_row[sample]]
            squared = _squared_distances(whole_dwords(rows[cells.rows[sample]]), cells.centroids[cell_of_row[sample]])
            distances += float((squared * (n / (n - 1)) ** 2).sum())
            counted += len(sample)
            centroids.append(cells.centroids)
            listed.append(np.add.reduceat(first_time, edges[:-1], dtype=np.int64))
            cells_so_far += len(cells.sizes)
            on_progress(len(cells.rows))
    _save(folder, np.concatenate(listed), np.memmap(lists, dtype=np.int32, mode="r"))
    lists.unlink()
    return np.concatenate(centroids), distances / max(counted, 1)


def assign_to_cells(
    folder: Path,
    offsets: NDArray[np.int64],
    rows: Any,
    centroids: NDArray[np.int8],
    grouped: Centroids | None = None,
    on_progress: Callable[[int], None] = lambda embeddings: None,
) -> float:
    """Put each int8 row into the cell of its nearest centroid; give the mean squared distance.

    With `grouped`, the same centroids in their groups, a row does not meet every centroid: kernels/probing.py.
    """
    total = int(offsets[-1])
    cells = np.empty(total, dtype=np.int32)
    distances = 0.0
    for start in range(0, total, _BLOCK):
        block = whole_dwords(rows[start : start + _BLOCK])
        stop = start + len(block)
        if grouped is None:
            cells[start:stop] = assign(block.__getitem__, np.arange(len(block)), centroids, None)
        else:
            parts = ((block[first : first + _PART],) for first in range(0, len(block), _PART))
            cells[start:stop] = np.concatenate(list(in_order(grouped.assign, parts)))
        distances += float(_squared_distances(block, centroids[cells[start:stop]]).sum())
        on_progress(len(block))
    documents = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)).astype(np.int32)
    _save_pairs(folder, cells, documents, len(centroids))
    return distances / max(total, 1)


def merge_cell_lists(folder: Path, parts: Iterable[tuple[CellLists, NDArray[np.int64]]], cells: int) -> None:
    """Lists of several segments as those of one. Each comes with its documents' new numbers, -1 for those left out."""
    pairs = []
    for lists, new_numbers in parts:
        cell_numbers = np.repeat(np.arange(cells, dtype=np.int32), np.diff(lists.offsets))
        documents = new_numbers[lists.documents].astype(np.int32)
        stay = documents >= 0
        pairs.append((cell_numbers[stay], documents[stay]))
    _save_pairs(folder, np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs]), cells)


def _save_pairs(folder: Path, cells: NDArray[np.int32], documents: NDArray[np.int32], count: int) -> None:
    """From (cell, document) pairs, ascending by document; a pair may come more than once."""
    order = np.argsort(cells, kind="stable")
    cells, documents = cells[order], documents[order]
    first_time = np.ones(len(cells), dtype=bool)
    first_time[1:] = (cells[1:] != cells[:-1]) | (documents[1:] != documents[:-1])
    _save(folder, np.bincount(cells[first_time], minlength=count), documents[first_time])


def _save(folder: Path, sizes: NDArray[np.int64], documents: NDArray[np.int32]) -> None:
    np.save(folder / CELL_OFFSETS, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    np.save(folder / CELL_DOCUMENTS, documents)


def _squared_distances(rows: NDArray[np.int8], centroids: NDArray[np.int8]) -> NDArray[np.int64]:
    """Of each row from the centroid in the same line."""
    return np.asarray(((rows.astype(np.int32) - centroids) ** 2).sum(axis=1, dtype=np.int64))
