"""What each store loses against float32: exhaustive MaxSim over the same embeddings.

    python benchmarks/stores.py --collection DIR [--most-documents N]

Encodes the collection once, keeps the float32 embeddings in memory (so take a small collection, or a part of one), and
compares the ten best documents of every query, and nDCG@10.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
from judged import measure, progress, read_queries

from secateurs import Document, Index, load_encoder
from secateurs.corpus import read_corpus
from secateurs.kernels.maxsim import maxsim

STORED = ("embeddings.npy", "embedding_cells.npy", "cell_centroids.npy")  # what scoring reads


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--most-documents", type=int, default=20_000)
    arguments.add_argument("--most-queries", type=int, default=100)
    options = arguments.parse_args()
    encoder = load_encoder()
    texts, qrels = read_queries(options.collection, options.most_queries)
    queries = {qid: encoder.encode_query(text) for qid, text in texts.items()}
    plain = list(islice(read_corpus(options.collection / "corpus.jsonl.gz"), options.most_documents))
    encoded = progress(encoder.encode_documents(d.text for d in plain), total=len(plain), description="encoding")
    documents = [Document(d.docno, "", {}, e) for d, e in zip(plain, encoded, strict=True)]
    rows = np.concatenate([d.encoded.embeddings for d in documents if d.encoded is not None])
    offsets = np.cumsum([0, *(len(d.encoded) for d in documents if d.encoded is not None)])
    exact: dict[str, list[tuple[str, float]]] = {}
    for qid, query in progress(queries.items(), description="float32"):
        scores = maxsim(query.embeddings, rows, offsets[:-1], offsets[1:])
        exact[qid] = [(documents[i].docno, float(scores[i])) for i in np.argsort(-scores)[:10]]

    print(f"{len(queries)} queries, {len(documents):,} documents, {len(rows):,} embeddings\n")
    print("| store | bytes per embedding | top 10 shared with float32 | nDCG@10 |")
    print("|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for store in ("float32", "float16", "int8", "residual4"):
            run, width = exact, 4 * rows.shape[1]
            if store != "float32":
                index = Index.build(Path(folder) / store, documents, encoder=None, store=store, gather=())
                found = {qid: index.search(query, gather="exhaustive") for qid, query in queries.items()}
                run = {qid: [(hit.docno, hit.score) for hit in ranking] for qid, ranking in found.items()}
                files = index.snapshot.segments[0].record.files
                width = sum(files[name]["bytes"] for name in STORED if name in files) / len(rows)
            shared = [len({d for d, _ in run[qid]} & {d for d, _ in exact[qid]}) / len(exact[qid]) for qid in queries]
            ndcg = measure(qrels, run, ["nDCG@10"])["nDCG@10"]
            print(f"| {store} | {width:.0f} | {np.mean(shared):.3f} | {ndcg:.4f} |")


if __name__ == "__main__":
    main()
