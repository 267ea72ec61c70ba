"""How many documents must be scored: until the best no longer change, or a fixed number.

    python benchmarks/patience.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 100] [--k 1 10 100]

Candidates are scored in the order of their approximate scores. By default scoring ends when `patience` documents in a
row are not among the k best. Prints a Markdown table: for each k the documents scored on average, 19 of 20 queries at
most, the share of the exact k best that is found, and the fixed number of documents that finds as much, if it is the
same for every query. The last column is what max(4 patience, 4 k) documents find. Nothing here is timed.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from judged import open_slice, progress
from numpy.typing import NDArray

from secateurs import Index
from secateurs.search import OneIndex, decide, gather, score
from secateurs.settings import SearchSettings

MOST = 8192


class Searched:
    """What each query gathers, best first, and its exact best."""

    def __init__(self, index: Index, queries: list, k: int) -> None:
        snapshot = index.snapshot
        everything = np.arange(int(snapshot.firsts[-1]))
        self.k = k
        self.scored: list[int] = []
        self.places: list[NDArray[np.int64]] = []  # of the exact k best among the candidates; MOST: not gathered
        for query in progress(queries, f"{index.path.name}, k = {k}"):
            exact = score(snapshot, query, everything)
            best = np.argsort(-exact, kind="stable")[:k]
            decision = decide(OneIndex(snapshot), query, SearchSettings(k=k, gather="cells"))
            self.patience = decision.plan.patience or 0
            documents, _, plan = gather(snapshot, decision)
            self.scored.append(len(score(snapshot, query, documents, decision.ordered, k, plan)))
            documents, _, _ = gather(snapshot, decision._replace(plan=replace(plan, candidates=MOST)))
            place = np.full(len(everything), MOST)
            place[documents] = np.arange(len(documents))
            self.places.append(place[best])

    def recall(self, scored: list[int] | int) -> float:
        counts = np.broadcast_to(scored, len(self.places))
        return float(np.mean([(places < count).mean() for places, count in zip(self.places, counts, strict=True)]))

    def fixed(self, recall: float) -> int:
        """The fewest documents that find so much."""
        low, high = 1, MOST
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.recall(middle) >= recall else (middle + 1, high)
        return low


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=100)
    arguments.add_argument("--k", type=int, nargs="+", default=[1, 3, 10, 30, 100])
    options = arguments.parse_args()
    head = ["collection", "k", "patience", "scored", "19 of 20", "finds"]
    head += ["fixed number that finds as much", "max(4 patience, 4 k)"]
    print(f"| {' | '.join(head)} |")
    print("|---" * 8 + "|")
    for given in options.collections:
        name, collection = open_slice(given, options.cache, options.most_queries, gather=("cells",))
        for k in options.k:
            found = Searched(collection.index, list(collection.queries.values()), k)
            recall = found.recall(found.scored)
            usual = max(4 * found.patience, 4 * k)
            cells = [
                name,
                k,
                found.patience,
                f"{np.mean(found.scored):,.0f}",
                f"{np.quantile(found.scored, 0.95):,.0f}",
            ]
            cells += [f"{recall:.3f}", f"{found.fixed(recall):,}", f"{usual:,}: {found.recall(usual):.3f}"]
            print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
