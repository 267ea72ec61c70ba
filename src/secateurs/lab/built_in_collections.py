"""Collections that need nothing from the network.

`synthetic` is random, from a fixed seed: NumPy promises never to change the stream of RandomState. A word is a vector,
and its frequency follows Zipf's law. A document is a bag of words with noise. A query is a few words of one document in
random order, between a CLS, which is the mean of them with more noise, and MASKs, which repeat them with noise.

`standard_library` is real text: documentation strings without their first sentence, and the first sentences as queries
for them. It differs a little between versions of Python, and what reproductions expect of it allows for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from ..demo import standard_library as documentation
from ..errors import UsageError
from ..records import Document, EncodedText, TokenKind
from .topics import Topics

_DIM = 32
_WORDS = 800
_DOCUMENTS = 480  # FAISS searches so few embeddings without training anything, which is quick and exact
_DOCUMENT_LENGTH = 20
_QUERIES = 80
_QUERY_WORDS = 6
_MASKS = 9
_CLS, _MASK = _WORDS, _WORDS + 1  # token ids
_FEWEST_WORDS = 5  # of a first sentence, and of what follows it


@dataclass(frozen=True)
class BuiltInCollection:
    """Documents to index, with or without embeddings, and topics."""

    documents: Iterable[Document]
    topics: Topics
    needs_encoder: bool


def built_in_collection(name: str) -> BuiltInCollection:
    collections = {"synthetic": synthetic, "standard-library": standard_library}
    if name not in collections:
        raise UsageError(f"a built-in collection is one of {', '.join(collections)}, not {name!r}")
    return collections[name]()


def synthetic() -> BuiltInCollection:
    random = np.random.RandomState(0)
    words = _unit(random.normal(size=(_WORDS, _DIM)))
    chances = 1 / np.arange(1, _WORDS + 1)
    bags = random.choice(_WORDS, size=(_DOCUMENTS, _DOCUMENT_LENGTH), p=chances / chances.sum())
    documents = [
        Document(f"d{number:04}", encoded=_text(_noisy(random, words[bag], 0.6), bag, [TokenKind.WORD] * len(bag)))
        for number, bag in enumerate(bags)
    ]
    queries, encoded, qrels = {}, {}, {}
    for number in range(_QUERIES):
        source = int(random.randint(_DOCUMENTS))
        query_words = random.permutation(np.unique(bags[source]))[:_QUERY_WORDS]
        repeated_words = random.choice(query_words, size=_MASKS)
        vectors = np.concatenate(
            [
                _noisy(random, words[query_words].mean(axis=0, keepdims=True), 1.0),
                _noisy(random, words[query_words], 0.6),
                _noisy(random, words[repeated_words], 0.9),
            ]
        )
        ids = np.concatenate([[_CLS], query_words, np.full(_MASKS, _MASK)])
        kinds = [TokenKind.CLS] + [TokenKind.WORD] * len(query_words) + [TokenKind.MASK] * _MASKS
        qid = f"q{number:03}"
        queries[qid] = " ".join(f"w{word}" for word in query_words)
        encoded[qid] = _text(vectors, ids, kinds)
        qrels[qid] = {f"d{source:04}": 1}
    return BuiltInCollection(documents, Topics(queries, qrels, encoded), needs_encoder=False)


def standard_library(step: int = 10, most_queries: int = 100) -> BuiltInCollection:
    documents: list[Document] = []
    sources: dict[str, dict[str, int]] = {}
    for item in _documentation()[::step]:
        signature, _, text = item["text"].partition(": ")
        first, stop, rest = text.partition(". ")
        if stop and min(len(first.split()), len(rest.split())) >= _FEWEST_WORDS:
            documents.append(Document(item["docno"], f"{signature}: {rest}"))
            sources.setdefault(first, {})[item["docno"]] = 1
    queries, qrels = {}, {}
    for number, (first, judged) in enumerate(sorted(sources.items())):
        queries[f"q{number:04}"], qrels[f"q{number:04}"] = first, judged
    topics = Topics(queries, qrels)
    return BuiltInCollection(documents, topics.sample(most_queries), needs_encoder=True)


@cache
def _documentation() -> list[dict[str, str]]:
    return documentation()


def _noisy(random: np.random.RandomState, vectors: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    return _unit(_unit(vectors) + noise * _unit(random.normal(size=vectors.shape)))


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    unit: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def _text(vectors: NDArray[np.float64], ids: NDArray[np.int64], kinds: list[TokenKind]) -> EncodedText:
    return EncodedText(vectors.astype(np.float32), ids.astype(np.int32), np.array(kinds, dtype=np.uint8))
