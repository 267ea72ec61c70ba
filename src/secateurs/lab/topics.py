"""What an experiment asks, and what would be right: queries and relevance judgements."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..corpus import IR_DATASETS
from ..errors import SecateursError, UsageError, require
from ..queries import read_lines, read_queries
from ..records import EncodedText


@dataclass(frozen=True)
class Topics:
    """Queries with their judgements; only queries that somebody judged are kept.

    `encoded` is for queries that bring their embeddings; the others are encoded by the index's encoder.
    """

    queries: Mapping[str, str]  # qid -> text
    qrels: Mapping[str, Mapping[str, int]]  # qid -> docno -> grade
    encoded: Mapping[str, EncodedText] = field(default_factory=dict)

    def __post_init__(self) -> None:
        judged = {qid: text for qid, text in self.queries.items() if self.qrels.get(qid)}
        if not judged:
            raise SecateursError("no query has a judgement: are the queries and the qrels of the same collection?")
        object.__setattr__(self, "queries", judged)

    def __len__(self) -> int:
        return len(self.queries)

    def relevant(self, qid: str, grade: int) -> set[str]:
        """Docnos with at least that grade."""
        return {docno for docno, given in self.qrels[qid].items() if given >= grade}

    def sample(self, size: int, seed: int = 0) -> Topics:
        """At most so many of the queries, the same ones every time."""
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
            one = self.encoded[qid]
            for part in (one.embeddings, one.token_ids, one.token_kinds):
                digest.update(part.tobytes())
        return digest.hexdigest()[:16]


def read_topics(queries: str, qrels: str) -> Topics:
    """From files (qid, tab, text; and TREC qrels), or from "ir_datasets:ID", which may name both."""
    return Topics(dict(_queries(queries)), _group(_qrels(qrels)))


def _queries(source: str) -> Iterator[tuple[str, str]]:
    if source.startswith(IR_DATASETS):
        for query in _from_dataset(source, "queries_iter"):
            yield query.query_id, query.default_text()
        return
    seen: set[str] = set()
    for qid, text in read_queries(source, named=True):
        if qid in seen:
            raise SecateursError(f"{source}: two queries have the qid {qid!r}")
        seen.add(qid)
        yield qid, text


def _qrels(source: str) -> Iterator[tuple[str, str, int]]:
    if source.startswith(IR_DATASETS):
        for qrel in _from_dataset(source, "qrels_iter"):
            yield qrel.query_id, qrel.doc_id, qrel.relevance
        return
    for place, (qid, _, docno, grade) in columns(Path(source), 4, "qid, iteration, docno, grade"):
        try:
            yield qid, docno, int(grade)
        except ValueError as error:
            raise SecateursError(f"{place}: a grade is a whole number, not {grade!r}") from error


def columns(path: Path, count: int, meaning: str) -> Iterator[tuple[str, list[str]]]:
    """(place, words) of each line of a TREC file, where every line has so many words."""
    for number, line in enumerate(read_lines(str(path)), start=1):
        place, words = f"{path}, line {number}", line.split()
        if not words:
            continue
        if len(words) != count:
            raise SecateursError(f"{place}: has {len(words)} columns and not {count} ({meaning})")
        yield place, words


def _group(qrels: Iterator[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    grouped: dict[str, dict[str, int]] = {}
    for qid, docno, grade in qrels:
        judged = grouped.setdefault(qid, {})
        if judged.setdefault(docno, grade) != grade:
            raise SecateursError(f"the qrels give {docno!r} two grades for query {qid!r}: {judged[docno]} and {grade}")
    return grouped


def _from_dataset(source: str, what: str) -> Iterator[Any]:
    name = source.removeprefix(IR_DATASETS)
    library = require("ir_datasets", "datasets")
    try:
        yield from getattr(library.load(name), what)()
    except (KeyError, AttributeError) as error:
        raise SecateursError(f"ir_datasets has no {name!r} with queries and judgements") from error
    except (RuntimeError, OSError) as error:
        raise SecateursError(
            f"ir_datasets cannot download {name!r}: is there a network? Files of your own work too"
        ) from error
