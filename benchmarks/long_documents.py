"""Documents that are longer than the encoder takes at once: cut, or encoded in overlapping windows.

    python benchmarks/long_documents.py --collections DIR[:DOCUMENTS] [...] [--most-queries 300] [--ways WAY ...]

For each collection and each way: embeddings a document (merged, as by default), the time of building the index as a
multiple of cutting, and nDCG@10 by exhaustive and by default search. A star: significantly different from cutting
(paired t-test over the queries, p < 0.05 after Bonferroni's correction for the comparisons of the table).
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from judged import ndcg_of, progress, read_queries
from numpy.typing import NDArray
from rich.console import Console
from scipy.stats import ttest_rel

from secateurs import Index, load_encoder
from secateurs.corpus import read_corpus

WAYS: dict[str, dict[str, Any]] = {
    "cut at 300": {"overlap": None},
    "cut at 512": {"overlap": None, "document_limit": 512},
    "windows of 300, overlap 0": {"overlap": 0},
    "windows of 300, overlap 64": {"overlap": 64},
    "windows of 180, overlap 32": {"overlap": 32, "document_limit": 180},
    "windows of 512, overlap 64": {"overlap": 64, "document_limit": 512},
}
K = 10


def values(index: Index, queries: dict[str, str], qrels: list, **settings: Any) -> NDArray[np.float64]:
    run = {qid: [(hit.docno, hit.score) for hit in index.search(text, K, **settings)] for qid, text in queries.items()}
    return ndcg_of(qrels, run)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--most-queries", type=int, default=300)
    arguments.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    options = arguments.parse_args()
    lines = []
    for given in options.collections:
        folder, _, most = given.partition(":")
        documents = list(
            islice(
                read_corpus(Path(folder) / "corpus.jsonl.gz", on_bad=Console(stderr=True).print),
                int(most) if most else None,
            )
        )
        for way in progress(options.ways, Path(folder).name):
            with tempfile.TemporaryDirectory() as temporary:
                start = perf_counter()
                index = Index.build(Path(temporary) / "long.sec", documents, encoder=load_encoder(settings=WAYS[way]))
                seconds = perf_counter() - start
                queries, qrels = read_queries(Path(folder), options.most_queries, index if most else None)
                found = [values(index, queries, qrels, gather=gather) for gather in ("exhaustive", "cells")]
                info = index.info()
            lines.append((Path(folder).name, way, info, seconds, found, len(queries)))
    comparisons = 2 * len(options.collections) * (len(options.ways) - 1)
    print("| collection | queries | documents | way | embeddings a document | time | exhaustive | default |")
    print("|---" * 8 + "|")
    for name, way, info, seconds, found, count in lines:
        base = next(line for line in lines if line[0] == name)
        numbers = []
        for mine, cut in zip(found, base[4], strict=True):
            is_different = (mine != cut).any() and ttest_rel(mine, cut).pvalue * comparisons < 0.05
            numbers.append(f"{mine.mean():.4f}{'*' if is_different else ''}")
        size = info["embeddings"] / info["documents"]
        print(
            f"| {name} | {count} | {info['documents']:,} | {way} | {size:.0f} | {seconds / base[3]:.2f} | "
            f"{' | '.join(numbers)} |"
        )


if __name__ == "__main__":
    main()
