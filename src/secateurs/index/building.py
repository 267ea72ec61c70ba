"""Documents to a finished segment, streaming.

Embeddings are staged on disk as float16 while they come, because int8 needs the mean of all of them first. In memory
are a number per document, one block of embeddings, and what FAISS builds.
"""

from __future__ import annotations

import os
import platform
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..corpus import BadDocumentError, OnBad, to_document
from ..encoders import Encoder
from ..errors import SecateursError, UsageError
from ..frequencies import Frequencies
from ..gather import GATHERERS, faiss_ivfpq
from ..progress import progress_bar
from ..records import Document, EncodedText
from .documents import DocumentWriter
from .storage import (
    MANIFEST,
    Manifest,
    SegmentRecord,
    block_checksums,
    describe_files,
    segment_folder,
    sync_folder,
    write_lock,
)
from .stores import Float16Store, Int8Store, Store

_BLOCK = 65_536  # rows converted at a time
_SAMPLE = 200_000  # rows that decide the int8 step


class SegmentWriter:
    """Append documents, then `finish`. Use it in a `with`, so that a build that fails holds on to no file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._documents = DocumentWriter(folder / "documents.sqlite")
        self._staged = {name: (folder / f"staged.{name}").open("wb") for name in ("rows", "token_ids", "token_kinds")}
        self._reserved = 0
        self._lengths: list[int] = []
        self._sum: NDArray[np.float64] | None = None
        self._unit = True  # every embedding so far has length 1
        self._cut = 0
        self.dim: int | None = None

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        """Closing twice is harmless."""
        self._documents.close()
        for file in self._staged.values():
            file.close()

    def reserve(self, document: Document) -> int | None:
        """Store docno, text and metadata; or say which earlier document has this docno."""
        earlier = self._documents.add(document.docno, document.text, document.metadata)
        self._reserved += earlier is None
        return earlier

    def append(self, encoded: EncodedText) -> None:
        """The embeddings of the documents in the order in which they were reserved."""
        if self.dim is None:
            self.dim = encoded.embeddings.shape[1]
            self._sum = np.zeros(self.dim)
        elif encoded.embeddings.shape[1] != self.dim:
            raise UsageError(
                f"document {len(self._lengths) + 1} has embeddings of {encoded.embeddings.shape[1]} dimensions, "
                f"those before it of {self.dim}"
            )
        if np.abs(encoded.embeddings).max(initial=0) > np.finfo(np.float16).max:
            raise UsageError(f"document {len(self._lengths) + 1} has embeddings too large to store: normalise them")
        norms = np.linalg.norm(encoded.embeddings, axis=1)
        self._unit &= bool((np.abs(norms - 1) < 0.01).all())
        self._staged["rows"].write(encoded.embeddings.astype(np.float16).tobytes())
        self._staged["token_ids"].write(encoded.token_ids.tobytes())
        self._staged["token_kinds"].write(encoded.token_kinds.tobytes())
        self._sum += encoded.embeddings.sum(axis=0, dtype=np.float64)
        self._lengths.append(len(encoded))
        self._cut += encoded.cut > 0

    def finish(self, store_name: str, gatherers: Sequence[str], dim: int, progress: bool | None) -> SegmentRecord:
        if len(self._lengths) != self._reserved:
            raise SecateursError(f"the encoder gave {len(self._lengths)} encodings for {self._reserved} documents")
        self._close()
        offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        np.save(self._folder / "offsets.npy", offsets)
        store = self._write_arrays(store_name, offsets, dim, progress)
        for file in self._staged.values():
            Path(file.name).unlink()
        total = int(offsets[-1])
        if "faiss" in gatherers and total:
            rows = np.load(self._folder / "embeddings.npy", mmap_mode="r")

            def decode(some: NDArray[np.int64] | slice) -> NDArray[np.float32]:
                return store.decode(rows[some])

            with progress_bar("building faiss", total, "embeddings", progress) as advance:
                faiss_ivfpq.build(self._folder, offsets, decode, dim, self._unit, advance)
        return SegmentRecord(
            name=self._folder.name,
            documents=len(self._lengths),
            embeddings=total,
            cut_documents=self._cut,
            step=store.step if isinstance(store, Int8Store) else None,
            files=describe_files(self._folder),
        )

    def _write_arrays(self, store_name: str, offsets: NDArray[np.int64], dim: int, progress: bool | None) -> Store:
        """Staged bytes to .npy files. Nothing is left mapped, so that the staged files can go on any system."""
        total = int(offsets[-1])
        staged = _map(self._staged["rows"], np.float16, (total, dim))
        token_ids = _map(self._staged["token_ids"], np.int32, (total,))
        store: Store = Float16Store()
        if store_name == "int8":
            centre = np.zeros(dim) if self._sum is None else self._sum / max(total, 1)
            store = Int8Store.fit(centre.astype(np.float32), staged[:: max(1, total // _SAMPLE)].astype(np.float32))
            np.save(self._folder / "centre.npy", store.centre)
        np.save(self._folder / "token_ids.npy", token_ids)
        np.save(self._folder / "token_kinds.npy", _map(self._staged["token_kinds"], np.uint8, (total,)))
        counted = Frequencies.of(token_ids, offsets)
        counts = np.stack([counted.token_ids.astype(np.int64), counted.collection, counted.document])
        np.save(self._folder / "frequencies.npy", counts)
        rows = _store_rows(self._folder / "embeddings.npy", staged, store, progress)
        np.save(self._folder / "blocks.npy", block_checksums(rows))
        return store


def _store_rows(path: Path, staged: NDArray[np.float16], store: Store, progress: bool | None) -> NDArray[Any]:
    dtype = store.encode(np.empty((0, staged.shape[1]), dtype=np.float32)).dtype
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=staged.shape)
    with progress_bar("storing embeddings", len(staged), "embeddings", progress) as advance:
        for start in range(0, len(staged), _BLOCK):
            block = staged[start : start + _BLOCK].astype(np.float32)
            rows[start : start + len(block)] = store.encode(block)
            advance(len(block))
    rows.flush()
    return rows


def _map(file: IO[bytes], dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    if shape[0] == 0:  # an empty file cannot be mapped
        return np.empty(shape, dtype=dtype)
    return np.memmap(file.name, dtype=dtype, mode="r", shape=shape)


def write_segment(
    folder: Path,
    items: Iterable[tuple[str, Document | Mapping[str, Any]]],
    encoder: Encoder | None,
    store: str,
    gatherers: Sequence[str],
    total: int | None,
    progress: bool | None,
    on_bad: OnBad | None,
) -> tuple[SegmentRecord, int]:
    """Encode and store (place, document) pairs; give the segment's record and the embeddings' dimension.

    The place ("corpus.jsonl, line 7") is for error messages.
    """
    if store not in ("int8", "float16"):
        raise UsageError(f'store is "int8" or "float16", not {store!r}')
    for name in gatherers:
        if name not in GATHERERS:
            raise UsageError(f"gather is one of {', '.join(GATHERERS)}, not {name!r}")
    description = "encoding documents" if encoder is not None else "reading embeddings"
    with SegmentWriter(folder) as writer:
        with progress_bar(description, total, "passages", progress) as advance:
            _fill(writer, items, encoder, on_bad, advance)
        dim = writer.dim or (encoder.dim if encoder is not None else 0)
        return writer.finish(store, gatherers, dim, progress), dim


def _fill(
    writer: SegmentWriter,
    items: Iterable[tuple[str, Document | Mapping[str, Any]]],
    encoder: Encoder | None,
    on_bad: OnBad | None,
    advance: Callable[[int], None],
) -> None:
    def skipped(problem: str) -> None:
        if on_bad is None:
            raise BadDocumentError(problem)
        on_bad(problem)
        advance(1)

    def accepted() -> Iterator[Document]:
        for place, item in items:
            try:
                document = to_document(item)
            except BadDocumentError as error:
                skipped(f"{place}: {error}")
                continue
            earlier = writer.reserve(document)
            if earlier is None:
                yield document
            else:
                skipped(f"{place}: docno {document.docno!r} is already that of document {earlier + 1}")

    for encoded in _encode(accepted(), encoder):
        writer.append(encoded)
        advance(1)


def _encode(documents: Iterable[Document], encoder: Encoder | None) -> Iterator[EncodedText]:
    if encoder is None:
        return (_own_embeddings(document) for document in documents)
    return encoder.encode_documents(_own_text(document) for document in documents)


def _own_text(document: Document) -> str:
    if document.encoded is not None:
        raise UsageError(f"document {document.docno!r} brings its embeddings: build with encoder=None")
    return document.text


def _own_embeddings(document: Document) -> EncodedText:
    if document.encoded is None:
        raise UsageError(f"document {document.docno!r} has no embeddings, and the build has no encoder")
    return document.encoded


def check_target(target: Path, overwrite: bool) -> None:
    """Raise if an index may not be made there: before any work is done."""
    if not target.exists():
        return
    if (target / MANIFEST).is_file():
        if not overwrite:
            raise SecateursError(f"there is an index at {target} already: choose another name, or allow overwriting")
    elif not target.is_dir() or any(target.iterdir()):
        raise SecateursError(f"{target} exists and is not an index: it is left as it is, choose another name")


def build_folder(target: Path, fill: Callable[[Path], Manifest]) -> None:
    """Let `fill` make the index in a hidden folder beside the target; only a finished one gets the target's name.

    An index that is there already is replaced by one rename, that of its manifest: whoever opens it, and whenever the
    power fails, finds the old one or the new one.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    hidden = target.parent / f".{target.name}.building-{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    hidden.mkdir()
    try:
        manifest = fill(hidden)
        if (target / MANIFEST).is_file():
            with write_lock(target):
                for record in manifest.segments:
                    segment_folder(hidden, record.name).rename(segment_folder(target, record.name))
                sync_folder(target / "segments")
                manifest.write(target)
                named = {record.name for record in manifest.segments}
                for path in (target / "segments").iterdir():
                    if path.name not in named:
                        shutil.rmtree(path, ignore_errors=True)
        else:
            manifest.write(hidden)
            if target.is_dir():
                target.rmdir()  # empty, see check_target
            hidden.rename(target)
            sync_folder(target.parent)
    finally:
        if hidden.exists():
            shutil.rmtree(hidden, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Folders of builds on this machine whose process is gone, for instance by a power cut."""
    prefix = f".{target.name}.building-{platform.node()}-"
    for path in target.parent.iterdir():
        if path.name.startswith(prefix):
            pid = path.name.removeprefix(prefix).partition("-")[0]
            if pid.isdigit() and not _runs(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def _runs(pid: int) -> bool:
    if os.name == "nt":
        return True  # asking is not harmless there; leave the folder
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
