"""Count the table of English that comes with the package: src/secateurs/encoders/english.background.npz.

    python training/background.py --collections DIR

The table holds how often each wordpiece occurs in the Wikipedia passages of DIR/boolq-wiki, DIR/nq-wiki-mini and
DIR/squad-dev: corpus.jsonl.gz, {"docno", "text"} a line.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

from secateurs.background import PACKAGED, Background
from secateurs.encoders.onnx import OnnxEncoder

PASSAGES = ("boolq-wiki", "nq-wiki-mini", "squad-dev")


def passages(collections: Path) -> Iterator[str]:
    for name in PASSAGES:
        with gzip.open(collections / name / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--out", type=Path, default=PACKAGED["english"])
    options = arguments.parse_args()
    english = Background.count(passages(options.collections), OnnxEncoder.load(), "english")
    english.save(options.out)
    print(f"{options.out}: {english.tokens:,} wordpieces of {len(english.counts.token_ids):,} types, ", end="")
    print(f"{options.out.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
