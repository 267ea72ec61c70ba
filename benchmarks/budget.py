"""A budget in milliseconds: how much of it a search uses, and what it finds.

    python benchmarks/budget.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 100]

Prints a Markdown table. Budgets are multiples of the time that the default search takes in the same run (its median),
so that the table means the same on another machine. "used" is the median time as a share of the budget, "over" the
share of searches that took longer, recall@10 the share of the exact ten best that is found. Budgets and the default
search take turns, query by query. The first line of a collection is a search with every word of the query by ICF, 32
cells each, for comparison.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from importance import words_of
from judged import open_slice, progress

ALL_WORDS, DEFAULT = -1.0, 0.0  # instead of a multiple
MULTIPLES = (0.5, 0.75, 1.0, 1.5, 2.0, 4.0, 8.0)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=100)
    options = arguments.parse_args()
    head = ["collection", "budget, times the default", "used", "over", "kept", "cells", "scored", "recall@10"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for given in options.collections:
        name, collection = open_slice(given, options.cache, options.most_queries)
        index, queries = collection.index, list(collection.queries.values())
        exact = [{hit.docno for hit in index.search(query, effort="exact")} for query in queries]
        for query in queries[:5]:  # so that everything is loaded
            index.search(query)
            index.search(query, budget_ms=5.0)
        default = float(np.median([index.search(query).stats.search_milliseconds for query in queries]))
        rows: dict[float, list[tuple[float, ...]]] = {multiple: [] for multiple in (ALL_WORDS, DEFAULT, *MULTIPLES)}
        for query, best in progress(list(zip(queries, exact, strict=True)), description=name):
            for multiple, measured in rows.items():
                settings: dict[str, Any] = {"budget_ms": multiple * default}
                if multiple == ALL_WORDS:
                    settings = {"order": "icf", "p": words_of(query), "nprobe": 32}
                ranking = index.search(query, **settings if multiple != DEFAULT else {})
                plan, stats = ranking.plan, ranking.stats
                cells = sum(plan.nprobe_each or (plan.nprobe * len(ranking.kept),))
                found = len(best & {hit.docno for hit in ranking}) / max(len(best), 1)
                row = (stats.search_milliseconds, len(ranking.kept), cells, stats.documents_scored, found)
                measured.append(row)
        for multiple, measured in rows.items():
            times, kept, cells, scored, found = np.array(measured).T
            names = {ALL_WORDS: "every word by ICF, 32 cells each", DEFAULT: "the default itself"}
            times_default = names.get(multiple, f"{multiple:g}")
            budget = default * (multiple if multiple > 0 else 1)
            over = f"{(times > budget).mean():.0%}" if multiple > 0 else ""
            print(
                f"| {name} | {times_default} | {np.median(times) / budget:.2f} | {over} | {kept.mean():.1f} | "
                f"{cells.mean():.0f} | {scored.mean():.0f} | {found.mean():.3f} |"
            )


if __name__ == "__main__":
    main()
