"""Docnos, texts and metadata of one segment, in SQLite: written once, then only read."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DamagedIndexError

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
        self._closed = False

    def add(self, docno: str, text: str, metadata: Mapping[str, Any]) -> int | None:
        """None, or the number of the earlier document that has this docno already."""
        packed = json.dumps(dict(metadata), ensure_ascii=False)
        try:
            self._connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", (self._count, docno, text, packed))
        except sqlite3.IntegrityError:
            row = self._connection.execute("SELECT number FROM documents WHERE docno = ?", (docno,)).fetchone()
            return int(row[0])
        self._count += 1
        return None

    def close(self) -> None:
        if not self._closed:
            self._connection.execute("COMMIT")
            self._connection.close()
        self._closed = True


class Documents:
    """Read-only access, from any number of threads, over one connection that is opened at once."""

    def __init__(self, path: Path) -> None:
        try:
            self._connection = sqlite3.connect(
                f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True, check_same_thread=False
            )
        except sqlite3.OperationalError as error:
            raise DamagedIndexError(f"{path} cannot be opened ({error})") from error
        self._lock = threading.Lock()

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
        rows = self._rows("SELECT number FROM documents WHERE docno = ?", (docno,))
        return int(rows[0][0]) if rows else None

    def _select(self, columns: str, numbers: Sequence[int]) -> dict[int, tuple[Any, ...]]:
        found = {}
        for start in range(0, len(numbers), _IDS_PER_STATEMENT):
            some = [int(number) for number in numbers[start : start + _IDS_PER_STATEMENT]]
            marks = ",".join("?" * len(some))
            rows = self._rows(f"SELECT {columns} FROM documents WHERE number IN ({marks})", some)
            found.update({row[0]: row for row in rows})
        return found

    def _rows(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(statement, values).fetchall()
