"""What the numbers of an index mean: the scale of int8 rows, and the cells. All segments share one codebook.

The background of the index is stored beside them: it too belongs to all segments. It is not learnt from embeddings, so
whoever writes a new codebook says which background it gets.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..background import Background
from ..kernels.probing import Centroids, group_cells
from .checksums import check_bytes, check_files, describe_files
from .file_names import BACKGROUND, CELL_CENTROIDS, CELL_GROUPS, CENTRE, LEVELS
from .files import new_folder_name, open_array
from .locks import Hold
from .manifest import CODEBOOKS, CodebookRecord
from .rounding import Int8Store


class CodebookContent(NamedTuple):
    """A codebook in memory."""

    embeddings: int  # that it was learnt from
    int8: Int8Store | None = None  # None where nothing is int8: float16 without cells
    centroids: NDArray[np.int8] | None = None  # (cells, width)
    levels: NDArray[np.int8] | None = None  # (16,), store residual4
    spread: float = 0.0  # see CodebookRecord

    def write(self, folder: Path, background: Background | None) -> CodebookRecord:
        """Into a new folder of the index at `folder`."""
        name = new_folder_name()
        target = folder / CODEBOOKS / name
        target.mkdir(parents=True)
        if self.int8 is not None:
            np.save(target / CENTRE, self.int8.centre)
        if self.centroids is not None:
            np.save(target / CELL_CENTROIDS, self.centroids)
            groups = group_cells(self.centroids)
            if groups is not None:
                np.save(target / CELL_GROUPS, groups)
        if self.levels is not None:
            np.save(target / LEVELS, self.levels)
        if background is not None:
            table = np.stack([background.counts.token_ids, background.counts.collection])
            small = table.astype(np.int32)
            np.save(target / BACKGROUND, small if np.array_equal(small, table) else table)
        step = self.int8.step if self.int8 is not None else None
        described = None if background is None else background.description
        return CodebookRecord(name, self.embeddings, step, self.spread, describe_files(target), described)

    @classmethod
    def read(cls, folder: Path, record: CodebookRecord, names: Collection[str]) -> CodebookContent:
        """Only the files of these names."""
        arrays = {name: open_array(folder / name) for name in names}
        int8 = Int8Store(arrays[CENTRE], record.step) if CENTRE in arrays and record.step is not None else None
        return cls(record.embeddings, int8, arrays.get(CELL_CENTROIDS), arrays.get(LEVELS), record.spread)


class Codebook:
    """A codebook on disk, opened."""

    def __init__(self, folder: Path, record: CodebookRecord) -> None:
        """`folder` is that of the index."""
        self.folder = folder / CODEBOOKS / record.name
        self.record = record
        self._hold = Hold(self.folder)
        check_files(self.folder, self.record.files)
        checked = [name for name in (CENTRE, LEVELS) if name in record.files]
        content = CodebookContent.read(self.folder, record, checked)
        self.int8, self.levels = content.int8, content.levels

    @cached_property
    def background(self) -> Background | None:
        return read_background(self.folder, self.record)

    @cached_property
    def centroids(self) -> NDArray[np.int8] | None:
        """(cells, width), or None if there are none."""
        return self._checked(CELL_CENTROIDS)

    @cached_property
    def cells(self) -> Centroids:
        assert self.centroids is not None
        return Centroids(self.centroids, self._checked(CELL_GROUPS))

    def content(self) -> CodebookContent:
        return CodebookContent(self.record.embeddings, self.int8, self.centroids, self.levels, self.record.spread)

    def _checked(self, name: str) -> NDArray[Any] | None:
        """An array that is not checked when the codebook is opened; None if the codebook has no such file."""
        if name not in self.record.files:
            return None
        check_bytes(self.folder, self.record.files, name)
        return open_array(self.folder / name)


def read_background(folder: Path, record: CodebookRecord) -> Background | None:
    """From the folder of a codebook; None if it has none."""
    if record.background is None:
        return None
    token_ids, counts = open_array(folder / BACKGROUND)  # (2, types)
    return Background.of_counts(token_ids=token_ids, counts=counts, **record.background)


AnyCodebook: TypeAlias = Codebook | CodebookContent  # both have int8, centroids and levels
