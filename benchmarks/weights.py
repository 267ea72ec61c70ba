"""Weights in the score: what `weights="idf"` does to nDCG@10, and how strong it should be.

    python benchmarks/weights.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 300]

Two Markdown tables. The first is exhaustive search for strengths s from 0 (Eq. 1) to 1, and for each collection the
strength that the other collections choose. The second is the shipped setting against Eq. 1, by exhaustive and by
default search. A star: significantly different from Eq. 1 (paired t-test over the queries, p < 0.05 after Bonferroni's
correction for the comparisons of the table).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from judged import Collection, ndcg_of, open_slice, progress
from numpy.typing import NDArray
from scipy.stats import ttest_rel

from secateurs import weights as weighing

STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
K = 10


def exhaustive(collection: Collection) -> NDArray[np.float64]:
    """nDCG@10, (strengths, queries). The maxima of a document are found once for all strengths."""
    index = collection.index
    (segment,) = index.snapshot.segments
    starts = np.asarray(segment.offsets[:-1])
    docnos = np.array(index.snapshot.docnos(np.arange(len(starts))))
    runs: list[dict[str, list[tuple[str, float]]]] = [{} for _ in STRENGTHS]
    for qid, query in progress(collection.queries.items(), description="exhaustive"):
        prepared = index.snapshot.store.prepare(query.embeddings)
        rows = np.asarray(segment.rows[:])  # (embeddings, dim) int8
        products = rows.astype(np.float32) @ prepared.rounded.T.astype(np.float32)  # exact: integers below 2^24
        best = np.maximum.reduceat(products, starts, axis=0) * prepared.scale + prepared.bias  # (documents, positions)
        for strength, run in zip(STRENGTHS, runs, strict=True):
            weights = 1 + strength / weighing.STRENGTH * (weighing.idf_weights(query, index.frequencies) - 1)
            scores = best @ (np.maximum(weights, 0) * query.all_weights)
            top = np.argsort(-scores, kind="stable")[:K]
            run[qid] = list(zip(docnos[top].tolist(), scores[top].tolist(), strict=True))
    return np.array([ndcg_of(collection.qrels, run) for run in runs])


def by_default(collection: Collection, **settings: str) -> NDArray[np.float64]:
    run = {}
    for qid, query in collection.queries.items():
        run[qid] = [(hit.docno, hit.score) for hit in collection.index.search(query, K, **settings)]
    return ndcg_of(collection.qrels, run)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=300)
    options = arguments.parse_args()
    names, table, shipped = [], [], []
    for given in options.collections:
        name, collection = open_slice(given, options.cache, options.most_queries, gather=("cells",))
        names.append(name)
        table.append(exhaustive(collection))
        shipped.append((by_default(collection), by_default(collection, weights="idf")))
    means = np.array([values.mean(axis=1) for values in table])  # (collections, strengths)
    print("| collection | queries | " + " | ".join(f"s = {s}" for s in STRENGTHS) + " | chosen by the others | gives |")
    print("|---" * (len(STRENGTHS) + 4) + "|")
    for i, name in enumerate(names):
        best = int(np.delete(means, i, axis=0).mean(axis=0).argmax()) if len(names) > 1 else 0
        numbers = " | ".join(f"{value:.4f}" for value in means[i])
        print(f"| {name} | {table[i].shape[1]} | {numbers} | {STRENGTHS[best]} | {means[i, best]:.4f} |")
    print(f"| mean | | {' | '.join(f'{value:.4f}' for value in means.mean(axis=0))} | | |")
    at = STRENGTHS.index(weighing.STRENGTH)
    comparisons = 2 * len(names)
    print("\n| collection | exhaustive, Eq. 1 | idf | difference | default search, Eq. 1 | idf | difference |")
    print("|---" * 7 + "|")
    for i, name in enumerate(names):
        cells = [name]
        for plain, weighted in ((table[i][0], table[i][at]), shipped[i]):
            change = weighted - plain
            tested = ttest_rel(weighted, plain).pvalue if np.abs(change).any() else 1.0
            star = "*" if tested * comparisons < 0.05 else ""
            cells += [f"{plain.mean():.4f}", f"{weighted.mean():.4f}", f"{change.mean():+.4f}{star}"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
