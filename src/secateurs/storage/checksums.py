"""Every byte of an index has a checksum, and is compared with it before an answer is made from it."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedIndexError, SecateursError
from ..kernels.checked_blocks import all_checked
from .file_names import (
    CELL_CENTROIDS,
    CELL_DOCUMENTS,
    CELL_GROUPS,
    CELL_OFFSETS,
    CODE_CENTROIDS,
    CODE_LEVELS,
    CODE_NUMBERS,
    DOCUMENTS,
    EMBEDDINGS,
    FAISS,
    POSITION_ROWS,
    REFINEMENTS,
    SUMMARIES,
    TOKEN_IDS,
    TOKEN_KINDS,
)
from .files import REMEDY, open_array, sync_file, sync_folder
from .manifest import Files
from .read_ahead import ReadAhead

BLOCK_ROWS = 64  # of embeddings, about a document: a search checks little more than it reads
TOKEN_BLOCK_ROWS = 4096  # of token ids: 16 KiB
_CHUNK = 1 << 20
_CHECKED_WHEN_USED = frozenset(
    {
        EMBEDDINGS,
        REFINEMENTS,
        TOKEN_IDS,
        TOKEN_KINDS,
        POSITION_ROWS,
        DOCUMENTS,
        CODE_CENTROIDS,
        CODE_LEVELS,
        CODE_NUMBERS,
        CELL_CENTROIDS,
        CELL_GROUPS,
        CELL_OFFSETS,
        CELL_DOCUMENTS,
        SUMMARIES,
        FAISS,
    }
)


def describe_files(folder: Path) -> dict[str, dict[str, int]]:
    """Size and CRC-32 of every file of a finished folder, which are synced to disk on the way."""
    described = {}
    for path in sorted(folder.iterdir()):
        sync_file(path)
        described[path.name] = {"bytes": path.stat().st_size, "crc32": _crc32(path)}
    sync_folder(folder)
    sync_folder(folder.parent)
    return described


def check_files(folder: Path, files: Files, every_byte: bool = False) -> None:
    """Raise if a file is missing, cut short, or altered; files that are checked when used only if `every_byte`."""
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedIndexError(f"{path} is missing: {REMEDY}")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise DamagedIndexError(f"{path} has {size} bytes instead of {expected['bytes']}: {REMEDY}")
        if every_byte or name not in _CHECKED_WHEN_USED:
            check_bytes(folder, files, name)


def check_bytes(folder: Path, files: Files, name: str) -> None:
    """Raise if a file is not byte for byte what was written."""
    try:
        altered = _crc32(folder / name) != files[name]["crc32"]
    except FileNotFoundError as error:
        raise SecateursError(f"{folder / name} is gone: open the index again") from error
    if altered:
        raise DamagedIndexError(f"{folder / name} was altered (checksum differs): {REMEDY}")


def block_checksums(rows: NDArray[Any], block_rows: int) -> NDArray[np.uint32]:
    starts = range(0, len(rows), block_rows)
    return np.array([zlib.crc32(rows[start : start + block_rows].data) for start in starts], dtype=np.uint32)


class CheckedRows:
    """An array on disk whose blocks are checked the first time they are about to be read.

    Blocks that may have to come from disk are asked for together: those that were not checked yet, and all of them
    while `from_disk` says that the last search had to wait for the disk.
    """

    def __init__(
        self, path: Path, checksums: NDArray[np.uint32], block_rows: int, count: int, *dtypes: type[np.generic]
    ) -> None:
        self.rows = open_array(path)
        if len(self.rows) != count or self.rows.dtype not in dtypes:  # no block covers the file's header
            raise DamagedIndexError(f"{path} was altered (in its header): {REMEDY}")
        self._path = path
        self._checksums = checksums
        self._block_rows = block_rows
        self._unchecked = np.ones(len(checksums), dtype=bool)
        self._read_ahead = ReadAhead(self.rows)
        self.from_disk = False

    def check(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Raise unless rows starts[i] to ends[i], for every i, are as they were written."""
        if not self.from_disk and all_checked(starts, ends, self._block_rows, self._unchecked):
            return
        first, last = starts // self._block_rows, (ends - 1) // self._block_rows
        count = np.where(starts < ends, last - first + 1, 0)
        before = np.cumsum(count) - count
        wanted = np.repeat(first - before, count) + np.arange(count.sum())
        blocks = np.unique(wanted if self.from_disk else wanted[self._unchecked[wanted]])
        self._read_ahead.ask(blocks * self._block_rows, np.minimum((blocks + 1) * self._block_rows, len(self.rows)))
        for block in blocks[self._unchecked[blocks]]:
            rows = self.rows[block * self._block_rows : (block + 1) * self._block_rows]
            if zlib.crc32(rows.data) != self._checksums[block]:
                raise DamagedIndexError(f"{self._path} was altered (rows from {block * self._block_rows}): {REMEDY}")
            self._unchecked[block] = False


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
