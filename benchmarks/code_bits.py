"""What codes of fewer bits lose: residuals of int8 rows in 16 or 4 levels, by number of centroids and kind of levels.

    python benchmarks/code_bits.py --collection DIR --cache DIR [--centroids N ...]

Exhaustive MaxSim over the decoded rows, against float16. Levels are the same for all (plain), or fitted to residuals
that are divided by their spread: per dimension, per centroid, or both. The store residual4 has levels per centroid, and
beside them the same levels twice as wide, which are not measured here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from judged import encode, measure, progress, read_queries
from numpy.typing import NDArray

from secateurs.kernels.clustering import assign, cluster
from secateurs.kernels.maxsim import score, whole_dwords
from secateurs.storage.rounding import Int8Store, Store
from secateurs.storage.segments import Segment

Rankings = dict[str, list[tuple[str, float]]]
_SAMPLE = 48  # rows per centroid
_PRIOR = 4  # rows of average spread beside those of a centroid


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--centroids", type=int, nargs="+", default=[256, 1024, 4096])
    arguments.add_argument("--most-queries", type=int, default=100)
    options = arguments.parse_args()
    index = encode(options.collection, options.cache)
    texts, qrels = read_queries(options.collection, options.most_queries)
    queries = {qid: index.encode_query(text).weighted for qid, text in texts.items()}
    (segment,) = index.snapshot.segments
    embeddings = np.asarray(segment.rows)  # (embeddings, dim) float16
    int8 = Int8Store.fit(embeddings.mean(axis=0, dtype=np.float64).astype(np.float32), sampled(embeddings, 200_000))
    rows = np.concatenate([int8.encode(part.astype(np.float32)) for part in np.array_split(embeddings, 64)])
    docnos = index.snapshot.docnos(np.arange(len(segment)))
    exact = ranked(index.snapshot.store, embeddings, segment, queries, docnos)

    def report(way: str, decoded: NDArray[np.int8]) -> None:
        run = ranked(int8, decoded, segment, queries, docnos)
        shared = [len({d for d, _ in run[qid]} & {d for d, _ in exact[qid]}) / len(exact[qid]) for qid in exact]
        print(f"| {way} | {np.mean(shared):.3f} | {measure(qrels, run, ['nDCG@10'])['nDCG@10']:.4f} |", flush=True)

    print(f"{options.collection.name}: {len(queries)} queries, {len(segment):,} documents\n")
    print("| way | top 10 shared with float16 | nDCG@10 |")
    print("|---|---|---|")
    print(f"| float16 | 1.000 | {measure(qrels, exact, ['nDCG@10'])['nDCG@10']:.4f} |")
    report("int8", rows)
    for count in options.centroids:
        centroids, home = clustered(rows, count)
        residuals = rows.astype(np.float32) - centroids[home]
        per_dimension = residuals.std(axis=0, keepdims=True) + 1e-3
        sizes = np.bincount(home, minlength=len(centroids))
        squared = np.bincount(home, (residuals**2).mean(axis=1), minlength=len(centroids))
        average = squared.sum() / len(rows)
        per_centroid = np.sqrt((squared + _PRIOR * average) / (sizes + _PRIOR)).astype(np.float32)[home][:, None]
        ways = {
            "plain": np.ones((1, 1), dtype=np.float32),
            "per dimension": per_dimension,
            "per centroid": per_centroid,
            "per centroid and dimension": per_centroid * per_dimension,
        }
        for bits in (4, 2):
            for way, spread in progress(ways.items(), description=f"{count} centroids, {bits} bits"):
                differences = rounded(residuals, spread, 2**bits)
                decoded = np.clip(centroids[home] + differences, -127, 127).astype(np.int8)
                report(f"{bits} bits, {len(centroids):,} centroids, levels {way}", decoded)


def ranked(
    store: Store, rows: NDArray[Any], segment: Segment, queries: dict[str, NDArray[np.float32]], docnos: list[str]
) -> Rankings:
    """The ten best documents of each query, by exact MaxSim."""
    rankings: Rankings = {}
    for qid, query in queries.items():
        scores = score(store.prepare(query), rows, segment.offsets[:-1], segment.offsets[1:])
        best = np.argsort(-scores, kind="stable")[:10]
        rankings[qid] = [(docnos[i], float(scores[i])) for i in best]
    return rankings


def clustered(rows: NDArray[np.int8], count: int) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """Centroids, and the nearest of each row."""
    sample = whole_dwords(sampled(rows, count * _SAMPLE))
    parts = cluster(lambda numbers: sample[numbers], np.zeros(len(sample), dtype=np.int32), cells=count)
    centroids = np.concatenate([part.centroids for part in parts])
    home = assign(lambda numbers: whole_dwords(rows[numbers]), np.arange(len(rows)), centroids, None)
    return centroids[:, : rows.shape[1]], home


def rounded(residuals: NDArray[np.float32], spread: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Residuals to the nearest of so many levels, which Lloyd's algorithm fits to residuals divided by their spread."""
    values = np.sort(sampled(residuals / spread, 40_000), axis=None).astype(np.float64)
    levels = np.quantile(values, (np.arange(count) + 0.5) / count)
    totals = np.concatenate([[0], np.cumsum(values)])
    for _ in range(30):
        edges = np.searchsorted(values, [-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf])
        sizes = np.diff(edges)
        levels = np.where(sizes > 0, np.diff(totals[edges]) / np.maximum(sizes, 1), levels)
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, residuals / spread)
    nearest: NDArray[np.float32] = np.rint(levels[codes].astype(np.float32) * spread)
    return nearest


def sampled(rows: NDArray[Any], most: int) -> NDArray[Any]:
    return rows[:: max(1, len(rows) // most)]


if __name__ == "__main__":
    main()
