"""Docnos, texts and metadata of one segment, in SQLite: written once, then only read."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UsageError

_IDS_PER_STATEMENT = 500  # SQLite's smallest limit on variables is 999


class StoredDocument(NamedTuple):
    docno: str
    text: str
    metadata: Mapping[str, Any]


class DocumentWriter:
    """Documents get the numbers 0, 1, 2, ... in the order in which they come."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        # A segment that is interrupted is thrown away whole, so its database needs no journal of its own.
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(
            "CREATE TABLE documents (number INTEGER PRIMARY KEY, docno TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
            "metadata TEXT NOT NULL)"
        )
        self._connection.execute("BEGIN")
        self._count = 0

    def add(self, docno: str, text: str, metadata: Mapping[str, Any]) -> int | None:
        """None, or the number of the earlier document that has this docno already."""
        try:
            packed = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise UsageError(f"metadata of {docno!r} is not JSON: {error}") from error
        try:
            self._connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", (self._count, docno, text, packed))
        except sqlite3.IntegrityError:
            row = self._connection.execute("SELECT number FROM documents WHERE docno = ?", (docno,)).fetchone()
            return int(row[0])
        self._count += 1
        return None

    def close(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")
        self._connection.close()


class Documents:
    """Read-only access, from any number of threads."""

    def __init__(self, path: Path) -> None:
        self._uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._local = threading.local()

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = sqlite3.connect(self._uri, uri=True)
        connection: sqlite3.Connection = self._local.connection
        return connection

    def docnos(self, numbers: Sequence[int]) -> list[str]:
        found = self._select("number, docno", numbers)
        return [found[number][1] for number in numbers]

    def get(self, numbers: Sequence[int]) -> list[StoredDocument]:
        found = self._select("number, docno, text, metadata", numbers)
        return [
            StoredDocument(docno, text, json.loads(packed))
            for _, docno, text, packed in map(found.__getitem__, numbers)
        ]

    def number(self, docno: str) -> int | None:
        row = self._connection().execute("SELECT number FROM documents WHERE docno = ?", (docno,)).fetchone()
        return None if row is None else int(row[0])

    def _select(self, columns: str, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        found = {}
        for start in range(0, len(numbers), _IDS_PER_STATEMENT):
            some = [int(number) for number in numbers[start : start + _IDS_PER_STATEMENT]]
            marks = ",".join("?" * len(some))
            rows = self._connection().execute(f"SELECT {columns} FROM documents WHERE number IN ({marks})", some)
            found.update({row[0]: row for row in rows})
        return found
