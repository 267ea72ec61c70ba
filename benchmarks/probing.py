"""How to find the nearest cells: meet all of them, meet groups of them first, or walk a graph over them (FAISS HNSW).

    python benchmarks/growth.py --collection DIR --cache DIR --millions 30
    python benchmarks/probing.py --collection DIR --cache DIR --millions 30 [--cells 10000 30000 ... 1000000]

From the index that benchmarks/growth.py grows, cells are learnt anew, about as many as asked for. Each query looks for
the 33 nearest of its 8 most important embeddings, one thread, the ways in turn. The graph has 32 links and int8
centroids. Prints a Markdown table: the least milliseconds per query of several rounds, the mean over the queries; the
share of the true nearest that is found; the seconds to build graph and groups; and what groups do to a whole search:
its recall of the exact ten best, with the kernel and with groups, and the time of its first stage with groups in that
of the kernel.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import faiss
import numpy as np

from secateurs import EncodedText, Index, prune
from secateurs.gather.cells import CellGatherer
from secateurs.kernels import clustering, probing
from secateurs.kernels.simd import round_query
from secateurs.storage import cell_lists
from secateurs.storage.cell_lists import CellLists
from secateurs.storage.file_names import CELL_DOCUMENTS, CELL_OFFSETS

KEPT, NEAREST = 8, 33
LINKS = 32
BREADTHS = (64, 128, 256)  # efSearch
ROUNDS = 7
SETTINGS: dict[str, dict[str, Any]] = {"default": {}, "thorough": {"nprobe": 128, "candidates": 2048}}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--millions", type=float, default=30)
    arguments.add_argument("--most-queries", type=int, default=100)
    arguments.add_argument(
        "--cells", type=int, nargs="+", default=[10_000, 30_000, 100_000, 200_000, 300_000, 1_000_000]
    )
    options = arguments.parse_args()
    grown = options.cache / f"{options.collection.name}-grown-{int(options.millions * 1e6)}"
    index = Index(grown.with_suffix(".peers") / "grown" / "index.sec")
    queries = read_queries(grown.with_suffix(".data"))[: options.most_queries]
    exact = [{hit.docno for hit in index.search(query, effort="exact")} for query in queries]
    probing.MANY_CELLS = 0
    head = ["cells", "kernel ms", "groups: ms, found", *(f"graph, ef {n}: ms, found" for n in BREADTHS)]
    head += ["build s: groups, graph", *(f"{name}: recall kernel, groups; time" for name in SETTINGS)]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for wanted in options.cells:
        centroids, lists = learn(index, wanted)
        line, kernel, groups = compare(centroids, index, queries)
        line += whole_searches(index, lists, kernel, groups, queries, exact)
        print(f"| {' | '.join(line)} |", flush=True)


def read_queries(data: Path) -> list[EncodedText]:
    embeddings, ids, kinds, offsets = (
        np.load(data / f"{name}.npy") for name in ("queries", "query_token_ids", "query_token_kinds", "query_offsets")
    )
    return [EncodedText(embeddings[a:b], ids[a:b], kinds[a:b]) for a, b in pairwise(offsets.tolist())]


def learn(index: Index, cells: int) -> tuple[np.ndarray, CellLists]:
    """About so many cells. Fewer than there are token types can only be had by ignoring these."""
    (segment,) = index.snapshot.segments
    tokens = np.asarray(segment.token_ids)
    if cells < len(index.frequencies.token_ids):
        tokens = np.zeros_like(tokens)
    clustering.CELLS_PER_ROOT = cells / len(tokens) ** 0.5
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        centroids, _ = cell_lists.make_cells(folder, segment.offsets, tokens, segment.embeddings.rows, None, {})
        return centroids, CellLists(np.load(folder / CELL_OFFSETS), np.load(folder / CELL_DOCUMENTS))


def compare(
    centroids: np.ndarray, index: Index, queries: list[EncodedText]
) -> tuple[list[str], probing.Centroids, probing.Centroids]:
    kernel = probing.Centroids(centroids)
    begin = perf_counter()
    groups = probing.Centroids(centroids, probing.group_cells(centroids))
    grouped = perf_counter()
    graph = faiss.IndexHNSWSQ(
        centroids.shape[1], faiss.ScalarQuantizer.QT_8bit_direct_signed, LINKS, faiss.METRIC_INNER_PRODUCT
    )
    graph.train(centroids[:1].astype(np.float32))
    graph.add(centroids.astype(np.float32))
    built = perf_counter()
    cores = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)

    def walk(breadth: int) -> Callable[[np.ndarray], np.ndarray]:
        def search(rounded: np.ndarray) -> np.ndarray:
            graph.hnsw.efSearch = breadth
            return graph.search(rounded.astype(np.float32), NEAREST)[1]

        return search

    ways: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        "kernel": lambda rounded: kernel.nearest(rounded, NEAREST)[0],
        "groups": lambda rounded: groups.nearest(rounded, NEAREST)[0],
        **{f"graph {breadth}": walk(breadth) for breadth in BREADTHS},
    }
    kept = [round_query(query.embeddings[prune(query, index.frequencies, KEPT)])[0] for query in queries]
    times = {way: np.full(len(kept), np.inf) for way in ways}
    nearest: dict[str, list[np.ndarray]] = {}
    for _ in range(ROUNDS):
        for way, search in ways.items():  # all queries in one way, so that no way finds what another has just read
            nearest[way] = []
            for i, rounded in enumerate(kept):
                start = perf_counter()
                nearest[way].append(search(rounded))
                times[way][i] = min(times[way][i], perf_counter() - start)
    faiss.omp_set_num_threads(cores)
    line = [f"{len(centroids):,}"]
    true = np.concatenate(nearest["kernel"]).tolist()
    for way in ways:
        pairs = zip(np.concatenate(nearest[way]).tolist(), true, strict=True)
        found = np.mean([len({*a} & {*b}) / NEAREST for a, b in pairs])
        line.append(f"{1000 * times[way].mean():.2f}" + (f", {found:.3f}" if way != "kernel" else ""))
    line.append(f"{grouped - begin:.1f}, {built - grouped:.0f}")
    return line, kernel, groups


def whole_searches(
    index: Index,
    lists: CellLists,
    kernel: probing.Centroids,
    groups: probing.Centroids,
    queries: list[EncodedText],
    exact: list[set[str]],
) -> list[str]:
    """For each of the settings: recall with the kernel and with groups, and the ratio of the times of gathering."""
    documents = len(index)
    ways = [CellGatherer(centroids, [(0, documents, lists)], documents) for centroids in (kernel, groups)]
    line = []
    for settings in SETTINGS.values():
        recall: list[list[float]] = [[], []]
        times: list[list[float]] = [[], []]
        for query, best in zip(queries, exact, strict=True):
            several: list[list[float]] = [[], []]
            for _ in range(3):
                for way, gatherer in enumerate(ways):
                    index.snapshot._gatherers["cells"] = gatherer
                    ranking = index.search(query, gather="cells", **settings)
                    several[way].append(ranking.stats.milliseconds["gather"])
                    if len(several[way]) == 1:
                        recall[way].append(len(best & {hit.docno for hit in ranking}) / max(len(best), 1))
            for way in range(2):
                times[way].append(min(several[way]))
        line.append(f"{np.mean(recall[0]):.3f}, {np.mean(recall[1]):.3f}; {np.mean(times[1]) / np.mean(times[0]):.2f}")
    return line


if __name__ == "__main__":
    main()
