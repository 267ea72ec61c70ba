"""One immutable part of an index, opened for reading: arrays stay on disk until a search touches them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..frequencies import Frequencies
from ..kernels.maxsim import score, similarities
from ..kernels.refining import AnyQuery, RefinedQuery, refined_similarities, score_refined
from . import faiss_file
from .cell_lists import CellLists
from .checksums import CheckedRows, check_bytes, check_files
from .codebooks import Codebook
from .codecs import Codec
from .documents import Documents
from .file_names import (
    BLOCKS,
    CELL_DOCUMENTS,
    CELL_OFFSETS,
    DOCUMENTS,
    EMBEDDINGS,
    FAISS,
    FREQUENCIES,
    OFFSETS,
    POSITION_OFFSETS,
    POSITION_ROWS,
    REFINEMENT_BLOCKS,
    REFINEMENTS,
    SUMMARIES,
    TOKEN_BLOCKS,
    TOKEN_IDS,
    TOKEN_KINDS,
)
from .files import open_array
from .locks import Hold
from .manifest import SegmentRecord
from .position_rows import TextPositions
from .read_ahead import disk_reads

_DOCUMENTS_PER_BLOCK = 65_536


class Segment:
    """Documents are known by their number in the segment, 0 to len - 1. Deletions are kept elsewhere: see Snapshot."""

    def __init__(self, folder: Path, record: SegmentRecord, codec: Codec, codebook: Codebook, dim: int) -> None:
        self.folder = folder
        self.record = record
        self._hold = Hold(folder)
        check_files(folder, record.files)
        self.offsets: NDArray[np.int64] = open_array(folder / OFFSETS)  # (documents + 1,), of rows
        blocks = open_array(folder / BLOCKS)
        entries = codec.arrays(dim)
        self.embeddings = CheckedRows(
            folder / EMBEDDINGS, blocks, record.block_rows, record.embeddings, entries[EMBEDDINGS][0]
        )
        self._refinements = None  # of store int16
        if REFINEMENTS in entries:
            blocks = open_array(folder / REFINEMENT_BLOCKS)
            self._refinements = CheckedRows(
                folder / REFINEMENTS, blocks, record.block_rows, record.embeddings, entries[REFINEMENTS][0]
            )
        token_blocks = open_array(folder / TOKEN_BLOCKS)
        self._tokens = CheckedRows(
            folder / TOKEN_IDS, token_blocks, record.token_block_rows, record.positions, np.int32, np.uint16
        )
        shared = POSITION_OFFSETS in record.files
        # (documents + 1,), of positions
        self.position_offsets: NDArray[np.int64] = open_array(folder / POSITION_OFFSETS) if shared else self.offsets
        self.documents = Documents(folder / DOCUMENTS, lambda: check_bytes(folder, record.files, DOCUMENTS))
        self.frequencies = read_frequencies(folder)
        self._codec, self._codebook = codec, codebook
        self._array_names = tuple(entries)

    def __len__(self) -> int:
        return self.record.documents

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The codec's arrays, an entry per embedding. Check rows before you read them: see `check_rows`."""
        by_block = {EMBEDDINGS: self.embeddings.rows}
        if self._refinements is not None:
            by_block[REFINEMENTS] = self._refinements.rows
        return by_block | {name: self._checked(name) for name in self._array_names if name not in by_block}

    @cached_property
    def rows(self) -> Any:
        """What reads like the stored embeddings, (embeddings, dim), for the store to decode. Check before you read."""
        return self._codec.rows(self.arrays, self._codebook)

    @cached_property
    def token_ids(self) -> NDArray[np.int32]:
        """All of them, the whole file checked; for a few documents there is `tokens_of`. Small ids may be uint16."""
        return self._checked(TOKEN_IDS)

    @cached_property
    def token_kinds(self) -> NDArray[np.uint8]:
        return self._checked(TOKEN_KINDS)

    @cached_property
    def positions(self) -> TextPositions:
        """Which rows hold the embeddings of the documents' positions."""
        shared = POSITION_ROWS in self.record.files
        return TextPositions(self.position_offsets, self._checked(POSITION_ROWS) if shared else None)

    @cached_property
    def lists(self) -> CellLists:
        return CellLists(self._checked(CELL_OFFSETS), self._checked(CELL_DOCUMENTS))

    @cached_property
    def summaries(self) -> NDArray[np.uint8] | None:
        """(documents, width): the packed row of each document's summary token, or None if the documents have none."""
        return self._checked(SUMMARIES) if SUMMARIES in self.record.files else None

    @cached_property
    def faiss(self) -> Any:
        check_bytes(self.folder, self.record.files, FAISS)
        return faiss_file.read(self.folder / FAISS)

    def tokens_of(self, documents: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The token ids of the documents' positions, end to end, and the documents' offsets among them."""
        self._tokens.check(self.position_offsets[documents], self.position_offsets[documents + 1])
        positions, offsets = rows_of(self.position_offsets, documents)
        return self._tokens.rows[positions].astype(np.int32), offsets

    def frequencies_of(self, documents: NDArray[np.int64]) -> Frequencies:
        """Token frequencies of these documents alone."""
        if len(documents) == len(self):
            return self.frequencies
        total = Frequencies.none()
        for first in range(0, len(documents), _DOCUMENTS_PER_BLOCK):  # bounded memory for any filter
            stop_if_cancelled()
            total += Frequencies.of(*self.tokens_of(documents[first : first + _DOCUMENTS_PER_BLOCK]))
        return total

    def check_rows(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Raise unless rows starts[i] to ends[i], for every i, are as they were written."""
        self.embeddings.check(starts, ends)
        if self._refinements is not None:
            self._refinements.check(starts, ends)

    def score(
        self, query: AnyQuery, documents: NDArray[np.int64], k: int | None = None, reached: float = -np.inf
    ) -> NDArray[np.float64]:
        """Eq. 1 for each of the documents, on the stored embeddings; with k, only the k best need be right.

        `reached` is a score that k other documents have at least.
        """
        starts, ends = self.offsets[documents], self.offsets[documents + 1]
        before = disk_reads()
        self.embeddings.check(starts, ends)
        if isinstance(query, RefinedQuery):
            assert self._refinements is not None
            scores = score_refined(query, self.rows, starts, ends, k, self._refinements.check, reached)
        else:
            scores = score(query, self.rows, starts, ends, k)
        self._note_disk(disk_reads() > before)
        return scores

    def _note_disk(self, was_read: bool) -> None:
        """Rows leave memory again if it is short: if this search had to read from disk, the next probably has to."""
        self.embeddings.from_disk = was_read
        if self._refinements is not None:
            self._refinements.from_disk = was_read

    def similarities(self, query: AnyQuery, document: int) -> NDArray[np.float64]:
        """(positions of the document, query embeddings), from the same products as the score."""
        start, end = self.offsets[document : document + 2]
        self.check_rows(np.array([start]), np.array([end]))
        if isinstance(query, RefinedQuery):
            of_rows = refined_similarities(query, self.rows.rows[start:end], self.rows.codes[start:end])
        else:
            of_rows = similarities(query, self.rows[start:end])
        first, last = self.position_offsets[document : document + 2]
        return of_rows if self.positions.rows is None else of_rows[self.positions.rows[first:last]]

    def _checked(self, name: str) -> NDArray[Any]:
        check_bytes(self.folder, self.record.files, name)
        return open_array(self.folder / name)


def rows_of(offsets: NDArray[np.int64], documents: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of the documents, end to end, and the offsets of the documents among them."""
    starts, lengths = offsets[documents], offsets[documents + 1] - offsets[documents]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return np.arange(ends[-1]) + np.repeat(starts - ends[:-1], lengths), ends


def read_frequencies(folder: Path) -> Frequencies:
    token_ids, collection, document = open_array(folder / FREQUENCIES)
    return Frequencies(token_ids.astype(np.int32), collection, document)


def write_frequencies(folder: Path, counted: Frequencies) -> None:
    counts = np.stack([counted.token_ids.astype(np.int64), counted.collection, counted.document])
    np.save(folder / FREQUENCIES, counts)
