"""Pruning in front of other databases: the same search of the same engine with all query embeddings and with a few.

    python benchmarks/databases.py --collection DIR[:DOCUMENTS] --cache CACHE [--engines lancedb qdrant voyager milvus]

Every engine holds the same embeddings, every search goes through secateurs.integrations, and all settings of an engine
take turns, query by query. Times are multiples of the engine's first row, the search with all embeddings. "Depth" is
`candidates` (LanceDB, Qdrant) or `k_prime` (Voyager, Milvus). "Scored" documents are scored with all embeddings.

Qdrant is measured by Qdrant Edge (pip install qdrant-edge-py), the engine of the server inside this process. It has no
graph over the multivectors, as Qdrant recommends for them, and compares the query with every document.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from judged import encode, measure, progress, read_queries

from secateurs import Document, EncodedText, Frequencies
from secateurs.kernels.maxsim import maxsim

Run = dict[str, list[tuple[str, float]]]
Search = Callable[..., list[tuple[str, float]]]
DEPTHS = {
    "lancedb": ("candidates", (25, 100, 200)),
    "qdrant": ("candidates", (100, 500)),
    "voyager": ("k_prime", (15, 50, 100)),
    "milvus": ("k_prime", (15, 50, 100)),
}
KEPT: tuple[tuple[int | None, str], ...] = ((None, "focus"), (6, "focus"), (3, "focus"), (3, "icf"))


def open_lancedb(path: Path, documents: list[Document], frequencies: Frequencies) -> tuple[Search, ModuleType]:
    import lancedb
    import pyarrow
    from lancedb.index import IvfPq

    from secateurs.integrations import lancedb as adapter

    is_new, database = not path.exists(), lancedb.connect(path)  # connecting makes the folder
    if is_new:
        rows = np.concatenate([d.encoded.embeddings for d in documents])
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), rows.shape[1])
        offsets = pyarrow.array(np.cumsum([0, *(len(d.encoded) for d in documents)]), pyarrow.int32())
        columns = {
            "docno": [d.docno for d in documents],
            "vector": pyarrow.ListArray.from_arrays(offsets, vectors),
        }
        table = database.create_table("documents", pyarrow.table(columns))
        # The library would choose the number of partitions from the number of documents, and so make them far too few.
        table.create_index("vector", config=IvfPq(distance_type="cosine", num_partitions=round(len(rows) ** 0.5)))
    return adapter.PrunedSearch(database.open_table("documents"), frequencies).search, adapter


class EdgeClient:
    """What secateurs.integrations.qdrant asks of a client, answered by a shard of Qdrant Edge."""

    def __init__(self, path: Path, documents: list[Document]) -> None:
        import qdrant_edge as edge

        self.edge = edge
        dim = documents[0].encoded.embeddings.shape[1]
        if path.exists():
            self.shard = edge.EdgeShard.load(str(path))
        else:
            path.mkdir(parents=True)
            by_maxsim = edge.MultiVectorConfig(comparator=edge.MultiVectorComparator.MaxSim)
            vector = edge.EdgeVectorParams(
                size=dim,
                distance=edge.Distance.Dot,
                multivector_config=by_maxsim,
                hnsw_config=edge.HnswIndexConfig(m=0, ef_construct=100, full_scan_threshold=10_000),
            )
            self.shard = edge.EdgeShard.create(str(path), edge.EdgeConfig(vectors={"colbert": vector}))
            for first in range(0, len(documents), 500):
                points = [
                    edge.Point(
                        id=number,
                        vector={"colbert": documents[number].encoded.embeddings.tolist()},
                        payload={"docno": documents[number].docno},
                    )
                    for number in range(first, min(first + 500, len(documents)))
                ]
                self.shard.update(edge.UpdateOperation.upsert_points(points))
        self.vectors = {"colbert": SimpleNamespace(size=dim, distance="Dot", multivector_config=True)}

    def collection_exists(self, name: str) -> bool:
        return True

    def get_collection(self, name: str) -> Any:
        return SimpleNamespace(config=SimpleNamespace(params=SimpleNamespace(vectors=self.vectors)))

    def query_points(
        self, name: str, query: Any, using: str, limit: int, prefetch: Any = None, with_payload: Any = None, **rest: Any
    ) -> Any:
        nearest = self.edge.Query.Nearest
        first_stage = []
        if prefetch is not None:
            first_stage = [self.edge.Prefetch(query=nearest(prefetch.query, using=using), limit=prefetch.limit)]
        request = self.edge.QueryRequest(
            limit=limit, query=nearest(query, using=using), prefetches=first_stage, with_payload=with_payload
        )
        return SimpleNamespace(points=self.shard.query(request))


def open_qdrant(path: Path, documents: list[Document], frequencies: Frequencies) -> tuple[Search, ModuleType]:
    from secateurs.integrations import qdrant as adapter

    client = EdgeClient(path, documents)
    return adapter.PrunedSearch(client, "documents", frequencies, vector="colbert", docno="docno").search, adapter


def open_voyager(path: Path, documents: list[Document], frequencies: Frequencies) -> tuple[Search, ModuleType]:
    from voyager import Index, Space

    from secateurs.integrations import voyager as adapter

    ends = np.cumsum([len(d.encoded) for d in documents])
    if not path.exists():
        index = Index(Space.InnerProduct, documents[0].encoded.embeddings.shape[1], M=12, ef_construction=100)
        index.add_items(np.concatenate([d.encoded.embeddings for d in documents]))
        index.save(str(path))
    ids = {d.docno: range(end - len(d.encoded), end) for d, end in zip(documents, ends.tolist(), strict=True)}
    return adapter.PrunedSearch(Index.load(str(path)), ids, frequencies).search, adapter


def open_milvus(path: Path, documents: list[Document], frequencies: Frequencies) -> tuple[Search, ModuleType]:
    from pymilvus import DataType, MilvusClient

    from secateurs.integrations import milvus as adapter

    client = MilvusClient(str(path.with_suffix(".db")))
    if not client.has_collection("documents"):
        schema = client.create_schema(auto_id=True)
        schema.add_field("id", DataType.INT64, is_primary=True)
        schema.add_field("docno", DataType.VARCHAR, max_length=100)
        schema.add_field("vector", DataType.FLOAT_VECTOR, dim=documents[0].encoded.embeddings.shape[1])
        indexes = client.prepare_index_params()
        graph = {"M": 12, "efConstruction": 100}
        indexes.add_index("vector", index_type="HNSW", metric_type="IP", params=graph)
        indexes.add_index("docno", index_type="INVERTED")
        client.create_collection("documents", schema=schema, index_params=indexes)
        for first in range(0, len(documents), 200):
            chosen = documents[first : first + 200]
            rows = [{"docno": d.docno, "vector": row.tolist()} for d in chosen for row in d.encoded.embeddings]
            client.insert("documents", rows)
        client.flush("documents")
    client.load_collection("documents")
    return adapter.PrunedSearch(client, "documents", frequencies).search, adapter


OPEN = {"lancedb": open_lancedb, "qdrant": open_qdrant, "voyager": open_voyager, "milvus": open_milvus}


def exact_tens(queries: dict[str, EncodedText], documents: list[Document]) -> Run:
    rows = np.concatenate([d.encoded.embeddings for d in documents])
    ends = np.cumsum([len(d.encoded) for d in documents])
    starts = ends - [len(d.encoded) for d in documents]
    exact: Run = {}
    for qid, query in progress(queries.items(), "exact scores"):
        scores = maxsim(query.weighted, rows, starts, ends)
        exact[qid] = [(documents[i].docno, float(scores[i])) for i in np.argsort(-scores, kind="stable")[:10]]
    return exact


def documents_scored(adapter: ModuleType, search: Search, queries: list[EncodedText], setting: dict[str, Any]) -> float:
    """The mean number that was scored here; 0 if the database did it."""
    counts, score = [], adapter.best_documents

    def counted(query: EncodedText, docnos: list[str], *rest: Any) -> Any:
        counts.append(len(docnos))
        return score(query, docnos, *rest)

    adapter.best_documents = counted
    for query in queries:
        search(query, **setting)
    adapter.best_documents = score
    return float(np.mean(counts)) if counts else 0.0


def shared(run: Run, exact: Run) -> float:
    return float(np.mean([len({d for d, _ in run[q]} & {d for d, _ in exact[q]}) / len(exact[q]) for q in exact]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument(
        "--collection", required=True, help="a folder, or FOLDER:DOCUMENTS for a part of it (see judged.encode)"
    )
    arguments.add_argument(
        "--cache", type=Path, required=True, help="with the embeddings; the databases are kept there"
    )
    arguments.add_argument("--databases", type=Path, help="keep the databases there instead")
    arguments.add_argument("--engines", nargs="+", default=list(OPEN), choices=list(OPEN))
    arguments.add_argument("--most-queries", type=int, default=40)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    folder, _, most = options.collection.partition(":")
    index = encode(Path(folder), options.cache)
    documents = list(islice(index.documents(), int(most) if most else None))
    docnos = {d.docno for d in documents}
    mean = np.concatenate([document.encoded.embeddings for document in documents]).mean(axis=0)
    frequencies = Frequencies.count(document.encoded.token_ids for document in documents).with_centre(mean)
    texts, judged = read_queries(Path(folder), options.most_queries, docnos if most else None)
    qrels = [qrel for qrel in judged if qrel.doc_id in docnos]
    queries = {qid: index.encode_query(text) for qid, text in texts.items()}
    exact = exact_tens(queries, documents)
    lengths = np.mean([len(query) for query in queries.values()])
    print(
        f"{Path(folder).name}: {len(queries)} queries of {lengths:.0f} embeddings on average, {len(documents):,} ",
        end="",
    )
    print(f"documents, {frequencies.embeddings:,} embeddings, nDCG@10 of the exact ten ", end="")
    print(f"{measure(qrels, exact, ['nDCG@10'])['nDCG@10']:.4f}\n")
    print("| engine | depth | kept | ms | time | documents scored | nDCG@10 | share of the exact ten |", flush=True)
    print("|---|---|---|---|---|---|---|---|")
    home = (options.databases or options.cache / "databases") / f"{Path(folder).name}-{len(documents)}"
    home.mkdir(parents=True, exist_ok=True)
    for engine in options.engines:
        started = perf_counter()
        try:
            search, adapter = OPEN[engine](home / engine, documents, frequencies)
        except ImportError as error:
            print(f"{engine} is left out: {error}", file=sys.stderr)
            continue
        progress_line = f"{engine}: opened in {perf_counter() - started:.0f} s"
        depth, values = DEPTHS[engine]
        settings = [{depth: value, "p": p, "order": order} for value in values for p, order in KEPT]
        fastest = np.full((len(settings), len(queries)), np.inf)
        runs: list[Run] = [{} for _ in settings]
        turns = [(turn, item) for turn in range(options.rounds) for item in enumerate(queries.items())]
        for turn, (number, (qid, query)) in progress(turns, progress_line):
            for i in range(len(settings))[:: 1 if (turn + number) % 2 else -1]:
                start = perf_counter()
                runs[i][qid] = [(hit[0], hit[1]) for hit in search(query, **settings[i])]
                fastest[i, number] = min(fastest[i, number], perf_counter() - start)
        for i, setting in enumerate(settings):
            scored = documents_scored(adapter, search, list(queries.values()), setting)
            if engine == "qdrant":  # the database scores: the prefetched documents, or without a prefetch all
                scored = len(documents) if setting["p"] is None else setting[depth]
            kept = "all" if setting["p"] is None else f"{setting['p']}, {setting['order']}"
            ndcg = measure(qrels, runs[i], ["nDCG@10"])["nDCG@10"]
            times = f"{1000 * fastest[i].mean():.1f} | {fastest[i].mean() / fastest[0].mean():.2f}"
            print(f"| {engine} | {setting[depth]} | {kept} | {times} | {scored:,.0f} | {ndcg:.4f} ", end="")
            print(f"| {shared(runs[i], exact):.3f} |", flush=True)


if __name__ == "__main__":
    main()
