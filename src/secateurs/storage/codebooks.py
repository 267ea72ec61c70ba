"""What the numbers of an index mean: the scale of int8 rows, and the cells. All segments share one codebook."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.probing import Centroids, group_cells
from .checksums import check_bytes, check_files, describe_files
from .codecs.stores import Int8Store
from .file_names import CENTROIDS, GROUPS
from .files import new_folder_name, open_array
from .locks import Hold
from .manifest import CODEBOOKS, CodebookRecord, Manifest, codebook_folder


class Learnt(NamedTuple):
    """A codebook as it is made, before it is on disk."""

    embeddings: int  # learnt from so many
    int8: Int8Store | None = None  # None where nothing is int8: float16 without cells
    centroids: NDArray[np.int8] | None = None
    levels: NDArray[np.int8] | None = None
    spread: float = 0.0

    def write(self, folder: Path) -> CodebookRecord:
        """Into the folder of an index that is being made or changed."""
        name = new_folder_name()
        target = folder / CODEBOOKS / name
        target.mkdir(parents=True)
        if self.int8 is not None:
            np.save(target / "centre.npy", self.int8.centre)
        if self.centroids is not None:
            np.save(target / CENTROIDS, self.centroids)
            groups = group_cells(self.centroids)
            if groups is not None:
                np.save(target / GROUPS, groups)
        if self.levels is not None:
            np.save(target / "levels.npy", self.levels)
        step = self.int8.step if self.int8 is not None else None
        return CodebookRecord(name, self.embeddings, step, self.spread, describe_files(target))


class Codebook:
    """A codebook on disk, opened."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = codebook_folder(folder, manifest)
        self.record = manifest.codebook
        self._hold = Hold(self.folder)
        check_files(self.folder, self.record.files)
        centre = self._array("centre.npy")
        self.int8 = None
        if centre is not None and self.record.step is not None:
            self.int8 = Int8Store(centre, self.record.step)
        self.levels = self._array("levels.npy")

    @cached_property
    def centroids(self) -> NDArray[np.int8] | None:
        """(cells, width), or None if there are none."""
        return self._checked(CENTROIDS)

    @cached_property
    def cells(self) -> Centroids:
        assert self.centroids is not None
        return Centroids(self.centroids, self._checked(GROUPS))

    def learnt(self) -> Learnt:
        return Learnt(self.record.embeddings, self.int8, self.centroids, self.levels, self.record.spread)

    def _checked(self, name: str) -> NDArray[Any] | None:
        """An array that is not checked when the codebook is opened."""
        if name in self.record.files:
            check_bytes(self.folder, self.record.files, name)
        return self._array(name)

    def _array(self, name: str) -> NDArray[Any] | None:
        if name not in self.record.files:
            return None
        return open_array(self.folder / name)
