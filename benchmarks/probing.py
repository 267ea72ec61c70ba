"""How to find the nearest cells: meet all of them in a fused kernel, or walk a graph over them (FAISS HNSW).

    python benchmarks/probing.py --collection DIR --cache DIR [--most-documents 25000] [--cells 10000 ... 1000000]

Embeddings of the collection stand in for centroids. Each query looks for the 32 nearest of each of its 8 most important
embeddings, one thread, kernel and graph in turn. Prints a Markdown table: milliseconds per query, the share of the true
nearest that is found, and the seconds that the graph takes to build.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter

import faiss
import numpy as np
from judged import encode, read_queries

from secateurs import prune
from secateurs.gather.cells import _NEVER, _probe
from secateurs.index.stores import Int8Store
from secateurs.maxsim import round_query
from secateurs.simd import pack

KEPT, NPROBE = 8, 32
BREADTHS = (32, 64, 128)  # efSearch
ROUNDS = 5


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-documents", type=int, default=25_000)
    arguments.add_argument("--most-queries", type=int, default=50)
    arguments.add_argument("--cells", type=int, nargs="+", default=[10_000, 30_000, 100_000, 300_000, 1_000_000])
    options = arguments.parse_args()
    index = encode(options.collection, options.cache, options.most_documents)
    (segment,) = index.segments
    texts, _ = read_queries(options.collection, options.most_queries)
    encoded = [index.encode_query(text) for text in texts.values()]
    queries = [query.embeddings[prune(query, index.frequencies, KEPT)] for query in encoded]
    cores = faiss.omp_get_max_threads()
    print("| cells | kernel ms | " + " | ".join(f"graph, ef {n}: ms, found" for n in BREADTHS) + " | graph build s |")
    print("|---|---|" + "---|" * (len(BREADTHS) + 1))
    for cells in options.cells:
        rows = np.random.default_rng(0).choice(segment.offsets[-1], cells, replace=False)
        sample = segment.embeddings.rows[np.sort(rows)].astype(np.float32)
        store = Int8Store.fit(sample.mean(axis=0), sample)
        packed, start = pack(store.encode(sample))
        start[cells:] = _NEVER
        graph = faiss.IndexHNSWFlat(sample.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
        begin = perf_counter()
        graph.add(sample)
        build = perf_counter() - begin
        faiss.omp_set_num_threads(1)
        times: dict[object, list[float]] = {name: [] for name in ("kernel", *BREADTHS)}
        found: dict[object, list[float]] = {name: [] for name in BREADTHS}
        for _ in range(ROUNDS):
            for query in queries:
                rounded, _ = round_query(query)
                best = np.zeros((KEPT, NPROBE), dtype=np.int32)
                products = np.full((KEPT, NPROBE), _NEVER, dtype=np.int32)
                begin = perf_counter()
                _probe(rounded, len(query), packed, start, best, products)
                times["kernel"].append(perf_counter() - begin)
                for breadth in BREADTHS:
                    graph.hnsw.efSearch = breadth
                    begin = perf_counter()
                    _, numbers = graph.search(query, NPROBE)
                    times[breadth].append(perf_counter() - begin)
                    pairs = zip(numbers.tolist(), best.tolist(), strict=True)
                    found[breadth].append(float(np.mean([len({*a} & {*b}) / NPROBE for a, b in pairs])))
        faiss.omp_set_num_threads(cores)
        line = [f"{cells:,}", f"{1000 * np.median(times['kernel']):.2f}"]
        line += [f"{1000 * np.median(times[n]):.2f}, {np.mean(found[n]):.3f}" for n in BREADTHS]
        print(f"| {' | '.join(line)} | {build:.0f} |", flush=True)


if __name__ == "__main__":
    main()
