"""Documents to a finished segment, streaming.

Embeddings are staged on disk as float16 while they come, because int8 needs the mean of all of them first. In memory
are a number per document and per embedding, a few blocks of embeddings, and what FAISS builds, if it is asked for.
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
from ..gather import cells, check_gatherer, faiss_ivfpq
from ..gather.files import CELLS_OF_EMBEDDINGS, CENTROIDS
from ..maxsim import whole_dwords
from ..progress import progress_bar
from ..records import Document, EncodedText
from .documents import DocumentWriter
from .storage import (
    BLOCK_ROWS,
    MANIFEST,
    Manifest,
    SegmentRecord,
    block_checksums,
    describe_files,
    segment_folder,
    sync_folder,
    write_lock,
)
from .stores import Float16Store, Int8Store, Residuals, Store, check_store, encode_residuals, fit_levels

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

    def finish(self, store: str, gatherers: Sequence[str], dim: int, progress: bool | None) -> SegmentRecord:
        if len(self._lengths) != self._reserved:
            raise SecateursError(f"the encoder gave {len(self._lengths)} encodings for {self._reserved} documents")
        self._close()
        offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        total = int(offsets[-1])
        token_ids: Any = _map(self._staged["token_ids"], np.int32, (total,))
        self._write_tokens(offsets, token_ids)
        staged: Any = _map(self._staged["rows"], np.float16, (total, dim))
        int8, reach = None, None
        rows: Any = None  # what reads like the stored embeddings
        if store != "float16" or "cells" in gatherers:  # cells are made from int8 rows, whatever is stored
            int8 = self._fit_int8(staged)
            name = "embeddings.npy" if store == "int8" else "staged.int8.npy"
            rows = _store_rows(self._folder / name, staged, int8, progress)
            if total and (store == "residual4" or "cells" in gatherers):
                with progress_bar("building cells", total, "embeddings", progress) as advance:
                    cells.build(self._folder, offsets, token_ids, rows, store == "residual4", advance)
        if store == "residual4":
            rows = _store_residuals(self._folder, rows, progress)
        if store == "float16":
            rows = _store_rows(self._folder / "embeddings.npy", staged, Float16Store(), progress)
        else:
            assert int8 is not None
            np.save(self._folder / "centre.npy", int8.centre)
            reach = _reach(int8, rows)
        np.save(self._folder / "blocks.npy", block_checksums(np.load(self._folder / "embeddings.npy", mmap_mode="r")))
        if "faiss" in gatherers and total:
            stored: Store = Float16Store() if store == "float16" or int8 is None else int8
            with progress_bar("building faiss", total, "embeddings", progress) as advance:
                faiss_ivfpq.build(
                    self._folder, offsets, lambda some: stored.decode(rows[some]), dim, self._unit, advance
                )
        rows = staged = token_ids = None  # nothing stays mapped, so that the staged files can go on any system
        for path in self._folder.glob("staged.*"):
            path.unlink()
        return SegmentRecord(
            name=self._folder.name,
            documents=len(self._lengths),
            embeddings=total,
            cut_documents=self._cut,
            step=int8.step if int8 is not None and store != "float16" else None,
            files=describe_files(self._folder),
            block_rows=BLOCK_ROWS,
            reach=reach,
        )

    def _write_tokens(self, offsets: NDArray[np.int64], token_ids: NDArray[np.int32]) -> None:
        np.save(self._folder / "offsets.npy", offsets)
        np.save(self._folder / "token_ids.npy", token_ids)
        np.save(self._folder / "token_kinds.npy", _map(self._staged["token_kinds"], np.uint8, token_ids.shape))
        counted = Frequencies.of(token_ids, offsets)
        counts = np.stack([counted.token_ids.astype(np.int64), counted.collection, counted.document])
        np.save(self._folder / "frequencies.npy", counts)

    def _fit_int8(self, staged: NDArray[np.float16]) -> Int8Store:
        centre = np.zeros(staged.shape[1]) if self._sum is None else self._sum / max(len(staged), 1)
        sample = staged[:: max(1, len(staged) // _SAMPLE)].astype(np.float32)
        return Int8Store.fit(centre.astype(np.float32), sample)


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


def _store_residuals(folder: Path, rows: NDArray[np.int8], progress: bool | None) -> Residuals:
    """int8 rows to 4-bit codes around the centroids of their cells, which are there already."""
    width = -(-rows.shape[1] // 4) * 4
    homes, centroids = np.zeros(0, dtype=np.uint32), np.zeros((0, width), dtype=np.int8)
    if len(rows):
        homes, centroids = (np.load(folder / name, mmap_mode="r") for name in (CELLS_OF_EMBEDDINGS, CENTROIDS))
    else:
        np.save(folder / CELLS_OF_EMBEDDINGS, homes)
        np.save(folder / CENTROIDS, centroids)
    sample = slice(None, None, max(1, len(rows) // (_SAMPLE // 10)))
    levels = fit_levels(whole_dwords(rows[sample]).astype(np.int16) - centroids[homes[sample]])
    np.save(folder / "levels.npy", levels)
    shape = (len(rows), width // 2)
    codes = np.lib.format.open_memmap(folder / "embeddings.npy", mode="w+", dtype=np.uint8, shape=shape)
    with progress_bar("coding residuals", len(rows), "embeddings", progress) as advance:
        for start in range(0, len(rows), _BLOCK):
            some = slice(start, start + _BLOCK)
            codes[some] = encode_residuals(whole_dwords(rows[some]), centroids[homes[some]], levels)
            advance(len(codes[some]))
    codes.flush()
    return Residuals(codes, homes, centroids, levels, rows.shape[1])


def _reach(store: Int8Store, rows: Any) -> tuple[float, float]:
    """The longest stored embedding and the largest distance of one from the centre."""
    longest, farthest = 0.0, 0.0
    for start in range(0, rows.shape[0], _BLOCK):
        decoded = store.decode(rows[start : start + _BLOCK])
        longest = max(longest, float(np.linalg.norm(decoded, axis=1).max(initial=0)))
        farthest = max(farthest, float(np.linalg.norm(decoded - store.centre, axis=1).max(initial=0)))
    return longest * (1 + 1e-6), farthest * (1 + 1e-6)


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
    check_store(store)
    for name in gatherers:
        check_gatherer(name)
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
