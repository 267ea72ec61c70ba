"""The command line that all peer adapters share, so that every engine is built and timed by the same code.

    python benchmarks/peers/peer_NAME.py settings
    python benchmarks/peers/peer_NAME.py build DATA INDEX [--options JSON]
    python benchmarks/peers/peer_NAME.py search DATA INDEX --out FILE.json [--settings JSON] [--k 10] [--rounds 1]

It runs in the virtual environment of the peer (see environments.py), so it needs nothing but numpy. DATA is a folder:

    embeddings.npy      (embeddings, dim) float16, unit length, the documents end to end
    offsets.npy         (documents + 1,) int64: document i is the rows offsets[i] to offsets[i + 1]
    token_ids.npy       (embeddings,) int32: the wordpiece of each row
    queries.npy         (query rows, dim) float32, the queries end to end
    query_offsets.npy   (queries + 1,) int64
    token_kinds.npy, query_token_ids.npy, query_token_kinds.npy, query_weights.npy, queries.json, texts.jsonl: what only
    some engines need

An adapter is a module with these names; only `build` and `search` are timed:

    PACKAGE                       the name of the distribution, for its version
    DEFAULT, SWEEP                settings of one search: what the peer does by itself, and from fast to thorough
    prepare(data)                 the documents in the types that the peer takes
    build(documents, index, **o)  makes the index in the folder `index`; `o` are the peer's own build options
    load(index)                   opens it for search
    as_query(rows)                one query, (rows, dim) float32, in the peer's type
    search(loaded, query, k, **s) one search with one setting
    positions(result)             the places of the documents it found, best first
    queries(data, loaded)         optional, instead of as_query: all queries at once
    tell(result)                  optional: numbers about a search, such as {"scored": 256}; their means are kept
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 5  # queries, each with every setting, before the first that counts
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "RAYON_NUM_THREADS",
    "TOKIO_WORKER_THREADS",
    "LANCE_CPU_THREADS",
    "LANCE_IO_THREADS",
)
# A thread of this process would stand still while an engine holds Python's lock, so another process watches the memory.
# It ends when its input does, and so never outlives the process that it watches.
WATCH = """
import select, sys
peak = 0
while True:
    ended = select.select([sys.stdin], [], [], 0.05)[0]
    try:
        lines = open(f"/proc/{sys.argv[1]}/status").read().splitlines()
    except OSError:
        break
    peak = max(peak, 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem"))))
    if ended:
        break
print(peak)
"""


@dataclass(frozen=True)
class Data:
    """What an engine indexes. No engine is asked to take an empty document, so only the others are here."""

    embeddings: np.ndarray  # (embeddings, dim) float16, mapped from disk: the memory counted is the engine's own
    token_ids: np.ndarray  # (embeddings,) int32
    starts: np.ndarray  # (places,) int64
    ends: np.ndarray  # (places,) int64
    folder: Path

    @classmethod
    def read(cls, folder: Path) -> Data:
        offsets = np.load(folder / "offsets.npy")
        numbers = document_numbers(folder)
        with (folder / "embeddings.npy").open("rb") as file:
            while file.read(1 << 24):  # into the page cache, so that the build does not wait for the disk
                pass
        # mode "c", because torch warns about tensors over memory that cannot be written
        embeddings = np.load(folder / "embeddings.npy", mmap_mode="c")
        return cls(embeddings, np.load(folder / "token_ids.npy"), offsets[numbers], offsets[numbers + 1], folder)


def document_numbers(folder: Path) -> np.ndarray:
    """The number of the document at each place of the index: all but the empty ones."""
    return np.flatnonzero(np.diff(np.load(folder / "offsets.npy")))  # (places,) int64


class PeakMemory:
    """Anonymous and shared memory of this process at its highest, in bytes; files mapped from disk do not count."""

    def __enter__(self) -> PeakMemory:
        command = [sys.executable, "-I", "-S", "-c", WATCH, str(os.getpid())]
        self.watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = int(self.watcher.communicate("end\n")[0])


def build(peer: Any, data: Path, index: Path, options: dict[str, Any]) -> dict[str, Any]:
    index.mkdir(parents=True, exist_ok=True)
    if any(index.iterdir()):
        sys.exit(f"{index} is not empty: what lies there would be counted")
    with PeakMemory() as memory:
        documents = peer.prepare(Data.read(data))
        start = time.perf_counter()
        peer.build(documents, index, **options)
        seconds = time.perf_counter() - start
    size = sum(file.stat().st_size for file in index.rglob("*") if file.is_file())
    return {"build_seconds": seconds, "bytes": size, "peak_memory": memory.bytes}


def search(
    peer: Any, data: Path, index: Path, settings: list[dict[str, Any]], k: int, rounds: int, first: int
) -> dict[str, Any]:
    """Every query singly with one setting, then all of them with the next: when a query comes
    again, the caches hold other queries. Rounds begin with different settings, so that a slow minute slows them all."""
    numbers = document_numbers(data)
    with PeakMemory() as memory:
        one_thread()
        loaded = peer.load(index)
        if hasattr(peer, "queries"):
            queries = peer.queries(data, loaded)
        else:
            rows, offsets = np.load(data / "queries.npy"), np.load(data / "query_offsets.npy")
            queries = [peer.as_query(rows[a:b]) for a, b in pairwise(offsets)]
        times: list[list[list[float]]] = [[[] for _ in queries] for _ in settings]
        found: list[list[Any]] = [[None] * len(queries) for _ in settings]
        told: list[list[dict[str, float]]] = [[] for _ in settings]
        for query in queries[:WARM_UP]:
            for setting in settings:
                peer.search(loaded, query, k, **setting)
        gc.collect()
        gc.disable()
        for turn in range(rounds):
            for shift in range(len(settings)):
                which = (first + turn + shift) % len(settings)
                for place, query in enumerate(queries):
                    start = time.perf_counter()
                    result = peer.search(loaded, query, k, **settings[which])
                    times[which][place].append(1000 * (time.perf_counter() - start))
                    found[which][place] = numbers[np.asarray(peer.positions(result), np.int64)].tolist()
                    if hasattr(peer, "tell"):
                        told[which].append(peer.tell(result))
    return {
        "settings": settings,
        "milliseconds": [[statistics.median(turns) for turns in setting] for setting in times],
        "documents": found,
        "told": [
            {name: statistics.fmean(one[name] for one in all_) for name in all_[0]} if all_ else {} for all_ in told
        ],
        "peak_memory": memory.bytes,
    }


def one_thread() -> None:
    """Before the engine is imported: thread pools take their size from here, and one processor holds all the others."""
    for name in ONE_THREAD:
        os.environ[name] = "1"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main(peer: Any) -> None:
    parser = argparse.ArgumentParser(description=peer.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("settings", help="print the settings to search with, the default first")
    for name in ("build", "search"):
        verb = verbs.add_parser(name)
        verb.add_argument("data", type=Path)
        verb.add_argument("index", type=Path)
        if name == "build":
            verb.add_argument("--options", type=json.loads, default={}, help="the peer's own build options, as JSON")
        else:
            verb.add_argument("--settings", type=json.loads, default=[peer.DEFAULT, *peer.SWEEP])
            verb.add_argument("--k", type=int, default=10)
            verb.add_argument("--rounds", type=int, default=1, help="of these, the median time of each query is kept")
            verb.add_argument("--first", type=int, default=0, help="number of the setting to begin with")
            verb.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    if given.verb == "settings":
        print(json.dumps([peer.DEFAULT, *peer.SWEEP]))
        return
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some engines report on standard output, where only the answer belongs
    if given.verb == "build":
        result = build(peer, given.data, given.index, given.options)
    else:
        result = search(peer, given.data, given.index, given.settings, given.k, given.rounds, given.first)
    result["version"] = importlib.metadata.version(peer.PACKAGE)
    if given.verb == "build":
        print(json.dumps(result), file=answer)
    else:
        given.out.write_text(json.dumps(result))
    answer.close()
