"""An index that changes: recall and speed after growing tenfold and after deleting half, under filters, and at rest.

    python benchmarks/living.py --collection DIR --cache DIR [--batch 50]

Builds an index from the first tenth of the collection and adds the rest in small batches; then deletes half of it.
Every time it is compared with an index that was built from the same documents in one go, the two asked in turn. Recall
is against exact MaxSim on float16 embeddings. Embeddings come from the cache (see judged.py), so that times are those
of the index and not of the encoder. Prints the tables for the docs.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from time import perf_counter

from judged import encode, progress, read_queries

from secateurs import Document, EncodedText, Index

SHARES = (1, 2, 5, 10, 100, 1_000, 10_000)  # one document in so many matches


def top(index: Index, query: EncodedText, **settings: object) -> set[str]:
    return {hit.docno for hit in index.search(query, **settings)}  # type: ignore[arg-type]


def compare(
    indexes: dict[str, Index], queries: list[EncodedText], exact: list[set[str]], rounds: int = 5
) -> dict[str, tuple[float, float]]:
    """Per index: recall@10, and the milliseconds of a query. Of each query the quickest of several times counts."""
    times = {name: [float("inf")] * len(queries) for name in indexes}
    recall = dict.fromkeys(indexes, 0.0)
    for turn in range(rounds):
        for i, (query, right) in enumerate(zip(queries, exact, strict=True)):
            for name, index in indexes.items():
                began = perf_counter()
                found = top(index, query)
                times[name][i] = min(times[name][i], (perf_counter() - began) * 1000)
                if turn == 0:
                    recall[name] += len(found & right) / max(len(right), 1) / len(queries)
    return {name: (recall[name], mean(times[name])) for name in indexes}


def grow(documents: list[Document], scratch: Path, batch: int, queries: list[EncodedText], whole: Index) -> None:
    first = len(documents) // 10
    living = Index.build(scratch / "living.sec", documents[:first], encoder=None, overwrite=True)
    added = []
    for start in progress(range(first, len(documents), batch), "adding"):
        began = perf_counter()
        living.add(documents[start : start + batch])
        added.append(perf_counter() - began)
    grown = living.info()
    learnt, most_segments = living.manifest.codebook.embeddings, len(living.snapshot.segments)
    fresh = Index.build(scratch / "fresh.sec", documents, encoder=None, overwrite=True)
    exact = [top(whole, query, gather="exhaustive") for query in progress(queries, "exact")]
    rows = [("grown tenfold", len(living), compare({"living": living, "fresh": fresh}, queries, exact))]
    gone = random.Random(0).sample([document.docno for document in documents], len(documents) // 2)
    steps = [gone[start : start + 10 * batch] for start in range(0, len(gone), 10 * batch)]
    began = perf_counter()
    for docnos in progress(steps, "deleting"):
        living.delete(docnos)
    deleting = perf_counter() - began
    dead = set(gone)
    left = [document for document in documents if document.docno not in dead]
    fresh = Index.build(scratch / "fresh.sec", left, encoder=None, overwrite=True)
    float16 = Index.build(scratch / "left.sec", left, encoder=None, store="float16", gather=(), overwrite=True)
    exact = [top(float16, query, gather="exhaustive") for query in progress(queries, "exact")]
    rows.append(("half deleted", len(living), compare({"living": living, "fresh": fresh}, queries, exact)))
    print("| | documents | recall@10 | of one built in one go | time per query, times that of one built in one go |")
    print("|---|---|---|---|---|")
    for name, count, found in rows:
        (recall, spent), (of_fresh, fresh_spent) = found["living"], found["fresh"]
        print(f"| {name} | {count:,} | {recall:.3f} | {of_fresh:.3f} | {spent / fresh_spent:.2f} |")
    print(f"\n{len(added):,} adds of {batch} documents took {1000 * mean(added):.0f} ms each in the mean, ", end="")
    print(f"{1000 * median(added):.0f} in the median, {max(added):.1f} s at most.")
    print(f"{most_segments} segments then; cells learnt from {learnt:,} of {grown['embeddings']:,} embeddings.")
    print(
        f"{len(steps)} deletes took {1000 * deleting / len(steps):.0f} ms each; "
        f"{len(living.snapshot.segments)} segments then."
    )
    living.check()


def filters(documents: list[Document], scratch: Path, queries: list[EncodedText]) -> None:
    order = list(range(len(documents)))
    random.Random(1).shuffle(order)
    tagged = [replace(document, metadata={"place": order[i]}) for i, document in enumerate(documents)]
    index = Index.build(scratch / "fresh.sec", tagged, encoder=None, overwrite=True)
    counts = [max(1, len(documents) // share) for share in SHARES]
    conditions: list[str | None] = [None, *(f"place < {count}" for count in counts)]
    index.snapshot.filtered("place < 0")  # checks the database, once
    first_use = []
    for condition in conditions[1:]:
        began = perf_counter()
        index.snapshot.filtered(str(condition))
        first_use.append((perf_counter() - began) * 1000)
    times = [[float("inf")] * len(queries) for _ in conditions]
    recall, hits = [0.0] * len(conditions), [0] * len(conditions)
    for turn in range(5):
        for i, query in enumerate(progress(queries, f"filtering, round {turn + 1}")):
            for j, condition in enumerate(conditions):
                began = perf_counter()
                found = top(index, query, where=condition)
                times[j][i] = min(times[j][i], (perf_counter() - began) * 1000)
                if turn == 0:
                    right = top(index, query, where=condition, effort="exact")
                    recall[j] += len(found & right) / max(len(right), 1) / len(queries)
                    hits[j] += len(found)
    print("\n| one document in | match | time, times that without a filter | recall@10 | hits | first use, ms |")
    print("|---|---|---|---|---|---|")
    for j, share in enumerate(SHARES):
        spent = mean(times[j + 1]) / mean(times[0])
        found_hits = hits[j + 1] / len(queries)
        print(
            f"| {share:,} | {counts[j]:,} | {spent:.2f} | {recall[j + 1]:.3f} | {found_hits:g} | {first_use[j]:.1f} |"
        )


AT_REST = """
import sys, time
from secateurs import Index
def anonymous():
    return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) / 1024
import numpy, numba, secateurs.index  # imports are not opening
before = anonymous()
began = time.perf_counter()
index = Index(sys.argv[1])
opened = (time.perf_counter() - began) * 1000
after = anonymous()
queries = sys.argv[2:]
for query in queries: index.search(query)
embeddings = index.info()["embeddings"]
print(f"| {embeddings:,} | {opened:.0f} | {after - before:.0f} | {anonymous() - before:.0f} | {anonymous():.0f} |")
"""


def at_rest(path: Path, queries: list[str]) -> None:
    print("\n| embeddings | opening, ms | MiB more then | MiB more after 30 searches of text | whole process |")
    print("|---|---|---|---|---|")
    sys.stdout.flush()
    for _ in range(2):  # the second time the files are in the page cache
        done = subprocess.run(
            [sys.executable, "-c", AT_REST, path, *queries], check=True, capture_output=True, text=True
        )
    print(done.stdout, end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collection", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cache", type=Path, required=True, metavar="DIR")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--queries", type=int, default=100, help="at most so many")
    options = parser.parse_args()
    whole = encode(options.collection, options.cache)
    texts, _ = read_queries(options.collection, options.queries)
    queries = [whole.encode_query(text) for text in texts.values()]
    documents = list(whole.documents())
    scratch = options.cache / f"{options.collection.name}.living"
    scratch.mkdir(exist_ok=True)
    print(f"{options.collection.name}, {len(queries)} queries\n")
    grow(documents, scratch, options.batch, queries, whole)
    filters(documents, scratch, queries)
    spec = whole.manifest.encoder
    del documents
    again = Index.build(scratch / "fresh.sec", whole.documents(), encoder=None, overwrite=True)
    manifest = replace(again.manifest, encoder=spec)
    manifest.write(scratch / "fresh.sec")
    del again
    at_rest(scratch / "fresh.sec", list(texts.values())[:30])
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
