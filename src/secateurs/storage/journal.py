"""What a build has staged of each document, so that another build can take it over.

The file `staged.journal` stands beside the staged files of segment_writer.py. It begins with a digest of what all
documents of the build have in common: the encoder and what is done to its embeddings. Then there is an entry for each
document. An entry has a checksum of itself and one of the bytes that it points to. It is used only if both are right,
so the order in which the files reach the disk does not matter.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

STAGED = ("rows", "token_ids", "token_kinds", "position_rows")
JOURNAL = "staged.journal"
_HEAD = 16  # bytes of the digest
_ENTRY = np.dtype(
    [
        ("key", "<u8"),  # of the text, 128 bits
        ("other_half", "<u8"),
        ("row", "<i8"),  # where the document's rows begin, and how many there are
        ("rows", "<i8"),
        ("position", "<i8"),
        ("positions", "<i8"),
        ("dim", "<i8"),
        ("cut", "<i8"),
        ("unit", "<i8"),
        ("staged_crc", "<u4"),  # CRC-32 of the staged bytes
        ("entry_crc", "<u4"),  # CRC-32 of the fields before it
    ]
)


class StagedText(NamedTuple):
    """A document as it is staged."""

    rows: NDArray[Any]  # (rows, dim) float16 or float32
    token_ids: NDArray[np.int32]  # (positions,)
    token_kinds: NDArray[np.uint8]  # (positions,)
    position_rows: NDArray[np.uint32]  # (positions,): see position_rows.py
    cut: int
    unit: bool  # whether the embeddings had length 1 before they were rounded

    def content(self) -> dict[str, bytes]:
        """What goes into each of the staged files."""
        return {name: getattr(self, name).tobytes() for name in STAGED}


def staged_path(folder: Path, name: str) -> Path:
    return folder / f"staged.{name}"


def text_digest(text: str) -> bytes:
    """Of what an encoder is given. An encoder does not know docnos, so that they are not part of it."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class JournalWriter:
    def __init__(self, folder: Path, common: bytes) -> None:
        """`common` is the digest of what all documents have in common."""
        self._file = (folder / JOURNAL).open("wb", buffering=0)
        self._file.write(common)
        self.documents = 0
        self._row = self.positions = 0

    def add(self, digest: bytes, text: StagedText, content: dict[str, bytes]) -> None:
        """The next document; its content is in the staged files already."""
        entry = np.zeros((), dtype=_ENTRY)
        entry["key"], entry["other_half"] = np.frombuffer(digest, dtype="<u8")
        entry["row"], entry["position"] = self._row, self.positions
        entry["rows"], entry["dim"] = text.rows.shape
        entry["positions"], entry["cut"], entry["unit"] = len(text.token_ids), text.cut, text.unit
        entry["staged_crc"] = _checksum(content)
        entry["entry_crc"] = zlib.crc32(entry.tobytes()[:-4])
        self._file.write(entry.tobytes())
        self.documents += 1
        self._row += len(text.rows)
        self.positions += len(text.token_ids)

    def clear(self) -> None:
        """Nothing of it may be taken over."""
        self._file.truncate(0)
        self.documents = self.positions = 0

    def close(self) -> None:
        self._file.close()


class Journal:
    """The journal of a build that is no longer running, and the staged files that it points to."""

    def __init__(self, folder: Path, dtype: type[np.generic]) -> None:
        """`dtype` is that of the rows. Raises OSError if the files are not all there."""
        self._dtype = np.dtype(dtype)
        self._files: dict[str, IO[bytes]] = {}
        self._entries: NDArray[Any] = np.empty(0, dtype=_ENTRY)
        path = folder / JOURNAL
        with path.open("rb") as file:
            self.common = file.read(_HEAD)
        whole = (path.stat().st_size - _HEAD) // _ENTRY.itemsize  # the last entry may be cut short
        try:
            for name in STAGED:
                self._files[name] = staged_path(folder, name).open("rb")
        except OSError:
            self.close()
            raise
        if whole > 0:
            self._entries = np.memmap(path, _ENTRY, "r", _HEAD, (whole,))

    def __len__(self) -> int:
        return len(self._entries)

    def close(self) -> None:
        self._entries = np.empty(0, dtype=_ENTRY)  # no longer mapped: Windows removes no file that is
        for file in self._files.values():
            file.close()

    @property
    def keys(self) -> NDArray[np.uint64]:
        """(documents,): half of the digest of each text."""
        return np.array(self._entries["key"])

    @property
    def positions(self) -> NDArray[np.int64]:
        """(documents,): how many each has."""
        return np.array(self._entries["positions"])

    def read(self, number: int, dim: int) -> tuple[bytes, StagedText] | None:
        """The digest of a document's text, and what was staged of it; None if that is not what was written."""
        entry = self._entries[number]
        if zlib.crc32(entry.tobytes()[:-4]) != entry["entry_crc"] or entry["dim"] not in (0, dim):
            return None
        row, rows, position, positions, width, cut, unit = (
            int(entry[name]) for name in ("row", "rows", "position", "positions", "dim", "cut", "unit")
        )
        row_bytes = width * self._dtype.itemsize
        try:
            content = {
                "rows": self._bytes("rows", row * row_bytes, rows * row_bytes),
                "token_ids": self._bytes("token_ids", 4 * position, 4 * positions),
                "token_kinds": self._bytes("token_kinds", position, positions),
                "position_rows": self._bytes("position_rows", 4 * position, 4 * positions),
            }
        except OSError:
            return None
        if _checksum(content) != entry["staged_crc"]:
            return None
        text = StagedText(
            np.frombuffer(content["rows"], dtype=self._dtype).reshape(rows, width),
            np.frombuffer(content["token_ids"], dtype=np.int32),
            np.frombuffer(content["token_kinds"], dtype=np.uint8),
            np.frombuffer(content["position_rows"], dtype=np.uint32),
            cut,
            bool(unit),
        )
        return entry.tobytes()[:16], text

    def _bytes(self, name: str, start: int, count: int) -> bytes:
        self._files[name].seek(start)
        return self._files[name].read(count)


def _checksum(content: dict[str, bytes]) -> int:
    checksum = 0
    for name in STAGED:
        checksum = zlib.crc32(content[name], checksum)
    return checksum
