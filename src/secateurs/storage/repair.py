"""Rebuild what is damaged from what is not.

Cells, FAISS indexes, frequencies and checksums follow from the rest. Embeddings that are damaged, or whose meaning is
lost with the codebook, are made again from the text by the encoder of the index. A document is lost only if its own
text is, or its embeddings are and it came with embeddings and no text to make them from. Nothing is thrown away before
the repaired index is committed.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..encoders import load_encoder
from ..errors import DamagedIndexError, SecateursError
from ..records import Document, EncodedText
from ..version import __version__
from .check import check_snapshot
from .checksums import check_bytes, check_files
from .codebooks import CodebookContent
from .codecs import codec
from .documents import ROW, connect, unpack_row
from .file_names import BLOCKS, DOCUMENTS, EMBEDDINGS, NUMBERS, OFFSETS, TOKEN_IDS, TOKEN_KINDS
from .files import REMEDY, new_folder_name, open_array
from .indexing import write_segment
from .locks import sweep, write_lock
from .manifest import (
    CODEBOOKS,
    DELETIONS,
    MANIFEST,
    MANIFEST_COPY,
    SEGMENTS,
    Files,
    Manifest,
    SegmentRecord,
)
from .recipe import Recipe
from .rounding import Store
from .snapshot import Snapshot

_INDEX_AGAIN = "restore it from a copy, or index again"


def repair(path: Path) -> list[str]:
    """Make the index whole again; say what was done, and what is lost."""
    if not (path / MANIFEST_COPY).is_file():
        Manifest.read(path)  # says what is wrong with a folder that is no index, before anything is made in it
    with write_lock(path):
        manifest, said = _manifest(path)
        try:
            check_snapshot(Snapshot(path, manifest))
        except (SecateursError, OSError) as error:
            said.append(f"found: {str(error).removesuffix(f': {REMEDY}')}")
        else:
            return said or ["nothing is damaged"]
        rescue = _Rescue(path, manifest)
        recipe = Recipe(manifest.store, manifest.gather)
        folder = path / SEGMENTS / new_folder_name()
        try:
            made = write_segment(
                folder,
                (("", document) for document in rescue.documents()),
                None,
                recipe,
                int8=rescue.int8,
                dim=manifest.dim or None,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        repaired = replace(
            manifest,
            segments=(made.record,),
            codebook=made.codebook.write(path),
            commit=manifest.commit + 1,
            written_by=f"secateurs {__version__}",
        )
        repaired.write(path)
        sweep(path, repaired)
        return [*said, *rescue.said, f"rebuilt with {made.record.documents:,} documents"]


def _manifest(path: Path) -> tuple[Manifest, list[str]]:
    """The manifest, or its copy if that is the one that can be read."""
    try:
        manifest = Manifest.read(path)
    except SecateursError as error:
        if not (path / MANIFEST_COPY).is_file():
            raise
        try:
            manifest = Manifest.read(path, MANIFEST_COPY)
        except SecateursError:
            raise DamagedIndexError(f"{path}: neither {MANIFEST} nor its copy can be read: {_INDEX_AGAIN}") from error
        manifest.write(path)
        return manifest, [f"{MANIFEST} was restored from its copy"]
    try:
        copy = Manifest.read(path, MANIFEST_COPY)
    except SecateursError:
        copy = None
    if copy != manifest:
        manifest.write(path)
        return manifest, [f"{MANIFEST_COPY} was written again"]
    return manifest, []


class _Rescue:
    """Reads whatever can be read."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._manifest = manifest
        self.said: list[str] = []
        self._codec = codec(manifest.store)
        folder, record = path / CODEBOOKS / manifest.codebook.name, manifest.codebook
        self._codebook: CodebookContent | None = None  # if rows can be read with what is left of it
        if all(_sound(folder, record.files, name) for name in self._codec.codebook_files):
            self._codebook = CodebookContent.read(folder, record, self._codec.codebook_files)
        self.int8 = None if self._codebook is None else self._codebook.int8
        self._encoder: Any = None

    def documents(self) -> Iterator[Document]:
        """All that can be had, those of later segments in place of earlier ones of the same docno."""
        taken: set[str] = set()
        lost, encoded_again = 0, 0
        for record in reversed(self._manifest.segments):
            folder = self._path / SEGMENTS / record.name
            deleted = self._deleted(record)
            embeddings = self._embeddings(folder, record)
            for number, document, cut in _stored(folder, record.documents):
                if number in deleted:
                    continue
                if document is None:
                    lost += 1
                    continue
                if document.docno in taken:
                    continue
                taken.add(document.docno)
                encoded = embeddings.of(number, cut) if embeddings is not None else None
                if encoded is None:
                    encoded = self._encode(document.text)
                    if encoded is None:
                        lost += 1
                        self.said.append(f"lost: {document.docno!r}, whose embeddings are damaged")
                        continue
                    encoded_again += 1
                yield replace(document, encoded=encoded)
        if encoded_again:
            self.said.append(f"encoded again from their text: {encoded_again:,} documents")
        self.said.append(f"lost: {lost:,} documents" if lost else "no document is lost")

    def _deleted(self, record: SegmentRecord) -> set[int]:
        if record.deletions is None:
            return set()
        folder = self._path / DELETIONS / record.deletions.name
        if _sound(folder, record.deletions.files, NUMBERS):
            return set(open_array(folder / NUMBERS).tolist())
        self.said.append(
            f"which {record.deletions.documents:,} documents of a segment were deleted is not known: back again"
        )
        return set()

    def _embeddings(self, folder: Path, record: SegmentRecord) -> _Embeddings | None:
        others = [name for name in self._codec.arrays(self._manifest.dim) if name != EMBEDDINGS]
        needed = [OFFSETS, TOKEN_IDS, TOKEN_KINDS, *others]
        if self._codebook is None or not all(_sound(folder, record.files, name) for name in needed):
            return None
        try:
            rows: Any = open_array(folder / EMBEDDINGS)
        except (OSError, SecateursError):
            return None
        blocks = None
        if not _sound(folder, record.files, EMBEDDINGS):
            if not _sound(folder, record.files, BLOCKS) or len(rows) != record.embeddings:
                return None
            blocks = open_array(folder / BLOCKS)
        arrays = {EMBEDDINGS: rows} | {name: open_array(folder / name) for name in others}
        readable = self._codec.rows(arrays, self._codebook)
        store = self._codec.store(self._codebook)
        return _Embeddings(folder, rows, readable, blocks, record.block_rows, store)

    def _encode(self, text: str) -> EncodedText | None:
        spec = self._manifest.encoder
        if spec["kind"] not in ("onnx", "st"):
            return None
        if self._encoder is None:
            self._encoder = load_encoder(spec["model"], spec["kind"])
            if self._encoder.spec["fingerprint"] != spec["fingerprint"]:
                raise SecateursError(f"{spec['model']!r} is not the encoder that made {self._path}: {_INDEX_AGAIN}")
        (encoded,) = self._encoder.encode_documents([text])
        return encoded  # type: ignore[no-any-return]


class _Embeddings:
    """The embeddings of one segment, document by document, where their blocks are sound."""

    def __init__(
        self,
        folder: Path,
        rows: NDArray[Any],
        readable: Any,
        blocks: NDArray[np.uint32] | None,
        block_rows: int,
        store: Store,
    ) -> None:
        self._offsets, self._ids, self._kinds = (
            open_array(folder / name) for name in (OFFSETS, TOKEN_IDS, TOKEN_KINDS)
        )
        self._readable = readable
        self._store = store
        self._sound = np.ones(-(-len(rows) // block_rows), dtype=bool)
        self._block_rows = block_rows
        if blocks is not None:
            for i in range(len(blocks)):
                block = np.ascontiguousarray(rows[i * block_rows : (i + 1) * block_rows])
                self._sound[i] = crc32(block.data) == blocks[i]

    def of(self, number: int, cut: int) -> EncodedText | None:
        start, end = self._offsets[number : number + 2].tolist()
        if not self._sound[start // self._block_rows : -(-end // self._block_rows)].all():
            return None
        embeddings = self._store.decode(self._readable[start:end])
        return EncodedText(embeddings, self._ids[start:end], self._kinds[start:end], cut)


def _sound(folder: Path, files: Files, name: str) -> bool:
    try:
        check_files(folder, {name: files[name]})
        check_bytes(folder, files, name)
    except (SecateursError, OSError, KeyError):
        return False
    return True


def _stored(folder: Path, count: int) -> Iterator[tuple[int, Document | None, int]]:
    """Every number, its document if the row can be read and is what was written, and how many tokens were cut."""
    connection = None
    for number in range(count):
        try:
            connection = connection or connect(folder / DOCUMENTS)
            (row,) = connection.execute(f"SELECT {ROW} FROM documents WHERE number = ?", (number,)).fetchall()
            stored, cut = unpack_row(row)
            yield number, Document(*stored), cut
        except (sqlite3.Error, ValueError):
            yield number, None, 0
    if connection is not None:
        connection.close()
