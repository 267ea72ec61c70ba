"""What the paper leaves open about importance, measured: one change at a time, at small p, gathered by FAISS.

    python benchmarks/orders.py --collections DIR --cache DIR [NAME ...]

Each row is a rule; each number is the mean nDCG@10 over p = 1, 2, 3, 4 (the exhaustive ranking's is in the last row).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from judged import Collection, measure, open_collection
from numpy.typing import NDArray
from rich.progress import track

from secateurs import EncodedText, Frequencies, TokenKind
from secateurs.importance import Order, icf

PS = (1, 2, 3, 4)


def _by(query: EncodedText, frequency: NDArray[np.int64], last: NDArray[np.bool_]) -> NDArray[np.int64]:
    """ICF's order with another frequency, and with some positions moved behind the other words."""
    usual = icf(query, Frequencies.from_counts({}))  # all unseen: kinds, then positions
    word = query.token_kinds == TokenKind.WORD
    words = [i for i in np.lexsort((np.arange(len(query)), frequency, last)) if word[i]]
    return np.array(words + [i for i in usual if not word[i]])


def unseen_first(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    return _by(query, frequencies.collection_frequency(query.token_ids), np.zeros(len(query), dtype=bool))


def unseen_last(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    frequency = frequencies.collection_frequency(query.token_ids)
    return _by(query, frequency, frequency == 0)


def punctuation_first(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    """As if punctuation were a word: never stored, so of frequency 0."""
    usual = unseen_last(query, frequencies)
    punctuation = query.token_kinds[usual] == TokenKind.PUNCTUATION
    return np.concatenate([usual[punctuation], usual[~punctuation]])


def repeats_last(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
    """The second and later occurrences of a token wait until every distinct word had its turn."""
    frequency = frequencies.collection_frequency(query.token_ids)
    _, first_places = np.unique(query.token_ids, return_index=True)
    repeated = np.ones(len(query), dtype=bool)
    repeated[first_places] = False
    return _by(query, frequency, repeated | (frequency == 0))


def whole_words(continuations: set[int]) -> Order:
    """The pieces of a word share the frequency of its rarest piece, so that they stay together."""

    def order(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
        frequency = frequencies.collection_frequency(query.token_ids)
        unseen = frequency == 0
        starts = [i for i, token in enumerate(query.token_ids.tolist()) if token not in continuations]
        for start, end in zip(starts, [*starts[1:], len(query)], strict=True):
            seen = frequency[start:end][~unseen[start:end]]
            frequency[start:end] = seen.min() if len(seen) else 0
        return _by(query, frequency, unseen)

    return order


def mean_ndcg(collection: Collection, order: str | Order) -> float:
    values = []
    for p in PS:
        run = {
            qid: [(hit.docno, hit.score) for hit in collection.index.search(query, p=p, order=order)]
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
            "icf, repeated tokens last": repeats_last,
            "icf, whole words": whole_words(continuations),
        }
        for rule, order in track(rules.items(), description=name):
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
