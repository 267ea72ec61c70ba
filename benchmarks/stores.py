"""What each store loses against float32: exhaustive MaxSim over the same embeddings.

    python benchmarks/stores.py --collection DIR [--most-documents N]

Encodes the collection once, keeps the float32 embeddings in memory (so take a small collection, or a part of one), and
compares the ten best documents of every query, and nDCG@10. Beside exhaustive search, the default search: what it
shares with the exact ten best, and its time relative to that of int8.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from judged import encode, measure, progress, read_queries

from secateurs import Document, EncodedText, Index, load_encoder
from secateurs.corpus import read_corpus
from secateurs.settings import STORES

STORED = (  # what scoring reads
    "embeddings.npy",
    "refinements.npy",
    "code_numbers.npy",
    "code_centroids.npy",
    "code_levels.npy",
)

Run = dict[str, list[tuple[str, float]]]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--most-documents", type=int, default=20_000)
    arguments.add_argument("--most-queries", type=int, default=100)
    arguments.add_argument(
        "--cache", type=Path, help="take the embeddings that other benchmarks stored there as float16"
    )
    arguments.add_argument("--rounds", type=int, default=7)
    options = arguments.parse_args()
    encoder = load_encoder()
    texts, qrels = read_queries(options.collection, options.most_queries)
    queries = {qid: encoder.encode_query(text) for qid, text in texts.items()}
    if options.cache is not None:
        stored = encode(options.collection, options.cache)
        documents = [Document(d.docno, "", {}, d.encoded) for d in islice(stored.documents(), options.most_documents)]
    else:
        plain = list(islice(read_corpus(options.collection / "corpus.jsonl.gz"), options.most_documents))
        encoded = progress(encoder.encode_documents(d.text for d in plain), total=len(plain), description="encoding")
        documents = [Document(d.docno, "", {}, e) for d, e in zip(plain, encoded, strict=True)]
    documents = [d for d in documents if d.encoded is not None and len(d.encoded)]
    rows = np.concatenate([d.encoded.embeddings for d in documents if d.encoded is not None])
    offsets = np.cumsum([0, *(len(d.encoded) for d in documents if d.encoded is not None)])
    exact: Run = {}
    for qid, query in progress(queries.items(), description="float32"):
        scores = np.maximum.reduceat(rows @ query.weighted.T, offsets[:-1], axis=0).sum(axis=1, dtype=np.float64)
        exact[qid] = [(documents[i].docno, float(scores[i])) for i in np.argsort(-scores)[:10]]

    print(f"{len(queries)} queries, {len(documents):,} documents, {len(rows):,} embeddings\n")
    print("| store | bytes per embedding | top 10 shared with float32 | nDCG@10 | default search | time | exhaustive |")
    print("|---|---|---|---|---|---|---|")
    print(f"| float32 | {4 * rows.shape[1]} | 1.000 | {measure(qrels, exact, ['nDCG@10'])['nDCG@10']:.4f} | | | |")
    with tempfile.TemporaryDirectory() as folder:
        indexes: dict[str, Index] = {
            store: Index.build(Path(folder) / store, documents, encoder=None, store=store, gather="cells", merge=None)
            for store in STORES
        }
        times = alternate(indexes, list(queries.values()), options.rounds)
        exhaustive = alternate(indexes, list(queries.values()), 2, gather="exhaustive")
        for store, index in indexes.items():
            found = {qid: index.search(query, gather="exhaustive") for qid, query in queries.items()}
            run = {qid: [(hit.docno, hit.score) for hit in ranking] for qid, ranking in found.items()}
            default = {qid: [(hit.docno, hit.score) for hit in index.search(query)] for qid, query in queries.items()}
            files = index.snapshot.segments[0].record.files | index.snapshot.codebook.record.files
            width = sum(files[name]["bytes"] for name in STORED if name in files) / len(rows)
            ndcg = measure(qrels, run, ["nDCG@10"])["nDCG@10"]
            print(
                f"| {store} | {width:.0f} | {shared(run, exact):.3f} | {ndcg:.4f} | {shared(default, exact):.3f} "
                f"| {times[store] / times['int8']:.2f} | {exhaustive[store] / exhaustive['int8']:.2f} |"
            )


def shared(run: Run, exact: Run) -> float:
    """The mean share of the exact ten best that a run has."""
    return float(
        np.mean([len({d for d, _ in run[qid]} & {d for d, _ in exact[qid]}) / len(exact[qid]) for qid in exact])
    )


def alternate(indexes: dict[str, Index], queries: list[EncodedText], rounds: int, **how: Any) -> dict[str, float]:
    """Seconds of the search with each index: the sum, over the queries, of the fastest of several rounds.

    The indexes are searched in turn with every query, and the order is turned around each time, so that whatever else
    the machine does slows all of them.
    """
    fastest = {store: np.full(len(queries), np.inf) for store in indexes}
    for turn in range(rounds):
        for i, query in enumerate(queries):
            for store in list(indexes)[:: 1 if (turn + i) % 2 else -1]:
                start = perf_counter()
                indexes[store].search(query, **how)
                fastest[store][i] = min(fastest[store][i], perf_counter() - start)
    return {store: float(times.sum()) for store, times in fastest.items()}


if __name__ == "__main__":
    main()
