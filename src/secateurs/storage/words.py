"""The words of a segment's texts, for gather="text": which documents have a word, and how often.

    words     word; numbers, int32: the documents that have it, ascending; counts, uint8 or uint32: how often they do
    lengths   a single row: uint32 for each document, the number of words in its text

SQLite's FTS5 splits texts into words, and inverts them in a database that is removed when they are all there. A row for
each word is kept of it, because a search needs nothing else, and FTS5 would be slow: its bm25() goes by the statistics
of its own table, so those of a segment with its deleted documents, and reads the places of a common word one by one.

Words are runs of letters and digits, without case and accents, English words by their stem (the tokenizers unicode61
and porter). A query is split as documents are. It is never parsed, so that nothing in it is syntax.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError

_TOKENIZER = "porter unicode61 remove_diacritics 2"
_TABLES = f"""
    CREATE VIRTUAL TABLE {{0}}texts USING fts5(text, content='', tokenize='{_TOKENIZER}');
    CREATE VIRTUAL TABLE temp.places USING fts5vocab({{1}}'texts', 'instance');
"""
# FTS5 cuts words of more than 32 KiB, perhaps inside a character: as a text, Python could not read such a word.
_WORD = "CAST(term AS BLOB)"


class Postings(NamedTuple):
    numbers: NDArray[np.int32]  # of the documents that have a word, ascending
    counts: NDArray[Any]  # how often each of them has it


NO_POSTINGS = Postings(np.empty(0, np.int32), np.empty(0, np.uint8))


class WordWriter:
    """Writes to the database of `connection`, and to a staged database beside it until `finish`."""

    def __init__(self, connection: sqlite3.Connection, staged: Path) -> None:
        self._connection = connection
        self._staged = staged
        connection.execute("ATTACH ? AS staged", (str(staged),))
        connection.execute("PRAGMA staged.journal_mode = OFF")
        connection.execute("PRAGMA staged.synchronous = OFF")
        _create_tables(connection, "staged.", "'staged', ")
        connection.execute("CREATE TABLE words (word BLOB PRIMARY KEY, numbers BLOB NOT NULL, counts BLOB NOT NULL)")
        connection.execute("CREATE TABLE lengths (words BLOB NOT NULL)")

    def add(self, number: int, text: str) -> None:
        self._connection.execute("INSERT INTO staged.texts (rowid, text) VALUES (?, ?)", (number, text))

    def finish(self, documents: int) -> None:
        lengths = np.zeros(documents, dtype=np.uint32)
        # The places come word by word, so that SQLite holds those of a single word at a time.
        statement = f"SELECT {_WORD}, group_concat(doc) FROM places GROUP BY term"
        for word, places in self._connection.execute(statement):
            numbers, counts = np.unique(np.fromstring(places, dtype=np.int32, sep=","), return_counts=True)
            lengths[numbers] += counts.astype(np.uint32)
            small = counts.astype(np.uint8 if counts.max() < 256 else np.uint32)
            self._connection.execute("INSERT INTO words VALUES (?, ?, ?)", (word, numbers.tobytes(), small.tobytes()))
        self._connection.execute("INSERT INTO lengths VALUES (?)", (lengths.tobytes(),))

    def remove_staged(self) -> None:
        """After the connection is closed."""
        self._staged.unlink(missing_ok=True)


def read_lengths(select: Callable[..., list[tuple[Any, ...]]]) -> NDArray[np.uint32]:
    """(documents,): how many words the text of each has."""
    ((packed,),) = select("SELECT words FROM lengths")
    return np.frombuffer(packed, dtype=np.uint32)


def read_postings(select: Callable[..., list[tuple[Any, ...]]], words: Sequence[str]) -> dict[str, Postings]:
    """Of those words, as split_words gives them, that a document has."""
    marks = ",".join("?" * len(words))
    found = {}
    for word, numbers, counts in select(f"SELECT * FROM words WHERE word IN ({marks})", [_packed(w) for w in words]):
        kind = np.uint8 if 4 * len(counts) == len(numbers) else np.uint32
        found[_unpacked(word)] = Postings(np.frombuffer(numbers, np.int32), np.frombuffer(counts, kind))
    return found


class _Splitter:
    """A table in memory that a query is put into, to read its words."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None

    def __call__(self, text: str) -> list[str]:
        with self._lock:
            if self._connection is None:
                connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
                _create_tables(connection, "", "'main', ")
                self._connection = connection
            self._connection.execute("BEGIN")
            try:
                self._connection.execute("INSERT INTO texts (rowid, text) VALUES (0, ?)", (text,))
                rows = self._connection.execute(f"SELECT {_WORD} FROM places ORDER BY offset").fetchall()
            finally:
                self._connection.execute("ROLLBACK")
        return [_unpacked(word) for (word,) in rows]


split_words = _Splitter()  # a text to its words, in their order


def _packed(word: str) -> bytes:
    return word.encode("utf-8", "surrogateescape")


def _unpacked(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


def _create_tables(connection: sqlite3.Connection, schema: str, named: str) -> None:
    try:
        connection.executescript(_TABLES.format(schema, named))
    except sqlite3.OperationalError as error:
        if "no such module" not in str(error):
            raise
        raise SecateursError(
            f'gather="text" needs FTS5, and the SQLite {sqlite3.sqlite_version} of this Python has none: '
            "use another Python, or build without it"
        ) from error
