"""One immutable part of an index, opened for reading: arrays stay on disk until a search touches them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frequencies import Frequencies
from ..gather import Gatherer, open_gatherer
from ..gather.files import CELLS_OF_EMBEDDINGS, CENTROIDS, FILES_OF
from ..maxsim import PreparedQuery, score, similarities
from .documents import Documents
from .storage import CheckedRows, SegmentRecord, check_bytes, check_files
from .stores import Float16Store, Int8Store, Residuals, Store


class Segment:
    """Documents are known by their number in the segment, 0 to len - 1.

    Files are opened here and not later, so that a reader keeps what it opened when the index is replaced under it.
    """

    def __init__(self, folder: Path, record: SegmentRecord, store: str) -> None:
        check_files(folder, record, every_byte=False)
        self.folder = folder
        self.record = record
        self.store: Store = Float16Store()
        if record.step is not None:
            centre = self._array("centre.npy")
            self.store = Int8Store(centre, record.step, record.reach)
        self.offsets: NDArray[np.int64] = self._array("offsets.npy")
        self.embeddings = CheckedRows(folder / "embeddings.npy", self._array("blocks.npy"), record.block_rows)
        self._rows: Any = np.asarray(self.embeddings.rows)
        if store == "residual4":
            for name in (CELLS_OF_EMBEDDINGS, CENTROIDS):
                check_bytes(folder, record, name)
            cells, centroids, levels = map(self._array, (CELLS_OF_EMBEDDINGS, CENTROIDS, "levels.npy"))
            self._rows = Residuals(self._rows, cells, centroids, levels, len(centre))
        self.documents = Documents(folder / "documents.sqlite")
        token_ids, collection, document = np.asarray(self._array("frequencies.npy"))
        self.frequencies = Frequencies(token_ids.astype(np.int32), collection, document)
        self._gatherers: dict[str, Gatherer] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return self.record.documents

    @cached_property
    def token_ids(self) -> NDArray[np.int32]:
        check_bytes(self.folder, self.record, "token_ids.npy")
        return self._array("token_ids.npy")

    def gatherer(self, name: str) -> Gatherer:
        with self._lock:  # opened once, however many threads come for it
            if name not in self._gatherers:
                for file in FILES_OF.get(name, ()):
                    if file in self.record.files:
                        check_bytes(self.folder, self.record, file)
                self._gatherers[name] = open_gatherer(name, self.folder, self.offsets)
            return self._gatherers[name]

    def score(self, query: PreparedQuery, documents: NDArray[np.int64], k: int | None = None) -> NDArray[np.float64]:
        """Eq. 1 for each of the documents, on the stored embeddings; with k, only the k best need be right."""
        starts, ends = self.offsets[documents], self.offsets[documents + 1]
        self.embeddings.check(starts, ends)
        return score(query, self._rows, starts, ends, k)

    def similarities(self, query: PreparedQuery, document: int) -> NDArray[np.float64]:
        """(document tokens, query embeddings), from the same products as the score."""
        start, end = self.offsets[document : document + 2]
        self.embeddings.check(np.array([start]), np.array([end]))
        return similarities(query, self._rows[start:end])

    def _array(self, name: str) -> NDArray[Any]:
        array: NDArray[Any] = np.asarray(np.load(self.folder / name, mmap_mode="r"))  # one type for the kernels
        return array
