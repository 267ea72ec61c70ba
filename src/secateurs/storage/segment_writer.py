"""Embeddings to the files of a finished segment, streaming.

Embeddings are staged on disk while they come, because int8 needs the mean of all of them first: as float16, or as
float32 for a store that keeps more. In memory are a number per document and per embedding, a few blocks of embeddings,
and what FAISS builds, if the recipe has it.

A segment comes with the codebook that gives its numbers a meaning: learnt from its embeddings, or taken over from the
index it is added to.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError
from ..hashing import hash_of
from ..records import Document, EncodedText
from .checksums import BLOCK_ROWS, TOKEN_BLOCK_ROWS, describe_files
from .codebooks import CodebookContent
from .document_writer import DocumentWriter
from .embeddings import are_unit, check_embeddings, exact_sum
from .file_names import DOCUMENTS
from .journal import STAGED, StagedText, staged_path, text_digest
from .manifest import SegmentRecord
from .position_rows import share_equal, tokens_of_rows, write_positions
from .recipe import Recipe
from .rounding import Int8Store, fit_int8, share_clipped, write_rows
from .salvage import Staging
from .sampling import sample_bound, sampled_rows
from .segment_files import write_cells, write_checksums_and_faiss, write_tokens
from .summaries import summary_rows

StoredRows: TypeAlias = Mapping[str, NDArray[Any]]  # what a codec stores of embeddings, an entry for each


class NewSegment(NamedTuple):
    """A segment whose files are written, and that no manifest names yet."""

    record: SegmentRecord
    codebook: CodebookContent
    dim: int


class SegmentWriter:
    """Reserve and append documents, then `finish`. Use it in a `with`: a build that fails then keeps no file open."""

    def __init__(self, folder: Path, recipe: Recipe, dim: int | None = None, staging: Staging | None = None) -> None:
        """Embeddings are staged in the folder, or where `staging` says, and then a journal is kept of them."""
        folder.mkdir(parents=True)
        self._folder = folder
        self._documents = DocumentWriter(folder / DOCUMENTS, recipe.has_text)
        self._staging = folder if staging is None else staging.folder
        self._journal = None if staging is None else staging.journal
        self._texts: deque[bytes] = deque()  # digests of the texts that are reserved and not staged, for the journal
        self._staged = {name: staged_path(self._staging, name).open("wb") for name in (*STAGED, "places")}
        self._dtype = recipe.codec.staged
        self._stored: dict[str, IO[bytes]] = {}  # of the last documents, what is stored as it is
        self._places = array("q")  # where each document's place ends in its file
        self._hashes = array("Q")  # of the docnos
        self.reserved = 0
        self._lengths: list[int] = []  # of each document, rows
        self._positions: list[int] = []  # of each document, positions of its text
        self._unit = True  # every embedding so far has length 1
        self._cut = 0
        self.dim = dim  # None until the first document with embeddings
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
        """Store docno, text and metadata; or give the place of the earlier document that has this docno."""
        earlier = self._documents.add(document.docno, document.text, document.metadata)
        if earlier is not None:
            return self._place_of(earlier)
        self._staged["places"].write(place.encode())
        self._places.append(self._staged["places"].tell())
        self._hashes.append(hash_of(document.docno))
        if self._journal is not None:
            self._texts.append(text_digest(document.text))
        self.reserved += 1
        return None

    def _place_of(self, number: int) -> str:
        self._staged["places"].flush()
        with staged_path(self._staging, "places").open("rb") as file:
            start = self._places[number - 1] if number else 0
            file.seek(start)
            return file.read(self._places[number] - start).decode()

    def append(self, encoded: EncodedText, stored: StoredRows | None = None) -> None:
        """The embeddings of the next document, in the order in which the documents were reserved.

        stored      what an index has stored of them, an entry per position, to be stored again as it is; if a document
                    has it, all documents after it have it
        """
        self._take_dim(encoded.embeddings.shape[1])
        check_embeddings(encoded, self.dim, f"document {len(self._lengths) + 1}")
        rows, position_rows = share_equal(encoded.embeddings.astype(self._dtype))
        if stored is not None:
            self._stage_stored(stored, position_rows)
        small = position_rows.astype(np.uint32)
        unit = are_unit(encoded)
        self.stage(StagedText(rows, encoded.token_ids, encoded.token_kinds, small, encoded.cut, unit))

    def stage(self, text: StagedText) -> None:
        """As `append`, what was staged of the next document before."""
        self._take_dim(text.rows.shape[1])
        content = text.content()
        for name in STAGED:
            self._staged[name].write(content[name])
        if self._journal is not None and self._texts:
            for name in STAGED:
                self._staged[name].flush()  # a process that is killed loses what it has not given to the system
            self._journal.add(self._texts.popleft(), text, content)
        self._unit &= text.unit
        if len(text.rows):
            self._sum += exact_sum(text.rows.astype(np.float16))
        if text.cut:
            self._documents.mark_cut(len(self._lengths), text.cut)
            self._cut += 1
        self._lengths.append(len(text.rows))
        self._positions.append(len(text.token_ids))

    def _take_dim(self, dim: int) -> None:
        if self.dim is None and dim:
            self.dim = dim
            self._sum = np.zeros(dim)

    def _stage_stored(self, stored: StoredRows, position_rows: NDArray[np.int64]) -> None:
        _, firsts = np.unique(position_rows, return_index=True)  # the first position of each row
        for name, entries in stored.items():
            if name not in self._stored:
                self._stored[name] = self._staged[name] = staged_path(self._staging, name).open("wb")
            self._stored[name].write(entries[firsts].tobytes())

    def clipped_by(self, int8: Int8Store) -> tuple[int, float]:
        """The number of embeddings, and the share of their values that an int8 scale would cut off."""
        for file in self._staged.values():
            file.flush()
        total = sum(self._lengths)
        return total, share_clipped(_map(self._staged["rows"], self._dtype, (total, self.dim or 0)), int8)

    def finish(
        self,
        recipe: Recipe,
        dim: int,
        codebook: CodebookContent | None,
        int8: Int8Store | None,
        unit: bool | None,
        progress: bool | None,
    ) -> NewSegment:
        """In the cells of the codebook; without one, learn it, on the scale of `int8` if that still fits."""
        if len(self._lengths) != self.reserved:
            if self._journal is not None:
                self._journal.clear()  # which encoding belongs to which text is not known
            raise SecateursError(f"the encoder gave {len(self._lengths)} encodings for {self.reserved} documents")
        self._documents.finish()
        self._close()
        folder, codec = self._folder, recipe.codec
        offsets = np.concatenate([[0], np.cumsum(self._lengths)]).astype(np.int64)
        position_offsets = np.concatenate([[0], np.cumsum(self._positions)]).astype(np.int64)
        total, count = int(offsets[-1]), int(position_offsets[-1])
        token_ids: Any = _map(self._staged["token_ids"], np.int32, (count,))
        token_kinds: Any = _map(self._staged["token_kinds"], np.uint8, (count,))
        position_rows = _map(self._staged["position_rows"], np.uint32, (count,))
        positions = write_positions(folder, offsets, position_offsets, position_rows)
        frequencies = write_tokens(folder, position_offsets, token_ids, token_kinds)
        staged: Any = _map(self._staged["rows"], self._dtype, (total, dim))
        codebook = codebook or CodebookContent(0)
        codebook = codebook._replace(embeddings=codebook.embeddings or total)
        clipped, spread = 0.0, 0.0
        int8_rows: Any = None
        if recipe.has_int8:
            scale = codebook.int8 or self._fit_int8(staged, offsets, int8)
            int8_rows = write_rows(folder / codec.int8_file, staged, scale, progress)
            clipped = share_clipped(staged, scale)
            codebook = codebook._replace(int8=scale)
        if recipe.has_cells:
            summaries = summary_rows(offsets, positions, token_kinds)
            tokens = tokens_of_rows(offsets, positions, token_ids, frequencies)  # (rows,)
            codebook, spread = write_cells(folder, offsets, tokens, summaries, int8_rows, codebook, progress)
        entries: Any = self._map_stored(codec.arrays(dim))
        rows, codebook = codec.write(folder, staged, int8_rows, codebook, progress, entries)
        unit = self._unit if unit is None else unit
        reach = codec.reach(rows, codebook)
        write_checksums_and_faiss(folder, recipe, offsets, rows, codebook, unit, progress)
        # Nothing may stay mapped: Windows removes no file that is.
        rows = int8_rows = staged = entries = token_ids = token_kinds = position_rows = tokens = None  # type: ignore[assignment]
        for path in folder.glob("staged.*"):
            path.unlink()
        record = SegmentRecord(
            name=folder.name,
            documents=len(self._lengths),
            embeddings=total,
            positions=count,
            cut_documents=self._cut,
            files=describe_files(folder),
            block_rows=BLOCK_ROWS,
            token_block_rows=TOKEN_BLOCK_ROWS,
            reach=reach,
            spread=spread,
            clipped=clipped,
            unit=unit,
        )
        return NewSegment(record, codebook, dim)

    def _map_stored(self, entries: Mapping[str, tuple[type[np.generic], tuple[int, ...]]]) -> StoredRows | None:
        """`entries` as Codec.arrays gives them; None if no document came with stored rows."""
        if not self._stored:
            return None
        mapped = {}
        for name, (dtype, shape) in entries.items():
            size = np.dtype(dtype).itemsize * int(np.prod(shape))
            count = Path(self._stored[name].name).stat().st_size // size
            mapped[name] = _map(self._stored[name], dtype, (count, *shape))
        return mapped

    def _fit_int8(self, staged: NDArray[Any], offsets: NDArray[np.int64], earlier: Int8Store | None) -> Int8Store:
        sample = sampled_rows(np.array(self._hashes, dtype=np.uint64), offsets, sample_bound(len(staged)))
        total = self._sum if len(staged) else np.zeros(staged.shape[1])
        fitted = fit_int8(total, len(staged), staged[sample].astype(np.float16))
        return earlier if earlier is not None and earlier.is_near(fitted) else fitted


def _map(file: IO[bytes], dtype: type[np.generic], shape: tuple[int, ...]) -> NDArray[Any]:
    if shape[0] == 0:  # an empty file cannot be mapped
        return np.empty(shape, dtype=dtype)
    return np.memmap(file.name, dtype=dtype, mode="r", shape=shape)
