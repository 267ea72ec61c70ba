"""An index on disk, format version 3. Versions 1 and 2 are read as well, and rewritten as 3 by the first change.

    demo.sec/
      manifest.json             what is in the index; written last, so a folder without it is not an index
      manifest.copy.json        the same again, for `secateurs check --repair`
      write.lock                empty; whoever changes the index holds it
      codebooks/0b7d41c2e9aa/   what rows and cells mean; shared by all segments
        centre.npy              (dim,) float32: what int8 rows are relative to
        cell_centroids.npy      (cells, width) int8: gather="cells" and store residual4
        cell_groups.npy         (cells,) int32: where there are very many cells, see gather/probing.py
        levels.npy              (16,) int8: store residual4
      segments/1f0c9a72b3d4/    some documents; ids are random, and a folder is never changed once a manifest names it
        embeddings.npy          (embeddings, dim) int8 or float16, document after document; residual4: two codes a byte
        blocks.npy              (blocks,) uint32: CRC-32 of every `block_rows` rows of embeddings.npy
        offsets.npy             (documents + 1,) int64: document i is rows offsets[i] to offsets[i + 1]
        token_ids.npy           (embeddings,) int32
        token_kinds.npy         (embeddings,) uint8, see records.TokenKind
        frequencies.npy         (3, types) int64: token id, collection frequency, document frequency
        documents.sqlite        docno, text, metadata, and the metadata's values to filter by
        embedding_cells.npy     (embeddings,) uint32, store residual4
        cell_offsets.npy, cell_documents.npy    gather="cells", see gather/cells.py
        faiss.index             gather="faiss"
      deletions/5e90aa318c2f/   which documents of one segment are gone
        numbers.npy             (deleted,) int32, ascending
        frequencies.npy         (3, types) int64, as above: what they no longer count

In versions 1 and 2 there is one segment, and the codebook's files are in its folder.

manifest.json holds the format version, the encoder's name and fingerprint, counts, what the latest writes with an id
did (recent_writes.py), and per file its size and CRC-32; its last field is a checksum of itself. Opening checks the
manifest, every file's size, and the bytes of the small files. The rest is checked when it is used: embeddings block by
block, a document when it is fetched, other files whole the first time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import DamagedIndexError, SecateursError
from ..records import GatherName, StoreName
from .file_names import CENTROIDS, FILES_OF
from .files import REMEDY, write_atomically

FORMAT = "secateurs-index"
FORMAT_VERSION = 3
MANIFEST = "manifest.json"
MANIFEST_COPY = "manifest.copy.json"
SHARDS = "shards.json"  # of a folder of indexes: see cluster/layout.py
SEGMENTS, CODEBOOKS, DELETIONS = PARTS = ("segments", "codebooks", "deletions")
OF_CODEBOOK = ("centre.npy", CENTROIDS, "levels.npy")

Files: TypeAlias = Mapping[str, Mapping[str, int]]  # name -> {"bytes": ..., "crc32": ...}


@dataclass(frozen=True)
class CodebookRecord:
    name: str | None  # None in versions 1 and 2, where the files are in the segment's folder
    embeddings: int  # that it was learnt from
    step: float | None  # width of one integer step; None if nothing is int8
    spread: float  # mean squared distance of those embeddings from their cells' centroids, in steps
    files: Files


@dataclass(frozen=True)
class DeletionsRecord:
    name: str
    documents: int
    embeddings: int
    cut_documents: int
    files: Files


@dataclass(frozen=True)
class SegmentRecord:
    """One segment as the manifest knows it. Counts include what was deleted later."""

    name: str
    documents: int
    embeddings: int
    cut_documents: int  # documents longer than the encoder takes
    files: Files
    block_rows: int = 1024  # rows under one checksum; what older indexes have, where it was not written down
    reach: tuple[float, float] | None = None  # longest embedding, largest distance from the centre; older indexes: None
    spread: float = 0.0  # as in the codebook, of this segment's embeddings
    clipped: float = 0.0  # share of values that did not fit into int8
    unit: bool = True  # every embedding has length 1
    deletions: DeletionsRecord | None = None

    @property
    def live_documents(self) -> int:
        return self.documents - (self.deletions.documents if self.deletions else 0)

    @property
    def live_embeddings(self) -> int:
        return self.embeddings - (self.deletions.embeddings if self.deletions else 0)


def widest(records: Iterable[SegmentRecord]) -> tuple[float, float] | None:
    """A reach that covers all of them, or None if one is not known."""
    reaches = [record.reach for record in records if record.embeddings]
    known = [reach for reach in reaches if reach is not None]
    if not known or len(known) < len(reaches):
        return None
    return max(longest for longest, _ in known), max(farthest for _, farthest in known)


@dataclass(frozen=True)
class Manifest:
    dim: int
    store: StoreName
    gather: tuple[GatherName, ...]  # what is prepared
    encoder: Mapping[str, Any]
    codebook: CodebookRecord
    segments: tuple[SegmentRecord, ...]
    written_by: str
    commit: int = 0  # counts changes
    writes: Mapping[str, str] = field(default_factory=dict)  # the latest writes that had an id: see recent_writes.py
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path) -> None:
        """All or nothing: a new file, synced, then renamed over the old one. The copy follows, if there is room."""
        content = asdict(self)
        content["checksum"] = _checksum(content)
        packed = json.dumps(content, indent=2, ensure_ascii=False).encode()
        write_atomically(folder / MANIFEST, packed)
        with suppress(OSError):  # the change is made; the next one writes the copy again
            write_atomically(folder / MANIFEST_COPY, packed)

    @classmethod
    def read(cls, folder: Path, name: str = MANIFEST) -> Manifest:
        path = folder / name
        if not folder.is_dir():
            raise SecateursError(f"there is no index at {folder}: make one with  secateurs index CORPUS {folder}")
        if not path.is_file():
            if (folder / SHARDS).is_file():
                raise SecateursError(f"{folder} is a collection in shards, and one index is wanted here: name a shard")
            raise SecateursError(f"{folder} is not an index: it has no {name}")
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format is {content['format']!r}")
            version = int(content["format_version"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedIndexError(f"{path} cannot be read ({error}): {REMEDY}") from error
        if version > FORMAT_VERSION:
            raise SecateursError(
                f"{folder} has index format {version}; this secateurs reads up to {FORMAT_VERSION}: "
                "pip install --upgrade secateurs"
            )
        if content.pop("checksum", None) != _checksum(content):
            raise DamagedIndexError(f"{path} was altered (checksum differs): {REMEDY}")
        return cls._from_version_2(content) if version < 3 else cls._from_content(content)

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
        return cls(**content | {"codebook": codebook, "segments": tuple(segments), "gather": tuple(content["gather"])})

    @classmethod
    def _from_version_2(cls, content: dict[str, Any]) -> Manifest:
        known = {field.name for field in fields(SegmentRecord)}
        (segment,) = content["segments"]
        record = SegmentRecord(**{name: value for name, value in segment.items() if name in known})
        files = {name: record.files[name] for name in OF_CODEBOOK if name in record.files}
        gather = tuple(name for name, needed in FILES_OF.items() if set(needed) <= set(record.files))
        if record.embeddings == 0:  # had nothing to prepare; an index of nothing may become anything
            gather = ("cells",)
        codebook = CodebookRecord(None, record.embeddings, segment["step"], 0.0, files)
        return cls(**content | {"codebook": codebook, "segments": (record,), "gather": gather})

    def named(self) -> Iterator[tuple[str, str]]:
        """(part, name) of every folder that belongs to this state of the index."""
        if self.codebook.name is not None:
            yield CODEBOOKS, self.codebook.name
        for record in self.segments:
            yield SEGMENTS, record.name
            if record.deletions is not None:
                yield DELETIONS, record.deletions.name


def codebook_folder(folder: Path, manifest: Manifest) -> Path:
    if manifest.codebook.name is None:
        return folder / SEGMENTS / manifest.segments[0].name
    return folder / CODEBOOKS / manifest.codebook.name


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
