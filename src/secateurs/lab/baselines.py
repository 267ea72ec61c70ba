"""Baselines of the paper, and its predecessors, as rows of the same experiment.

bm25            BM25 over the index's texts (bm25s, its default settings and English stop words)
bm25+maxsim     the classical pipeline: BM25 gathers, exact MaxSim ranks; bm25+maxsim:100 re-ranks 100 documents
quit            the predecessor of query embedding pruning: term-at-a-time BM25 that stops early (Moffat & Zobel, 1996);
                quit:5000 allows 5,000 accumulators
mean            a single-vector dense retriever: the mean of a text's token embeddings, compared by cosine
dense:bge-small a single-vector dense retriever: bge-small-en-v1.5, which comes with the built-in model, no torch
dense:MODEL     a single-vector dense retriever: any sentence-transformers model, by folder or hub name
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, UsageError, require
from ..index import Index
from ..progress import progress_bar
from . import bge_small
from .sweeps import DEPTH
from .systems import Outcome, Query, Settings, System

NAMES = ("bm25", "bm25+maxsim", "quit", "mean", "dense:bge-small", "dense:MODEL")
_RERANKED = 1000
_ACCUMULATORS = 5000
_ENCODED_AT_A_TIME = 1024  # documents, sorted by length within, so that batches have little padding


def baseline_systems(index: Index, names: Sequence[str], k: int = DEPTH) -> list[System]:
    """Systems by their names. The inverted file that several of them need is built once."""
    wanted = [_parse(given) for given in names]  # a wrong name is an error before a model encodes the collection
    words: Words | None = None
    systems: list[System] = []
    for name, argument in wanted:
        if name in ("bm25", "bm25+maxsim", "quit"):
            words = words or Words(*_texts(index))
        if name == "bm25":
            systems.append(BM25(_words(words), k))
        elif name == "bm25+maxsim":
            systems.append(BM25MaxSim(_words(words), index, k, int(argument or _RERANKED)))
        elif name == "quit":
            systems.append(Quit(_words(words), k, int(argument or _ACCUMULATORS)))
        elif name == "mean":
            systems.append(mean_embedding(index, k))
        elif argument == bge_small.NAME:
            systems.append(dense_bge_small(index, k))
        else:
            systems.append(dense(index, argument, k))
    return systems


def _parse(given: str) -> tuple[str, str]:
    """A baseline's name, and what comes after its colon."""
    name, colon, argument = given.partition(":")
    if name in ("bm25+maxsim", "quit"):
        if colon and (not argument.isdecimal() or int(argument) < 1):
            raise UsageError(f"{given!r}: a whole number of at least 1 comes after the colon")
    elif not (name == "dense" and argument) and given not in ("bm25", "mean"):
        raise UsageError(f"a baseline is one of {', '.join(NAMES)}, not {given!r}")
    return name, argument


class Words:
    """An inverted file with BM25's share of the score in every posting."""

    def __init__(self, docnos: Sequence[str], texts: Sequence[str]) -> None:
        self._library = require("bm25s", "lab")
        self.docnos = docnos
        self._retriever = self._library.BM25()
        words = self._library.tokenize(list(texts), show_progress=False)
        if not any(words.ids):
            raise SecateursError("BM25 needs texts, and this index has none with a word in it")
        self._retriever.index(words, show_progress=False)
        scores = self._retriever.scores
        self._starts, self._documents, self._shares = scores["indptr"], scores["indices"], scores["data"]

    def terms(self, text: str) -> list[int]:
        """The query's words that occur in a document, each once."""
        vocabulary: dict[str, int] = self._retriever.vocab_dict
        (words,) = self._library.tokenize([text], return_ids=False, show_progress=False)
        known = (vocabulary.get(word) for word in dict.fromkeys(words))
        return [term for term in known if term is not None and len(self.postings(term)[0])]

    def postings(self, term: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The documents that have the word, and what it adds to the score of each."""
        rows = slice(int(self._starts[term]), int(self._starts[term + 1]))
        return self._documents[rows], self._shares[rows]

    def hits(self, documents: NDArray[np.integer[Any]], scores: NDArray[np.floating[Any]], k: int) -> Any:
        """The k best of these documents by name; equal scores go by docno."""
        if len(documents) > k:
            threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
            documents, scores = documents[scores >= threshold], scores[scores >= threshold]
        named = [(self.docnos[number], float(score)) for number, score in zip(documents, scores, strict=True)]
        return sorted(named, key=lambda hit: (-hit[1], hit[0]))[:k]


class Quit:
    """Term-at-a-time scoring that quits: words in descending IDF, until there are enough accumulators.

    The limit is checked after each word, so that the word that reaches it is scored in full (Moffat & Zobel, 1996).
    """

    name = "quit"

    def __init__(self, words: Words, k: int, accumulators: int | None) -> None:
        self._words = words
        self._k = k
        self._limit = accumulators
        self.label = f"quit:{accumulators}"
        self.settings: Settings = {"k": k, "accumulators": accumulators}

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        started = perf_counter()
        terms = sorted(self._words.terms(query.text), key=lambda term: len(self._words.postings(term)[0]))
        scores = np.zeros(len(self._words.docnos), dtype=np.float32)
        touched = np.zeros(len(self._words.docnos), dtype=bool)
        for term in terms:
            documents, shares = self._words.postings(term)
            scores[documents] += shares
            touched[documents] = True
            if self._limit is not None and touched.sum() >= self._limit:
                break
        found = np.flatnonzero(touched)
        hits = self._words.hits(found, scores[found], self._k)
        spent = (perf_counter() - started) * 1000
        return Outcome(
            hits=hits,
            gathered=len(found),
            scored=len(found),
            relevant_scored=sum(self._words.docnos[number] in relevant for number in found.tolist()),
            milliseconds={"gather": spent},
        )


class BM25(Quit):
    """BM25 in full: the same, without a limit."""

    name = "bm25"

    def __init__(self, words: Words, k: int) -> None:
        super().__init__(words, k, None)
        self.label = "bm25"
        self.settings = {"k": k}


class BM25MaxSim:
    """BM25's best documents, ranked by exact MaxSim."""

    name = "bm25+maxsim"

    def __init__(self, words: Words, index: Index, k: int, candidates: int) -> None:
        self._bm25 = BM25(words, candidates)
        self._index = index
        self._k = k
        self.label = f"bm25+maxsim:{candidates}"
        self.settings: Settings = {"k": k, "candidates": candidates}

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        found = self._bm25.search(query, set())
        started = perf_counter()
        docnos = [docno for docno, _ in found.hits]
        scores = self._index.score(query.encoded, docnos)
        hits = sorted(zip(docnos, scores, strict=True), key=lambda hit: (-hit[1], hit[0]))[: self._k]
        spent = (perf_counter() - started) * 1000
        return Outcome(
            hits=hits,
            gathered=found.gathered,
            scored=len(docnos),
            relevant_scored=len(relevant.intersection(docnos)),
            milliseconds={**found.milliseconds, "score": spent},
        )


class SingleVector:
    """One vector for each text, compared with all documents by cosine."""

    def __init__(
        self,
        label: str,
        docnos: Sequence[str],
        vectors: NDArray[np.float32],
        encode: Callable[[Query], NDArray[np.float32]],
        k: int,
    ) -> None:
        self.name = label.partition(":")[0]
        self.label = label
        self.settings: Settings = {"k": k}
        self._docnos = docnos
        self._vectors = _unit(vectors)  # (documents, dim)
        self._encode = encode
        self._encoded: dict[str, NDArray[np.float32]] = {}
        self._k = k

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        if query.qid not in self._encoded:  # encoded once and not timed, as for the index
            self._encoded[query.qid] = _unit(self._encode(query)[None])[0]
        started = perf_counter()
        scores = self._vectors @ self._encoded[query.qid]
        best = np.argsort(-scores, kind="stable")[: self._k]
        hits = [(self._docnos[number], float(scores[number])) for number in best]
        spent = (perf_counter() - started) * 1000
        return Outcome(
            hits=hits,
            gathered=len(self._docnos),
            scored=len(self._docnos),
            relevant_scored=len(relevant.intersection(self._docnos)),
            milliseconds={"gather": spent},
        )


def mean_embedding(index: Index, k: int = DEPTH) -> SingleVector:
    """The mean of a text's token embeddings: late interaction reduced to a single vector."""
    docnos, means = [], []
    for document in index.documents():
        assert document.encoded is not None
        docnos.append(document.docno)
        # A document without a token has no mean: its vector is 0, and so is its cosine with every query.
        means.append(document.encoded.embeddings.sum(axis=0) / max(len(document.encoded), 1))
    if not docnos:
        raise SecateursError("mean needs documents, and this index has none")
    return SingleVector(
        "mean", docnos, np.array(means, dtype=np.float32), lambda query: query.encoded.embeddings.mean(axis=0), k
    )


def dense_bge_small(index: Index, k: int = DEPTH) -> SingleVector:
    """The model that comes with the built-in one. It encodes all documents first, on all cores."""
    model = bge_small.BgeSmall()
    docnos, texts = _texts(index)
    vectors = []
    with progress_bar(f"encoding with {bge_small.NAME}", len(texts), "documents") as advance:
        for vector in model.encode_documents(texts):
            vectors.append(vector)
            advance(1)
    if not vectors:
        raise SecateursError("dense needs documents, and this index has none")
    return SingleVector(
        f"dense:{bge_small.NAME}", docnos, np.array(vectors), lambda query: model.encode_query(query.text), k
    )


def dense(index: Index, model: str, k: int = DEPTH) -> SingleVector:
    """A sentence-transformers model. It encodes all documents first, which takes long without a GPU."""
    library = require("sentence_transformers", "st")
    try:
        encoder = library.SentenceTransformer(model)
    except (OSError, ValueError) as error:
        raise SecateursError(f"sentence-transformers cannot load {model!r}: {error}") from error
    docnos, texts = _texts(index)
    vectors = []
    with progress_bar(f"encoding with {model}", len(texts), "documents") as advance:
        for start in range(0, len(texts), _ENCODED_AT_A_TIME):
            batch = texts[start : start + _ENCODED_AT_A_TIME]
            vectors.append(np.asarray(encoder.encode(batch, show_progress_bar=False), dtype=np.float32))
            advance(len(batch))
    if not vectors:
        raise SecateursError("dense needs documents, and this index has none")

    def encode(query: Query) -> NDArray[np.float32]:
        return np.asarray(encoder.encode([query.text], show_progress_bar=False)[0], dtype=np.float32)

    return SingleVector(f"dense:{model}", docnos, np.concatenate(vectors), encode, k)


def _texts(index: Index) -> tuple[list[str], list[str]]:
    documents = [(document.docno, document.text) for document in index.documents()]
    return [docno for docno, _ in documents], [text for _, text in documents]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = vectors / np.maximum(lengths, 1e-12)
    return unit


def _words(words: Words | None) -> Words:
    assert words is not None
    return words
