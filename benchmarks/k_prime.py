"""The paper's first stage, with the same k' for every embedding and with a k' that follows the worth of each.

    python benchmarks/k_prime.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 100]

Each word of a query is searched once with FAISS for its 4,000 nearest document embeddings. A row of the table is then a
choice of words, and of how many of these neighbours each brings. Prints how many documents are gathered, on average
over the queries, when they hold 90, 95 and 98% of the exact ten best: k' is raised until they do, and the number of
documents is interpolated. "-": 4,000 neighbours are too few. Nothing is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import faiss
import numpy as np
from judged import Collection, open_slice, progress
from numpy.typing import NDArray

from secateurs.effort import FEWEST_KEPT, enough
from secateurs.importance import order_positions, worths

DEPTHS = [2, 5, 10, 20, 40, 70, 120, 200, 350, 600, 1000, 2000, 4000]
WANTED = (0.90, 0.95, 0.98)
_NPROBE = 64  # more than the paper's 10, so that k' is what limits


class Searched(NamedTuple):
    """A query whose words were searched. Rows are words, most important first by `focus`."""

    neighbours: NDArray[np.int64]  # (words, 4000): the document of each neighbour, nearest first; -1: there is none
    worth: NDArray[np.float64]  # (words,)
    icf: NDArray[np.int64]  # the rows, in the order of `icf`
    exact: NDArray[np.int64]  # the ten best documents


Depths = Callable[[Searched, int], dict[int, int]]  # row -> how many neighbours it brings


def equal(order: str, p: int | None = None, share: float | None = None) -> Depths:
    """k' neighbours for each of the first p words, or of those that hold a share of the query's worth."""

    def depths(query: Searched, k_prime: int) -> dict[int, int]:
        rows = query.icf if order == "icf" else np.arange(len(query.worth))
        kept = p if share is None else max(enough(query.worth, share), FEWEST_KEPT)
        return dict.fromkeys(rows[:kept].tolist(), k_prime)

    return depths


def by_worth(power: int, share: float) -> Depths:
    """k' neighbours for the word that is worth most, and for a word that is worth half of it 1/2^power as many."""

    def depths(query: Searched, k_prime: int) -> dict[int, int]:
        kept = max(enough(query.worth, share), FEWEST_KEPT)
        relative = (query.worth[:kept] / query.worth.max()) ** power
        return {row: max(round(k_prime * part), 1) for row, part in enumerate(relative.tolist())}

    return depths


CHOICES: dict[str, Depths] = {
    "icf, p = 3": equal("icf", 3),
    "icf, every word": equal("icf"),
    "focus, p = 3": equal("focus", 3),
    "focus, every word": equal("focus"),
    "focus, words that hold 80% of the worth": equal("focus", share=0.8),
    "these words, k' by worth": by_worth(1, 0.8),
    "these words, k' by the square of worth": by_worth(2, 0.8),
    "every word, k' by worth": by_worth(1, 1.0),
    "every word, k' by the square of worth": by_worth(2, 1.0),
}


def search_words(collection: Collection, name: str) -> list[Searched]:
    snapshot = collection.index.snapshot
    ((_, segment),) = snapshot.embedded  # these indexes have one segment
    searched = []
    for query in progress(collection.queries.values(), description=name):
        worth = worths(query, snapshot.frequencies)
        words, by_icf = (
            [position for position in order_positions(order, query, snapshot.frequencies) if worth[position] > 0]
            for order in ("focus", "icf")
        )
        if not words:
            continue
        parameters = faiss.SearchParametersIVF(nprobe=_NPROBE)
        _, neighbours = segment.faiss.search(query.embeddings[words], DEPTHS[-1], params=parameters)
        exact = snapshot.numbers([hit.docno for hit in collection.index.search(query, effort="exact")])
        rows = np.array([words.index(position) for position in by_icf])
        searched.append(Searched(neighbours, worth[words], rows, exact))
    return searched


def curve(queries: Sequence[Searched], choice: Depths) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each k': the share of the exact ten that is gathered, and the documents gathered; means over the queries."""
    found, documents = np.zeros((2, len(DEPTHS), len(queries)))
    for q, query in enumerate(queries):
        for d, k_prime in enumerate(DEPTHS):
            rows = choice(query, k_prime).items()
            gathered = np.unique(np.concatenate([query.neighbours[row, :depth] for row, depth in rows]))
            found[d, q] = np.isin(query.exact, gathered).mean()
            documents[d, q] = (gathered >= 0).sum()
    return found.mean(axis=1), documents.mean(axis=1)


def needed(found: NDArray[np.float64], documents: NDArray[np.float64], wanted: float) -> float | None:
    """Documents at which the wanted share is found, linear between two k'. `found` never falls as k' grows."""
    if found[-1] < wanted:
        return None
    return float(np.interp(wanted, found, documents))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=100)
    options = arguments.parse_args()
    print(f"| collection | gathers | {' | '.join(f'{wanted:.0%} of the exact ten' for wanted in WANTED)} |")
    print(f"|---|---|{'---|' * len(WANTED)}")
    for given in options.collections:
        name, collection = open_slice(given, options.cache, options.most_queries)
        queries = search_words(collection, name)
        for choice, depths in CHOICES.items():
            enough_documents = [needed(*curve(queries, depths), wanted) for wanted in WANTED]
            cells = ["-" if count is None else f"{count:,.0f}" for count in enough_documents]
            print(f"| {name} | {choice} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
