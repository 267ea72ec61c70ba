"""Test collections for the benchmarks: folders with a corpus, queries and judgements.

Layout of a collection folder: corpus.jsonl.gz ({"docno", "text"} a line), queries[.split].tsv (qid, tab, text),
qrels[.split] (TREC format).
"""

from __future__ import annotations

import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import ir_measures
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from secateurs import Document, EncodedText, Index
from secateurs.corpus import read_corpus
from secateurs.storage.cell_lists import make_cells
from secateurs.storage.position_rows import tokens_of_rows
from secateurs.storage.summaries import cells_of_summaries, summary_rows

T = TypeVar("T")


@dataclass(frozen=True)
class Collection:
    index: Index
    queries: dict[str, EncodedText]  # encoded once
    qrels: list[ir_measures.Qrel]

    @property
    def graded(self) -> bool:
        return max(qrel.relevance for qrel in self.qrels) > 1


def progress(items: Iterable[T], description: str, total: float | None = None) -> Iterable[T]:
    """A progress bar on standard error, because standard output is for the table."""
    return track(items, description, total, console=Console(stderr=True))


def read_queries(
    folder: Path, most: int | None = None, index: Index | None = None
) -> tuple[dict[str, str], list[ir_measures.Qrel]]:
    """The queries that have a relevant document, in the index if it is given; at most so many (a seeded sample).

    And their judgements.
    """
    queries_file = min(folder.glob("queries*.tsv"), key=lambda path: len(path.name))
    qrels_file = folder / queries_file.name.replace("queries", "qrels").removesuffix(".tsv")
    texts = dict(line.split("\t", 1) for line in queries_file.read_text("utf-8").splitlines())
    qrels = [qrel for qrel in ir_measures.read_trec_qrels(str(qrels_file)) if qrel.query_id in texts]
    relevant = [qrel for qrel in qrels if qrel.relevance > 0 and (index is None or qrel.doc_id in index)]
    qids = sorted({qrel.query_id for qrel in relevant})
    if most is not None and len(qids) > most:
        qids = random.Random(0).sample(qids, most)
    chosen = set(qids)
    return {qid: texts[qid] for qid in qids}, [qrel for qrel in qrels if qrel.query_id in chosen]


class StoredEmbeddings:
    """The encoder of an index, which gives the embeddings that the index has stored instead of computing them again."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._pending: deque[tuple[str, EncodedText]] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index.encoder, name)

    def documents(self) -> Iterator[Document]:
        """Those of the index, without their embeddings, which `encode_documents` gives in the same order."""
        for document in self._index.documents():
            assert document.encoded is not None
            self._pending.append((document.text, document.encoded))
            yield replace(document, encoded=None)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        for text in texts:
            expected, encoded = self._pending.popleft()
            while expected != text:  # a document that was taken over from an interrupted build
                expected, encoded = self._pending.popleft()
            yield encoded


def encode(folder: Path, cache: Path, most_documents: int | None = None) -> Index:
    """The collection's embeddings as float16, all of them, encoded once for all indexes that are made of them.

    A part of a collection begins with the documents that answer a query, so that many queries have their answers in it.
    If more of the collection is in the cache already, the part is copied from there.
    """
    path = cache / f"{folder.name}{f'-{most_documents}' if most_documents else ''}.f16.sec"
    if path.exists():
        return Index(path)
    larger = _larger(folder, cache, most_documents)
    if larger is not None:
        stored = StoredEmbeddings(larger)
        part = islice(_answers_first(folder, stored.documents), most_documents)
        return Index.build(path, part, encoder=stored, store="float16", gather=(), merge=None)

    def read() -> Iterator[Document]:
        # Cranfield has a document without text, which cannot be indexed: it is named and left out.
        return read_corpus(folder / "corpus.jsonl.gz", on_bad=Console(stderr=True).print)

    documents = read() if most_documents is None else islice(_answers_first(folder, read), most_documents)
    return Index.build(path, documents, store="float16", gather=(), merge=None)


def _answers_first(folder: Path, read: Callable[[], Iterator[Document]]) -> Iterator[Document]:
    """Documents that are relevant to a query, then the others."""
    _, qrels = read_queries(folder)
    answers = {qrel.doc_id for qrel in qrels if qrel.relevance > 0}
    yield from (document for document in read() if document.docno in answers)
    yield from (document for document in read() if document.docno not in answers)


def _larger(folder: Path, cache: Path, most_documents: int | None) -> Index | None:
    """An index in the cache that has these documents of the collection, and more."""
    if most_documents is None:
        return None
    for path in sorted(cache.glob(f"{folder.name}*.f16.sec")):
        taken = path.name.removeprefix(folder.name).removesuffix(".f16.sec").removeprefix("-")
        if not taken or (taken.isdigit() and int(taken) > most_documents):
            return Index(path)
    return None


def open_collection(
    folder: Path,
    cache: Path,
    most_queries: int | None = None,
    store: str = "int8",
    gather: tuple[str, ...] = ("cells", "faiss"),
    most_documents: int | None = None,
) -> Collection:
    """Index the collection with all its embeddings, or reuse the index of an earlier run; encode its queries."""
    encoded = encode(folder, cache, most_documents)
    path = cache / f"{encoded.path.name.removesuffix('.f16.sec')}.{store}.{'.'.join(gather)}.sec"
    if not path.exists():
        stored = StoredEmbeddings(encoded)
        Index.build(path, stored.documents(), encoder=stored, store=store, gather=gather, merge=None)
    # Queries about what is left out would measure nothing.
    texts, qrels = read_queries(folder, most_queries, encoded if most_documents is not None else None)
    return Collection(Index(path), {qid: encoded.encode_query(text) for qid, text in texts.items()}, qrels)


def open_slice(given: str, cache: Path, most_queries: int | None = None, **options: Any) -> tuple[str, Collection]:
    """A collection by its folder, or `FOLDER:DOCUMENTS` for a part of it (see `encode`); and its name."""
    folder, _, documents = given.partition(":")
    most = int(documents) if documents else None
    opened = open_collection(Path(folder), cache, most_queries, most_documents=most, **options)
    return Path(folder).name, opened


def cells_again(index: Index) -> tuple[NDArray[np.int8], NDArray[np.uint32]]:
    """Centroids, and the cell of each embedding, of an index of one segment. Clustering is deterministic."""
    (segment,) = index.snapshot.segments
    tokens = tokens_of_rows(segment.offsets, segment.positions, np.asarray(segment.token_ids), segment.frequencies)
    summaries = summary_rows(segment.offsets, segment.positions, segment.token_kinds)
    finer = {} if summaries is None else cells_of_summaries(tokens, summaries)
    cells = np.empty(len(tokens), dtype=np.uint32)
    with tempfile.TemporaryDirectory() as folder:
        rows = np.asarray(segment.rows)
        centroids, _ = make_cells(Path(folder), segment.offsets, tokens, rows, cells, finer)
    if not np.array_equal(centroids, index.snapshot.codebook.centroids):
        raise SystemExit(f"{index.path}: the cells are not those of this version: build the index again")
    return centroids, cells


def per_query(
    qrels: list[ir_measures.Qrel], run: dict[str, list[tuple[str, float]]], names: list[str]
) -> dict[str, dict[str, float]]:
    """Each measure for each query: name -> qid -> value."""
    scored = [ir_measures.ScoredDoc(qid, docno, score) for qid, hits in run.items() for docno, score in hits]
    measures = {ir_measures.parse_measure(name): name for name in names}
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(run, 0.0) for name in names}
    for metric in ir_measures.iter_calc(list(measures), qrels, scored):
        values[measures[metric.measure]][metric.query_id] = metric.value
    return values


def ndcg_of(qrels: list[ir_measures.Qrel], run: dict[str, list[tuple[str, float]]]) -> NDArray[np.float64]:
    """nDCG@10 of each query, in the order of the run."""
    found = per_query(qrels, run, ["nDCG@10"])["nDCG@10"]
    return np.array([found[qid] for qid in run])


def measure(
    qrels: list[ir_measures.Qrel], run: dict[str, list[tuple[str, float]]], names: list[str]
) -> dict[str, float]:
    """Mean of each measure over the queries. `run` maps a qid to (docno, score) pairs."""
    values = per_query(qrels, run, names)
    return {name: sum(values[name].values()) / len(values[name]) for name in names}
