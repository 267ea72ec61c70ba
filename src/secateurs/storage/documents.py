"""Docnos, texts and metadata of one segment, in SQLite: written once (document_writer.py), then only read.

    documents   number, docno, text, metadata (JSON), cut (tokens beyond the encoder's limit), checksum of the row
    keys        every key of the metadata, also one whose value is null
    facts       every value of the metadata, so that a filter finds its documents without reading the others
    words, lengths   if the index was built for gather="text": see words.py

A number in `facts` is a number, a text a text, true and false are one-byte blobs: SQLite orders these three apart. A
list has one fact per entry; an object inside the metadata has facts under "outer.inner"; both have one more that says
that they are there. Null has none.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..errors import DamagedIndexError, SecateursError
from .files import REMEDY
from .words import NO_POSTINGS, Postings, read_lengths, read_postings

_VALUES_PER_STATEMENT = 500  # SQLite's smallest limit on variables is 999
_VALUES_AT_ONCE = 5_000  # whose documents are counted
_FEW = 100
_KEY = "(SELECT id FROM keys WHERE key = ?)"
ROW = "number, docno, text, metadata, cut, checksum"

IS_THERE = b"[]"  # the fact of a list or an object; equal to no value that a filter can compare with

# What a value is, for messages about filters: (a value, several of them)
NUMBER, TEXT, TRUTH = ("a number", "numbers"), ("a text", "texts"), ("true or false", "true or false")
NESTED = ("a list or an object", "lists or objects")
Kind: TypeAlias = tuple[str, str]
_CONDITIONS = {
    NUMBER: "value < ''",
    TEXT: "value >= '' AND value < x''",
    TRUTH: "value IN (x'00', x'01')",
    NESTED: "value = x'5b5d'",
}

Value: TypeAlias = str | int | float | bool
Stored: TypeAlias = str | int | float | bytes


class StoredDocument(NamedTuple):
    docno: str
    text: str
    metadata: Mapping[str, Any]


def values_of(metadata: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Value | bytes | None]]:
    """The metadata's single values with their keys; of a list or an object also that there is one."""
    for name, value in metadata.items():
        key = f"{outer}{name}"
        if isinstance(value, list | dict):
            yield key, IS_THERE
        for single in value if isinstance(value, list) else (value,):
            if isinstance(single, dict):
                yield from values_of(single, f"{key}.")
            elif single is None or isinstance(single, str | int | float):
                yield key, single


def kind_of(value: Value | Stored) -> Kind:
    if isinstance(value, bool | bytes):
        return TRUTH
    return TEXT if isinstance(value, str) else NUMBER


@overload
def stored(value: Value | bytes) -> Stored: ...
@overload
def stored(value: None) -> None: ...
def stored(value: Value | bytes | None) -> Stored | None:
    """A value as `facts` holds it. Integers that SQLite has no room for become the nearest float."""
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value


class Documents:
    """Read-only access, from any number of threads.

    `check` compares the whole file with its checksum, once. It is called before an answer that no checksum of a row
    covers: that a docno is not there, or which documents have a value.
    """

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        self._path = path
        self._check = check
        self._checked = False
        self._rows = _Connection(path)
        self._last_postings: tuple[tuple[str, ...], list[Postings]] = ((), [])
        self._facts = _Connection(path)  # of its own, so that no fetch waits for a filter
        self._rows.all("SELECT 1 FROM documents LIMIT 1")

    def check(self) -> None:
        if not self._checked:
            self._check()
            self._checked = True

    def docnos(self, numbers: Sequence[int]) -> list[str]:
        if len(numbers) <= _FEW:
            return [document.docno for document in self.get(numbers)]
        self.check()  # once, rather than every text each time
        found = dict(self._select("number, docno", "number", numbers))
        return [found[number] for number in numbers]

    def get(self, numbers: Sequence[int]) -> list[StoredDocument]:
        return [document for document, _ in self.get_with_cut(numbers)]

    def get_with_cut(self, numbers: Sequence[int]) -> list[tuple[StoredDocument, int]]:
        """The documents, each with the number of its tokens beyond the encoder's limit."""
        found = {row[0]: self._verified(row) for row in self._select(ROW, "number", numbers)}
        for number in numbers:
            if number not in found:
                raise self._altered(f"document {number}")
        return [found[number] for number in numbers]

    def numbers(self, docnos: Sequence[str]) -> dict[str, int]:
        """The numbers of those docnos that are there. That a docno is not there is certain only after `check`."""
        wanted = {docno for docno in docnos if _is_unicode(docno)}
        found = {}
        for row in self._select(ROW, "docno", sorted(wanted)):
            document, _ = self._verified(row)
            if document.docno not in wanted:
                raise self._altered(f"docno {document.docno!r}")
            found[document.docno] = int(row[0])
        return found

    def count(self) -> int:
        return int(self._rows.all("SELECT count(*) FROM documents")[0][0])

    def numbers_where(self, condition: str, values: Sequence[Stored | None]) -> NDArray[np.int64]:
        """Documents with a fact that meets an SQL condition on key and value. Only the values come from the user."""
        self.check()
        # One text from SQLite, because millions of rows would be millions of Python objects, made under Python's lock.
        statement = f"SELECT group_concat(number) FROM facts WHERE key = {_KEY} AND {condition}"
        ((numbers,),) = self._facts.all(statement, values)
        return _parsed(numbers)

    def numbers_named(self, condition: str, values: Sequence[str]) -> NDArray[np.int64]:
        """Documents whose docno meets an SQL condition. Only the values come from the user."""
        self.check()
        statement = f"SELECT group_concat(number) FROM documents WHERE {condition}"
        ((numbers,),) = self._facts.all(statement, values)
        return _parsed(numbers)

    def numbers_with(self, key: str, values: Sequence[Stored]) -> NDArray[np.int64]:
        """Documents with one of these values; a document with several of them is there several times."""
        found = []
        for start in range(0, len(values), _VALUES_PER_STATEMENT):
            stop_if_cancelled()
            block = values[start : start + _VALUES_PER_STATEMENT]
            found.append(self.numbers_where(f"value IN ({','.join('?' * len(block))})", (key, *block)))
        return np.concatenate(found)

    def value_counts(self, key: str, allowed: NDArray[np.bool_] | None) -> Iterator[tuple[Stored, int]]:
        """Each value of a key, with the number of the documents that have it, of those that `allowed` marks.

        A few thousand values at a time, so that a filter does not wait long for its turn.
        """
        self.check()
        of_key, last = f"FROM facts WHERE key = {_KEY} AND NOT {_CONDITIONS[NESTED]}", list[Stored]()
        while True:
            stop_if_cancelled()
            after = "AND value > ?" if last else ""
            statement = f"SELECT value, count(*) {of_key} {after} GROUP BY value ORDER BY value LIMIT {_VALUES_AT_ONCE}"
            rows = self._facts.all(statement, [key, *last])
            counts = np.array([count for _, count in rows], dtype=np.int64)  # (values,)
            if allowed is not None and rows:
                inside = f"SELECT number {of_key} AND value >= ? AND value <= ? ORDER BY value, number"
                statement = f"SELECT group_concat(number) FROM ({inside})"
                ((numbers,),) = self._facts.all(statement, [key, rows[0][0], rows[-1][0]])
                starts = np.cumsum(counts) - counts  # (values,) where the numbers of each begin
                counts = np.add.reduceat(allowed[_parsed(numbers)], starts, dtype=np.int64)
            yield from ((value, count) for (value, _), count in zip(rows, counts.tolist(), strict=True) if count)
            if len(rows) < _VALUES_AT_ONCE:
                return
            last = [rows[-1][0]]

    def kinds_of(self, key: str) -> frozenset[Kind] | None:
        """Which kinds of values a key of the metadata has here; None if it is no key here.

        None of the kinds if its values are null, empty lists or empty objects.
        """
        self.check()
        if not self._facts.all("SELECT 1 FROM keys WHERE key = ?", [key]):
            return None
        exists = (f"EXISTS (SELECT 1 FROM facts WHERE key = {_KEY} AND {_CONDITIONS[kind]})" for kind in _CONDITIONS)
        (row,) = self._facts.all(f"SELECT {', '.join(exists)}", [key] * len(_CONDITIONS))
        kinds = frozenset(kind for kind, is_there in zip(_CONDITIONS, row, strict=True) if is_there)
        if kinds == {NESTED} and not self._facts.all(
            "SELECT 1 FROM keys WHERE key > ? AND key < ? LIMIT 1",
            [f"{key}.", f"{key}/"],  # "/" is the character after "."
        ):
            return frozenset()
        return kinds

    def numbers_of_kind(self, key: str, kind: Kind) -> NDArray[np.int64]:
        """Documents with a value of that kind under a key; several times if they have several."""
        return self.numbers_where(_CONDITIONS[kind], (key,))

    def all_keys(self) -> list[str]:
        """Every key of the metadata, in the order of the alphabet."""
        self.check()
        return [key for (key,) in self._facts.all("SELECT key FROM keys ORDER BY key")]

    def first_keys(self, most: int) -> list[str]:
        """Keys of the metadata, in the order of the alphabet."""
        self.check()
        return [key for (key,) in self._facts.all("SELECT key FROM keys ORDER BY key LIMIT ?", [most])]

    @cached_property
    def lengths(self) -> NDArray[np.uint32]:
        """(documents,): the words of each text, if the index was built for gather="text"."""
        self.check()
        return read_lengths(self._facts.all)

    def postings(self, words: tuple[str, ...]) -> list[Postings]:
        """The documents that have each of the words, if the index was built for gather="text"."""
        words_before, before = self._last_postings
        if words == words_before:  # a search counts these documents first, and scores them next
            return before
        self.check()
        found: dict[str, Postings] = {}
        for start in range(0, len(words), _VALUES_PER_STATEMENT):
            found |= read_postings(self._facts.all, words[start : start + _VALUES_PER_STATEMENT])
        postings = [found.get(word, NO_POSTINGS) for word in words]
        self._last_postings = words, postings
        return postings

    def _select(self, columns: str, column: str, values: Sequence[int] | Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """The documents of which a column has one of these values."""
        for start in range(0, len(values), _VALUES_PER_STATEMENT):
            block = list(values[start : start + _VALUES_PER_STATEMENT])
            marks = ",".join("?" * len(block))
            yield from self._rows.all(f"SELECT {columns} FROM documents WHERE {column} IN ({marks})", block)

    def _verified(self, row: tuple[Any, ...]) -> tuple[StoredDocument, int]:
        try:
            return unpack_row(row)
        except ValueError as error:
            raise self._altered(f"document {row[0]}") from error

    def _altered(self, what: str) -> DamagedIndexError:
        return DamagedIndexError(f"{self._path} was altered ({what}): {REMEDY}")


class _Connection:
    """A read-only connection that threads take turns with."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            self._connection = connect(path, check_same_thread=False)
            # A connection of sqlite3 refers to itself, and would stay open until the garbage collector runs. This
            # object lives as long as a snapshot that reads from it, so that no running search loses its connection.
            weakref.finalize(self, self._connection.close).atexit = False
        except sqlite3.Error as error:
            raise DamagedIndexError(f"{path} cannot be opened ({error}): {REMEDY}") from error

    def all(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except sqlite3.DataError as error:  # a text of more than a billion characters: some hundred million numbers
            raise SecateursError(f"{self._path}: too many documents for one filter ({error}): use shards") from error
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise DamagedIndexError(f"{self._path} cannot be read ({error}): {REMEDY}") from error


def _parsed(numbers: str | None) -> NDArray[np.int64]:
    """The numbers that group_concat has joined."""
    return np.fromstring(numbers, dtype=np.int64, sep=",") if numbers else np.empty(0, dtype=np.int64)


def _is_unicode(docno: str) -> bool:
    """Whether it is not half a character: no docno that is stored is, and SQLite takes none."""
    try:
        docno.encode()
    except UnicodeEncodeError:
        return False
    return True


def connect(path: Path, check_same_thread: bool = True) -> sqlite3.Connection:
    """To a database that nothing writes to any more."""
    uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, check_same_thread=check_same_thread)


def unpack_row(row: tuple[Any, ...]) -> tuple[StoredDocument, int]:
    """A row of ROW as the document and its cut; ValueError if it was altered."""
    number, docno, text, packed, cut, checksum = row
    try:
        if checksum == row_checksum(number, docno, text, packed, cut):
            return StoredDocument(docno, text, json.loads(packed)), cut
    except (TypeError, AttributeError, OverflowError) as error:  # a value of another type
        raise ValueError("altered") from error
    raise ValueError("altered")


def row_checksum(number: int, docno: str, text: str, packed: str, cut: int) -> int:
    checksum = zlib.crc32(number.to_bytes(8, "little") + cut.to_bytes(8, "little"))
    for field in (docno, text, packed):
        checksum = zlib.crc32(field.encode() + b"\0", checksum)
    return checksum
