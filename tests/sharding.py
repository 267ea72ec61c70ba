"""What tests of builds on Ray share: an encoder that records what it encodes, and that can fail once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import ray

from secateurs import EncodedText, Index
from secateurs.cluster.layout import Layout
from secateurs.errors import SecateursError
from secateurs.hashing import hash_of

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import the tests


_PATIENCE = 60.0


class NotingEncoder:
    """The embeddings of a text depend on the text alone. What is encoded is recorded in files of `folder`.

    Once, at the first of these:

    die_at     at this text the process kills itself
    fail_at    at this text the encoder raises an error
    wait_at    at this text the encoder waits, until it is killed
    wait_on    on this Ray node the encoder waits, until it is killed; on others it waits until that has begun
    """

    dim = 16

    def __init__(
        self, folder: Path, *, die_at: str = "", fail_at: str = "", wait_at: str = "", wait_on: str = ""
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.die_at, self.fail_at, self.wait_at, self.wait_on = die_at, fail_at, wait_at, wait_on
        self.spec = {"kind": "noting", "model": "noting", "fingerprint": "0123456789abcdef"}

    def encode_query(self, text: str) -> EncodedText:
        return embed(text)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        for text in texts:
            node = ray.get_runtime_context().get_node_id()
            with (self.folder / "encoded").open("a") as file:
                file.write(f"{text}\t{node}\n")
            if text == self.die_at and self._first_time(node):
                os.kill(os.getpid(), signal.SIGKILL)
            if text == self.fail_at and self._first_time(node):
                raise SecateursError(f"no room for {text}")
            if (text == self.wait_at or node == self.wait_on) and self._first_time(node):
                time.sleep(_PATIENCE)
            if self.wait_on:
                self.wait_for_trouble()
            yield embed(text)

    def token_text(self, token_id: int) -> str:
        return f"#{token_id}"

    def _first_time(self, node: str) -> bool:
        try:
            with (self.folder / "trouble").open("x") as file:
                file.write(node)
            return True
        except FileExistsError:
            return False

    def encoded(self) -> Counter[str]:
        """How often each text was encoded."""
        return Counter(text for text, _ in self._lines())

    def nodes(self) -> dict[str, str]:
        """Where each text was encoded last."""
        return dict(self._lines())

    def _lines(self) -> list[tuple[str, str]]:
        lines = (self.folder / "encoded").read_text().splitlines()
        return [(text, node) for text, node in (line.split("\t") for line in lines)]

    def wait_for_trouble(self) -> str:
        """Wait until it has begun, and give the id of the node where it is."""
        path = self.folder / "trouble"
        deadline = time.monotonic() + _PATIENCE
        while not path.exists() or not path.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return path.read_text()


def embed(text: str) -> EncodedText:
    rng = np.random.default_rng(hash_of(text))
    embeddings = rng.normal(size=(len(text) % 7 + 1, NotingEncoder.dim)) + 0.5
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return EncodedText(embeddings.astype(np.float32), rng.integers(0, 30, len(embeddings)), np.zeros(len(embeddings)))


def write_corpus(folder: Path, files: int = 6, each: int = 20) -> list[Path]:
    """Files of documents d0, d1, ... whose texts are "text 0", "text 1", ..."""
    paths = []
    for number in range(files):
        path = folder / f"part-{number}.tsv"
        lines = [f"d{i}\ttext {i}\n" for i in range(number * each, (number + 1) * each)]
        path.write_text("".join(lines))
        paths.append(path)
    return paths


def shards_of(folder: Path) -> list[Index]:
    return [Index(folder / record.name) for record in Layout.read(folder).shards]
