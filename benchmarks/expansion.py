"""How many of a query's MASKs have to be embedded.

    python benchmarks/expansion.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 300]

nDCG@10 of exhaustive and of default search with all MASKs, with a few that have the weight of all, and with none. A
star: significantly different from all (paired t-test over the queries, p < 0.05 after Bonferroni's correction for the
comparisons of the table).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from judged import ndcg_of, open_slice, progress, read_queries
from numpy.typing import NDArray
from scipy.stats import ttest_rel

from secateurs import EncodedText, Index
from secateurs.encoders.onnx import OnnxEncoder

EXPANSIONS: tuple[int | str, ...] = ("all", 8, 4, 3, 2, 1, 0)
K = 10


def values(index: Index, queries: dict[str, EncodedText], qrels: list, gather: str) -> NDArray[np.float64]:
    """nDCG@10 of each query."""
    run = {}
    for qid, query in progress(queries.items(), gather):
        run[qid] = [(hit.docno, hit.score) for hit in index.search(query, K, gather=gather)]
    return ndcg_of(qrels, run)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=300)
    options = arguments.parse_args()
    encoders = {given: OnnxEncoder.load(settings={"expansion": given}) for given in EXPANSIONS}
    found: dict[str, dict[str, list[NDArray[np.float64]]]] = {"exhaustive": {}, "cells": {}}
    for given in options.collections:
        folder, _, documents = given.partition(":")
        name, collection = open_slice(given, options.cache, options.most_queries, gather=("cells",))
        texts, qrels = read_queries(Path(folder), options.most_queries, collection.index if documents else None)
        for encoder in encoders.values():
            queries = {qid: encoder.encode_query(text) for qid, text in texts.items()}
            for gather, by_collection in found.items():
                by_collection.setdefault(name, []).append(values(collection.index, queries, qrels, gather))
    comparisons = 2 * len(found["cells"]) * (len(EXPANSIONS) - 1)
    for gather, by_collection in found.items():
        print(f"\n{gather}\n\n| collection | queries | " + " | ".join(map(str, EXPANSIONS)) + " |")
        print("|---" * (len(EXPANSIONS) + 2) + "|")
        for name, rows in by_collection.items():
            cells = []
            for row in rows:
                is_different = (row != rows[0]).any() and ttest_rel(row, rows[0]).pvalue * comparisons < 0.05
                cells.append(f"{row.mean():.4f}{'*' if is_different else ''}")
            print(f"| {name} | {len(rows[0])} | {' | '.join(cells)} |")
        means = np.mean([[row.mean() for row in rows] for rows in by_collection.values()], axis=0)
        print(f"| mean | | {' | '.join(f'{mean:.4f}' for mean in means)} |")


if __name__ == "__main__":
    main()
