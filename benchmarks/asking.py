"""What a search over shards on Ray costs the process that asks, by the number of shards.

    python benchmarks/asking.py --shards 1 8 16

The shards are tiny (a few random documents each), so that almost nothing is left but the calls. For each number of
shards it prints, per query: the CPU time of this process, the part of it on the thread that searches, and the time that
passes; for `search`, for empty calls to the same actors, and for `search_many` with one query in a call and as it is.
The slope of a line through the CPU times is what each further shard costs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time, thread_time

import numpy as np

from secateurs import Document, EncodedText, Index
from secateurs.cluster.layout import Layout, ShardRecord, shard_names, shard_of
from secateurs.cluster.ray_connection import connect
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.contract import AnyIndex

DIM = 96
DOCUMENT_TOKENS, QUERY_TOKENS = 10, 32
TEXT = "a text of three hundred characters, as a passage of a web page has them " * 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--documents", type=int, default=20, help="in each shard")
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    queries = [random_text(rng, QUERY_TOKENS) for _ in range(options.queries)]
    connect("local")
    with TemporaryDirectory() as folder:
        opened = {
            count: ShardedIndex(
                build(Path(folder) / f"{count}.sec", count, options.documents), ray="local", seconds=120
            )
            for count in options.shards
        }
        report(opened, queries, options.rounds)
        for index in opened.values():
            index.close()


def random_text(rng: np.random.Generator, tokens: int) -> EncodedText:
    embeddings = rng.normal(size=(tokens, DIM)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return EncodedText(embeddings, rng.integers(0, 1000, tokens), np.zeros(tokens))


def build(path: Path, shards: int, each: int) -> Path:
    rng = np.random.default_rng(1)
    documents = [Document(f"d{number}", TEXT, {}, random_text(rng, DOCUMENT_TOKENS)) for number in range(shards * each)]
    names = shard_names(shards)
    for number, name in enumerate(names):
        of_shard = [document for document in documents if shard_of(document.docno, shards) == number]
        Index.build(path / name, of_shard, encoder=None, progress=False)
    Layout(tuple(map(ShardRecord, names)), "a benchmark").write(path)
    return path


def report(opened: dict[int, ShardedIndex], queries: list[EncodedText], rounds: int) -> None:
    """In turns, so that all are measured beside the same other work."""
    ways = {
        "search": lambda index: [index.search(query) for query in queries],
        "bare calls": lambda index: [call_only(index) for _ in queries],
        "search_many, one query a call": lambda index: list(AnyIndex.search_many(index, queries)),
        "search_many": lambda index: list(index.search_many(queries)),
    }
    clocks = (process_time, thread_time, perf_counter)
    spent = {way: {count: np.zeros(len(clocks)) for count in opened} for way in ways}
    for index in opened.values():
        for run in ways.values():
            run(index)
    for _ in range(rounds):
        for count, index in opened.items():
            for way, run in ways.items():
                before = np.array([clock() for clock in clocks])
                run(index)
                spent[way][count] += np.array([clock() for clock in clocks]) - before
    per_query = 1000 / (rounds * len(queries))
    print("| | shards | CPU, ms a query | on the searching thread | time, ms |\n|---|---|---|---|---|")
    for way, by_count in spent.items():
        for count, times in by_count.items():
            cpu, thread, wall = times * per_query
            print(f"| {way} | {count} | {cpu:.2f} | {thread:.2f} | {wall:.2f} |")
    if len(opened) > 1:
        print("\nEach further shard, ms of CPU, and of it on the searching thread:")
        for way, by_count in spent.items():
            cpu, thread = (
                np.polyfit(list(by_count), [times[clock] * per_query for times in by_count.values()], 1)[0]
                for clock in (0, 1)
            )
            print(f"{way}: {cpu:.3f}, {thread:.3f}")


def call_only(index: ShardedIndex) -> None:
    """One empty call to each actor, which is the least that a search on Ray can cost."""
    ray = connect()
    ray.get([replica.actor.probe.remote() for replica in index._shards.backend.replicas])  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
