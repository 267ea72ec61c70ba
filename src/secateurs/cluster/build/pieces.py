"""A corpus in pieces: up to 500 documents of one shard, encoded together and kept in a file until the shard is made.

A piece of long documents has fewer of them.

    building/shard-0003/00001-000017.npz    piece 17 of what source 1 has for shard 3
      digest      of what was encoded, and by which encoder: a file with the expected one is not written again
      documents   JSON, a line per document: place, docno, text, metadata
      hashes      (documents,) uint64, of the docnos
      lengths     (documents,) int64, rows of each
      positions   (documents,) int64, positions of the text of each
      cut         (documents,) int64, tokens of each beyond the encoder's limit
      rows        (rows, dim) float16 or what the store stages, of merged documents: see storage/merging.py
      position_rows, token_ids, token_kinds    (positions,): see storage/position_rows.py
      total       (dim,) float64, the exact sum of the rows as float16
      unit        (documents,) bool, whether the document's embeddings had length 1 before they were rounded

A file appears whole or not at all. Which documents a piece has depends on nothing but the corpus and the number of
shards.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...encoders import Encoder
from ...errors import DamagedIndexError, UsageError
from ...hashing import hash_of
from ...records import Document, EncodedText
from ...storage.embeddings import are_unit, check_embeddings, encode, exact_sum
from ...storage.files import write_atomically
from ...storage.indexing import Item
from ...storage.merging import merge_alike
from ...storage.position_rows import share_equal
from ...storage.recipe import Recipe
from ...storage.sampling import sampled_rows
from ..layout import shard_of

SIZE = 500  # documents of a piece: a few seconds of work for one core, which is what a lost worker costs
CHARACTERS = 2_000_000  # of a piece, unless one document has more: all embeddings of a piece are in memory
HELD = 256 << 20  # bytes of documents that wait for their pieces to be full, at most
_OVERHEAD = 500  # bytes that Python needs for a document, beside its text and metadata
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile)

Placed = tuple[str, Document]  # with its place ("corpus.jsonl, line 7"), for error messages


class Piece(NamedTuple):
    shard: int
    number: int  # within what one source has for the shard
    documents: list[Placed]


class PieceLostError(DamagedIndexError):
    """A piece that was written is missing or damaged. What is left of it is removed."""


def split(
    items: Iterable[Placed], shards: int, size: int = SIZE, held: int = HELD, characters: int = CHARACTERS
) -> Iterator[Piece]:
    """Documents to pieces of at most `size`, each of one shard, in the documents' order.

    A piece whose texts have `characters` is full with fewer documents too. While more than `held` bytes wait, the shard
    that has most of them gets a smaller piece.
    """
    waiting: list[list[Placed]] = [[] for _ in range(shards)]
    sizes = [0] * shards
    lengths = [0] * shards  # characters of the texts
    numbers = [0] * shards

    def taken(shard: int) -> Piece:
        piece = Piece(shard, numbers[shard], waiting[shard])
        numbers[shard] += 1
        waiting[shard], sizes[shard], lengths[shard] = [], 0, 0
        return piece

    total = 0
    for place, document in items:
        shard = shard_of(document.docno, shards)
        waiting[shard].append((place, document))
        size_of_document = _size_of(document)
        sizes[shard] += size_of_document
        total += size_of_document
        lengths[shard] += len(document.text)
        if len(waiting[shard]) < size and lengths[shard] < characters:
            if total <= held:
                continue
            shard = max(range(shards), key=sizes.__getitem__)
        total -= sizes[shard]
        yield taken(shard)
    for shard in range(shards):
        if waiting[shard]:
            yield taken(shard)


def _size_of(document: Document) -> int:
    """About how many bytes it takes in memory; the same on every machine, since pieces depend on it."""
    texts = _OVERHEAD + len(_line("", document))
    return texts if document.encoded is None else texts + document.encoded.embeddings.nbytes


def digest_of(documents: Iterable[Placed]) -> str:
    """Of the documents themselves, not of the places they were read from."""
    digest = hashlib.blake2b(digest_size=16)
    for _, document in documents:
        digest.update(_line("", document))
        encoded = document.encoded
        if encoded is not None:
            digest.update(f"{encoded.embeddings.shape} {encoded.cut}\n".encode())
            for array in (encoded.embeddings, encoded.token_ids, encoded.token_kinds):
                digest.update(array.tobytes())
    return digest.hexdigest()


def piece_path(folder: Path, source: int, number: int) -> Path:
    return folder / f"{source:05}-{number:06}.npz"


def is_written(path: Path, digest: str) -> bool:
    """Whether the file is there with that digest, and every byte as it was written."""
    try:
        with zipfile.ZipFile(path) as file:
            return str(_member(file, "digest")) == digest and file.testzip() is None
    except _UNREADABLE:
        return False


def _member(file: zipfile.ZipFile, name: str) -> NDArray[Any]:
    """An array of the file. All of its bytes are read and their checksum compared before it is parsed."""
    array: NDArray[Any] = np.lib.format.read_array(io.BytesIO(file.read(f"{name}.npy")))
    return array


def write_piece(path: Path, documents: Sequence[Placed], encoder: Encoder | None, recipe: Recipe, digest: str) -> None:
    """Encode the documents, or take the embeddings that they bring; merge them, and write the file."""
    dim = encoder.dim if encoder is not None else None
    encoded: list[EncodedText] = []
    for (place, _), text in zip(documents, encode((document for _, document in documents), encoder), strict=True):
        dim = dim or text.embeddings.shape[1] or None
        check_embeddings(text, dim, place)
        encoded.append(merge_alike(text, recipe.merge, recipe.pool))
    staged = recipe.codec.staged
    stored = [share_equal(text.embeddings.reshape(len(text), dim or 0).astype(staged)) for text in encoded]
    rows = np.concatenate([rows for rows, _ in stored])
    content = io.BytesIO()
    np.savez(
        content,
        digest=np.array(digest),
        documents=np.frombuffer(b"".join(_line(place, document) for place, document in documents), dtype=np.uint8),
        hashes=np.array([hash_of(document.docno) for _, document in documents], dtype=np.uint64),
        lengths=np.array([len(rows) for rows, _ in stored], dtype=np.int64),
        positions=np.array([len(text) for text in encoded], dtype=np.int64),
        cut=np.array([text.cut for text in encoded], dtype=np.int64),
        rows=rows,
        position_rows=np.concatenate([position_rows for _, position_rows in stored]).astype(np.uint32),
        token_ids=np.concatenate([text.token_ids for text in encoded]),
        token_kinds=np.concatenate([text.token_kinds for text in encoded]),
        total=exact_sum(rows.astype(np.float16)),
        unit=np.array([are_unit(text) for text in encoded], dtype=bool),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content.getvalue())


def _line(place: str, document: Document) -> bytes:
    fields = [place, document.docno, document.text, dict(document.metadata)]
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


class Survey(NamedTuple):
    """What must be known of every shard before the first can be finished."""

    embeddings: int
    total: NDArray[np.float64]  # (dim,), the exact sum
    unit: bool
    repeated: list[str]  # a message for each document whose docno occurred before: both places


class Pieces:
    """All pieces of one shard, in the order of the corpus. `counts` has how many there are from each source."""

    def __init__(self, folder: Path, counts: Sequence[int]) -> None:
        self._paths = [piece_path(folder, source, n) for source, count in enumerate(counts) for n in range(count)]

    @cached_property
    def _repeated(self) -> dict[int, dict[int, str]]:
        """By piece and position a message for each document that is not the first with its docno."""
        hashes = [self._array(i, "hashes") for i in range(len(self._paths))]
        values, counts = np.unique(np.concatenate([*hashes, np.empty(0, np.uint64)]), return_counts=True)
        suspects = values[counts > 1]
        places: dict[str, str] = {}
        repeated: dict[int, dict[int, str]] = {}
        for i, hashes_of_piece in enumerate(hashes):
            positions = np.flatnonzero(np.isin(hashes_of_piece, suspects)).tolist()
            lines = self._lines(i) if positions else []
            for position in positions:
                place, docno, *_ = json.loads(lines[position])
                if docno in places:
                    problem = f"{place}: docno {docno!r} is already that of {places[docno]}"
                    repeated.setdefault(i, {})[position] = problem
                else:
                    places[docno] = place
        return repeated

    def survey(self) -> Survey:
        embeddings, unit, total = 0, True, np.zeros(0)
        for i in range(len(self._paths)):
            kept, lengths = self._kept(i), self._array(i, "lengths")
            part = self._array(i, "total")
            if not kept.all():
                part = exact_sum(self._array(i, "rows")[np.repeat(kept, lengths)].astype(np.float16))
            if len(total) == 0:
                total = np.zeros(len(part))
            if lengths.any():
                if len(part) != len(total):
                    place = json.loads(self._lines(i)[0])[0]
                    raise UsageError(f"{place}: embeddings of {len(part)} dimensions, those before of {len(total)}")
                total += part
            unit &= bool(self._array(i, "unit")[kept].all())
            embeddings += int(lengths[kept].sum())
        repeated = [problem for piece in self._repeated.values() for problem in piece.values()]
        return Survey(embeddings, total, unit, repeated)

    def sample(self, bound: int) -> NDArray[np.float16]:
        """The rows that decide the int8 step."""
        drawn = []
        for i in range(len(self._paths)):
            kept, lengths = self._kept(i), self._array(i, "lengths")
            offsets = np.concatenate([[0], np.cumsum(lengths[kept])])
            row_numbers = sampled_rows(self._array(i, "hashes")[kept], offsets, bound)
            if len(row_numbers):
                drawn.append(self._array(i, "rows")[np.repeat(kept, lengths)][row_numbers].astype(np.float16))
        return np.concatenate(drawn) if drawn else np.empty((0, 0), dtype=np.float16)

    def items(self) -> Iterator[Item]:
        """Every document with its embeddings, except those that are repeated."""
        for i in range(len(self._paths)):
            kept = self._kept(i)
            offsets = np.concatenate([[0], np.cumsum(self._array(i, "lengths"))])
            edges = np.concatenate([[0], np.cumsum(self._array(i, "positions"))])
            rows, ids, kinds, cut = (self._array(i, name) for name in ("rows", "token_ids", "token_kinds", "cut"))
            position_rows = self._array(i, "position_rows")
            for position, line in enumerate(self._lines(i)):
                if kept[position]:
                    place, docno, text, metadata = json.loads(line)
                    part = slice(edges[position], edges[position + 1])
                    embeddings = rows[offsets[position] + position_rows[part]]
                    encoded = EncodedText(embeddings, ids[part], kinds[part], int(cut[position]))
                    yield place, Document(docno, text, metadata, encoded)

    def _kept(self, i: int) -> NDArray[np.bool_]:
        kept = np.ones(len(self._array(i, "hashes")), dtype=bool)
        kept[list(self._repeated.get(i, ()))] = False
        return kept

    def _lines(self, i: int) -> list[bytes]:
        return self._array(i, "documents").tobytes().split(b"\n")[:-1]  # JSON writes a line break as \n

    def _array(self, i: int, name: str) -> NDArray[Any]:
        try:
            with zipfile.ZipFile(self._paths[i]) as file:
                return _member(file, name)
        except _UNREADABLE as error:
            with suppress(OSError):
                self._paths[i].unlink()
            raise PieceLostError(
                f"{self._paths[i]} was written and cannot be read any more ({error}): give the same command again, "
                "which encodes it again. If that does not help, not all machines see the same folder: build with "
                "--per-node"
            ) from error
