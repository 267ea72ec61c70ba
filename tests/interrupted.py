"""What the tests of interrupted builds share: an encoder that stops, a corpus, and what an index holds."""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_text

from secateurs import EncodedText, Index
from secateurs.storage.manifest import CODEBOOKS, SEGMENTS

needs_kill = pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")
DOCUMENTS = 60


class TextEncoder:
    """Random embeddings that depend on the text alone. Counts what it encodes, and stops where it is told to."""

    dim = 16

    def __init__(self, stop_at: int | None = None, stop: Callable[[], object] = lambda: None, name: str = "a") -> None:
        self.spec = {"kind": "test", "model": "test", "fingerprint": name}
        self.encoded: list[str] = []
        self._stop_at, self._stop, self._name = stop_at, stop, name

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        for text in texts:
            if len(self.encoded) == self._stop_at:
                self._stop()
            self.encoded.append(text)
            yield self.encode_query(text)

    def encode_query(self, text: str) -> EncodedText:
        seed = zlib.crc32(f"{self._name} {text}".encode())
        return random_text(np.random.default_rng(seed), 1 + seed % 7)

    def token_text(self, token_id: int) -> str:
        return str(token_id)


def corpus(numbers: Iterable[int] = range(DOCUMENTS)) -> list[dict[str, Any]]:
    return [{"docno": f"d{number}", "text": f"text {number % 50}", "number": number} for number in numbers]


def missing_after(count: int) -> list[str]:
    """The texts of the corpus that none of its first documents has."""
    texts = [document["text"] for document in corpus()]
    return [text for text in texts if text not in texts[:count]]


def interrupt() -> None:
    raise KeyboardInterrupt


def build(path: Path, encoder: TextEncoder, documents: Sequence[Any] | None = None, **options: Any) -> Index:
    return Index.build(path, corpus() if documents is None else documents, encoder=encoder, progress=False, **options)


def interrupted_build(path: Path, stop_at: int, documents: Sequence[Any] | None = None, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(path, TextEncoder(stop_at, interrupt), documents, **options)


def files_of(path: Path) -> dict[str, Any]:
    """Every file of an index, without the random names of the folders: bytes, and of the database what it holds."""
    held: dict[str, Any] = {}
    for part in (SEGMENTS, CODEBOOKS):
        (folder,) = (path / part).iterdir()
        for file in folder.iterdir():
            if file.suffix == ".sqlite":
                with closing(sqlite3.connect(file)) as database:
                    held[file.name] = list(database.iterdump())
            else:
                held[file.name] = file.read_bytes()
    return held


def content(path: Path) -> dict[str, Any]:
    """Every file of an index, what its manifest says of them, and some rankings."""
    index, held = Index(path), files_of(path)
    record = index.manifest.segments[0]
    counts = record.documents, record.embeddings, record.positions, record.cut_documents
    held["record"] = *counts, record.spread, record.clipped, record.unit, record.reach
    rng = np.random.default_rng(1)
    held["rankings"] = [index.search(random_text(rng, 4)).hits for _ in range(5)]
    return held


def beside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def staged_folders(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f".{path.name}.staged-*"))
