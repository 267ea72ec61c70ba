"""Writing the database of a segment's documents. documents.py says what is in it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import SecateursError
from .documents import row_checksum, stored, values_of
from .words import WordWriter


class DocumentWriter:
    """Documents get the numbers 0, 1, 2, ... in the order in which they come. `finish` after the last of them."""

    def __init__(self, path: Path, has_words: bool = False) -> None:
        """With `has_words`, the words of the texts are written too."""
        self._path = path
        self._keys: dict[str, int] = {}
        self._count = 0
        self._closed = False
        self._words: WordWriter | None = None
        with self._no_room_is_an_error():
            self._connection = sqlite3.connect(path, isolation_level=None)
            # A segment that is interrupted is removed whole, so its database needs no journal.
            self._connection.execute("PRAGMA journal_mode = OFF")
            self._connection.execute("PRAGMA synchronous = OFF")
            self._connection.executescript(
                """
                CREATE TABLE documents (number INTEGER PRIMARY KEY, docno TEXT NOT NULL UNIQUE, text TEXT NOT NULL,
                                        metadata TEXT NOT NULL, cut INTEGER NOT NULL, checksum INTEGER NOT NULL);
                CREATE TABLE keys (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
                CREATE TABLE facts (key INTEGER NOT NULL, value NOT NULL, number INTEGER NOT NULL,
                                    PRIMARY KEY (key, value, number)) WITHOUT ROWID;
                """
            )
            if has_words:
                self._words = WordWriter(self._connection, path.with_name("staged.words"))
            self._connection.execute("BEGIN")

    @contextmanager
    def _no_room_is_an_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SecateursError(f"{self._path} cannot be written ({error})") from error

    def add(self, docno: str, text: str, metadata: Mapping[str, Any], cut: int = 0) -> int | None:
        """None, or the number of the earlier document that has this docno already."""
        packed = json.dumps(dict(metadata), ensure_ascii=False)
        row = (self._count, docno, text, packed, cut, row_checksum(self._count, docno, text, packed, cut))
        with self._no_room_is_an_error():
            try:
                self._connection.execute("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)", row)
            except sqlite3.IntegrityError:
                found = self._connection.execute("SELECT number FROM documents WHERE docno = ?", (docno,)).fetchone()
                return int(found[0])
            facts = {(self._key(key), stored(value)) for key, value in values_of(json.loads(packed))}
            self._connection.executemany(
                "INSERT INTO facts VALUES (?, ?, ?)",
                [(key, value, self._count) for key, value in facts if value is not None],
            )
            if self._words is not None:
                self._words.add(self._count, text)
        self._count += 1
        return None

    def mark_cut(self, number: int, cut: int) -> None:
        with self._no_room_is_an_error():
            statement = "SELECT docno, text, metadata FROM documents WHERE number = ?"
            docno, text, packed = self._connection.execute(statement, (number,)).fetchone()
            checksum = row_checksum(number, docno, text, packed, cut)
            self._connection.execute(
                "UPDATE documents SET cut = ?, checksum = ? WHERE number = ?", (cut, checksum, number)
            )

    def _key(self, key: str) -> int:
        if key not in self._keys:
            self._keys[key] = len(self._keys)
            self._connection.execute("INSERT INTO keys VALUES (?, ?)", (self._keys[key], key))
        return self._keys[key]

    def finish(self) -> None:
        with self._no_room_is_an_error():
            if self._words is not None:
                self._words.finish(self._count)
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with self._no_room_is_an_error():
                try:
                    self._connection.execute("COMMIT")
                finally:
                    self._connection.close()
                    if self._words is not None:
                        self._words.remove_staged()
