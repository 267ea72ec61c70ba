"""What the paper leaves open about importance, measured: one change at a time, at small p, gathered by FAISS.

    python benchmarks/orders.py --collections DIR --cache DIR [NAME ...]

Each row is a rule; each number is the mean nDCG@10 over p = 1, 2, 3, 4 (the exhaustive ranking's is in the last row).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from judged import Collection, measure, open_collection, progress
from numpy.typing import NDArray

from secateurs import EncodedText, Frequencies, TokenKind
from secateurs.importance import Order, icf

PS = (1, 2, 3, 4)


def _reorder(query: EncodedText, frequencies: Frequencies, *keys: NDArray[np.generic]) -> NDArray[np.int64]:
    """ICF's order, sorted again by the keys (the first counts most); equal keys leave it as it is."""
    usual = icf(query, frequencies)
    return usual[np.lexsort([key[usual] for key in reversed(keys)])]


def _is_word(query: EncodedText) -> NDArray[np.bool_]:
    return query.token_kinds == TokenKind.WORD


def unseen_first(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    unseen = frequencies.collection_frequency(query.token_ids) == 0
    return _reorder(query, frequencies, np.where(_is_word(query) & unseen, 0, 1))


def unseen_last(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    """Behind the words that the collection has, before everything that is no word."""
    unseen = frequencies.collection_frequency(query.token_ids) == 0
    return _reorder(query, frequencies, np.where(_is_word(query), np.where(unseen, 1, 0), 2))


def punctuation_first(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    """As if punctuation were a word: documents never store it, so its frequency is 0."""
    return _reorder(query, frequencies, np.where(query.token_kinds == TokenKind.PUNCTUATION, 0, 1))


def punctuation_behind_cls(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    rank = np.where(_is_word(query), 0, np.where(query.token_kinds == TokenKind.CLS, 1, 2))
    return _reorder(query, frequencies, rank)


def repeats_last(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    """The second and later occurrences of a token wait until every distinct word had its turn."""
    repeated = np.ones(len(query), dtype=bool)
    repeated[np.unique(query.token_ids, return_index=True)[1]] = False
    return _reorder(query, frequencies, np.where(_is_word(query), np.where(repeated, 1, 0), 2))


def whole_words(continuations: set[int]) -> Order:
    """The pieces of a word share the frequency of its rarest piece, so that they stay together."""

    def order(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
        frequency = frequencies.collection_frequency(query.token_ids)
        frequency[frequency == 0] = np.iinfo(np.int64).max  # unseen: last, as in icf
        starts = [i for i, token in enumerate(query.token_ids.tolist()) if token not in continuations]
        for start, end in zip(starts, [*starts[1:], len(query)], strict=True):
            frequency[start:end] = frequency[start:end].min()
        return _reorder(query, frequencies, np.where(_is_word(query), frequency, np.iinfo(np.int64).max))

    return order


def mean_ndcg(collection: Collection, order: str | Order) -> float:
    values = []
    for p in PS:
        run = {
            qid: [(hit.docno, hit.score) for hit in collection.index.search(query, p=p, order=order, gather="faiss")]
            for qid, query in collection.queries.items()
        }
        values.append(measure(collection.qrels, run, ["nDCG@10"])["nDCG@10"])
    return float(np.mean(values))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=500)
    arguments.add_argument("names", nargs="*", default=["vaswani", "cranfield", "msmarco-dl19"])
    options = arguments.parse_args()
    table: dict[str, list[float]] = {}
    for name in options.names:
        collection = open_collection(options.collections / name, options.cache, options.most_queries)
        types = collection.index.frequencies.token_ids.tolist()
        continuations = {t for t in types if collection.index.token_text(t).startswith("##")}
        rules: dict[str, str | Order] = {
            "icf": "icf",
            "idf": "idf",
            "first": "first",
            "random": "random",
            "icf, unseen words first": unseen_first,
            "icf, unseen words last": unseen_last,
            "icf, punctuation first": punctuation_first,
            "icf, punctuation behind CLS": punctuation_behind_cls,
            "icf, repeated tokens last": repeats_last,
            "icf, whole words": whole_words(continuations),
        }
        for rule, order in progress(rules.items(), description=name):
            table.setdefault(rule, []).append(mean_ndcg(collection, order))
        exhaustive = {
            qid: [(hit.docno, hit.score) for hit in collection.index.search(query, gather="exhaustive")]
            for qid, query in collection.queries.items()
        }
        table.setdefault("exhaustive", []).append(measure(collection.qrels, exhaustive, ["nDCG@10"])["nDCG@10"])
    print(f"| rule | {' | '.join(options.names)} |")
    print("|---" * (len(options.names) + 1) + "|")
    for rule, values in table.items():
        print(f"| {rule} | {' | '.join(f'{value:.4f}' for value in values)} |")


if __name__ == "__main__":
    main()
