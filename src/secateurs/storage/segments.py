"""One immutable part of an index, opened for reading: arrays stay on disk until a search touches them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frequencies import Frequencies
from ..kernels.maxsim import PreparedQuery, score, similarities
from . import faiss_file
from .cell_lists import CellLists
from .checksums import CheckedRows, check_bytes, check_files
from .codebooks import Codebook
from .codecs.stores import Residuals
from .documents import Documents
from .file_names import CELLS_OF_EMBEDDINGS, DOCUMENTS, FAISS, OFFSETS
from .files import open_array
from .locks import Hold
from .manifest import SegmentRecord

_DOCUMENTS_PER_BLOCK = 65_536


class Segment:
    """Documents are known by their number in the segment, 0 to len - 1. It knows nothing of deletions."""

    def __init__(self, folder: Path, record: SegmentRecord, store: str, codebook: Codebook) -> None:
        self.folder = folder
        self.record = record
        self._hold = Hold(folder)
        check_files(folder, record.files)
        self.offsets: NDArray[np.int64] = self._array("offsets.npy")
        blocks = self._array("blocks.npy")
        dtype = "uint8" if store == "residual4" else store
        self.embeddings = CheckedRows(folder / "embeddings.npy", blocks, record.block_rows, record.embeddings, dtype)
        self.documents = Documents(
            folder / "documents.sqlite", lambda: check_bytes(folder, record.files, "documents.sqlite")
        )
        self.frequencies = read_frequencies(folder)
        self._codebook = codebook
        self._is_residual = store == "residual4"

    def __len__(self) -> int:
        return self.record.documents

    @cached_property
    def rows(self) -> Any:
        """What reads like the stored embeddings: int8 or float16, (embeddings, dim). Check before you read."""
        rows = self.embeddings.rows
        if not self._is_residual:
            return rows
        book = self._codebook
        assert book.centroids is not None
        assert book.levels is not None
        assert book.int8 is not None
        return Residuals(rows, self.homes, book.centroids, book.levels, len(book.int8.centre))

    @cached_property
    def token_ids(self) -> NDArray[np.int32]:
        return self._checked("token_ids.npy")

    @cached_property
    def token_kinds(self) -> NDArray[np.uint8]:
        return self._checked("token_kinds.npy")

    @cached_property
    def homes(self) -> NDArray[np.uint32]:
        """The cell of each embedding; store residual4."""
        return self._checked(CELLS_OF_EMBEDDINGS)

    @cached_property
    def lists(self) -> CellLists:
        return CellLists(self._checked(OFFSETS), self._checked(DOCUMENTS))

    @cached_property
    def faiss(self) -> Any:
        check_bytes(self.folder, self.record.files, FAISS)
        return faiss_file.read(self.folder / FAISS)

    def frequencies_of(self, documents: NDArray[np.int64]) -> Frequencies:
        """Counted over some of the documents."""
        if len(documents) == len(self):
            return self.frequencies
        total = Frequencies.none()
        for first in range(0, len(documents), _DOCUMENTS_PER_BLOCK):  # bounded memory for any filter
            some = documents[first : first + _DOCUMENTS_PER_BLOCK]
            rows, offsets = rows_of(self.offsets, some)
            total += Frequencies.of(self.token_ids[rows], offsets)
        return total

    def score(self, query: PreparedQuery, documents: NDArray[np.int64], k: int | None = None) -> NDArray[np.float64]:
        """Eq. 1 for each of the documents, on the stored embeddings; with k, only the k best need be right."""
        starts, ends = self.offsets[documents], self.offsets[documents + 1]
        self.embeddings.check(starts, ends)
        return score(query, self.rows, starts, ends, k)

    def similarities(self, query: PreparedQuery, document: int) -> NDArray[np.float64]:
        """(document tokens, query embeddings), from the same products as the score."""
        start, end = self.offsets[document : document + 2]
        self.embeddings.check(np.array([start]), np.array([end]))
        return similarities(query, self.rows[start:end])

    def _checked(self, name: str) -> NDArray[Any]:
        check_bytes(self.folder, self.record.files, name)
        return self._array(name)

    def _array(self, name: str) -> NDArray[Any]:
        return open_array(self.folder / name)


def rows_of(offsets: NDArray[np.int64], documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of some documents, end to end, and the offsets that these have then."""
    starts, lengths = offsets[documents], offsets[documents + 1] - offsets[documents]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths), ends


def read_frequencies(folder: Path) -> Frequencies:
    token_ids, collection, document = open_array(folder / "frequencies.npy")
    return Frequencies(token_ids.astype(np.int32), collection, document)


def write_frequencies(folder: Path, counted: Frequencies) -> None:
    counts = np.stack([counted.token_ids.astype(np.int64), counted.collection, counted.document])
    np.save(folder / "frequencies.npy", counts)
