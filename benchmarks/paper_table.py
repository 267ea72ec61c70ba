"""The paper's comparison on one collection: First against ICF as p grows, gathered by FAISS.

    python benchmarks/paper_table.py --collection DIR --cache DIR

Prints a Markdown table: documents re-ranked, effectiveness, and the mean time of gathering and scoring as a ratio to
that of the unpruned run. Every query runs with every setting, in a random order, before the next query, so that noise
hits all alike. A
value with * differs significantly from that of the unpruned FAISS run (paired t-test, p < 0.05 after Bonferroni's
correction for all the rows).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from judged import open_collection, per_query, progress
from scipy import stats

PS = (1, 2, 3, 4, 6, 8, 12, 16, None)


def _cell(value: dict[str, float], baseline: dict[str, float], comparisons: int) -> str:
    ours, theirs = ([run[qid] for qid in sorted(baseline)] for run in (value, baseline))
    star = ours != theirs and stats.ttest_rel(ours, theirs).pvalue * comparisons < 0.05
    return f"{np.mean(ours):.4f}{'*' if star else ''}"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--k", type=int, default=1000, help="depth of the ranking that is measured")
    arguments.add_argument("--k-prime", type=int, default=1000)
    arguments.add_argument("--nprobe", type=int, default=10)
    arguments.add_argument("--most-queries", type=int)
    options = arguments.parse_args()
    collection = open_collection(options.collection, options.cache, options.most_queries)
    settings = [("exhaustive", "icf", None)] + [("faiss", order, p) for order in ("first", "icf") for p in PS]
    runs: dict[object, dict[str, list[tuple[str, float]]]] = defaultdict(dict)
    scored, spent = defaultdict(list), defaultdict(list)
    rng = np.random.default_rng(0)
    for gather, order, p in settings:  # before the clock runs: kernels are loaded, pages are read
        collection.index.search(next(iter(collection.queries.values())), p=p, order=order, gather=gather)
    for qid, query in progress(collection.queries.items(), description="searching"):
        for setting in rng.permutation(np.array(settings, dtype=object)).tolist():
            gather, order, p = setting = tuple(setting)
            ranking = collection.index.search(
                query, options.k, p, order, gather, k_prime=options.k_prime, nprobe=options.nprobe
            )
            runs[setting][qid] = [(hit.docno, hit.score) for hit in ranking]
            scored[setting].append(ranking.stats.documents_scored)
            milliseconds = ranking.stats.milliseconds
            spent[setting].append(sum(milliseconds[stage] for stage in ("prune", "gather", "score")))
    relevant = "(rel=2)" if collection.graded else ""
    names = ["nDCG@10", f"AP{relevant}", f"RR{relevant}@10"]
    unpruned = np.mean(spent["faiss", "icf", None])
    values = {setting: per_query(collection.qrels, run, names) for setting, run in runs.items()}
    baseline = values["faiss", "icf", None]
    size = f"{len(collection.queries)} queries over {len(collection.index):,} documents"
    print(f"{size}, k' = {options.k_prime}, nprobe = {options.nprobe}\n")
    print(f"| gather | order | p | documents re-ranked | {' | '.join(names)} | speed-up |")
    print("|---|---|---|---|---|---|---|---|")
    for setting in settings:
        gather, order, p = setting
        cells = [
            gather,
            "" if p is None else {"first": "First", "icf": "ICF"}[order],
            "all" if p is None else str(p),
            f"{np.mean(scored[setting]):,.0f}",
            *(_cell(values[setting][name], baseline[name], len(settings) - 1) for name in names),
            f"{unpruned / np.mean(spent[setting]):.2f}",
        ]
        if not (p is None and order == "first"):
            print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
