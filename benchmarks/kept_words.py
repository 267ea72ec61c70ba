"""Where pruning by frequency fails: do the relevant documents have the words that were kept?

    python benchmarks/kept_words.py RESULTS INDEX --queries FILE --qrels FILE [--grade 1] [-p 3]

RESULTS is what `secateurs evaluate INDEX --sweep p=... --sweep order=first,icf --sweep gather=faiss --out` wrote.
Prints a line of a Markdown table: how many of the kept wordpieces (order icf) a relevant document has, on average, and
of all wordpieces of the query; then, for the queries where it is less than a fifth and for the others, their number,
the share of the relevant documents that pruning still finds (of those found without it), and the change of the first
measure; last, Spearman's correlation of that share with the share of kept words that relevant documents have, and with
the share of kept wordpieces that are only a part of a word.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

from secateurs import Index, TokenKind
from secateurs.lab import Results, read_topics

FEW = 0.2


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("results", type=Path)
    arguments.add_argument("index", type=Path)
    arguments.add_argument("--queries", required=True)
    arguments.add_argument("--qrels", required=True)
    arguments.add_argument("--grade", type=int, default=1)
    arguments.add_argument("-p", type=int, default=3)
    options = arguments.parse_args()
    results, index = Results.load(options.results), Index(options.index)
    topics = read_topics(options.queries, options.qrels)
    pruned = results.of(results.find(f"p={options.p} order=icf"))
    full = results.of(max((label for label in results.settings if "order=icf" in label), key=_kept(results)))
    wanted = {docno for row in pruned for docno in topics.relevant(row["qid"], options.grade)}
    words = {
        document.docno: set(document.encoded.token_ids.tolist())
        for document in index.documents()
        if document.docno in wanted and document.encoded is not None
    }
    shares, everywhere, found, changes, pieces = [], [], [], [], []
    for one, whole in zip(pruned, full, strict=True):
        relevant = [words[d] for d in topics.relevant(one["qid"], options.grade) if d in words]
        query = index.encode_query(one["query"])
        own = query.token_ids[query.token_kinds == TokenKind.WORD].tolist()
        kept = [token for token in own if index.token_text(token) in one["kept"]]
        if relevant and kept and whole["relevant_scored"]:
            shares.append(np.mean([[token in document for token in kept] for document in relevant]))
            everywhere.append(np.mean([[token in document for token in own] for document in relevant]))
            found.append(one["relevant_scored"] / whole["relevant_scored"])
            changes.append(one[results.measures[0]] - whole[results.measures[0]])
            pieces.append(np.mean([index.token_text(token).startswith("##") for token in kept]))
    share, kept_of, change = np.array(shares), np.array(found), np.array(changes)
    cells = [options.results.stem, f"{share.mean():.0%}", f"{np.mean(everywhere):.0%}"]
    for some in (share < FEW, share >= FEW):
        cells += [str(some.sum()), f"{kept_of[some].mean():.0%}", f"{change[some].mean():+.4f}"]
    cells += [f"{stats.spearmanr(values, kept_of)[0]:+.2f}" for values in (share, pieces)]
    print(f"| {' | '.join(cells)} |")


def _kept(results: Results) -> Callable[[str], float]:
    return lambda label: float(results.values(label, "embeddings_kept").mean())


if __name__ == "__main__":
    main()
