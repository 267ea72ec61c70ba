"""What shards cost on one machine, and what they find.

    python benchmarks/cluster.py --collection DIR --cache DIR [--shards 1 2 4 8] [--most-queries 200]

The same embeddings as one index and as 1, 2, 4 and 8 shards: in this process, and as actors of a Ray that is started on
this machine. Queries are encoded before. Each query is searched in all of them in turn, one at a time, so that other
load on the machine slows all alike. Times are multiples of the one index's with the default settings; "Ray" is the time
of a query less that of the slowest shard; "CPU" is the CPU time of this process for a query, with Ray's threads in it.
Recall is that of the ten best of exhaustive search over the one index, whose ranking the shards must also give bit for
bit. Then `--clients` clients search at the same time. What is measured also goes to CACHE/NAME.cluster.json, for
benchmarks/sizing.py. How much faster shards are built with more cores is in benchmarks/shard_build.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from time import perf_counter, process_time
from typing import Any

from judged import encode, progress, read_queries

from secateurs import EncodedText, Index
from secateurs.cluster.build.builder import build_shards
from secateurs.cluster.ray_connection import connect
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.contract import AnyIndex
from secateurs.rankings import Ranking

SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "p 3": {"p": 3}, "unpruned": {"p": None}}
EXACT = {"effort": "exact"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(".cache"))
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--most-queries", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=5, help="for each number of clients")
    options = parser.parse_args()
    stored = encode(options.collection, options.cache)
    texts, _ = read_queries(options.collection, options.most_queries)
    queries = [stored.encode_query(text) for text in texts.values()]
    one = open_or_build(options.cache / f"{options.collection.name}.cluster-one.sec", stored)
    opened: dict[str, AnyIndex] = {"one index": one}
    connect("local")
    for count in options.shards:
        path = options.cache / f"{options.collection.name}.cluster-{count}.sec"
        if not path.exists():
            build_shards(path, stored.documents(), shards=count, encoder=None, progress=True)
        opened[f"{count} in this process"] = ShardedIndex(path)
        opened[f"{count} on Ray"] = ShardedIndex(path, ray="local")
    measured = report_searches(opened, queries, options.rounds)
    facts = {
        "documents": len(one),
        "embeddings": one.info()["embeddings"],
        "bytes": one.info()["bytes"],
        "ms": measured,
    }
    (options.cache / f"{options.collection.name}.cluster.json").write_text(json.dumps(facts, indent=1))
    report_clients(opened, queries, options.clients, options.seconds)


def open_or_build(path: Path, stored: Index) -> Index:
    return Index(path) if path.exists() else Index.build(path, stored.documents(), encoder=None, progress=True)


def report_searches(
    opened: Mapping[str, AnyIndex], queries: list[EncodedText], rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each: of the query, of the query less the slowest shard, and of CPU time in this process."""
    one = opened["one index"]
    for query in queries[:5]:
        for index in opened.values():
            for how in SETTINGS.values():
                index.search(query, **how)
    times: dict[tuple[str, str], list[float]] = {}
    last: dict[tuple[str, str], list[Ranking]] = {}
    waits: dict[tuple[str, str], list[float]] = {}
    cpu: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        last = {}
        for query in progress(queries, "searching"):
            for what, how in SETTINGS.items():
                for name, index in opened.items():
                    started, busy = perf_counter(), process_time()
                    ranking = index.search(query, **how)
                    cpu.setdefault((name, what), []).append(process_time() - busy)
                    times.setdefault((name, what), []).append(perf_counter() - started)
                    last.setdefault((name, what), []).append(ranking)
                    waits.setdefault((name, what), []).append(ranking.stats.milliseconds.get("cluster", 0) / 1000)
    exact = [one.search(query, **EXACT) for query in queries]
    same = {
        name: all(
            [(hit.docno, hit.score) for hit in index.search(query, **EXACT)] == [(h.docno, h.score) for h in best]
            for query, best in zip(queries, exact, strict=True)
        )
        for name, index in opened.items()
    }
    base = mean(times["one index", "default"])
    print(f"{len(queries)} queries, {len(one):,} documents; the one index takes {base * 1000:.2f} ms by default\n")
    columns = "".join(f" {what}: time, recall, scored, Ray, CPU |" for what in SETTINGS)
    print(f"| |{columns} exhaustive is bit for bit the same |")
    print("|---|" + "---|" * (len(SETTINGS) + 1))
    for name in opened:
        cells = []
        for what in SETTINGS:
            rankings = last[name, what]
            recall = mean(
                len({h.docno for h in best} & {h.docno for h in found}) / max(len(best), 1)
                for best, found in zip(exact, rankings, strict=True)
            )
            scored = mean(ranking.stats.documents_scored for ranking in rankings)
            wait = mean(waits[name, what]) / base
            spent = mean(times[name, what]) / base
            busy = mean(cpu[name, what]) / base
            cells.append(f"{spent:.2f}, {recall:.3f}, {scored:,.0f}, {wait:.2f}, {busy:.2f}")
        print(f"| {name} | {' | '.join(cells)} | {'yes' if same[name] else 'NO'} |")
    return {
        name: {what: [mean(seconds[name, what]) * 1000 for seconds in (times, waits, cpu)] for what in SETTINGS}
        for name in opened
    }


def report_clients(
    opened: Mapping[str, AnyIndex], queries: list[EncodedText], clients: list[int], seconds: float
) -> None:
    print("\nAnswers a second, as multiples of the one index with one client:\n")
    print("| |" + "".join(f" {count} client{'s' if count > 1 else ''} |" for count in clients))
    print("|---|" + "---|" * len(clients))
    base = 0.0
    for name, index in opened.items():
        rates = [rate(lambda i, index=index: index.search(queries[i % len(queries)]), n, seconds) for n in clients]  # type: ignore[misc]
        base = base or rates[0]
        print(f"| {name} |" + "".join(f" {per_second / base:.2f} |" for per_second in rates))


def rate(search: Callable[[int], object], clients: int, seconds: float) -> float:
    end = perf_counter() + seconds

    def client(first: int) -> int:
        done = 0
        while perf_counter() < end:
            search(first * 17 + done)
            done += 1
        return done

    with ThreadPoolExecutor(clients) as pool:
        return sum(pool.map(client, range(clients))) / seconds


if __name__ == "__main__":
    main()
