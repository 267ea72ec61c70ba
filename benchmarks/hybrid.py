"""Hybrid search: gathering by cells, by text and by both, and fused rankings.

    python benchmarks/hybrid.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 150]

Three Markdown tables. The first has, for the judged queries of each collection, nDCG@10, the share of the relevant
documents that were scored, documents scored, and the time of a search without encoding as a multiple of that with
gather="cells" in the same run. "BM25 alone" is the order of the text, without MaxSim. "better / worse" counts queries
whose nDCG@10 is higher or lower than with "cells", with the p-value of a paired randomisation test.

The second is the same for identifiers, which embeddings know little about. The rule: a word of a document's text,
between white space and without punctuation at its ends, of 4 to 24 characters, with a letter and a digit in it, and
nothing but letters, digits, ".", "_", "+" and "-"; it is in the text of one document of the collection only, with any
case, also as part of a longer word. The query is that word alone, and that document is the only relevant one. A seeded
sample of them is taken, at most one of a document. "found first" is the share of queries whose document is the first
hit, "found" that of those where it is among the ten.

The third has the bytes of an index built for text and cells, and the share of it that is there for the text.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import ir_measures
import numpy as np
from judged import Collection, open_slice, per_query, progress
from numpy.typing import NDArray

from secateurs import EncodedText, Index
from secateurs.storage.file_names import DOCUMENTS

K = 10
RUNS = 3  # of which the fastest counts
IDENTIFIER = re.compile(r"(?=\S*[0-9])(?=\S*[a-zA-Z])[0-9a-zA-Z._+-]{4,24}")
WAYS: Mapping[str, Mapping[str, str]] = {
    "cells": {"gather": "cells"},
    "exhaustive": {"gather": "exhaustive"},
    "text": {"gather": "text"},
    "cells+text": {"gather": "cells+text"},
    "cells+text, rrf": {"gather": "cells+text", "fuse": "rrf"},
    "exhaustive, rrf": {"gather": "exhaustive", "fuse": "rrf"},
}


class Outcome(NamedTuple):
    run: dict[str, list[tuple[str, float]]]
    relevant_scored: float  # mean share
    scored: float  # mean
    milliseconds: float  # mean; nan if it is not comparable


def search_all(
    index: Index, queries: Mapping[str, EncodedText], relevant: Mapping[str, set[str]]
) -> dict[str, Outcome]:
    """Every way for every query, the ways in turns, so that all meet the same state of the machine."""
    found: dict[str, dict[str, list[tuple[str, float]]]] = {name: {} for name in (*WAYS, "BM25 alone")}
    numbers: dict[str, list[tuple[float, float, float]]] = {name: [] for name in found}
    for qid, query in progress(queries.items(), index.path.name, len(queries)):
        wanted = relevant[qid]
        for name, settings in WAYS.items():
            rankings = [index.search(query, k=K, **settings) for _ in range(RUNS)]
            if settings["gather"] == "exhaustive":
                share = 1.0
            else:
                share = len(wanted & set(index.candidates(query, k=K, **settings))) / len(wanted)
            spent = min(ranking.stats.search_milliseconds for ranking in rankings)
            found[name][qid] = [(hit.docno, hit.score) for hit in rankings[0]]
            numbers[name].append((share, rankings[0].stats.documents_scored, spent))
        best = index.candidates(query, k=K, gather="text")[:K]
        found["BM25 alone"][qid] = [(docno, float(-rank)) for rank, docno in enumerate(best)]
        numbers["BM25 alone"].append((np.nan, 0, np.nan))
    return {name: Outcome(found[name], *np.mean(numbers[name], axis=0).tolist()) for name in found}


def p_value(differences: NDArray[np.float64]) -> float:
    """Of a two-sided paired randomisation test: how often random signs give a mean as far from 0."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(10_000, len(differences)))
    means = np.abs((signs * differences).mean(axis=1))
    return float((np.count_nonzero(means >= abs(differences.mean()) - 1e-12) + 1) / (len(means) + 1))


def shown(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def table(
    outcomes: Mapping[str, Outcome],
    measures: Mapping[str, Callable[[Outcome], NDArray[np.float64]]],
    name: str,
    lines: list[str],
) -> None:
    """`measures` give a value per query; the first is compared with that of "cells"."""
    compare = next(iter(measures.values()))
    base, base_time = compare(outcomes["cells"]), outcomes["cells"].milliseconds
    for way, outcome in outcomes.items():
        difference = compare(outcome) - base
        better, worse = int((difference > 1e-9).sum()), int((difference < -1e-9).sum())
        against = f"{better} / {worse} ({shown(p_value(difference))})" if better + worse else "0 / 0"
        cells = [f"{measure(outcome).mean():.4f}" for measure in measures.values()]
        rest = ["", "", ""]
        if not np.isnan(outcome.milliseconds):
            rest = [
                f"{outcome.relevant_scored:.1%}",
                f"{outcome.scored:,.0f}",
                f"{outcome.milliseconds / base_time:.2f}",
            ]
        lines.append(f"| {name} ({len(base)}) | {way} | {' | '.join([*cells, against, *rest])} |")


def identifiers(index: Index, most: int) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Queries and their document, by the rule above."""
    texts = {document.docno: document.text.lower() for document in index.documents()}
    in_documents: dict[str, set[str]] = {}
    for docno, text in texts.items():
        for word in text.split():
            word = word.strip(".,;:!?()[]{}<>\"'`+-_/*")
            if IDENTIFIER.fullmatch(word):
                in_documents.setdefault(word, set()).add(docno)
    everything = "\n".join(texts.values())
    alone = sorted((word, min(docnos)) for word, docnos in in_documents.items() if len(docnos) == 1)
    random.Random(0).shuffle(alone)
    queries: dict[str, str] = {}
    relevant: dict[str, set[str]] = {}
    for word, docno in alone:
        if len(queries) == most:
            break
        once = everything.count(word) == texts[docno].count(word)
        if once and {docno} not in relevant.values():
            queries[word], relevant[word] = word, {docno}
    return queries, relevant


def bytes_of(index: Index) -> tuple[int, int]:
    """Of the index, and of what is there for the text: without it the databases are that much smaller."""
    words = 0
    with tempfile.TemporaryDirectory() as folder:
        for segment in index.snapshot.segments:
            copy = Path(shutil.copy(segment.folder / DOCUMENTS, folder))
            connection = sqlite3.connect(copy)
            connection.executescript("VACUUM")
            before = copy.stat().st_size
            connection.executescript("DROP TABLE words; DROP TABLE lengths; VACUUM")
            connection.close()
            words += before - copy.stat().st_size
    return index.info()["bytes"], words


def ndcg(collection: Collection) -> Callable[[Outcome], NDArray[np.float64]]:
    def of(outcome: Outcome) -> NDArray[np.float64]:
        values = per_query(collection.qrels, outcome.run, ["nDCG@10"])["nDCG@10"]
        return np.array([values[qid] for qid in outcome.run])

    return of


def found_within(relevant: Mapping[str, set[str]], depth: int) -> Callable[[Outcome], NDArray[np.float64]]:
    def of(outcome: Outcome) -> NDArray[np.float64]:
        found = [bool(relevant[qid] & {docno for docno, _ in hits[:depth]}) for qid, hits in outcome.run.items()]
        return np.array(found, dtype=float)

    return of


def relevant_documents(qrels: list[ir_measures.Qrel], index: Index) -> dict[str, set[str]]:
    least = 2 if max(qrel.relevance for qrel in qrels) > 1 else 1
    relevant: dict[str, set[str]] = {}
    for qrel in qrels:
        if qrel.relevance >= least and qrel.doc_id in index:
            relevant.setdefault(qrel.query_id, set()).add(qrel.doc_id)
    return relevant


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare gathering by cells, by text and by both.")
    parser.add_argument("--collections", nargs="+", required=True, metavar="DIR[:DOCUMENTS]")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--most-queries", type=int, default=150)
    options = parser.parse_args()
    judged, named, sizes = [], [], []
    for given in options.collections:
        name, collection = open_slice(given, options.cache, options.most_queries, gather=("cells", "text"))
        index = collection.index
        relevant = relevant_documents(collection.qrels, index)
        queries = {qid: query for qid, query in collection.queries.items() if qid in relevant}
        table(search_all(index, queries, relevant), {"nDCG@10": ndcg(collection)}, name, judged)
        words, documents = identifiers(index, options.most_queries)
        if words:
            encoded = {qid: index.encode_query(word) for qid, word in words.items()}
            measures = {"first": found_within(documents, 1), "found": found_within(documents, K)}
            table(search_all(index, encoded, documents), measures, name, named)
        total, of_text = bytes_of(index)
        count = len(index)
        sizes.append(f"| {name} | {count:,} | {total / count:,.0f} | {of_text / count:,.0f} | {of_text / total:.1%} |")
    counted = "documents scored | time |"
    print(f"| queries | gather | nDCG@10 | better / worse than cells | relevant documents scored | {counted}")
    print("\n".join(["|" + "---|" * 7, *judged]))
    print(f"\n| identifiers | gather | found first | found | better / worse than cells | document scored | {counted}")
    print("\n".join(["|" + "---|" * 8, *named]))
    print("\n| collection | documents | bytes per document | of which for text | share |")
    print("\n".join(["|" + "---|" * 5, *sizes]))


if __name__ == "__main__":
    main()
