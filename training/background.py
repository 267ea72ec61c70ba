"""Count the table of English that comes with the package: src/secateurs/encoders/english.background.npz.

    python training/background.py --collections DIR

Passages are those of DIR/boolq-wiki, DIR/nq-wiki-mini and DIR/squad-dev: corpus.jsonl.gz ({"docno", "text"} a line).
Questions are DIR/questions/questions.tsv.gz (source, tab, text on each line). The table holds how often each wordpiece
occurs in the passages, and `--questions-weight` times how often it occurs in the questions, which are few beside them.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from secateurs.background import PACKAGED, Background
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.frequencies import Frequencies

PASSAGES = ("boolq-wiki", "nq-wiki-mini", "squad-dev")


def passages(collections: Path) -> Iterator[str]:
    for name in PASSAGES:
        with gzip.open(collections / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def questions(collections: Path) -> Iterator[str]:
    with gzip.open(collections / "questions" / "questions.tsv.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n").partition("\t")[2]


def weighted(counts: Frequencies, weight: float) -> Frequencies:
    """Rounded to whole numbers."""
    return replace(counts, collection=np.rint(counts.collection * weight).astype(np.int64))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--questions-weight", type=float, default=1.0)
    arguments.add_argument("--out", type=Path, default=PACKAGED["english"])
    options = arguments.parse_args()
    encoder = OnnxEncoder.load()
    of_passages = Background.count(passages(options.collections), encoder, "passages")
    of_questions = Background.count(questions(options.collections), encoder, "questions")
    total = of_passages.counts + weighted(of_questions.counts, options.questions_weight)
    english = Background.of_counts("english", encoder.vocabulary, total.token_ids, total.collection)
    english.save(options.out)
    print(f"passages: {of_passages.tokens:,} wordpieces; questions: {of_questions.tokens:,}")
    print(f"{options.out}: {len(english.counts.token_ids):,} types, {options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
