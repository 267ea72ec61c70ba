"""What the numbers of an index mean: the scale of int8 rows, and the cells. All segments share one codebook.

The background of the index is stored beside them: it too belongs to all segments. It is not learnt from embeddings, so
whoever writes a new codebook says which background it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..background import Background
from ..kernels.probing import Centroids, group_cells
from .checksums import check_bytes, check_files, describe_files
from .code_tables import CodeTable
from .file_names import BACKGROUND, CELL_CENTROIDS, CELL_GROUPS, CENTRE, CODE_CENTROIDS, CODE_LEVELS
from .files import new_folder_name, open_array
from .locks import Hold
from .manifest import CODEBOOKS, CodebookRecord
from .rounding import Int8Store


class CodebookContent(NamedTuple):
    """A codebook in memory."""

    embeddings: int  # that it was learnt from; 0 if it is still to be learnt
    int8: Int8Store | None = None  # None where nothing is int8: float16 without cells
    centroids: NDArray[np.int8] | None = None  # (cells, width)
    code: CodeTable | None = None  # store residual4
    spread: float = 0.0  # see CodebookRecord
    grouped: Callable[[], Centroids] | None = None  # lays out the centroids with their groups; None without groups

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
        if self.code is not None:
            np.save(target / CODE_CENTROIDS, self.code.centroids)
            np.save(target / CODE_LEVELS, self.code.levels)
        if background is not None:
            table = np.stack([background.counts.token_ids, background.counts.collection])
            small = table.astype(np.int32)
            np.save(target / BACKGROUND, small if np.array_equal(small, table) else table)
        step = self.int8.step if self.int8 is not None else None
        described = None if background is None else background.description
        newest = 0 if self.code is None else self.code.newest
        return CodebookRecord(name, self.embeddings, step, self.spread, describe_files(target), described, newest)

    @classmethod
    def read(cls, folder: Path, record: CodebookRecord, names: Collection[str]) -> CodebookContent:
        """Only the files of these names."""
        arrays = {name: open_array(folder / name) for name in names}
        int8 = Int8Store(arrays[CENTRE], record.step) if CENTRE in arrays and record.step is not None else None
        code = None
        if CODE_CENTROIDS in arrays and CODE_LEVELS in arrays:
            code = CodeTable(arrays[CODE_CENTROIDS], arrays[CODE_LEVELS], record.newest_code)
        return cls(record.embeddings, int8, arrays.get(CELL_CENTROIDS), code, record.spread)

    def rounded_code(self) -> NDArray[np.int8]:
        """What the codes mean on the int8 scale."""
        assert self.code is not None
        assert self.int8 is not None
        return self.code.rounded(self.int8)


class Codebook:
    """A codebook on disk, opened."""

    def __init__(self, folder: Path, record: CodebookRecord) -> None:
        """`folder` is that of the index."""
        self.folder = folder / CODEBOOKS / record.name
        self.record = record
        self._hold = Hold(self.folder)
        check_files(self.folder, self.record.files)
        checked = [CENTRE] if CENTRE in record.files else []
        self.int8 = CodebookContent.read(self.folder, record, checked).int8
        self._rounded_code: NDArray[np.int8] | None = None

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

    @cached_property
    def code(self) -> CodeTable | None:
        centroids, levels = self._checked(CODE_CENTROIDS), self._checked(CODE_LEVELS)
        if centroids is None or levels is None:
            return None
        return CodeTable(centroids, levels, self.record.newest_code)

    def rounded_code(self) -> NDArray[np.int8]:
        """As that of CodebookContent; the same array for all segments, so that it stays in the cache."""
        if self._rounded_code is None:
            self._rounded_code = self.content().rounded_code()
        return self._rounded_code

    def content(self) -> CodebookContent:
        grouped = (lambda: self.cells) if CELL_GROUPS in self.record.files else None
        return CodebookContent(
            self.record.embeddings, self.int8, self.centroids, self.code, self.record.spread, grouped
        )

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


AnyCodebook: TypeAlias = Codebook | CodebookContent  # both have int8, centroids and code
