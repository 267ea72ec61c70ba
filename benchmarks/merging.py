"""Fewer embeddings per document: merging, pooling and static pruning, against the size of the index.

    python benchmarks/merging.py --collections DIR... --cache DIR [--most-queries 300] [--json FILE] [--figure FILE.svg]

A collection is its folder, or FOLDER:DOCUMENTS for a part of it (see judged.encode). Each is encoded once, then stored
in every way and searched exhaustively and by default. "of the exact ten" is the share of the ten best documents of
exhaustive search over all embeddings in float16 that the search finds. A star: nDCG@10 differs significantly from that
of the store with all embeddings and the same search (paired t-test, p < 0.05, Bonferroni over the other ways). Bytes
are those of the index without the texts.

    merge C     embeddings of the same token in a document with a cosine above C become their mean
    pool N      one embedding for N positions: the nearest become their mean, within a token first
    drop N      static pruning: no embeddings of the N most frequent wordpieces of the collection (special tokens stay)
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from judged import StoredEmbeddings, encode, per_query, progress, read_queries
from scipy.stats import ttest_rel

from secateurs import EncodedText, Index, TokenKind

ALL: dict[str, Any] = {"merge": None}
WAYS: dict[str, dict[str, Any]] = {
    "all": ALL,
    "merge 0.97": {"merge": 0.97},
    "merge 0.95": {"merge": 0.95},
    "merge 0.92": {"merge": 0.92},
    "merge 0.85": {"merge": 0.85},
    "pool 2": {"merge": None, "pool": 2},
    "pool 3": {"merge": None, "pool": 3},
    "drop 20": {"merge": None, "drop": 20},
    "drop 100": {"merge": None, "drop": 100},
}
SEARCHES: dict[str, dict[str, Any]] = {"exhaustive": {"gather": "exhaustive"}, "default": {}}


class Dropping(StoredEmbeddings):
    """Stored embeddings without those of the most frequent wordpieces."""

    def __init__(self, index: Index, most_frequent: int) -> None:
        super().__init__(index)
        frequencies = index.frequencies
        special = {
            int(token)
            for segment in index.snapshot.segments
            for token in np.unique(segment.token_ids[np.asarray(segment.token_kinds) != TokenKind.WORD])
        }
        order = frequencies.token_ids[np.argsort(-frequencies.collection, kind="stable")].tolist()
        self._dropped = np.array([token for token in order if token not in special][:most_frequent])
        fingerprint = f"{index.encoder.spec['fingerprint']} without {most_frequent}"
        self.spec = {**index.encoder.spec, "fingerprint": fingerprint}  # other embeddings: not to be taken over

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        for encoded in super().encode_documents(texts):
            kept = ~np.isin(encoded.token_ids, self._dropped)
            yield EncodedText(encoded.embeddings[kept], encoded.token_ids[kept], encoded.token_kinds[kept], encoded.cut)


def build(encoded: Index, path: Path, store: str, merge: float | None, pool: int = 1, drop: int = 0) -> Index:
    stored = Dropping(encoded, drop) if drop else StoredEmbeddings(encoded)
    return Index.build(
        path,
        stored.documents(),
        encoder=stored,
        store=store,
        merge=merge,
        pool=pool,
        overwrite=True,  # type: ignore[arg-type]
    )


def measure_collection(
    given: str, cache: Path, store: str, ways: Sequence[str], most_queries: int
) -> list[dict[str, Any]]:
    folder, _, documents = given.partition(":")
    encoded = encode(Path(folder), cache, int(documents) if documents else None)
    texts, qrels = read_queries(Path(folder), most_queries, encoded if documents else None)
    queries = {qid: encoded.encode_query(text) for qid, text in texts.items()}
    exact = {
        qid: {hit.docno for hit in encoded.search(query, gather="exhaustive")}
        for qid, query in progress(queries.items(), f"{Path(folder).name}: float16")
    }
    lines: list[dict[str, Any]] = []
    unchanged: dict[str, dict[str, float]] = {}
    for way in ways:
        path = cache / "merging.sec"
        index = build(encoded, path, store, **WAYS[way])
        facts = index.info()
        sizes = [record.files for record in index.manifest.segments] + [index.manifest.codebook.files]
        size = sum(file["bytes"] for files in sizes for name, file in files.items() if name != "documents.sqlite")
        for name, settings in SEARCHES.items():
            found = {qid: list(index.search(query, **settings)) for qid, query in queries.items()}
            run = {qid: [(hit.docno, hit.score) for hit in hits] for qid, hits in found.items()}
            values = per_query(qrels, run, ["nDCG@10"])["nDCG@10"]
            unchanged.setdefault(name, values)
            pairs = [[of_query[qid] for qid in queries] for of_query in (values, unchanged[name])]
            p = 1.0 if pairs[0] == pairs[1] else float(ttest_rel(*pairs).pvalue)
            shared = [len({hit.docno for hit in found[qid]} & exact[qid]) / len(exact[qid]) for qid in queries]
            lines.append(
                {
                    "collection": Path(folder).name,
                    "documents": facts["documents"],
                    "queries": len(queries),
                    "way": way,
                    "search": name,
                    "embeddings": facts["embeddings"],
                    "bytes": size / facts["documents"],
                    "nDCG@10": float(np.mean(pairs[0])),
                    "p": p,
                    "recall": float(np.mean(shared)),
                }
            )
        index.close()
        shutil.rmtree(path)
    return lines


def print_tables(lines: list[dict[str, Any]], ways: Sequence[str]) -> None:
    """A table for each quantity: a row for each way, a column for each collection."""
    tests = max(len(ways) - 1, 1)
    by_place = {(line["collection"], line["way"], line["search"]): line for line in lines}
    collections = list(dict.fromkeys(line["collection"] for line in lines))

    def print_table(
        title: str, value: Callable[[dict[str, Any], dict[str, Any]], str], search: str = "default"
    ) -> None:
        """`value` is of a line, and of the line with all embeddings."""
        print(f"\n{title}\n\n| | {' | '.join(collections)} |\n|---|{'---|' * len(collections)}")
        for way in ways:
            cells = [value(by_place[name, way, search], by_place[name, ways[0], search]) for name in collections]
            print(f"| {way} | {' | '.join(cells)} |")

    def score(line: dict[str, Any], _: dict[str, Any]) -> str:
        return f"{line['nDCG@10']:.4f}{'*' if line['p'] * tests < 0.05 else ''}"

    for name in collections:
        first = by_place[name, ways[0], "default"]
        print(
            f"{name}: {first['queries']} queries, {first['documents']:,} documents, {first['embeddings']:,} embeddings"
        )
    print_table("Embeddings", lambda line, first: f"{line['embeddings'] / first['embeddings']:.0%}")
    print_table("Bytes per document, without its text", lambda line, _: f"{line['bytes']:,.0f}")
    print_table("nDCG@10, default search", score)
    print_table("nDCG@10, exhaustive", score, "exhaustive")
    print_table("Of the exact ten, default search", lambda line, _: f"{line['recall']:.3f}")


def draw(lines: list[dict[str, Any]], path: Path) -> None:
    """nDCG@10 of the default search against bytes per document, both relative to the store with all embeddings."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(line["collection"] for line in lines))
    columns = min(len(names), 4)
    rows = -(-len(names) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(3.2 * columns, 2.8 * rows), constrained_layout=True, squeeze=False
    )
    styles = {"all": ("black", "*"), "merge": ("#d55e00", "o"), "pool": ("#0072b2", "s"), "drop": ("#999999", "x")}
    for panel, name in zip(axes.flat, names, strict=False):
        shown = [line for line in lines if line["collection"] == name and line["search"] == "default"]
        for kind, (colour, marker) in styles.items():
            points = [(line["bytes"], line["nDCG@10"]) for line in shown if line["way"].split()[0] == kind]
            if points:
                panel.plot(
                    *zip(*points, strict=True), color=colour, marker=marker, markersize=6, linewidth=0.8, label=kind
                )
        panel.axhline(shown[0]["nDCG@10"], color="black", linewidth=0.6, linestyle=":")
        panel.set_title(name, fontsize=9)
        panel.grid(alpha=0.25)
    for panel in axes.flat[len(names) :]:
        panel.axis("off")
    axes[0, 0].legend(frameon=False, fontsize=8)
    figure.supxlabel("bytes per document", fontsize=9)
    figure.supylabel("nDCG@10, default search", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--store", default="int8")
    arguments.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    arguments.add_argument("--most-queries", type=int, default=300)
    arguments.add_argument(
        "--json", type=Path, help="where the numbers go; collections that are in it are not measured"
    )
    arguments.add_argument("--figure", type=Path)
    options = arguments.parse_args()
    lines = json.loads(options.json.read_text()) if options.json and options.json.is_file() else []
    for given in options.collections:
        if not any(line["collection"] == Path(given.partition(":")[0]).name for line in lines):
            lines += measure_collection(given, options.cache, options.store, options.ways, options.most_queries)
            if options.json:
                options.json.write_text(json.dumps(lines, indent=1))
    print_tables(lines, options.ways)
    if options.figure:
        draw(lines, options.figure)


if __name__ == "__main__":
    main()
