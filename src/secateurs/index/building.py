"""Documents to a finished segment, streaming: memory does not grow with the collection.

Embeddings are staged on disk as float16 while they come, because int8 needs the mean of all of them first.
"""

from __future__ import annotations

import os
import shutil
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
from .storage import MANIFEST, SegmentRecord, block_checksums, describe_files, sync_folder
from .stores import Float16Store, Int8Store, Store

_BLOCK = 65_536  # rows converted at a time
_SAMPLE = 200_000  # rows that decide the int8 step


class SegmentWriter:
    """Append documents, then `finish`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._documents = DocumentWriter(folder / "documents.sqlite")
        self._staged = {name: (folder / f"staged.{name}").open("wb") for name in ("rows", "token_ids", "token_kinds")}
        self._lengths: list[int] = []
        self._sum: NDArray[np.float64] | None = None
        self._cut = 0
        self.dim: int | None = None

    def reserve(self, document: Document) -> int | None:
        """Store docno, text and metadata; or say which earlier document has this docno."""
        return self._documents.add(document.docno, document.text, document.metadata)

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
        self._staged["rows"].write(encoded.embeddings.astype(np.float16).tobytes())
        self._staged["token_ids"].write(encoded.token_ids.tobytes())
        self._staged["token_kinds"].write(encoded.token_kinds.tobytes())
        self._sum += encoded.embeddings.sum(axis=0, dtype=np.float64)
        self._lengths.append(len(encoded))
        self._cut += encoded.cut > 0

    def finish(self, store_name: str, gatherers: Sequence[str], dim: int, progress: bool | None) -> SegmentRecord:
        self._documents.close()
        for file in self._staged.values():
            file.close()
        offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        total = int(offsets[-1])
        staged = _map(self._staged["rows"], np.float16, (total, dim))
        token_ids = _map(self._staged["token_ids"], np.int32, (total,))
        store: Store = Float16Store()
        if store_name == "int8":
            centre = np.zeros(dim) if self._sum is None else self._sum / max(total, 1)
            sample = staged[:: max(1, total // _SAMPLE)].astype(np.float32)
            store = Int8Store.fit(centre.astype(np.float32), sample)
            np.save(self._folder / "centre.npy", store.centre)

        np.save(self._folder / "offsets.npy", offsets)
        np.save(self._folder / "token_ids.npy", token_ids)
        np.save(self._folder / "token_kinds.npy", _map(self._staged["token_kinds"], np.uint8, (total,)))
        counted = Frequencies.of(token_ids, offsets)
        np.save(
            self._folder / "frequencies.npy",
            np.stack([counted.token_ids.astype(np.int64), counted.collection, counted.document]),
        )
        rows = _store_rows(self._folder / "embeddings.npy", staged, store, progress)
        np.save(self._folder / "blocks.npy", block_checksums(rows))
        if "faiss" in gatherers and total:
            with progress_bar("building faiss", total, "embeddings", progress) as advance:
                faiss_ivfpq.build(self._folder, offsets, lambda some: store.decode(rows[some]), dim, advance)
        for file in self._staged.values():
            Path(file.name).unlink()
        return SegmentRecord(
            name=self._folder.name,
            documents=len(self._lengths),
            embeddings=total,
            cut_documents=self._cut,
            step=store.step if isinstance(store, Int8Store) else None,
            files=describe_files(self._folder),
        )


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
    writer = SegmentWriter(folder)
    description = "encoding documents" if encoder is not None else "reading embeddings"
    with progress_bar(description, total, "passages", progress) as advance:

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
    dim = writer.dim or (encoder.dim if encoder is not None else 0)
    return writer.finish(store, gatherers, dim, progress), dim


def _encode(documents: Iterable[Document], encoder: Encoder | None) -> Iterator[EncodedText]:
    if encoder is not None:
        return encoder.encode_documents(document.text for document in documents)
    return (_own_embeddings(document) for document in documents)


def _own_embeddings(document: Document) -> EncodedText:
    if document.encoded is None:
        raise UsageError(f"document {document.docno!r} has no embeddings, and the build has no encoder")
    return document.encoded


def build_folder(target: Path, overwrite: bool, fill: Callable[[Path], None]) -> None:
    """Let `fill` make the index in a hidden folder beside the target; only a finished one gets the target's name."""
    if target.exists():
        if not (target / MANIFEST).is_file() and (not target.is_dir() or any(target.iterdir())):
            raise SecateursError(f"{target} exists and is not an index: it is left as it is, choose another name")
        if not overwrite and (target / MANIFEST).is_file():
            raise SecateursError(f"there is an index at {target} already: choose another name, or allow overwriting")
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(target)
    hidden = target.parent / f".{target.name}.building-{os.getpid()}"
    try:
        hidden.mkdir()
        fill(hidden)
        if target.exists():
            replaced = target.parent / f".{target.name}.replaced-{os.getpid()}"
            target.rename(replaced)
            hidden.rename(target)
            shutil.rmtree(replaced)
        else:
            hidden.rename(target)
        sync_folder(target.parent)
    finally:
        if hidden.exists():
            shutil.rmtree(hidden, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Folders of builds whose process is gone, for instance by a power cut."""
    for path in target.parent.glob(f".{target.name}.building-*"):
        pid = path.name.rpartition("-")[2]
        if not (pid.isdigit() and _runs(int(pid))):
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
