"""Which query embeddings matter if no token ids are known, as for page images or arrays from elsewhere?

    python benchmarks/no_token_ids.py --collections DIR --cache DIR [NAME[:MOST_DOCUMENTS] ...]

The token ids of text collections are thrown away: an index is built with one id for everything, so that its cells are
clustered without them, and orders see the query's embeddings only. Two kinds of order, both from the nearest cells:

    frequency    rarest first: embeddings or documents in the nearest cell, the mean of the nearest 4 or 8, or
                 documents in all cells that would be probed; the paper's idea with a cell in place of a token
    similarity   farthest from the ordinary first: q . centre ascending, where centre is the mean of all stored
                 embeddings; q . (nearest centroid - centre) descending, and less that of the 32nd nearest centroid; and
                 with half of the mean similarity to the other query embeddings added

`first`, `random` and the real `icf` are for comparison. Prints Markdown tables: the share of the ten best documents of
exhaustive search that are gathered, mean over p = 1 to 8. FAISS has k' = 200; cells have nprobe 32, candidates 256. In
the first two tables a query has its words only, in the other two all its positions, with specials and MASKs. + and -
mark a significant difference from the better of `first` and `random` (paired t-test over queries, p < 0.05, Bonferroni
over all orders and collections of a table).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from judged import cells_again, encode, open_collection, progress
from numpy.typing import NDArray

from secateurs import Document, EncodedText, Frequencies, Index, TokenKind
from secateurs.effort import make_plan
from secateurs.gather import gatherer
from secateurs.importance import icf, random
from secateurs.kernels.simd import round_query
from secateurs.lab.significance import compare
from secateurs.search import score
from secateurs.settings import SearchSettings

Array = NDArray[np.float64]
BEST, NPROBE = 10, 32
PS = range(1, 9)
WAYS = {"faiss": SearchSettings(gather="faiss", k_prime=200)}
WAYS["cells"] = SearchSettings(gather="cells", nprobe=NPROBE, candidates=256)
COLLECTIONS = ["squad-dev", "nq-wiki-mini:10000", "boolq-wiki:10000", "cranfield", "vaswani", "msmarco-dl19"]
COLLECTIONS += ["debian-descriptions:15000", "scifact"]


def without_token_ids(encoded: Index, cache: Path) -> Index:
    path = cache / f"{encoded.path.name.removesuffix('.f16.sec')}.no-token-ids.sec"
    if not path.exists():
        Index.build(path, _nameless(encoded), encoder=None, gather=("cells",))
    return Index(path)


def _nameless(encoded: Index) -> Iterator[Document]:
    for document in encoded.documents():
        assert document.encoded is not None
        yield Document(document.docno, encoded=_words(document.encoded.embeddings))


def _words(embeddings: NDArray[np.float32]) -> EncodedText:
    """Embeddings alone: every position is a word, and all words are the same."""
    return EncodedText(embeddings, np.zeros(len(embeddings), np.int32), np.zeros(len(embeddings), np.uint8))


class Cells:
    """How much is in each cell of an index of one segment."""

    def __init__(self, index: Index) -> None:
        (segment,) = index.snapshot.segments
        self.codebook = index.snapshot.codebook
        self.documents = np.diff(segment.lists.offsets)  # (cells,)
        _, cells = cells_again(index)  # lists hold a document once per cell
        self.embeddings = np.bincount(cells, minlength=len(self.documents))  # (cells,)

    def orders(self, embeddings: NDArray[np.float32]) -> dict[str, Array]:
        """For each order a number per position; the position with the lowest comes first."""
        rounded, unit = round_query(embeddings)
        cells, products = self.codebook.cells.nearest(rounded, NPROBE)  # (positions, NPROBE)
        near = products * unit[:, None] * self.codebook.int8.step  # q . (centroid - centre)
        among = embeddings @ embeddings.T  # (positions, positions)
        others = (among.sum(axis=1) - among.diagonal()) / max(len(among) - 1, 1)
        return {
            "embeddings in the nearest cell": self.embeddings[cells[:, 0]],
            "documents in the nearest cell": self.documents[cells[:, 0]],
            "documents, mean of 4 cells": self.documents[cells[:, :4]].mean(axis=1),
            "documents, mean of 8 cells": self.documents[cells[:, :8]].mean(axis=1),
            "embeddings, mean of 8 cells": self.embeddings[cells[:, :8]].mean(axis=1),
            "documents in the probed cells": self.documents[cells].sum(axis=1),
            "q . centre": embeddings @ self.codebook.int8.centre,
            "q . (nearest - centre)": -near[:, 0],
            "q . (nearest - 32nd)": near[:, -1] - near[:, 0],
            "q . (nearest - centre) + others / 2": -near[:, 0] - others / 2,
        }


def order_all(query: EncodedText, frequencies: Frequencies, cells: Cells) -> dict[str, list[NDArray[np.int64]]]:
    """Orders of the positions by name; of `random` several."""
    ordered = {"first": [np.arange(len(query))], "random": [random(query, frequencies, seed) for seed in range(3)]}
    ordered["icf"] = [icf(query, frequencies)]
    for name, key in cells.orders(query.embeddings).items():
        ordered[name] = [np.argsort(key, kind="stable")]
    return ordered


def measure(given: str, options: argparse.Namespace) -> dict[tuple[bool, str, str], Array]:
    """(specials, way, order) -> (queries,) mean overlap over p."""
    name, _, most = given.partition(":")
    most_documents = int(most) if most else None
    folder = options.collections / name
    collection = open_collection(folder, options.cache, options.most_queries, most_documents=most_documents)
    frequencies = collection.index.frequencies
    index = without_token_ids(encode(folder, options.cache, most_documents), options.cache)
    # FAISS never sees token ids: the index that has them serves. Documents have the same numbers in both.
    snapshots = {"faiss": collection.index.snapshot, "cells": index.snapshot}
    cells = Cells(index)
    documents = np.arange(len(index))
    values: dict[tuple[bool, str, str], list[float]] = {}
    for query in progress(collection.queries.values(), name):
        best = np.argsort(-score(snapshots["cells"], query, documents), kind="stable")[:BEST]
        for specials in (False, True):
            here = np.flatnonzero(query.token_kinds == TokenKind.WORD) if not specials else np.arange(len(query))
            if len(here) == 0:
                continue
            part = EncodedText(query.embeddings[here], query.token_ids[here], query.token_kinds[here])
            for order, several in order_all(part, frequencies, cells).items():
                for way, settings in WAYS.items():
                    plan = make_plan(settings, np.zeros(len(part)), snapshots[way].gatherers, len(documents))
                    found = [
                        np.isin(best, gatherer(snapshots[way], way).gather(part, positions[:p], plan)[0]).mean()
                        for positions in several
                        for p in PS
                    ]
                    values.setdefault((specials, way, order), []).append(float(np.mean(found)))
    return {key: np.array(value) for key, value in values.items()}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=50)
    arguments.add_argument("names", nargs="*", default=COLLECTIONS)
    options = arguments.parse_args()
    measured = {given: measure(given, options) for given in options.names}
    orders = list(dict.fromkeys(order for values in measured.values() for _, _, order in values))
    for specials in (False, True):
        for way in WAYS:
            print(f"\n{way}, {'all positions' if specials else 'words only'}:\n")
            print(f"| order | {' | '.join(measured)} | mean |\n|{'---|' * (len(measured) + 2)}")
            columns = [[values[specials, way, order] for order in orders] for values in measured.values()]
            marks = [_marks(column, orders, len(measured)) for column in columns]
            for i, order in enumerate(orders):
                means = [float(column[i].mean()) for column in columns]
                line = [f"{mean:.3f}{mark[i]}" for mean, mark in zip(means, marks, strict=True)]
                print(f"| {order} | {' | '.join(line)} | {np.mean(means):.3f} |")


def _marks(column: list[Array], orders: list[str], collections: int) -> list[str]:
    """+ or - where an order differs from the better of `first` and `random`."""
    controls = [column[orders.index(name)] for name in ("first", "random")]
    control = max(controls, key=lambda values: float(values.mean()))
    compared = compare(column, control, correction="none")
    tests = (len(orders) - 2) * collections
    return [("+" if c.difference > 0 else "-") if c.p_value * tests < 0.05 else "" for c in compared]


if __name__ == "__main__":
    main()
