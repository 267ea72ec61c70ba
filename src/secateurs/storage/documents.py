"""Docnos, texts and metadata of one segment, in SQLite: written once, then only read.

    documents   number, docno, text, metadata (JSON), cut (tokens beyond the encoder's limit), checksum of the row
    keys, facts every value of the metadata, so that a filter finds its documents without reading the others

A number in `facts` is a number, a text a text, true and false are one-byte blobs: SQLite orders these three apart. A
list has one fact per entry; an object inside the metadata has facts under "outer.inner"; both have one more that says
that they are there.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import DamagedIndexError, SecateursError
from .files import REMEDY

_IDS_PER_STATEMENT = 500  # SQLite's smallest limit on variables is 999
_FEW = 100

SOMETHING = b"[]"  # equal to no value that can be asked for

Value: TypeAlias = str | int | float | bool
Stored: TypeAlias = str | int | float | bytes


class StoredDocument(NamedTuple):
    docno: str
    text: str
    metadata: Mapping[str, Any]


class DocumentWriter:
    """Documents get the numbers 0, 1, 2, ... in the order in which they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: dict[str, int] = {}
        self._count = 0
        self._closed = False
        with self._no_room_is_an_error():
            self._connection = sqlite3.connect(path, isolation_level=None)
            # A segment that is interrupted is thrown away whole, so its database needs no journal of its own.
            self._connection.execute("PRAGMA journal_mode = OFF")
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.executescript(
                """
                CREATE TABLE documents (number INTEGER PRIMARY KEY, docno TEXT NOT NULL UNIQUE, text TEXT NOT NULL,
                                        metadata TEXT NOT NULL, cut INTEGER NOT NULL, checksum INTEGER NOT NULL);
                CREATE TABLE keys (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
                CREATE TABLE facts (key INTEGER NOT NULL, value NOT NULL, number INTEGER NOT NULL,
                                    PRIMARY KEY (key, value, number)) WITHOUT ROWID;
                BEGIN;
                """
            )

    @contextmanager
    def _no_room_is_an_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SecateursError(f"{self._path} cannot be written ({error})") from error

    def add(self, docno: str, text: str, metadata: Mapping[str, Any]) -> int | None:
        """None, or the number of the earlier document that has this docno already."""
        packed = json.dumps(dict(metadata), ensure_ascii=False)
        row = (self._count, docno, text, packed, 0, row_checksum(self._count, docno, text, packed))
        with self._no_room_is_an_error():
            try:
                self._connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                found = self._connection.execute("SELECT number FROM documents WHERE docno = ?", (docno,)).fetchone()
                return int(found[0])
            facts = {(self._key(key), stored(value)) for key, value in values_of(json.loads(packed))}
            self._connection.executemany(
                "INSERT INTO facts VALUES (?, ?, ?)", [(key, value, self._count) for key, value in facts]
            )
        self._count += 1
        return None

    def mark_cut(self, number: int, tokens: int) -> None:
        with self._no_room_is_an_error():
            self._connection.execute("UPDATE documents SET cut = ? WHERE number = ?", (tokens, number))

    def _key(self, key: str) -> int:
        if key not in self._keys:
            self._keys[key] = len(self._keys)
            self._connection.execute("INSERT INTO keys VALUES (?, ?)", (self._keys[key], key))
        return self._keys[key]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._no_room_is_an_error():
                try:
                    self._connection.execute("COMMIT")
                finally:
                    self._connection.close()


def values_of(metadata: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Value | bytes]]:
    """The metadata's single values with their keys; of a list or an object also that there is one."""
    for name, value in metadata.items():
        key = f"{outer}{name}"
        if isinstance(value, list | dict):
            yield key, SOMETHING
        for single in value if isinstance(value, list) else (value,):
            if isinstance(single, dict):
                yield from values_of(single, f"{key}.")
            elif isinstance(single, str | int | float):
                yield key, single


def stored(value: Value | bytes) -> Stored:
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
    """Read-only access, from any number of threads, over one connection.

    `check` compares the whole file with its checksum, once. It is called before an answer that no checksum of a row
    can vouch for: that a docno is not there, or which documents have some value.
    """

    def __init__(self, path: Path, check: Callable[[], None]) -> None:
        try:
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
            self._connection.execute("SELECT 1 FROM documents LIMIT 1")
        except sqlite3.Error as error:
            raise DamagedIndexError(f"{path} cannot be opened ({error}): {REMEDY}") from error
        self._path = path
        self._check = check
        self._checked = False
        self._lock = threading.Lock()

    def check(self) -> None:
        if not self._checked:
            self._check()
            self._checked = True

    def docnos(self, numbers: Sequence[int]) -> list[str]:
        if len(numbers) <= _FEW:
            return [document.docno for document in self.get(numbers)]
        self.check()  # once, rather than every text each time
        found = self._select("number, docno", numbers)
        return [found[number][1] for number in numbers]

    def get(self, numbers: Sequence[int]) -> list[StoredDocument]:
        found = self._select("number, docno, text, metadata, checksum", numbers)
        documents = []
        for number in numbers:
            try:
                _, docno, text, packed, checksum = found[number]
                if checksum != row_checksum(number, docno, text, packed):
                    raise ValueError
                documents.append(StoredDocument(docno, text, json.loads(packed)))
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                raise DamagedIndexError(f"{self._path} was altered (document {number}): {REMEDY}") from error
        return documents

    def number(self, docno: str) -> int | None:
        """The number of a docno; None, which is certain, if there is no such document."""
        rows = self._rows("SELECT number FROM documents WHERE docno = ?", (docno,))
        if not rows:
            self.check()
            return None
        number = int(rows[0][0])
        if self.get([number])[0].docno != docno:
            raise DamagedIndexError(f"{self._path} was altered (docno {docno!r}): {REMEDY}")
        return number

    def numbers(self, docnos: Sequence[str]) -> dict[str, int]:
        """Those of the docnos that are there."""
        self.check()
        found: dict[str, int] = {}
        for start in range(0, len(docnos), _IDS_PER_STATEMENT):
            some = docnos[start : start + _IDS_PER_STATEMENT]
            marks = ",".join("?" * len(some))
            found.update(self._rows(f"SELECT docno, number FROM documents WHERE docno IN ({marks})", some))
        return found

    def count(self) -> int:
        return int(self._rows("SELECT count(*) FROM documents", ())[0][0])

    def cut(self) -> dict[int, int]:
        """Documents that were longer than the encoder takes, and by how many tokens."""
        self.check()
        return dict(self._rows("SELECT number, cut FROM documents WHERE cut > 0", ()))

    def numbers_where(self, condition: str, values: Sequence[Stored]) -> NDArray[np.int64]:
        """Documents with a fact that meets an SQL condition on key and value. The condition is ours, the values not."""
        self.check()
        statement = f"SELECT number FROM facts WHERE key = (SELECT id FROM keys WHERE key = ?) AND {condition}"
        return np.array(self._rows(statement, values), dtype=np.int64).reshape(-1)

    def _select(self, columns: str, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        found = {}
        for start in range(0, len(numbers), _IDS_PER_STATEMENT):
            some = [int(number) for number in numbers[start : start + _IDS_PER_STATEMENT]]
            marks = ",".join("?" * len(some))
            rows = self._rows(f"SELECT {columns} FROM documents WHERE number IN ({marks})", some)
            found.update({row[0]: row for row in rows})
        return found

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._connection.execute(statement, values).fetchall()
        except UnicodeEncodeError:  # half a character: nothing that is stored is equal to that
            return []
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise DamagedIndexError(f"{self._path} cannot be read ({error}): {REMEDY}") from error


def row_checksum(number: int, docno: str, text: str, packed: str) -> int:
    checksum = zlib.crc32(number.to_bytes(8, "little"))
    for field in (docno, text, packed):
        checksum = zlib.crc32(field.encode() + b"\0", checksum)
    return checksum
