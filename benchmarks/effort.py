"""What each effort keeps of exhaustive search, on any number of collections.

    python benchmarks/effort.py --collections DIR [DIR ...] --cache DIR [--most-queries 300]

Prints a Markdown table: query embeddings kept, documents gathered and scored, nDCG@10 and its difference from
exhaustive search, and how many of the exact ten best are found. Nothing here is timed.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from judged import measure, open_collection, progress


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=300)
    arguments.add_argument("--most-documents", type=int, help="of each collection, from the front")
    options = arguments.parse_args()
    print("| collection | documents | queries | effort | kept | gathered | scored | nDCG@10 | difference | recall@10 |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for folder in options.collections:
        collection = open_collection(
            folder, options.cache, options.most_queries, gather=("cells",), most_documents=options.most_documents
        )
        exact: dict[str, set[str]] = {}
        reference = 0.0
        for effort in ("exact", "balanced", "fast"):
            found = {
                qid: collection.index.search(query, effort=effort)
                for qid, query in progress(collection.queries.items(), description=f"{folder.name}, {effort}")
            }
            run = {qid: [(hit.docno, hit.score) for hit in ranking] for qid, ranking in found.items()}
            ndcg = measure(collection.qrels, run, ["nDCG@10"])["nDCG@10"]
            if effort == "exact":
                exact = {qid: {hit.docno for hit in ranking} for qid, ranking in found.items()}
                reference = ndcg
            stats = [ranking.stats for ranking in found.values()]
            recall = [len(exact[qid] & {docno for docno, _ in run[qid]}) / max(len(exact[qid]), 1) for qid in run]
            cells = [
                folder.name,
                f"{len(collection.index):,}",
                f"{len(run):,}",
                effort,
                f"{np.mean([one.embeddings_kept for one in stats]):.1f}",
                f"{np.mean([one.documents_gathered for one in stats]):,.0f}",
                f"{np.mean([one.documents_scored for one in stats]):,.0f}",
                f"{ndcg:.4f}",
                f"{ndcg - reference:+.4f}",
                f"{np.mean(recall):.3f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
