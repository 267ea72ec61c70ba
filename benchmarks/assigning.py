"""Which cell an added embedding goes to: compare it with all centroids, by groups of cells, or with its token's cells.

    python benchmarks/assigning.py --collections DIR... --cache DIR [--cells 10000 100000 300000 1000000]

The embeddings of all collections together, as int8. 10,000 of them, from documents at even distances, are set aside
and then assigned; cells are learnt from the others, about as many as asked for. One thread, the ways in turn, the least
processor time of several rounds. Prints a Markdown table: the time with all centroids in milliseconds, and the times of
the other ways as shares of it; the share of embeddings that get the same cell; and by how much the mean cosine with the
centroid is less. `layout` is the time to lay out the centroids in their groups, as such a share too. An index that is
open for searching has done it before.

Cells are learnt for each token by itself, so that the cells of an embedding's own token could do too, if an index noted
which they are. An embedding of a token that has no cell is compared with all. Fewer cells than there are token types
are learnt without tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import process_time

import numpy as np
from judged import encode
from numpy.typing import NDArray

from secateurs import Index
from secateurs.kernels import clustering, probing
from secateurs.kernels.maxsim import whole_dwords
from secateurs.storage.embeddings import exact_sum
from secateurs.storage.position_rows import tokens_of_rows
from secateurs.storage.rounding import BLOCK, fit_int8
from secateurs.storage.sampling import SAMPLE

ADDED, ROUNDS = 10_000, 3
Rows = NDArray[np.int8]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--cells", type=int, nargs="+", default=[10_000, 100_000, 300_000, 1_000_000])
    options = arguments.parse_args()
    probing.MANY_CELLS = 0
    # Compiles the kernels, which would be measured otherwise.
    probing.Centroids(np.zeros((64, 4), np.int8), np.arange(64, dtype=np.int32)).assign(np.zeros((4, 4), np.int8))
    rows, tokens, is_added = read([encode(folder, options.cache) for folder in options.collections])
    added, added_tokens = rows[is_added][:ADDED], tokens[is_added][:ADDED]
    learnt, learnt_tokens = rows[~is_added], tokens[~is_added]
    head = ("cells", "all: ms", "groups: time, same, lost", "own token: time, same, lost", "layout")
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for wanted in options.cells:
        centroids, tokens_of_cells = learn(learnt, learnt_tokens, wanted)
        print(f"| {' | '.join(compare(centroids, tokens_of_cells, added, added_tokens))} |", flush=True)


def read(indexes: list[Index]) -> tuple[Rows, NDArray[np.int32], NDArray[np.bool_]]:
    """Of all embeddings their int8 rows and tokens, and whether they are set aside."""
    segments = [segment for index in indexes for segment in index.snapshot.segments]
    count = sum(len(segment.rows) for segment in segments)
    blocks = [(segment.rows, start) for segment in segments for start in range(0, len(segment.rows), BLOCK)]
    total = sum((exact_sum(rows[start : start + BLOCK]) for rows, start in blocks), start=np.zeros(indexes[0].dim))
    store = fit_int8(total, count, np.concatenate([segment.rows[:: -(-count // SAMPLE)] for segment in segments]))
    int8 = np.concatenate([store.encode(rows[start : start + BLOCK].astype(np.float32)) for rows, start in blocks])
    tokens, is_added = [], []
    step = max(1, count * 4 // (ADDED * 5))  # documents: a quarter more than enough
    for segment in segments:
        token_ids = np.asarray(segment.token_ids, dtype=np.int32)
        tokens.append(tokens_of_rows(segment.offsets, segment.positions, token_ids, segment.frequencies))
        documents = np.arange(len(segment.offsets) - 1)
        is_added.append(np.repeat(documents % step == 0, np.diff(segment.offsets)))
    return whole_dwords(int8), np.concatenate(tokens), np.concatenate(is_added)


def learn(rows: Rows, tokens: NDArray[np.int32], wanted: int) -> tuple[Rows, NDArray[np.int32]]:
    """About so many cells: centroids, and the token of each."""
    if wanted < len(np.unique(tokens)):
        tokens = np.zeros_like(tokens)
    learnt = list(clustering.cluster(rows.__getitem__, tokens, wanted))
    tokens_of_cells = [tokens[cells.rows[np.cumsum(cells.sizes) - cells.sizes]] for cells in learnt]
    return np.concatenate([cells.centroids for cells in learnt]), np.concatenate(tokens_of_cells)


def compare(
    centroids: Rows, tokens_of_cells: NDArray[np.int32], added: Rows, added_tokens: NDArray[np.int32]
) -> list[str]:
    groups = probing.group_cells(centroids)
    began = process_time()
    grouped = probing.Centroids(centroids, groups)
    grouped.assign(added[:1])
    layout = process_time() - began

    def of_all(numbers: NDArray[np.int64]) -> NDArray[np.int32]:
        return clustering.assign(added.__getitem__, numbers, centroids, 1)

    def of_own_token() -> NDArray[np.int32]:
        """Cells come in the order of their tokens."""
        assigned = np.empty(len(added), dtype=np.int32)
        order = np.argsort(added_tokens, kind="stable")
        types, starts = np.unique(added_tokens[order], return_index=True)
        firsts, lasts = (np.searchsorted(tokens_of_cells, types, side=side) for side in ("left", "right"))
        unknown = []
        for numbers, first, last in zip(np.split(order, starts[1:]), firsts, lasts, strict=True):
            if first == last:
                unknown.append(numbers)
            else:
                assigned[numbers] = first + clustering.assign(added.__getitem__, numbers, centroids[first:last], 1)
        if unknown:
            without_cells = np.concatenate(unknown)
            assigned[without_cells] = of_all(without_cells)
        return assigned

    ways: dict[str, Callable[[], NDArray[np.int32]]] = {
        "all": lambda: of_all(np.arange(len(added))),
        "groups": lambda: grouped.assign(added),
    }
    if tokens_of_cells.any():
        ways["own token"] = of_own_token
    times = dict.fromkeys(ways, np.inf)
    assigned = {}
    for _ in range(ROUNDS):
        for way, assign in ways.items():
            start = process_time()
            assigned[way] = assign()
            times[way] = min(times[way], process_time() - start)
    nearest = assigned["all"]
    best = cosines(added, centroids[nearest])
    line = [f"{len(centroids):,}", f"{1000 * times['all']:,.0f}"]
    for way in list(ways)[1:]:
        same, lost = (assigned[way] == nearest).mean(), (best - cosines(added, centroids[assigned[way]])).mean()
        line.append(f"{times[way] / times['all']:.3f}, {same:.4f}, {lost:.5f}")
    return [*line, *[""] * (4 - len(line)), f"{layout / times['all']:.3f}"]


def cosines(rows: Rows, centroids: Rows) -> NDArray[np.float64]:
    """Of each row with the centroid in the same line, around the mean of all embeddings."""
    a, b = rows.astype(np.float64), centroids.astype(np.float64)
    products: NDArray[np.float64] = (a * b).sum(axis=1)
    return products / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-12)


if __name__ == "__main__":
    main()
