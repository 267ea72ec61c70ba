"""The first searches of an index that is not in memory, and searches with less memory than the index takes.

    python benchmarks/cold_start.py --collection DIR[:DOCUMENTS] --cache DIR [--stores int8 int16 residual4 float16]

Every run is a process of its own that has searched a small index before, so that compiled kernels are loaded. Its files
are put out of the page cache first, except in the run "in memory". Prints, for each store, the time of the first
search, of the second, and the median of those after the tenth, as multiples of the median search in memory, and how
many MB were read from disk. "One by one" is the same without the read-ahead of storage/read_ahead.py. "A quarter
of the memory": a control group lets the process have what it needs by itself, and a quarter of the size of the index
for its files. That needs root and cgroup version 1; without it, the rows are left out.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from judged import open_slice

from secateurs import Index
from secateurs.storage.read_ahead import ReadAhead

CONTROL_GROUP = Path("/sys/fs/cgroup/memory")
_LATER = 10  # searches before those whose median counts


def search_all(path: Path, queries: Path, small: Path, one_by_one: bool) -> dict[str, Any]:
    """In the process that is measured."""
    encoded = pickle.loads(queries.read_bytes())
    Index(small).search(encoded[0], gather="cells")
    if one_by_one:
        ReadAhead.ask = lambda self, starts, ends: None  # type: ignore[method-assign]
    started = perf_counter()
    index = Index(path)
    times = [perf_counter() - started]
    for query in encoded:
        started = perf_counter()
        index.search(query, gather="cells")
        times.append(perf_counter() - started)
    own = 1024 * number_after("RssAnon:", Path("/proc/self/status"))
    read = number_after("read_bytes:", Path("/proc/self/io"))
    return {"milliseconds": [1000 * seconds for seconds in times], "read": read, "own memory": own}


def number_after(word: str, file: Path) -> int:
    words = file.read_text().split()
    return int(words[words.index(word) + 1])


def forget(path: Path) -> None:
    """Put the files of an index out of the page cache."""
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def run(path: Path, queries: Path, small: Path, one_by_one: bool, memory: int | None) -> dict[str, Any]:
    command = [sys.executable, __file__, "--run", str(path), str(queries), str(small), *["one"] * one_by_one]
    group = CONTROL_GROUP / f"secateurs-{os.getpid()}"
    if memory is not None:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(memory))

    def join() -> None:
        if memory is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, preexec_fn=join)
    finally:
        if memory is not None:
            group.rmdir()
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        path, queries, small = map(Path, sys.argv[2:5])
        print(json.dumps(search_all(path, queries, small, len(sys.argv) > 5)))
        return
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--stores", nargs="+", default=["int8", "int16", "residual4", "float16"])
    arguments.add_argument("--most-queries", type=int, default=60)
    options = arguments.parse_args()
    head = ["store", "MB", "memory", "rows are read", "first search", "second", "median", "MB read"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for store in options.stores:
        with tempfile.TemporaryDirectory() as folder:
            path = prepare(options, store, Path(folder))
            gc.collect()  # pages of files that this process has mapped would stay in memory
            print_store(path, store, Path(folder))


def prepare(options: argparse.Namespace, store: str, folder: Path) -> Path:
    """The index, and in the folder the queries and a small index of the same store."""
    _, collection = open_slice(options.collection, options.cache, options.most_queries, store=store, gather=("cells",))
    (folder / "queries").write_bytes(pickle.dumps(list(collection.queries.values())))
    few = islice(collection.index.documents(), 300)
    Index.build(folder / "small.sec", few, encoder=None, store=store, gather="cells", progress=False).close()
    collection.index.close()
    return collection.index.path


def median_later(measured: dict[str, Any]) -> float:
    return float(np.median(measured["milliseconds"][1 + _LATER :]))


def print_store(path: Path, store: str, folder: Path) -> None:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    queries, small = folder / "queries", folder / "small.sec"
    run(path, queries, small, False, None)  # everything is in memory now
    in_memory = run(path, queries, small, False, None)
    usual = median_later(in_memory)
    limits: dict[str, int | None] = {"in memory": None, "cold": None}
    if os.access(CONTROL_GROUP, os.W_OK) and (CONTROL_GROUP / "memory.limit_in_bytes").exists():
        limits["cold, a quarter of the memory"] = int(1.1 * in_memory["own memory"]) + size // 4
    for name, memory in limits.items():
        for one_by_one in (False,) if name == "in memory" else (False, True):
            if name != "in memory":
                forget(path)
            measured = run(path, queries, small, one_by_one, memory)
            _, first, second, *_ = measured["milliseconds"]
            times = [f"{time / usual:.1f}" for time in (first, second, median_later(measured))]
            way = "one by one" if one_by_one else "together"
            line = [store, f"{size / 1e6:,.0f}", name, way, *times, f"{measured['read'] / 1e6:,.0f}"]
            print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
