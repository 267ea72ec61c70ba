"""An index on disk, format version 2. Version 1 had neither cells nor residual4, and is read like it.

    demo.sec/
      manifest.json             what is in the index; written last, so a folder without it is not an index
      write.lock                empty; whoever changes the index holds it
      segments/1f0c9a72b3d4/    a random name; never changed once the manifest names it
        embeddings.npy          (embeddings, dim) int8 or float16, document after document; residual4: two codes a byte
        blocks.npy              (blocks,) uint32: CRC-32 of every `block_rows` rows of embeddings.npy
        offsets.npy             (documents + 1,) int64: document i is rows offsets[i] to offsets[i + 1]
        token_ids.npy           (embeddings,) int32
        token_kinds.npy         (embeddings,) uint8, see records.TokenKind
        frequencies.npy         (3, types) int64: token id, collection frequency, document frequency
        centre.npy              (dim,) float32, stores int8 and residual4
        levels.npy              (16,) int8, store residual4
        embedding_cells.npy     (embeddings,) uint32, store residual4
        documents.sqlite        docno, text, metadata
        cell_*.npy              gather="cells" and store residual4: see gather/cells.py
        faiss.index             gather="faiss"

manifest.json holds the format version, the encoder's name and fingerprint, counts, and per file its size and CRC-32;
its last field is a checksum of itself. Opening checks the manifest, every file's size, and the bytes of every file but
the largest: embeddings are checked block by block, the first time a block is read, token_ids.npy and the files of a
way of gathering when they are first used.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedIndexError, SecateursError
from ..gather.files import CELLS_OF_EMBEDDINGS, FILES_OF
from ..simd import compiled

FORMAT = "secateurs-index"
FORMAT_VERSION = 2
MANIFEST = "manifest.json"
LOCK = "write.lock"
BLOCK_ROWS = 64  # about a document: what a search reads is what it checks
_CHUNK = 1 << 20
_CHECKED_WHEN_USED = frozenset({"embeddings.npy", "token_ids.npy", CELLS_OF_EMBEDDINGS, *chain(*FILES_OF.values())})
_REMEDY = "restore it from a copy, or index again"


@dataclass(frozen=True)
class SegmentRecord:
    """One segment as the manifest knows it."""

    name: str
    documents: int
    embeddings: int
    cut_documents: int  # documents longer than the encoder takes
    step: float | None  # stores int8 and residual4: width of one integer step
    files: Mapping[str, Mapping[str, int]]  # name -> {"bytes": ..., "crc32": ...}
    block_rows: int = 1024  # rows under one checksum; what older indexes have, where it was not written down
    reach: tuple[float, float] | None = None  # longest embedding, largest distance from the centre; older indexes: None


@dataclass(frozen=True)
class Manifest:
    dim: int
    store: str
    encoder: Mapping[str, Any]
    segments: tuple[SegmentRecord, ...]
    written_by: str
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path) -> None:
        """All or nothing: a new file, synced, then renamed over the old one."""
        fields = asdict(self)
        fields["checksum"] = _checksum(fields)
        new = folder / f"{MANIFEST}.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump(fields, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / MANIFEST)
        sync_folder(folder)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        path = folder / MANIFEST
        if not folder.is_dir():
            raise SecateursError(f"there is no index at {folder}: make one with  secateurs index CORPUS {folder}")
        if not path.is_file():
            raise SecateursError(f"{folder} is not an index: it has no {MANIFEST}")
        try:
            fields = json.loads(path.read_bytes())
            if fields["format"] != FORMAT:
                raise ValueError(f"format is {fields['format']!r}")
            version = int(fields["format_version"])
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedIndexError(f"{path} cannot be read ({error}): {_REMEDY}") from error
        if version > FORMAT_VERSION:
            raise SecateursError(
                f"{folder} has index format {version}; this secateurs reads up to {FORMAT_VERSION}: "
                "pip install --upgrade secateurs"
            )
        if fields.pop("checksum", None) != _checksum(fields):
            raise DamagedIndexError(f"{path} was altered (checksum differs): {_REMEDY}")
        fields["segments"] = tuple(SegmentRecord(**segment) for segment in fields["segments"])
        return cls(**fields)


def segment_folder(folder: Path, name: str) -> Path:
    return folder / "segments" / name


def describe_files(folder: Path) -> dict[str, dict[str, int]]:
    """Size and CRC-32 of every file of a finished segment, which are synced to disk on the way."""
    described = {}
    for path in sorted(folder.iterdir()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        described[path.name] = {"bytes": path.stat().st_size, "crc32": _crc32(path)}
    sync_folder(folder)
    sync_folder(folder.parent)
    return described


def check_files(folder: Path, record: SegmentRecord, every_byte: bool) -> None:
    """Raise if a file of the segment is missing or cut short, or altered; files checked when used, if `every_byte`."""
    for name, expected in record.files.items():
        path = folder / name
        if not path.is_file():
            raise DamagedIndexError(f"{path} is missing: {_REMEDY}")
        size = path.stat().st_size
        if size != expected["bytes"]:
            raise DamagedIndexError(f"{path} has {size} bytes instead of {expected['bytes']}: {_REMEDY}")
        if every_byte or name not in _CHECKED_WHEN_USED:
            check_bytes(folder, record, name)


def check_bytes(folder: Path, record: SegmentRecord, name: str) -> None:
    """Raise if a file of the segment is not byte for byte what was written."""
    try:
        altered = _crc32(folder / name) != record.files[name]["crc32"]
    except FileNotFoundError as error:
        raise SecateursError(
            f"{folder / name} is gone: the index was replaced while it was open, open it again"
        ) from error
    if altered:
        raise DamagedIndexError(f"{folder / name} was altered (checksum differs): {_REMEDY}")


def block_checksums(rows: NDArray[Any]) -> NDArray[np.uint32]:
    starts = range(0, len(rows), BLOCK_ROWS)
    return np.array([zlib.crc32(rows[start : start + BLOCK_ROWS].data) for start in starts], dtype=np.uint32)


class CheckedRows:
    """Embeddings on disk whose blocks are checked the first time they are about to be read."""

    def __init__(self, path: Path, checksums: NDArray[np.uint32], block_rows: int) -> None:
        self.rows: NDArray[Any] = np.load(path, mmap_mode="r")
        self._path = path
        self._checksums = checksums
        self._block_rows = block_rows
        self._unchecked = np.ones(len(checksums), dtype=bool)

    def check(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Raise unless rows starts[i] to ends[i], for every i, are as they were written."""
        if _all_known(starts, ends, self._block_rows, self._unchecked):
            return
        first, last = starts // self._block_rows, (ends - 1) // self._block_rows
        count = np.where(starts < ends, last - first + 1, 0)
        before = np.cumsum(count) - count
        wanted = np.repeat(first - before, count) + np.arange(count.sum())
        for block in np.unique(wanted[self._unchecked[wanted]]):
            rows = self.rows[block * self._block_rows : (block + 1) * self._block_rows]
            if zlib.crc32(rows.data) != self._checksums[block]:
                raise DamagedIndexError(f"{self._path} was altered (rows from {block * self._block_rows}): {_REMEDY}")
            self._unchecked[block] = False


@compiled
def _all_known(
    starts: NDArray[np.int64], ends: NDArray[np.int64], block_rows: int, unchecked: NDArray[np.bool_]
) -> bool:
    """Whether no block of these rows is still to be checked: nearly always so, and asked by every search."""
    for i in range(len(starts)):
        if starts[i] < ends[i]:
            for block in range(starts[i] // block_rows, (ends[i] - 1) // block_rows + 1):
                if unchecked[block]:
                    return False
    return True


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """One writer at a time. The system takes the lock from a process that dies."""
    with (folder / LOCK).open("w") as file:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def sync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _crc32(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
