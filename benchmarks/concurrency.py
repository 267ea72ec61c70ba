"""How many queries a second one index answers with several threads, and with several processes.

    python benchmarks/concurrency.py --collection DIR[:DOCUMENTS] --cache DIR [--at-once 1 2 4 8] [--rounds 3]

Queries are encoded before. Every line answers the same queries; the threads are those of `index.search_many`, and each
process has the index open by itself. Prints queries a second as multiples of one thread in the same run: the best of
the rounds, in which the lines take turns. Exhaustive search reads the whole index for every query. If it gains as much
from a second core as the default search does, the memory is fast enough for both.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter
from typing import Any

from judged import open_slice, progress

from secateurs import EncodedText, Index

SEARCHES: dict[str, dict[str, Any]] = {"default": {}, "exhaustive": {"effort": "exact"}}
_EXHAUSTIVE_QUERIES = 16


def serve(path: Path, queries: Sequence[EncodedText], connection: Connection) -> None:
    """A process: answers its queries with the settings that come, until None comes."""
    index = Index(path)
    index.search(queries[0])
    connection.send("ready")
    while (settings := connection.recv()) is not None:
        for query in queries[: settings.pop("queries")]:
            index.search(query, **settings)
        connection.send("done")


class Processes:
    def __init__(self, path: Path, queries: Sequence[EncodedText], count: int) -> None:
        context = get_context("spawn")
        self._connections = []
        for number in range(count):
            here, there = context.Pipe()
            context.Process(target=serve, args=(path, queries[number::count], there), daemon=True).start()
            there.close()  # so that a process that ends is noticed
            self._connections.append(here)
        self._wait()

    def answer(self, queries: int, settings: dict[str, Any]) -> None:
        for number, connection in enumerate(self._connections):
            connection.send({**settings, "queries": len(range(number, queries, len(self._connections)))})
        self._wait()

    def _wait(self) -> None:
        for connection in self._connections:
            connection.recv()

    def close(self) -> None:
        for connection in self._connections:
            connection.send(None)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=400)
    arguments.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4, 8])
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    options.at_once = sorted({1, *options.at_once})
    name, collection = open_slice(options.collection, options.cache, options.most_queries, gather=("cells",))
    index, queries = collection.index, list(collection.queries.values())
    processes = {count: Processes(index.path, queries, count) for count in options.at_once}
    best: dict[tuple[str, str, int], float] = {}
    for _ in progress(range(options.rounds), name):
        for search, settings in SEARCHES.items():
            asked = queries if search == "default" else queries[:_EXHAUSTIVE_QUERIES]
            for count in options.at_once:
                for way in ("threads", "processes"):
                    started = perf_counter()
                    if way == "threads":
                        for _ranking in index.search_many(asked, threads=count, **settings):
                            pass
                    else:
                        processes[count].answer(len(asked), settings)
                    rate = len(asked) / (perf_counter() - started)
                    best[search, way, count] = max(rate, best.get((search, way, count), 0.0))
    for started_processes in processes.values():
        started_processes.close()
    print(f"{name}: {len(index):,} documents, {len(queries)} queries, {os.cpu_count()} cores\n")
    print(f"| search | | {' | '.join(map(str, options.at_once))} |\n|---|---|{'---|' * len(options.at_once)}")
    for search in SEARCHES:
        for way in ("threads", "processes"):
            rates = [best[search, way, count] / best[search, "threads", 1] for count in options.at_once]
            print(f"| {search} | {way} | {' | '.join(f'{rate:.2f}' for rate in rates)} |")


if __name__ == "__main__":
    main()
