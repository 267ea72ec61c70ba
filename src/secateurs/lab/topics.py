"""Queries and relevance judgements: the input of an experiment."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..corpus import IR_DATASETS, JSON_LINES, format_of, from_ir_datasets
from ..errors import SecateursError, UsageError
from ..queries import BEIR_QRELS_HEADER, read_lines, read_queries
from ..records import EncodedText

_TREC_COLUMNS = ("qid", "iteration", "docno", "grade")
_BEIR_COLUMNS = ("qid", "docno", "grade")


@dataclass(frozen=True)
class Topics:
    """Queries with their judgements. Queries without a judgement are dropped, and counted.

    `encoded` is for queries that bring their embeddings; the others are encoded by the index's encoder.
    """

    queries: Mapping[str, str]  # qid -> text
    qrels: Mapping[str, Mapping[str, int]]  # qid -> docno -> grade
    encoded: Mapping[str, EncodedText] = field(default_factory=dict)
    unjudged_queries: int | None = None  # queries without a judgement; counted where it is not given
    judged_qids_without_query: int | None = None  # the other way round

    def __post_init__(self) -> None:
        judged = {qid: text for qid, text in self.queries.items() if self.qrels.get(qid)}
        if self.unjudged_queries is None:
            object.__setattr__(self, "unjudged_queries", len(self.queries) - len(judged))
        if self.judged_qids_without_query is None:
            object.__setattr__(self, "judged_qids_without_query", sum(qid not in judged for qid in self.qrels))
        if not judged:
            raise SecateursError("no query has a judgement: are the queries and the qrels of the same collection?")
        object.__setattr__(self, "queries", judged)

    def __len__(self) -> int:
        return len(self.queries)

    def relevant(self, qid: str, grade: int) -> set[str]:
        """Docnos with at least that grade."""
        return {docno for docno, given in self.qrels[qid].items() if given >= grade}

    def sample(self, size: int, seed: int = 0) -> Topics:
        """At most `size` of the queries, the same ones every time."""
        if size < 1:
            raise UsageError(f"a sample has at least 1 query, not {size}")
        if size >= len(self):
            return self
        chosen = set(random.Random(seed).sample(sorted(self.queries), size))
        return replace(self, queries={qid: text for qid, text in self.queries.items() if qid in chosen})

    def fingerprint(self) -> str:
        """Changes with any query, judgement or embedding."""
        content = [sorted(self.queries.items()), [sorted(self.qrels[qid].items()) for qid in sorted(self.queries)]]
        digest = hashlib.sha256(json.dumps(content).encode())
        for qid in sorted(self.encoded.keys() & self.queries.keys()):
            query = self.encoded[qid]
            for part in (query.embeddings, query.token_ids, query.token_kinds):
                digest.update(part.tobytes())
        return digest.hexdigest()[:16]


def read_topics(queries: str, qrels: str) -> Topics:
    """From files of queries (queries.py says which) and of judgements (`read_qrels`), or from "ir_datasets:ID"."""
    return Topics(dict(read_queries(queries, named=True)), _group(read_qrels(qrels)))


def read_qrels(source: str) -> Iterator[tuple[str, str, int]]:
    """(qid, docno, grade) of every judgement: of TREC's four columns, or BEIR's three under their header line."""
    if source.startswith(IR_DATASETS):
        for qrel in from_ir_datasets(source, "qrels_iter"):
            yield qrel.query_id, qrel.doc_id, qrel.relevance
        return
    lines = list(read_lines(source))
    is_beir = bool(lines) and lines[0][1].split("\t") == BEIR_QRELS_HEADER
    names = _BEIR_COLUMNS if is_beir else _TREC_COLUMNS
    for number, line in lines[1:] if is_beir else lines:
        place, words = f"{source}, line {number}", line.split("\t") if is_beir else line.split()
        check_columns(place, words, names)
        named = dict(zip(names, words, strict=True))
        try:
            yield named["qid"], named["docno"], int(named["grade"])
        except ValueError as error:
            raise SecateursError(f"{place}: a grade is a whole number, not {named['grade']!r}") from error


def check_columns(place: str, words: Sequence[str], names: Sequence[str]) -> None:
    """Raise unless a line has as many words as there are columns."""
    if len(words) != len(names):
        raise SecateursError(f"{place}: has {len(words)} columns and not {len(names)} ({', '.join(names)})")


def collection_files(folder: Path) -> tuple[Path, Path, Path]:
    """The corpus, the queries and the judgements in a folder, by their names.

    They are corpus.*, the shortest name queries*, and what belongs to it: qrels.dev to queries.dev.tsv; or, as in BEIR,
    qrels/test.tsv to queries.jsonl.
    """
    if not folder.is_dir():
        raise SecateursError(f"there is no folder {folder}")
    corpora = [path for path in sorted(folder.glob("corpus.*")) if path.is_file()]
    queries = [path for path in folder.glob("queries*") if format_of(path) in (".tsv", *JSON_LINES)]
    if not corpora or not queries:
        raise SecateursError(
            f"{folder} is no collection: it needs corpus.jsonl (or .tsv, .csv) and queries.tsv (or .jsonl)"
        )
    shortest = min(queries, key=lambda path: (len(path.name), path.name))
    stem = shortest.name.removesuffix(".gz").rpartition(".")[0].replace("queries", "qrels")
    names = [f"{stem}{ending}{gz}" for ending in ("", ".txt", ".tsv") for gz in ("", ".gz")]
    qrels = [folder / name for name in (*names, f"{stem}/test.tsv")]
    return corpora[0], shortest, next((path for path in qrels if path.is_file()), qrels[0])


def _group(qrels: Iterator[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    grouped: dict[str, dict[str, int]] = {}
    for qid, docno, grade in qrels:
        judged = grouped.setdefault(qid, {})
        if judged.setdefault(docno, grade) != grade:
            raise SecateursError(f"the qrels give {docno!r} two grades for query {qid!r}: {judged[docno]} and {grade}")
    return grouped
