"""An index on disk, format version 1.

    demo.sec/
      manifest.json             what is in the index; written last, so a folder without it is not an index
      manifest.copy.json        the same again, for `secateurs check --repair`
      write.lock                empty; locked by the process that changes the index
      codebooks/0b7d41c2e9aa/   what rows and cells mean; shared by all segments
        centre.npy              (dim,) float32: what int8 rows are relative to
        cell_centroids.npy      (cells, width) int8: gather="cells"
        cell_groups.npy         (cells,) int32: from 200,000 cells on, see kernels/probing.py
        code_centroids.npy      (code centroids, dim) float16: store residual4, see code_tables.py
        code_levels.npy         (code centroids, 16) float16: the levels of each
        background.npy          (2, types) int32 or int64: token id, frequency in general text; if there is a background
      segments/1f0c9a72b3d4/    documents; ids are random, and a folder is never changed once a manifest names it
        embeddings.npy          (embeddings, dim) int8 or float16, document after document; residual4: two codes a byte
        blocks.npy              (blocks,) uint32: CRC-32 of every `block_rows` rows of embeddings.npy
        refinements.npy         (embeddings, dim) uint8, store int16: where in its step each value lies
        refinement_blocks.npy   (blocks,) uint32: CRC-32 of every `block_rows` rows of refinements.npy
        offsets.npy             (documents + 1,) int64: document i is rows offsets[i] to offsets[i + 1]
        position_offsets.npy    (documents + 1,) int64: document i is positions position_offsets[i] to [i + 1] of its
                                text; only where positions share rows, otherwise it is offsets.npy
        position_rows.npy       (positions,) uint16 or uint32: the row of each position, counted from its document's
                                first row; only where positions share rows, see position_rows.py
        token_ids.npy           (positions,) uint16, or int32 if one does not fit
        token_blocks.npy        (blocks,) uint32: CRC-32 of every `token_block_rows` entries of token_ids.npy
        token_kinds.npy         (positions,) uint8, see records.TokenKind
        frequencies.npy         (3, types) int64: token id, collection frequency, document frequency
        documents.sqlite        docno, text, metadata, and the metadata's values to filter by; gather="text": the words
        code_numbers.npy        (embeddings,) uint16: the code centroid of each, store residual4
        cell_offsets.npy        (cells + 1,) int64: cell c lists cell_documents[cell_offsets[c]:cell_offsets[c + 1]]
        cell_documents.npy      (listed,) int32: numbers of documents, ascending within a cell, each once
        summaries.npy           (documents, width) uint8: the int8 row of each document's summary token plus 128, filled
                                up with zeros; only beside cells, and only if every document with embeddings has one
        faiss.index             gather="faiss"
      deletions/5e90aa318c2f/   which documents of one segment are gone
        numbers.npy             (deleted,) int32, ascending
        frequencies.npy         (3, types) int64, as above, of the deleted documents
      lost/commit-12/           an index as it was before a repair that could not keep all of it, see repair.py

manifest.json holds the format version, the encoder's spec (protocol.py), the background's name and vocabulary,
counts, what the latest writes with an id did (recent_writes.py), how far each effort goes (calibration.py), and per
file its size and CRC-32; its last field is a checksum of itself. Opening checks the manifest, every file's size, and
the bytes of the small files. The rest is checked when it is used: embeddings block by block, a document when it is
fetched, other files whole the first time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import DamagedIndexError, SecateursError
from ..settings import GatherName, StoreName
from .files import REMEDY, write_atomically

FORMAT = "secateurs-index"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MANIFEST_COPY = "manifest.copy.json"
SHARDS = "shards.json"  # of a folder of indexes: see cluster/layout.py
SEGMENTS, CODEBOOKS, DELETIONS = PARTS = ("segments", "codebooks", "deletions")
LOST = "lost"  # not one of the parts: no change removes it

Files: TypeAlias = Mapping[str, Mapping[str, int]]  # name -> {"bytes": ..., "crc32": ...}


@dataclass(frozen=True)
class CodebookRecord:
    name: str
    embeddings: int  # that it was learnt from
    step: float | None  # width of one integer step; None if nothing is int8
    spread: float  # mean squared distance of those embeddings from their cells' centroids, in steps
    files: Files
    background: Mapping[str, str] | None = None  # its name and vocabulary; None: there is none
    newest_code: int = 0  # store residual4: the first code centroid that was learnt last


@dataclass(frozen=True)
class DeletionsRecord:
    name: str
    documents: int
    embeddings: int
    cut_documents: int
    files: Files


@dataclass(frozen=True)
class SegmentRecord:
    """One segment as the manifest records it. Counts include documents that were deleted later."""

    name: str
    documents: int
    embeddings: int  # rows
    positions: int  # of the documents' texts; more than rows if positions share them, see position_rows.py
    cut_documents: int  # documents longer than the encoder takes
    files: Files
    block_rows: int  # rows of embeddings.npy, and of refinements.npy, under one checksum
    token_block_rows: int  # and of token_ids.npy
    reach: tuple[float, float] | None  # longest embedding, largest distance from the centre; None: rows are not int8
    spread: float  # as in the codebook, of this segment's embeddings
    clipped: float  # share of values that did not fit into int8
    unit: bool  # every embedding has length 1
    deletions: DeletionsRecord | None = None

    @property
    def live_documents(self) -> int:
        return self.documents - (self.deletions.documents if self.deletions else 0)

    @property
    def live_embeddings(self) -> int:
        return self.embeddings - (self.deletions.embeddings if self.deletions else 0)


def widest(records: Iterable[SegmentRecord]) -> tuple[float, float] | None:
    """A reach that covers all of them, or None if there is none."""
    reaches = [record.reach for record in records if record.embeddings and record.reach is not None]
    if not reaches:
        return None
    return max(longest for longest, _ in reaches), max(farthest for _, farthest in reaches)


@dataclass(frozen=True)
class CalibrationRecord:
    """What an index measured of itself: see calibration.py."""

    places: Mapping[str, float]  # of each effort on the ladder of effort.py
    recall: Mapping[str, float]  # the share of the ten best of exhaustive search that was found there
    queries: int
    given: bool  # whether the queries were given; otherwise they are parts of the documents
    codebook: str  # whose cells were searched
    embeddings: int  # live then


@dataclass(frozen=True)
class Manifest:
    dim: int
    store: StoreName
    gather: tuple[GatherName, ...]  # what is prepared
    merge: float | None  # what happens to new documents, see merging.py
    pool: int
    encoder: Mapping[str, Any]
    codebook: CodebookRecord
    segments: tuple[SegmentRecord, ...]
    written_by: str
    commit: int = 0  # counts changes
    writes: Mapping[str, str] = field(default_factory=dict)  # the latest writes that had an id: see recent_writes.py
    calibration: CalibrationRecord | None = None
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path) -> None:
        """All or nothing: a new file, synced, then renamed over the old one. The copy follows, if there is room."""
        packed = self.packed()
        write_atomically(folder / MANIFEST, packed)
        with suppress(OSError):  # the change is committed; the next one writes the copy again
            write_atomically(folder / MANIFEST_COPY, packed)

    def packed(self) -> bytes:
        """The content of its file."""
        content = asdict(self)
        content["checksum"] = _checksum(content)
        return json.dumps(content, indent=2, ensure_ascii=False).encode()

    @classmethod
    def read(cls, folder: Path, name: str = MANIFEST) -> Manifest:
        path = folder / name
        if folder.is_file():
            raise SecateursError(f"{folder} is a file, not an index")
        if not folder.is_dir():
            raise SecateursError(f"there is no index at {folder}: make one with  secateurs index CORPUS {folder}")
        if not path.is_file():
            if (folder / SHARDS).is_file():
                raise SecateursError(f"{folder} is a collection in shards, and one index is wanted here: name a shard")
            if name == MANIFEST and (folder / MANIFEST_COPY).is_file():
                raise DamagedIndexError(
                    f"{path} is missing, but its copy is there: restore it with  secateurs check {folder} --repair"
                )
            raise SecateursError(f"{folder} is not an index: it has no {name}")
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format is {content['format']!r}")
            version = int(content["format_version"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedIndexError(f"{path} cannot be read ({error}): {REMEDY}") from error
        if version != FORMAT_VERSION:
            raise SecateursError(
                f"{folder} has index format {version}, and this secateurs reads format {FORMAT_VERSION}: "
                + ("pip install --upgrade secateurs" if version > FORMAT_VERSION else "index again")
            )
        if content.pop("checksum", None) != _checksum(content):
            raise DamagedIndexError(f"{path} was altered (checksum differs): {REMEDY}")
        try:
            return cls._from_content(content)
        except (KeyError, TypeError) as error:  # its checksum is right, so it is not damaged
            raise SecateursError(
                f"{path} is not a manifest of format {FORMAT_VERSION} ({error}): index again"
            ) from error

    @classmethod
    def _from_content(cls, content: dict[str, Any]) -> Manifest:
        segments = [
            SegmentRecord(
                **segment
                | {
                    "deletions": segment["deletions"] and DeletionsRecord(**segment["deletions"]),
                    "reach": segment["reach"] and tuple(segment["reach"]),
                }
            )
            for segment in content["segments"]
        ]
        codebook = CodebookRecord(**content["codebook"])
        measured = content.get("calibration")
        return cls(
            **content
            | {
                "codebook": codebook,
                "segments": tuple(segments),
                "gather": tuple(content["gather"]),
                "calibration": measured and CalibrationRecord(**measured),
            }
        )

    def folders(self) -> Iterator[tuple[str, str, Files]]:
        """(part, name, files) of every folder that belongs to this state of the index."""
        yield CODEBOOKS, self.codebook.name, self.codebook.files
        for record in self.segments:
            yield SEGMENTS, record.name, record.files
            if record.deletions is not None:
                yield DELETIONS, record.deletions.name, record.deletions.files

    def named(self) -> Iterator[tuple[str, str]]:
        """(part, name) of each of them."""
        return ((part, name) for part, name, _ in self.folders())


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
