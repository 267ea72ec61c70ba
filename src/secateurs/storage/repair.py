"""Rebuild what is damaged from what is not.

Cells, FAISS indexes, frequencies and checksums follow from the rest. Embeddings that are damaged, or whose codebook is,
are made again from the text by the encoder of the index. What cannot be rebuilt:

    a document     whose text is damaged; or whose embeddings are, in an index without an encoder of a known kind or if
                   it has no text. If only the refinements of its embeddings are damaged, it keeps its int8 rows
    a deletion     if the list of deleted documents is damaged: they are in the index again
    a background   whose file is damaged
    a commit       if only the copy of the manifest can be read, and it is older than the manifest was

If anything of that is lost, the whole index as it was before the repair is put aside, to `lost/commit-N/` in its
folder. That has the layout of an index: if a backup has the damaged files, put them there and open it. No change of the
index removes it. Its files are hard links, where the file system has them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from ..background import Background
from ..encoders import LOADED_BY_NAME, load_recorded
from ..errors import DamagedIndexError, SecateursError
from ..records import Document, EncodedText
from ..version import __version__
from .check import check_snapshot
from .checksums import check_bytes, check_files
from .codebooks import CodebookContent, read_background
from .codecs import codec
from .documents import ROW, connect, unpack_row
from .file_names import (
    BACKGROUND,
    BLOCKS,
    DOCUMENTS,
    EMBEDDINGS,
    NUMBERS,
    OFFSETS,
    POSITION_OFFSETS,
    POSITION_ROWS,
    REFINEMENT_BLOCKS,
    REFINEMENTS,
    TOKEN_IDS,
    TOKEN_KINDS,
)
from .files import REMEDY, new_folder_name, open_array, sync_folder
from .indexing import write_segment
from .locks import FolderGoneError, sweep, write_lock
from .manifest import (
    CODEBOOKS,
    DELETIONS,
    LOST,
    MANIFEST,
    MANIFEST_COPY,
    PARTS,
    SEGMENTS,
    Files,
    Manifest,
    SegmentRecord,
)
from .merging import merge_alike
from .position_rows import TextPositions, rows_of_all
from .recipe import Recipe
from .snapshot import Snapshot

_CHECKSUMS = {EMBEDDINGS: BLOCKS, REFINEMENTS: REFINEMENT_BLOCKS}  # files that can be damaged in part, and theirs
_INDEX_AGAIN = "restore it from a copy, or index again"
_NAMED = 100  # lost documents that are named; the others are only counted


class RepairReport(NamedTuple):
    lines: list[str]  # what was found and done, and what is lost
    lost: bool  # whether anything is


def repair(path: Path) -> RepairReport:
    """Make the index whole again from what can be read of it."""
    if not (path / MANIFEST_COPY).is_file():
        Manifest.read(path)  # says what is wrong with a folder that is no index, before a lock is made in it
    with write_lock(path):
        manifest, restored = _manifest(path)
        try:
            check_snapshot(Snapshot(path, manifest))
        except FolderGoneError as error:
            found = f"found: {error.folder} is missing"
        except (SecateursError, OSError) as error:
            found = f"found: {str(error).removesuffix(f': {REMEDY}')}"
        else:
            return RepairReport(restored.lines or ["nothing is damaged"], restored.lost)
        salvage = _Salvage(path, manifest)
        folder = path / SEGMENTS / new_folder_name()
        try:
            segment = write_segment(
                folder,
                (("", document) for document in salvage.documents()),
                None,
                Recipe.of(manifest),
                int8=salvage.int8,
                dim=manifest.dim or None,
                merged=True,
            )
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        background = salvage.background()
        lines = [*restored.lines, found, *salvage.lines]
        if salvage.lost:
            aside = _put_aside(path, manifest.commit, manifest.named(), [MANIFEST, MANIFEST_COPY])
            lines.append(f"the index as it was is in {aside}: remove it when it is of no more use")
        repaired = replace(
            manifest,
            segments=(segment.record,),
            codebook=segment.codebook.write(path, background),
            calibration=None,
            commit=manifest.commit + 1,
            written_by=f"secateurs {__version__}",
        )
        repaired.write(path)
        sweep(path, repaired)
        lines.append(f"rebuilt with {segment.record.documents:,} documents")
        return RepairReport(lines, salvage.lost or restored.lost)


def _manifest(path: Path) -> tuple[Manifest, RepairReport]:
    """The manifest, or its copy if only that can be read."""
    try:
        manifest = Manifest.read(path)
    except SecateursError as error:
        if not (path / MANIFEST_COPY).is_file():
            raise
        try:
            manifest = Manifest.read(path, MANIFEST_COPY)
        except SecateursError:
            raise DamagedIndexError(f"{path}: neither {MANIFEST} nor its copy can be read: {_INDEX_AGAIN}") from error
        lines = [f"{MANIFEST} was restored from its copy"]
        # The copy is one commit behind if there was no room for it. The next change would sweep that commit's folders.
        named = set(manifest.named())
        there = [(part, folder.name) for part in PARTS for folder in sorted((path / part).glob("*"))]
        unnamed = [folder for folder in there if folder not in named]
        if unnamed:
            aside = _put_aside(path, manifest.commit + 1, unnamed, [MANIFEST])
            lines.append(f"folders that the copy does not name, perhaps those of a later change, are in {aside}")
        manifest.write(path)
        return manifest, RepairReport(lines, lost=bool(unnamed))
    try:
        copy = Manifest.read(path, MANIFEST_COPY)
    except SecateursError:
        copy = None
    if copy != manifest:
        manifest.write(path)
        return manifest, RepairReport([f"{MANIFEST_COPY} was written again"], lost=False)
    return manifest, RepairReport([], lost=False)


def _put_aside(path: Path, commit: int, folders: Iterable[tuple[str, str]], files: Iterable[str]) -> Path:
    """Link, or copy, parts of an index to a folder that no change sweeps. Readers are not disturbed."""
    target = path / LOST / f"commit-{commit}"
    if target.exists():
        target = path / LOST / f"commit-{commit}-{new_folder_name()}"
    target.mkdir(parents=True)
    for part, name in folders:
        if (path / part / name).is_dir():
            shutil.copytree(path / part / name, target / part / name, copy_function=_link)
            sync_folder(target / part / name)
            sync_folder(target / part)
    for name in files:
        if (path / name).is_file():
            shutil.copy2(path / name, target / name)
    sync_folder(target)
    sync_folder(target.parent)
    return target


def _link(source: str, target: str) -> None:
    """Files of an index are never changed, so a link is as good as a copy, and takes no space."""
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)


class _Salvage:
    """What can be read of a damaged index."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path = path
        self._manifest = manifest
        self.lines: list[str] = []
        self.lost = False
        folder, record, needed = path / CODEBOOKS / manifest.codebook.name, manifest.codebook, codec(manifest.store)
        self._codebook: CodebookContent | None = None  # if what rows need of it is sound
        if all(_is_sound(folder, record.files, name) for name in needed.codebook_files):
            self._codebook = CodebookContent.read(folder, record, needed.codebook_files)
        self.int8 = None if self._codebook is None else self._codebook.int8
        self._encoder: Any = None

    def documents(self) -> Iterator[Document]:
        """Documents of later segments stand in for earlier ones of the same docno."""
        taken: set[str] = set()
        lost, encoded_again, unrefined = 0, 0, 0
        for record in reversed(self._manifest.segments):
            folder = self._path / SEGMENTS / record.name
            deleted = self._deleted(record)
            embeddings = _Embeddings(folder, record, self._manifest, self._codebook)
            for number, document, cut in _stored(folder, record.documents):
                if number in deleted or (document is not None and document.docno in taken):
                    continue
                if document is None:
                    lost += 1
                    continue
                taken.add(document.docno)
                encoded = embeddings.of(number, cut)
                if encoded is None:
                    encoded = self._encode(document.text)
                    encoded_again += encoded is not None
                    if encoded is None:
                        encoded = embeddings.of(number, cut, refined=False)
                        unrefined += encoded is not None
                    if encoded is None:
                        lost += 1
                        if lost <= _NAMED:
                            self.lines.append(f"lost: {document.docno!r}, whose embeddings are damaged")
                        continue
                yield replace(document, encoded=encoded)
        if encoded_again:
            self.lines.append(f"encoded again from their text: {encoded_again:,} documents")
        if unrefined:
            self.lines.append(f"lost: the refinements of {unrefined:,} documents, which keep their int8 rows")
        self.lines.append(f"lost: {lost:,} documents" if lost else "no document is lost")
        self.lost |= lost + unrefined > 0

    def background(self) -> Background | None:
        record = self._manifest.codebook
        folder = self._path / CODEBOOKS / record.name
        if record.background is None or _is_sound(folder, record.files, BACKGROUND):
            return read_background(folder, record)
        self.lost = True
        self.lines.append(
            f"lost: the background {record.background['name']!r}; the order rarity goes by the collection alone from "
            "now on, index again to have one"
        )
        return None

    def _deleted(self, record: SegmentRecord) -> set[int]:
        if record.deletions is None:
            return set()
        folder = self._path / DELETIONS / record.deletions.name
        if _is_sound(folder, record.deletions.files, NUMBERS):
            return set(open_array(folder / NUMBERS).tolist())
        self.lost = True
        self.lines.append(
            f"lost: which {record.deletions.documents:,} documents of a segment were deleted; they are back again, "
            "except those that were replaced"
        )
        return set()

    def _encode(self, text: str) -> EncodedText | None:
        """None if no encoder can: an index of embeddings, an encoder that has no name, or nothing to encode."""
        spec = self._manifest.encoder
        if spec["kind"] not in LOADED_BY_NAME or not text.strip():
            return None
        if self._encoder is None:
            self._encoder = load_recorded(spec)
            if self._encoder.spec["fingerprint"] != spec["fingerprint"]:
                raise SecateursError(f"{spec['model']!r} is not the encoder that made {self._path}: {_INDEX_AGAIN}")
        (encoded,) = self._encoder.encode_documents([text])
        return merge_alike(encoded, self._manifest.merge, self._manifest.pool)


class _Embeddings:
    """The embeddings of one segment, document by document, where their blocks are sound."""

    def __init__(
        self, folder: Path, record: SegmentRecord, manifest: Manifest, codebook: CodebookContent | None
    ) -> None:
        self._dim = manifest.dim
        self._offsets = open_array(folder / OFFSETS) if _is_sound(folder, record.files, OFFSETS) else None
        self._rows: Any = None  # as the codec reads them; None if they cannot be read
        self._unrefined: Any = None  # the first file alone; None if it cannot be read
        store_codec = codec(manifest.store)
        names = tuple(store_codec.arrays(manifest.dim))
        whole = [name for name in names if name not in _CHECKSUMS]
        whole += [name for name in (POSITION_OFFSETS, POSITION_ROWS) if name in record.files]
        if codebook is None or not all(
            _is_sound(folder, record.files, name) for name in (TOKEN_IDS, TOKEN_KINDS, *whole)
        ):
            return
        if self._offsets is None:
            return
        self._positions = TextPositions(self._offsets, None)
        if POSITION_ROWS in whole:
            self._positions = TextPositions(open_array(folder / POSITION_OFFSETS), open_array(folder / POSITION_ROWS))
        self._block_rows = record.block_rows
        self._sound = {name: _sound_blocks(folder, record, name) for name in names if name in _CHECKSUMS}
        self._ids, self._kinds = open_array(folder / TOKEN_IDS), open_array(folder / TOKEN_KINDS)
        self._store = store_codec.store(codebook)
        if self._sound[EMBEDDINGS].any():
            self._unrefined = open_array(folder / EMBEDDINGS)
        if all(sound.any() for sound in self._sound.values()):
            self._rows = store_codec.rows({name: open_array(folder / name) for name in names}, codebook)

    def of(self, number: int, cut: int, refined: bool = True) -> EncodedText | None:
        """Of one document; None if they cannot be read. Without `refined`, only from the int8 rows of store int16."""
        if self._offsets is None:
            return None
        start, end = self._offsets[number : number + 2].tolist()
        if start == end:
            nothing = np.zeros((0, self._dim), np.float32)
            return EncodedText(nothing, np.zeros(0, np.int32), np.zeros(0, np.uint8), cut)
        rows = self._rows if refined else self._unrefined
        if rows is None or (not refined and REFINEMENTS not in self._sound):
            return None
        blocks = slice(start // self._block_rows, -(-end // self._block_rows))
        if not all(self._sound[name][blocks].all() for name in (self._sound if refined else [EMBEDDINGS])):
            return None
        of_positions = rows_of_all(self._offsets, self._positions, number, number + 1) - start
        positions = slice(*self._positions.offsets[number : number + 2].tolist())
        embeddings = self._store.decode(rows[start:end])[of_positions]
        return EncodedText(embeddings, self._ids[positions], self._kinds[positions], cut)


def _sound_blocks(folder: Path, record: SegmentRecord, name: str) -> NDArray[np.bool_]:
    """Which blocks of a file are as they were written; none if that cannot be told."""
    sound = np.ones(-(-record.embeddings // record.block_rows), dtype=bool)
    if _is_sound(folder, record.files, name):
        return sound
    try:
        stored = open_array(folder / name)
    except (OSError, SecateursError):
        return ~sound
    if not _is_sound(folder, record.files, _CHECKSUMS[name]) or len(stored) != record.embeddings:
        return ~sound
    for i, checksum in enumerate(open_array(folder / _CHECKSUMS[name])):
        block = stored[i * record.block_rows : (i + 1) * record.block_rows]
        sound[i] = crc32(np.ascontiguousarray(block).data) == checksum
    return sound


def _is_sound(folder: Path, files: Files, name: str) -> bool:
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
