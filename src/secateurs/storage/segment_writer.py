"""Documents to a finished segment, streaming.

Embeddings are staged on disk as float16 while they come, because int8 needs the mean of all of them first. In memory
are a number per document and per embedding, a few blocks of embeddings, and what FAISS builds, if it is asked for.

A segment comes with the codebook that gives its numbers a meaning: learnt from its own embeddings, or taken over from
the index it is added to.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..corpus import BadDocumentError, OnBad, to_document
from ..encoders import Encoder
from ..errors import DuplicateDocumentError, SecateursError, UsageError
from ..frequencies import Frequencies
from ..hashing import hash_of
from ..progress import progress_bar
from ..records import GATHERERS, STORES, Document, EncodedText, GatherName, StoreName, check_choice
from . import cell_lists, faiss_file
from .checksums import BLOCK_ROWS, block_checksums, describe_files
from .codebooks import Learnt
from .codecs.stores import Float16Store, Int8Store, Store
from .documents import DocumentWriter
from .file_names import CELLS_OF_EMBEDDINGS
from .files import new_array, open_array
from .manifest import SegmentRecord
from .rows import (
    UNIT,
    reach_of,
    sample_bound,
    sampled_rows,
    share_beyond,
    store_residuals,
    store_rows,
)
from .segments import write_frequencies

Item = tuple[str, Document | Mapping[str, Any]]  # with its place ("corpus.jsonl, line 7"), for error messages


class Recipe(NamedTuple):
    """What is common to all segments of an index."""

    store: StoreName
    gather: tuple[GatherName, ...]

    def check(self) -> None:
        check_choice("store", self.store, STORES)
        for name in self.gather:
            check_choice("gather", name, GATHERERS)

    @property
    def has_cells(self) -> bool:
        return self.store == "residual4" or "cells" in self.gather

    @property
    def has_int8(self) -> bool:
        return self.store != "float16" or "cells" in self.gather  # cells are made from int8 rows, whatever is stored


TakeAlong = Callable[[int, float], Iterable[Document] | None]


class Made(NamedTuple):
    record: SegmentRecord
    codebook: Learnt
    dim: int
    given: int  # documents that it was made for
    took_along: bool = False  # and others that were in the index, all of them


class SegmentWriter:
    """Append documents, then `finish`. Use it in a `with`, so that a build that fails holds on to no file."""

    def __init__(self, folder: Path, dim: int | None = None) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._documents = DocumentWriter(folder / "documents.sqlite")
        names = ("rows", "token_ids", "token_kinds", "places")
        self._staged = {name: (folder / f"staged.{name}").open("wb") for name in names}
        self._places = array("q")  # where each document's place ends
        self._hashes = array("Q")  # of the docnos
        self.reserved = 0
        self._lengths: list[int] = []
        self._unit = True  # every embedding so far has length 1
        self._cut = 0
        self.dim = dim  # None until a document tells
        self._sum = np.zeros(dim or 0)

    def __enter__(self) -> SegmentWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self) -> None:
        """Closing twice is harmless."""
        self._documents.close()
        for file in self._staged.values():
            file.close()

    def reserve(self, document: Document, place: str = "") -> str | None:
        """Store docno, text and metadata; or say where the earlier document is that has this docno."""
        earlier = self._documents.add(document.docno, document.text, document.metadata)
        if earlier is not None:
            return self._place_of(earlier)
        self._staged["places"].write(place.encode())
        self._places.append(self._staged["places"].tell())
        self._hashes.append(hash_of(document.docno))
        self.reserved += 1
        return None

    def _place_of(self, number: int) -> str:
        self._staged["places"].flush()
        with (self._folder / "staged.places").open("rb") as file:
            start = self._places[number - 1] if number else 0
            file.seek(start)
            return file.read(self._places[number] - start).decode()

    def append(self, encoded: EncodedText) -> None:
        """The embeddings of the documents in the order in which they were reserved."""
        if self.dim is None and encoded.embeddings.shape[1]:
            self.dim = encoded.embeddings.shape[1]
            self._sum = np.zeros(self.dim)
        check_embeddings(encoded, self.dim, f"document {len(self._lengths) + 1}")
        self._unit &= are_unit(encoded)
        rows = encoded.embeddings.astype(np.float16)
        self._staged["rows"].write(rows.tobytes())
        self._staged["token_ids"].write(encoded.token_ids.tobytes())
        self._staged["token_kinds"].write(encoded.token_kinds.tobytes())
        if len(encoded):
            self._sum += exact_sum(rows)
        if encoded.cut:
            self._documents.mark_cut(len(self._lengths), encoded.cut)
            self._cut += 1
        self._lengths.append(len(encoded))

    def clipped_by(self, int8: Int8Store) -> tuple[int, float]:
        """How many embeddings there are, and which share of their values an int8 scale would cut off."""
        for file in self._staged.values():
            file.flush()
        total = sum(self._lengths)
        return total, share_beyond(_map(self._staged["rows"], np.float16, (total, self.dim or 0)), int8)

    def finish(
        self,
        recipe: Recipe,
        dim: int,
        codebook: Learnt | None,
        int8: Int8Store | None,
        unit: bool | None,
        progress: bool | None,
    ) -> Made:
        """With a codebook, into its cells; without one, learn it; on the scale of `int8` if that fits still."""
        if len(self._lengths) != self.reserved:
            raise SecateursError(f"the encoder gave {len(self._lengths)} encodings for {self.reserved} documents")
        self._close()
        folder, store = self._folder, recipe.store
        offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        total = int(offsets[-1])
        token_ids: Any = _map(self._staged["token_ids"], np.int32, (total,))
        token_kinds: Any = _map(self._staged["token_kinds"], np.uint8, (total,))
        write_tokens(folder, offsets, token_ids, token_kinds)
        staged: Any = _map(self._staged["rows"], np.float16, (total, dim))
        learnt = codebook or Learnt(total)
        clipped, spread = 0.0, 0.0
        rows: Any = None  # what reads like the stored embeddings
        if recipe.has_int8:
            int8 = learnt.int8 or self._fit_int8(staged, int8)
            rows = store_rows(folder / _name_of_int8(store), staged, int8, progress)
            clipped = share_beyond(staged, int8)
            learnt = learnt._replace(int8=int8)
            if recipe.has_cells:
                learnt, spread = _find_cells(folder, offsets, token_ids, rows, learnt, store, progress)
        if store == "residual4":
            learnt, rows = store_residuals(folder, rows, learnt, progress)
        if store == "float16":
            rows = store_rows(folder / "embeddings.npy", staged, Float16Store(), progress)
        unit = self._unit if unit is None else unit
        reach = None if store == "float16" or learnt.int8 is None else reach_of(learnt.int8, rows)
        finish_rows(folder, recipe, offsets, rows, learnt.int8, unit, progress)
        rows = staged = token_ids = token_kinds = None  # nothing stays mapped, so that the staged files can go anywhere
        for path in folder.glob("staged.*"):
            path.unlink()
        record = SegmentRecord(
            name=folder.name,
            documents=len(self._lengths),
            embeddings=total,
            cut_documents=self._cut,
            files=describe_files(folder),
            block_rows=BLOCK_ROWS,
            reach=reach,
            spread=spread,
            clipped=clipped,
            unit=unit,
        )
        return Made(record, learnt, dim, self.reserved)

    def _fit_int8(self, staged: NDArray[np.float16], earlier: Int8Store | None) -> Int8Store:
        offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        some = sampled_rows(np.array(self._hashes, dtype=np.uint64), offsets, sample_bound(len(staged)))
        fitted = fit_int8(self._sum if len(staged) else np.zeros(staged.shape[1]), len(staged), staged[some])
        return earlier if earlier is not None and earlier.is_near(fitted) else fitted


def check_embeddings(encoded: EncodedText, dim: int | None, which: str) -> None:
    """Raise if embeddings cannot be stored beside others of `dim` dimensions; `which` says whose they are."""
    if len(encoded) and encoded.embeddings.shape[1] != dim:
        raise UsageError(
            f"{which} has embeddings of {encoded.embeddings.shape[1]} dimensions, those before it of {dim}"
        )
    if np.abs(encoded.embeddings).max(initial=0) > np.finfo(np.float16).max:
        raise UsageError(f"{which} has embeddings too large to store: normalise them")


def are_unit(encoded: EncodedText) -> bool:
    return bool((np.abs(np.linalg.norm(encoded.embeddings, axis=1) - 1) < UNIT).all())


def exact_sum(rows: NDArray[np.float16]) -> NDArray[np.float64]:
    """Float16 values are multiples of 2^-24, so sums of them below 2^29 are exact in float64, in whatever order.

    That is half a billion embeddings of unit length, at least. The mean of shards put together is that of one index.
    """
    total: NDArray[np.float64] = rows.sum(axis=0, dtype=np.float64)
    return total


def fit_int8(total: NDArray[np.float64], count: int, sample: NDArray[np.float16]) -> Int8Store:
    """From the sum of all embeddings, their number, and a sample of them."""
    return Int8Store.fit((total / max(count, 1)).astype(np.float32), sample.astype(np.float32))


def write_tokens(
    folder: Path, offsets: NDArray[np.int64], token_ids: NDArray[np.int32], token_kinds: NDArray[np.uint8]
) -> None:
    np.save(folder / "offsets.npy", offsets)
    np.save(folder / "token_ids.npy", token_ids)
    np.save(folder / "token_kinds.npy", token_kinds)
    write_frequencies(folder, Frequencies.of(token_ids, offsets))


def finish_rows(
    folder: Path,
    recipe: Recipe,
    offsets: NDArray[np.int64],
    rows: Any,
    int8: Int8Store | None,
    unit: bool,
    progress: bool | None,
) -> None:
    """What follows from the stored embeddings: their checksums, and the FAISS index if it is wanted."""
    np.save(folder / "blocks.npy", block_checksums(open_array(folder / "embeddings.npy")))
    total = int(offsets[-1])
    if "faiss" in recipe.gather and total:
        store: Store = Float16Store() if recipe.store == "float16" or int8 is None else int8
        with progress_bar("building faiss", total, "embeddings", progress) as advance:
            faiss_file.build(folder, offsets, lambda some: store.decode(rows[some]), rows.shape[1], unit, advance)


def _name_of_int8(store: str) -> str:
    return "embeddings.npy" if store == "int8" else "staged.int8.npy"


def _find_cells(
    folder: Path,
    offsets: NDArray[np.int64],
    token_ids: NDArray[np.int32],
    rows: NDArray[np.int8],
    codebook: Learnt,
    store: str,
    progress: bool | None,
) -> tuple[Learnt, float]:
    """Cells for int8 rows, learnt unless the codebook has some; and how far rows are from their centroids."""
    total = len(rows)
    homes = None
    if store == "residual4":
        homes = new_array(folder / CELLS_OF_EMBEDDINGS, np.uint32, (total,))
    if total == 0:
        none = np.zeros((0, -(-rows.shape[1] // 4) * 4), dtype=np.int8)
        return codebook if codebook.centroids is not None else codebook._replace(centroids=none), 0.0
    with progress_bar("building cells", total, "embeddings", progress) as advance:
        if codebook.centroids is not None:
            return codebook, cell_lists.place(folder, offsets, rows, codebook.centroids, homes, advance)
        centroids, spread = cell_lists.learn(folder, offsets, token_ids, rows, homes, advance)
        return codebook._replace(centroids=centroids, spread=spread), spread


def _map(file: IO[bytes], dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    if shape[0] == 0:  # an empty file cannot be mapped
        return np.empty(shape, dtype=dtype)
    return np.memmap(file.name, dtype=dtype, mode="r", shape=shape)


def write_segment(
    folder: Path,
    items: Iterable[Item],
    encoder: Encoder | None,
    recipe: Recipe,
    *,
    total: int | None = None,
    progress: bool | None = None,
    on_bad: OnBad | None = None,
    is_taken: Callable[[str], bool] = lambda docno: False,
    take_along: TakeAlong = lambda embeddings, clipped: None,
    codebook: Learnt | None = None,
    int8: Int8Store | None = None,
    unit: bool | None = None,
    dim: int | None = None,
) -> Made:
    """Encode and store documents. `is_taken` tells of a docno whether the index has it already.

    codebook   what the index has learnt before; None learns anew
    take_along given how many embeddings there are, and which share of their values the codebook's scale cuts off: all
               other documents of the index, to make one segment of everything with a new codebook; or None
    int8       a scale to keep if it fits
    unit       whether embeddings are of unit length, where the stored ones no longer tell
    dim        that the embeddings must have
    """
    recipe.check()
    description = "encoding documents" if encoder is not None else "reading embeddings"
    with SegmentWriter(folder, dim or None) as writer:
        with progress_bar(description, total, "passages", progress) as advance:
            _fill(writer, items, encoder, on_bad, is_taken, advance)
        dim = writer.dim or (encoder.dim if encoder is not None else 0)
        given = writer.reserved
        others = None
        if codebook is not None and codebook.int8 is not None:
            others = take_along(*writer.clipped_by(codebook.int8))
        if others is not None:
            codebook, unit = None, None
            for document in others:
                writer.reserve(document)
                writer.append(_own_embeddings(document))
        made = writer.finish(recipe, dim, codebook, int8, unit, progress)
        return made._replace(given=given, took_along=others is not None)


def _fill(
    writer: SegmentWriter,
    items: Iterable[Item],
    encoder: Encoder | None,
    on_bad: OnBad | None,
    is_taken: Callable[[str], bool],
    advance: Callable[[int], None],
) -> None:
    def skipped(problem: str, error: type[SecateursError] = BadDocumentError) -> None:
        if on_bad is None:
            raise error(problem)
        on_bad(problem)
        advance(1)

    def accepted() -> Iterator[Document]:
        for place, item in items:
            try:
                document = to_document(item)
            except BadDocumentError as error:
                skipped(f"{place}: {error}")
                continue
            if is_taken(document.docno):
                skipped(in_index_already(place, document.docno), DuplicateDocumentError)
                continue
            earlier = writer.reserve(document, place)
            if earlier is None:
                yield document
            else:
                skipped(
                    f"{place}: docno {document.docno!r} is already that of {earlier}",
                    DuplicateDocumentError,
                )

    for encoded in encode(accepted(), encoder):
        writer.append(encoded)
        advance(1)


def in_index_already(place: str, docno: str) -> str:
    return f"{place}: docno {docno!r} is in the index already: to replace it, update"


def encode(documents: Iterable[Document], encoder: Encoder | None) -> Iterator[EncodedText]:
    """By the encoder, or without one what the documents bring."""
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
