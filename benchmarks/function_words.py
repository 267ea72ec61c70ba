"""Rare here, common elsewhere: what if the words of asking did not count as rare?

    python benchmarks/function_words.py INDEX --queries FILE --qrels FILE --elsewhere INDEX [--sample N]

In a collection of abstracts "how" and "what" are rare, so ICF keeps them. Two other orders do not: English function
words behind all other words, and the collection frequencies of another index. Prints the table of `secateurs evaluate`
for p = 1 to 4, gathered by FAISS.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from secateurs import EncodedText, Frequencies, Index, SearchSettings, TokenKind
from secateurs.cli.lab_printing import print_summary
from secateurs.importance import Positions, icf
from secateurs.lab import evaluate, read_topics

OF_ASKING = "what which who how when where why can could may might must should would do does did has have had been"
FUNCTION_WORDS = {*STOPWORDS_EN, *OF_ASKING.split(), "being", "any", "some", "much", "many", "there", "anyone"}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("index", type=Path)
    arguments.add_argument("--queries", required=True)
    arguments.add_argument("--qrels", required=True)
    arguments.add_argument("--elsewhere", type=Path, required=True)
    arguments.add_argument("--sample", type=int, default=1_000_000)
    options = arguments.parse_args()
    index, elsewhere = Index(options.index), Index(options.elsewhere).frequencies

    def function_words_last(query: EncodedText, frequencies: Frequencies) -> Positions:
        usual = icf(query, frequencies)
        common = np.array([index.token_text(token) in FUNCTION_WORDS for token in query.token_ids.tolist()])
        behind = np.where(query.token_kinds == TokenKind.WORD, common, 2)
        return usual[np.argsort(behind[usual], kind="stable")]

    def icf_elsewhere(query: EncodedText, frequencies: Frequencies) -> Positions:
        return icf(query, elsewhere)

    settings = [
        SearchSettings(k=1000, p=p, order=order, gather="faiss")
        for p in (1, 2, 3, 4)
        for order in ("first", "icf", function_words_last, icf_elsewhere)
    ]
    settings.append(SearchSettings(k=1000, p=None, gather="faiss"))
    topics = read_topics(options.queries, options.qrels).sample(options.sample)
    print_summary(evaluate(index, topics, settings, measures=["nDCG@10", "AP"], baseline="p=all"))


if __name__ == "__main__":
    main()
