"""What deleting ten documents costs, against the size of the collection.

    python benchmarks/deleting.py [--sizes 10000 100000 1000000]

Makes indexes of small documents with random embeddings, and deletes ten documents at a time from each in turn: from an
index that was opened for it, as `secateurs delete` does, and from one that stays open, as a service does. Prints the
medians as multiples of those of the smallest index, as a table for the docs, and which steps of a delete from an index
that was opened for it took how long.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from secateurs import Document, EncodedText, Index

DIM, TOKENS, AT_ONCE, ROUNDS = 8, 4, 10, 21
STEPS = {  # functions whose time is shown, with that of what they call
    "opening the index": ("index.py", "__init__"),
    "finding the docnos": ("snapshot.py", "find_all"),
    "counting their tokens": ("segments.py", "frequencies_of"),
    "writing the deletions": ("changes.py", "_write_deletions"),
    "writing the manifest": ("manifest.py", "write"),
}


def documents(count: int) -> Iterator[Document]:
    rng = np.random.default_rng(0)
    ids, kinds = np.arange(TOKENS, dtype=np.int32), np.zeros(TOKENS, dtype=np.uint8)
    for number in range(count):
        embeddings = rng.normal(size=(TOKENS, DIM)).astype(np.float32)
        text = f"document {number} " + "with a text of about two hundred characters, " * 4
        yield Document(f"d{number:08}", text, {"number": number}, EncodedText(embeddings, ids, kinds))


def milliseconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return (perf_counter() - began) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N")
    sizes = parser.parse_args().sizes
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{size}.sec" for size in sizes]
        opened, batches = [], []
        for size, path in zip(sizes, paths, strict=True):
            opened.append(Index.build(path, documents(size), encoder=None, gather=()))
            chosen = [f"d{number:08}" for number in np.random.default_rng(1).permutation(size)]
            batches.append([chosen[start : start + AT_ONCE] for start in range(0, 2 * ROUNDS * AT_ONCE, AT_ONCE)])
        first: list[list[float]] = [[] for _ in sizes]
        later: list[list[float]] = [[] for _ in sizes]
        profiles = [cProfile.Profile() for _ in sizes]
        for _ in range(ROUNDS):
            for i in range(len(sizes)):
                later[i].append(milliseconds(lambda i=i: opened[i].delete(batches[i].pop())))  # type: ignore[misc]
                with profiles[i]:
                    first[i].append(milliseconds(lambda i=i: Index(paths[i]).delete(batches[i].pop())))  # type: ignore
    for size, profile in zip(sizes, profiles, strict=True):
        spent = {
            (Path(file).name, function): 1000 * row[3] / ROUNDS
            for (file, _, function), row in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
        }
        shown = ", ".join(f"{name} {spent.get(key, 0):.2f}" for name, key in STEPS.items())
        sys.stderr.write(f"{size:,} documents, mean milliseconds: {shown}\n")
    print(f"\nWith {sizes[0]:,} documents: {median(first[0]):.1f} ms opened for it, {median(later[0]):.1f} ms open.\n")
    print("| documents | opened for the delete | open already |\n|---|---|---|")
    for i, size in enumerate(sizes):
        print(f"| {size:,} | {median(first[i]) / median(first[0]):.2f} | {median(later[i]) / median(later[0]):.2f} |")


if __name__ == "__main__":
    main()
