"""Make the stored indexes again: one per store, of the format that this version writes, with the rankings they give.

    python tests/data/make.py

Only for a new format version: the folders of a released format stay as they are, because later versions must open them.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from conftest import random_text

from secateurs import Document, Index
from secateurs.settings import STORES
from secateurs.storage.manifest import FORMAT_VERSION

HERE = Path(__file__).parent
HOW = {"k": 5, "p": 2, "k_prime": 6, "nprobe": 3}  # the settings of the stored rankings


def main() -> None:
    for store in STORES:
        name = f"format-{FORMAT_VERSION}" + ("" if store == "int8" else f"-{store}")
        rng = np.random.default_rng(0)
        items = [Document(f"d{i} ü", f"text {i}", {"i": i}, random_text(rng, 1 + i % 6, 8)) for i in range(24)]
        gather = ("cells", "faiss") if store == "int8" else ("cells",)
        shutil.rmtree(HERE / name, ignore_errors=True)
        index = Index.build(HERE / name, items[:20], encoder=None, store=store, gather=gather)
        index.add(items[20:])
        index.delete(["d7 ü", "d8 ü"])
        (HERE / name / "write.lock").unlink()
        query = random_text(np.random.default_rng(2), 5, 8)
        expected = {
            way: [(hit.docno, hit.score) for hit in index.search(query, gather=way, **HOW)] for way in index.gatherers
        }
        (HERE / f"{name}.expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
