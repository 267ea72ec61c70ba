"""What each effort keeps of exhaustive search, on any number of collections.

    python benchmarks/effort.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 300]
        [--passages WORDS ...]

`DIR:5000` takes the first 5,000 documents, and the queries that have a relevant one among them.

Prints a Markdown table: query embeddings kept, documents gathered and scored, nDCG@10 and its difference from
exhaustive search, how many of the exact ten best are found, and how many of them the index has found when it measured
itself (calibration), at which place of the ladder. With --passages, the queries are passages of the
collection instead, cut after so many words: which ten others are most like it? One more line then tells what sixteen
query embeddings would find. Nothing here is timed.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import numpy as np
from judged import Collection, encode, measure, open_slice, progress

from secateurs import Ranking

K = 10


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=300)
    arguments.add_argument("--passages", type=int, nargs="+", metavar="WORDS")
    options = arguments.parse_args()
    about = ["words", "query embeddings"] if options.passages else ["documents", "queries"]
    head = ["collection", *about, "effort", "kept", "gathered", "scored"]
    head += [] if options.passages else ["nDCG@10", "difference"]
    head += ["recall@10", "by itself", "place"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for given in options.collections:
        name, collection = open_slice(given, options.cache, options.most_queries, gather=("cells",))
        if not options.passages:
            compare([name, f"{len(collection.index):,}", f"{len(collection.queries):,}"], collection)
        for words in options.passages or ():
            asked = passages(given, collection, words, options.most_queries, options.cache)
            if asked.queries:
                lengths = [len(query) for query in asked.queries.values()]
                compare([name, str(words), f"{np.mean(lengths):.0f}"], asked)


def passages(given: str, collection: Collection, words: int, most: int, cache: Path) -> Collection:
    """Instead of its queries, documents that are long enough, a seeded sample, under their docnos."""
    folder, _, documents = given.partition(":")
    encoded = encode(Path(folder), cache, int(documents) if documents else None)
    texts = {document.docno: document.text.split() for document in encoded.documents()}
    docnos = [docno for docno, text in texts.items() if len(text) >= words]
    chosen = random.Random(0).sample(docnos, min(most, len(docnos)))
    queries = {docno: encoded.encode_query(" ".join(texts[docno][:words])) for docno in chosen}
    return Collection(collection.index, queries, [])


def compare(name: list[str], collection: Collection) -> None:
    """One line of the table for each effort."""
    exact: dict[str, set[str]] = {}
    reference = 0.0
    efforts = ("exact", "thorough", "balanced", "fast")
    ways: dict[str, dict[str, Any]] = {effort: {"effort": effort} for effort in efforts}
    measured = (collection.index.info()["calibration"] or {"efforts": {}})["efforts"]
    if not collection.qrels:
        ways["balanced, p = 16"] = {"p": 16}
    for effort, settings in ways.items():
        found = {
            qid: collection.index.search(query, K if collection.qrels else K + 1, **settings)
            for qid, query in progress(collection.queries.items(), description=f"{', '.join(name)}, {effort}")
        }
        best = {qid: best_of(ranking, None if collection.qrels else qid) for qid, ranking in found.items()}
        if effort == "exact":
            exact = best
        stats = [ranking.stats for ranking in found.values()]
        recall = [len(exact[qid] & best[qid]) / max(len(exact[qid]), 1) for qid in found]
        cells = [
            *name,
            effort,
            f"{np.mean([stat.embeddings_kept for stat in stats]):.1f}",
            f"{np.mean([stat.documents_gathered for stat in stats]):,.0f}",
            f"{np.mean([stat.documents_scored for stat in stats]):,.0f}",
        ]
        if collection.qrels:
            run = {qid: [(hit.docno, hit.score) for hit in ranking] for qid, ranking in found.items()}
            ndcg = measure(collection.qrels, run, ["nDCG@10"])["nDCG@10"]
            if effort == "exact":
                reference = ndcg
            cells += [f"{ndcg:.4f}", f"{ndcg - reference:+.4f}"]
        cells += [f"{np.mean(recall):.3f}"]
        own = measured.get(effort)
        cells += ["", ""] if own is None else [f"{own['found']:.3f}", f"{own['place']:g}"]
        if collection.qrels or effort != "exact":
            print(f"| {' | '.join(cells)} |", flush=True)


def best_of(ranking: Ranking, without: str | None) -> set[str]:
    """The ten best, without the document that was the query."""
    return set([hit.docno for hit in ranking if hit.docno != without][:K])


if __name__ == "__main__":
    main()
