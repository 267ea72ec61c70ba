"""PyTerrier: the search as a transformer, each of its stages as a transformer, and the index as an artifact.

    index.retriever(p=3)  =  (QueryEncoder(index) >> Prune(index, p=3) >> Candidates(index) >> Scorer(index)) % 10

with the same documents, scores and ranks. Between the stages a query travels in columns of the frame:

    query_embs    (positions, dim) float32: all embeddings, which no stage shortens
    query_toks    (positions,) int32: the token behind each of them
    query_kinds   (positions,) uint8, see records.TokenKind
    query_keep    (p,) int64: the positions to gather with, most important first
    query_weights (positions,) float32: what each embedding counts for in the score; None, or no column: 1 each
    query_weighed the setting `weights` that is in query_weights already, such as "idf"; None, or no column: none

A stage uses these columns where the frame has them: the embeddings in place of encoding `query`, and `query_keep` in
place of `p` and `order`. So a query is encoded once, and scored with all of its embeddings. The setting `weights`
multiplies the weights that the encoder gave, if it gave any. `query_weighed` says that Prune has done that, so that no
later stage does it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import AnyIndex
from ..effort import make_plan
from ..errors import UsageError, require
from ..frequencies import Frequencies
from ..index import Index
from ..records import Document, EncodedText, Positions
from ..settings import OrderFunction, SearchSettings
from ..threads import in_order

require("pyterrier", "pyterrier")  # says which pip line is missing, where the imports below would only fail

import pandas as pd  # noqa: E402
import pyterrier as pt  # noqa: E402

ENCODED = ["query_embs", "query_toks", "query_kinds"]
KEEP = "query_keep"
WEIGHTS = "query_weights"
WEIGHED = "query_weighed"
_SCHEMATIC = {"help_url": None}  # else PyTerrier downloads a list of addresses before it draws a pipeline


class _Stage(pt.Transformer):
    """Two stages of one kind on the same open index with the same settings are equal: PyTerrier then runs only one."""

    schematic = _SCHEMATIC

    def __init__(self, index: AnyIndex) -> None:
        self.index = index

    def __repr__(self) -> str:
        return _as_call(self, self.index.path, {})

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(repr(self))


class _SearchStage(_Stage):
    """A stage with settings, which are those of `Index.search`."""

    def __init__(self, index: AnyIndex, **settings: Any) -> None:
        super().__init__(index)
        self.settings = settings
        self._search = SearchSettings.of(settings)

    def __repr__(self) -> str:
        return _as_call(self, self.index.path, self.settings)

    def get_parameter(self, name: str) -> Any:
        """A setting by its name, as PyTerrier's grid searches ask for it."""
        return getattr(self._search, name) if hasattr(self._search, name) else super().get_parameter(name)

    def set_parameter(self, name: str, value: Any) -> None:
        settings = {**self.settings, name: value}
        self.settings, self._search = settings, SearchSettings.of(settings)

    def _work(self, frame: pd.DataFrame) -> list[tuple[str | EncodedText, dict[str, Any]]]:
        """Each query of a valid frame, with its settings."""
        with pt.validate.any(frame, context=self) as valid:
            valid.query_frame(["query"])
            valid.query_frame(ENCODED)
        work = self._unpruned(frame)
        if KEEP not in frame:
            return work
        if self._search.budget_ms is not None:
            raise UsageError("budget_ms chooses how many embeddings gather, and query_keep says it: leave out either")
        kept = [np.asarray(keep, dtype=np.int64) for keep in frame[KEEP]]
        return [  # if nothing is kept, the order raises; p itself cannot be 0
            (query, {**settings, "p": len(keep) or 1, "order": _fixed_order(keep)})
            for (query, settings), keep in zip(work, kept, strict=True)
        ]

    def _unpruned(self, frame: pd.DataFrame) -> list[tuple[str | EncodedText, dict[str, Any]]]:
        """Each query of a frame, with its settings: without `weights`, if the query has them already."""
        queries = _queries(frame)
        if WEIGHED not in frame or not set(ENCODED) <= set(frame):
            return [(query, self.settings) for query in queries]
        return [
            (query, self.settings if _is_missing(weighed) else {**self.settings, "weights": None})
            for query, weighed in zip(queries, frame[WEIGHED], strict=True)
        ]


class QueryEncoder(_Stage):
    """Encodes the query: adds its embeddings, token ids and token kinds; and weights, if the encoder gives them."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, ["query"], context=self)
        encoded = list(in_order(self.index.encode_query, ((query,) for query in _queries(inp[["query"]]))))
        parts = [[getattr(query, name) for query in encoded] for name in ("embeddings", "token_ids", "token_kinds")]
        columns = dict(zip(ENCODED, parts, strict=True))
        if any(query.weights is not None for query in encoded):
            columns[WEIGHTS] = [query.weights for query in encoded]
        # Weights that the frame has are those of other embeddings.
        return _with_columns(inp.drop(columns=[WEIGHTS, WEIGHED], errors="ignore"), columns)


class Prune(_SearchStage):
    """Chooses what to gather with, by `order` and `p`: adds query_keep, and leaves the embeddings whole.

    With the setting `weights`, it also adds query_weights, which the stages after it use.
    """

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.query_frame(inp, ENCODED, context=self)
        decisions = [self.index.decide(query, **settings) for query, settings in self._unpruned(inp)]
        columns: dict[str, list[Any]] = {KEEP: [decision.kept for decision in decisions]}
        if self._search.weights is not None:
            columns[WEIGHTS] = [decision.query.weights for decision in decisions]
            columns[WEIGHED] = [self._search.weights] * len(decisions)
        return _with_columns(inp, columns)


class Candidates(_SearchStage):
    """Gathers: one row for each document that a search would score, not yet scored."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        found = list(in_order(lambda query, settings: self.index.candidates(query, **settings), self._work(inp)))
        return _one_row_per_document(inp, found)


class Scorer(_Stage):
    """Scores: exact MaxSim, with all query embeddings, of documents that any retriever found; then ranks them."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        with pt.validate.any(inp, context=self) as valid:
            valid.result_frame(["query"])
            valid.result_frame(ENCODED)
        docnos = inp["docno"].tolist()
        rows_of: dict[Any, list[int]] = {}
        for row, qid in enumerate(inp["qid"]):
            rows_of.setdefault(qid, []).append(row)
        queries = _queries(inp.iloc[[rows[0] for rows in rows_of.values()]])
        wanted = [[docnos[row] for row in rows] for rows in rows_of.values()]
        ranked: list[tuple[float, int]] = []
        for rows, scores in zip(
            rows_of.values(), in_order(self.index.score, zip(queries, wanted, strict=True)), strict=True
        ):
            # Equal scores go by docno, as everywhere.
            ranked += sorted(zip(scores, rows, strict=True), key=lambda pair: (-pair[0], docnos[pair[1]]))
        frame = inp.iloc[[row for _, row in ranked]].reset_index(drop=True)
        return _with_ranks(frame, [score for score, _ in ranked])


class Retriever(_SearchStage):
    """The whole search: from a query to its k best documents."""

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        found = list(in_order(lambda query, settings: self.index.search(query, **settings), self._work(inp)))
        frame = _one_row_per_document(inp, [[hit.docno for hit in ranking] for ranking in found])
        return _with_ranks(frame, [hit.score for ranking in found for hit in ranking])

    def fuse_rank_cutoff(self, k: int) -> Retriever | None:
        """`retriever % k` in one step. It scores as many documents as without the cutoff: nothing else may change."""
        if k >= self._search.k:
            return self
        if self._search.budget_ms is not None:  # which chooses the number of candidates, by k among others
            return None
        index = self.index
        plan = make_plan(self._search, np.empty(0), index.gatherers, len(index), places=index.searched().places)
        if plan.patience is not None:  # how many documents are scored depends on k
            return None
        return Retriever(self.index, **{**self.settings, "k": k, "candidates": plan.candidates})


class TextLoader(_Stage):
    """Adds the text and metadata of documents, which the index keeps: what `pt.text.get_text(index)` makes."""

    def __init__(self, index: AnyIndex, fields: str | Sequence[str] = "*") -> None:
        super().__init__(index)
        self.fields = [fields] if isinstance(fields, str) else list(fields)

    def __repr__(self) -> str:
        return _as_call(self, self.index.path, {"fields": self.fields})

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        pt.validate.columns(inp, includes=["docno"], context=self)
        documents = {docno: self.index.get(docno) for docno in dict.fromkeys(inp["docno"])}
        fields = self.fields
        if fields == ["*"]:
            names = dict.fromkeys(name for document in documents.values() for name in document.metadata)
            fields = ["text", *(name for name in names if name not in inp)]  # metadata may be called "score"
        rows = [documents[docno] for docno in inp["docno"]]
        return _with_columns(inp, {field: [_field(document, field) for document in rows] for field in fields})


class SecateursIndex(Index, pt.Artifact):
    """An index that PyTerrier can load, package and share. It is an `Index` in every other way."""

    ARTIFACT_TYPE = "multivector_index"
    ARTIFACT_FORMAT = "secateurs"
    ARTIFACT_PACKAGE_HINT = "secateurs[pyterrier]"


class SecateursIndexer(pt.Indexer):
    """The end of an indexing pipeline: builds an index at `path`. Options are those of `Index.build`."""

    schematic = _SCHEMATIC

    def __init__(self, path: str | Path, **options: Any) -> None:
        self.path = Path(path)
        self.options = options

    def __repr__(self) -> str:
        return _as_call(self, self.path, self.options)

    def index_inputs(self) -> list[list[str]]:
        return [["docno", "text"]]

    def index(self, iter: Iterable[Document | Mapping[str, Any]]) -> Index:
        """Builds, and opens what was built as a `SecateursIndex`. The name `iter` is PyTerrier's."""
        return SecateursIndex.build(self.path, iter, **self.options)


def _queries(frame: pd.DataFrame) -> list[str | EncodedText]:
    """The query of each row: encoded if the frame brings that, else its text."""
    if set(ENCODED) <= set(frame):
        given = frame[WEIGHTS] if WEIGHTS in frame else [None] * len(frame)
        texts = frame["query"] if "query" in frame else [None] * len(frame)
        return [
            EncodedText(
                embeddings,
                token_ids,
                token_kinds,
                weights=None if _is_missing(weights) else weights,
                text=text if isinstance(text, str) else None,
            )
            for embeddings, token_ids, token_kinds, weights, text in zip(
                *(frame[n] for n in ENCODED), given, texts, strict=True
            )
        ]
    for query in frame["query"]:
        if not isinstance(query, str):
            raise UsageError(f"a query is a string, not {query!r}")
    return list(frame["query"])


def _fixed_order(keep: Positions) -> OrderFunction:
    """The order that puts these positions first."""

    def order(query: EncodedText, frequencies: Frequencies) -> Positions:
        rest = np.setdiff1d(np.arange(len(query)), keep)
        if len(keep) + len(rest) != len(query) or (len(keep) == 0 and len(query) > 0):
            raise UsageError(
                f"query_keep is some of the query's {len(query)} positions, each once, not {keep.tolist()}"
            )
        return np.concatenate([keep, rest])

    return order


def _is_missing(value: Any) -> bool:
    """Whether a row has no value, in a frame that was put together from frames with and without that column."""
    return value is None or (isinstance(value, float) and np.isnan(value))


def _field(document: Document, name: str) -> Any:
    return document.text if name == "text" else document.metadata.get(name)


def _with_columns(frame: pd.DataFrame, columns: Mapping[str, list[Any]]) -> pd.DataFrame:
    # As objects: pandas would take a list of matrices apart.
    return frame.assign(**{name: pd.Series(values, frame.index, dtype=object) for name, values in columns.items()})


def _one_row_per_document(frame: pd.DataFrame, docnos: Sequence[Sequence[str]]) -> pd.DataFrame:
    rows = np.repeat(np.arange(len(frame)), np.array([len(found) for found in docnos], dtype=np.int64))
    repeated = frame.drop(columns=["score", "rank"], errors="ignore").iloc[rows].reset_index(drop=True)
    return repeated.assign(docno=[docno for found in docnos for docno in found])


def _with_ranks(frame: pd.DataFrame, scores: Sequence[float]) -> pd.DataFrame:
    return pt.model.add_ranks(frame.assign(score=np.array(scores, dtype=np.float64)))


def _as_call(what: object, path: Path, settings: Mapping[str, Any]) -> str:
    words = [repr(str(path)), *(f"{name}={value!r}" for name, value in settings.items())]
    return f"{type(what).__name__}({', '.join(words)})"
