"""Could a search prove that its ten hits are the exact ten? How many documents upper bounds from cells leave open.

    python benchmarks/certify.py --collections DIR --cache DIR [NAME[:MOST_DOCUMENTS] ...]

A document whose upper bound is below the tenth best score cannot be among the ten; every other one would have to be
scored before the ten are proven. The bounds of a document's score, each a sum over all query embeddings q:

    cell       max over the document's embeddings of  q . centroid + |q| * radius of the cell
    probed     the same over the nprobe cells of the largest such value; for what is not in them, the largest value
               among the other cells. Needs no pass over all documents' embeddings, and is never below `cell`
    distance   max over the document's embeddings of  q . centroid + |q| * distance of the embedding from its centroid:
               needs a number per embedding that the index does not have

A radius is the largest distance of a member from its centroid. Scores and bounds are of the stored int8 embeddings and
the rounded query, so a bound holds exactly. Prints a Markdown table: the mean share of the collection that each bound
leaves open, and, for scale, the mean tenth score and the mean bound of the best ten, both less the mean score.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from judged import cells_again, open_collection, progress
from numpy.typing import NDArray

from secateurs import EncodedText, Index
from secateurs.kernels.simd import round_query

Floats = NDArray[np.float32]
BEST = 10
NPROBES = (32, 256, 2048)
ROWS = 1 << 16  # embeddings at a time


class Bounds:
    """What the bounds need of an index of one segment."""

    def __init__(self, index: Index) -> None:
        (segment,) = index.snapshot.segments
        self.step = index.snapshot.codebook.int8.step
        self.rows = np.asarray(segment.rows)  # (embeddings, dim) int8, around the centre
        self.starts = np.asarray(segment.offsets[:-1])
        centroids, self.cells = cells_again(index)  # the cell of each embedding
        self.centroids = centroids[:, : self.rows.shape[1]].astype(np.float32)
        self.distances = np.empty(len(self.rows), dtype=np.float32)
        for first in range(0, len(self.rows), ROWS):
            part = slice(first, first + ROWS)
            self.distances[part] = np.linalg.norm(self.rows[part] - self.centroids[self.cells[part]], axis=1)
        self.radii = np.zeros(len(centroids), dtype=np.float32)
        np.maximum.at(self.radii, self.cells, self.distances)

    def of(self, query: EncodedText) -> tuple[Floats, dict[str, Floats]]:
        """The exact score of each document, and its bounds by name; all less the query's products with the centre."""
        rounded, unit = round_query(query.weighted)
        rounded = rounded * (unit[:, None] * self.step).astype(np.float32)  # (positions, dim) float32
        lengths = np.linalg.norm(rounded, axis=1).astype(np.float32)
        products = self.centroids @ rounded.T  # (cells, positions)
        reach = products + self.radii[:, None] * lengths  # (cells, positions): no member can be nearer
        scores = self._maxsim(lambda part: self.rows[part].astype(np.float32) @ rounded.T)
        bounds = {"cell": self._maxsim(lambda part: reach[self.cells[part]])}
        for nprobe in (n for n in NPROBES if n < len(reach)):
            ordered = np.partition(reach, len(reach) - nprobe - 1, axis=0)
            highest_left = ordered[len(reach) - nprobe - 1]  # (positions,) of the cells that are not probed
            floor = np.maximum(reach, highest_left)
            bounds[f"probed, {nprobe}"] = self._maxsim(lambda part, floor=floor: floor[self.cells[part]])
        bounds["distance"] = self._maxsim(
            lambda part: products[self.cells[part]] + self.distances[part, None] * lengths
        )
        return scores, bounds

    def _maxsim(self, similarities: Callable[[slice], Floats]) -> Floats:
        """Sum over the positions of the largest of each document's rows; `similarities` gives (rows, positions)."""
        sums = np.empty(len(self.starts), dtype=np.float32)
        ends = np.append(self.starts[1:], len(self.rows))
        first = 0
        while first < len(sums):
            last = max(int(np.searchsorted(ends, self.starts[first] + ROWS, side="right")), first + 1)
            part = slice(self.starts[first], ends[last - 1])
            best = np.maximum.reduceat(similarities(part), self.starts[first:last] - self.starts[first], axis=0)
            sums[first:last] = best.sum(axis=1)
            first = last
        return sums


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=50)
    arguments.add_argument("names", nargs="*", default=["cranfield", "squad-dev", "vaswani", "nq-wiki-mini:10000"])
    options = arguments.parse_args()
    head = ["collection", "documents", "cells", "radius", "cell", *(f"probed, {n}" for n in NPROBES), "distance"]
    head += ["tenth score", "bound of the ten, cell", "distance"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for given in options.names:
        name, _, most = given.partition(":")
        collection = open_collection(
            options.collections / name, options.cache, options.most_queries, most_documents=int(most) if most else None
        )
        bounds = Bounds(collection.index)
        left_open: dict[str, list[float]] = {}
        scale = []
        for query in progress(collection.queries.values(), name):
            scores, by_name = bounds.of(query)
            best = np.argsort(-scores)[:BEST]
            for way, bound in by_name.items():
                # The tenth itself has a bound above its score: ten documents are open at least.
                left_open.setdefault(way, []).append(float((bound >= scores[best[-1]]).mean()))
            of_ten = [by_name[way][best].mean() - scores.mean() for way in ("cell", "distance")]
            scale.append([scores[best[-1]] - scores.mean(), *of_ten])
        line = [given, f"{len(bounds.starts):,}", f"{len(bounds.radii):,}"]
        line.append(f"{bounds.step * bounds.radii[bounds.cells].mean():.3f}")
        line += [f"{np.mean(left_open[way]):.1%}" if way in left_open else "" for way in head[4:-3]]
        line += [f"{value:.2f}" for value in np.mean(scale, axis=0)]
        print(f"| {' | '.join(line)} |", flush=True)


if __name__ == "__main__":
    main()
