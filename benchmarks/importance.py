"""Orders of importance, compared: how much of exhaustive search they find, and with how many documents.

    python benchmarks/importance.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 100]
        [--gather faiss cells] [--p 1 2 3 4 6 8] [--k-prime 200] [--figure FILE] [--nearest]
        [--choose ORDER] [--specials] [--summary] [--worth] [--means]

`DIR:5000` takes the first 5,000 documents, and the queries that have a relevant one among them.

Prints a Markdown table for each way of gathering: of each order and p, the share of the exact ten best that is found,
the documents gathered, nDCG@10 and its difference from ICF with the same p. A star: the difference is significant
(paired t-test over the queries, p < 0.05 after Bonferroni's correction for the comparisons of the collection).
`--nearest` adds an order by the nearest cells, see `nearest_cells`. `--figure` draws overlap and nDCG@10 against
documents gathered. Nothing here is timed. Other tables instead: `--choose rarity` chooses the background's share in the
order `rarity`, and `--choose focus` what the other words count for in `focus`, by leaving out one collection at a time;
`--specials` has what a special token gathers alone, beside the rarest word; `--summary` what cells find if the
summary's similarity counts 0 to 4 times; `--worth` what the default search finds on four rungs of the ladder of
effort, if the worth of a word is its rarity, and if it is its focus; and what a fixed p finds with the cells and
candidates of the rung; `--means` what `focus` finds with a mean that is not that of the documents as they are: of the
first tenth of them, and of the next collection of the list.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from judged import Collection, open_slice, per_query, progress
from numpy.typing import NDArray

from secateurs import EncodedText, Frequencies, Index, TokenKind
from secateurs import search as searching
from secateurs.effort import level
from secateurs.gather import cells
from secateurs.importance import Order, focus, focuses, icf, log_share, rarity
from secateurs.kernels.simd import round_query

SHARES = (0.0, 0.5, 0.75, 0.9, 0.95, 1.0)
OTHER_WORDS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)


class Row(NamedTuple):
    """One order with one p on one collection; arrays are (queries,)."""

    overlap: NDArray[np.float64]
    documents: NDArray[np.float64]
    ndcg: NDArray[np.float64]


def nearest_cells(index: Index) -> Order:
    """`rarity`, but words are ordered by their nearest cell and by the other words.

    The worth of a word is the similarity with its nearest centroid less that with the mean of all embeddings, plus half
    its mean similarity to the other words. Every word must be compared with every centroid before pruning.
    """
    codebook = index.snapshot.codebook
    assert codebook.int8 is not None
    step = codebook.int8.step

    def order(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
        usual = rarity(query, frequencies)
        seen = frequencies.collection_frequency(query.token_ids) > 0
        words = np.flatnonzero((query.token_kinds == TokenKind.WORD) & seen)
        if len(words) < 2:
            return usual
        rounded, unit = round_query(query.embeddings[words])
        _, products = codebook.cells.nearest(rounded, 1)
        similar = query.embeddings[words] @ query.embeddings[words].T  # (words, words)
        others = (similar.sum(axis=1) - np.diag(similar)) / (len(words) - 1)
        words = words[np.argsort(-(products[:, 0] * unit * step + others / 2), kind="stable")]
        return np.concatenate([words, usual[~np.isin(usual, words)]])

    return order


def with_share(share: float) -> Order:
    """`rarity` with another share of the background."""

    def order(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
        general = frequencies.background
        assert general is not None
        in_collection = (1 + frequencies.collection_frequency(query.token_ids)) / frequencies.embeddings
        in_general = (1 + general.collection_frequency(query.token_ids)) / general.embeddings
        return seen_words_first(query, frequencies, (1 - share) * in_collection + share * in_general)

    return order


def with_other_words(times: float) -> Order:
    """`focus` in which the other words count for more or less."""

    def order(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
        assert frequencies.centre is not None
        return seen_words_first(query, frequencies, -focuses(query, frequencies.centre, times))

    return order


def with_mean(mean: NDArray[np.float32]) -> Order:
    """`focus` with another mean."""
    return lambda query, frequencies: focus(query, frequencies.with_centre(mean))


def print_means(bench: Bench, other: Bench) -> None:
    index = bench.collection.index
    (segment,) = index.snapshot.segments
    first_tenth = index.snapshot.store.decode(segment.rows[np.arange(segment.offsets[len(segment) // 10])])
    mean, foreign = index.frequencies.centre, other.collection.index.frequencies.centre
    assert mean is not None
    assert foreign is not None
    means = {"of all documents": mean, "of the first tenth": first_tenth.mean(axis=0), f"of {other.name}": foreign}
    for name, given in means.items():
        found = [bench.measure(order=with_mean(given), p=p, gather="cells").overlap.mean() for p in (1, 2, 3, 4)]
        distance = float(np.linalg.norm(given - mean))
        print(f"| {bench.name} | {name} | {distance:.3f} | {' | '.join(f'{share:.3f}' for share in found)} |")


def seen_words_first(query: EncodedText, frequencies: Frequencies, key: NDArray[np.float64]) -> NDArray[np.int64]:
    """Words that documents have by an ascending key, then the other positions as in `icf`."""
    usual = icf(query, frequencies)
    seen = (query.token_kinds == TokenKind.WORD) & (frequencies.collection_frequency(query.token_ids) > 0)
    return usual[np.argsort(np.where(seen, key, np.inf)[usual], kind="stable")]


def kind_first(kind: TokenKind) -> Order:
    """The first position of that kind, then the others as in `icf`."""

    def order(query: EncodedText, frequencies: Frequencies) -> NDArray[np.int64]:
        usual = icf(query, frequencies)
        wanted = np.flatnonzero(query.token_kinds == kind)[:1]
        return np.concatenate([wanted, usual[~np.isin(usual, wanted)]])

    return order


def print_specials(bench: Bench, gathers: Sequence[str], k_prime: int) -> None:
    """One embedding gathers: that of the rarest word, or a special token's."""
    alone: dict[str, Order] = {
        "first word (icf)": "icf",
        "first word (rarity)": "rarity",
        "first word (focus)": "focus",
    }
    alone |= {kind.name.lower(): kind_first(kind) for kind in TokenKind if kind > TokenKind.PUNCTUATION}
    for gather in gathers:
        for name, order in alone.items():
            is_there = name.startswith("first word") or any(
                (query.token_kinds == TokenKind[name.upper()]).any() for query in bench.collection.queries.values()
            )
            if is_there:
                row = bench.measure(order=order, p=1, gather=gather, k_prime=k_prime)
                line = [bench.name, gather, name, f"{row.overlap.mean():.3f}", f"{row.documents.mean():,.0f}"]
                print(f"| {' | '.join(line)} |")


def print_summary(bench: Bench) -> None:
    """How often the summary's exact similarity should count in the approximate score."""
    shipped = cells.times_counted
    try:
        for times in (0.0, 1.0, 2.0, 3.0, 4.0, None):
            if times is not None:
                cells.times_counted = lambda query, times=times: times
            else:
                cells.times_counted = shipped
            found = [bench.measure(p=p, gather="cells").overlap.mean() for p in (2, 3, 4, "auto")]
            name = "as shipped, by the number of MASKs" if times is None else f"{times:g}"
            print(f"| {bench.name} | {name} | {' | '.join(f'{share:.3f}' for share in found)} |")
    finally:
        cells.times_counted = shipped


def by_rarity(query: EncodedText, frequencies: Frequencies) -> NDArray[np.float64]:
    """The worth of words that no index uses which knows the mean of its embeddings."""
    return np.where(query.token_kinds == TokenKind.WORD, -log_share(query.token_ids, frequencies), 0.0)


def print_worth(bench: Bench) -> None:
    """On four rungs of the ladder; with a worth, p and the cells of each word follow it, otherwise they are equal."""
    rungs = (2.0, 3.0, 4.0, 5.0)
    for name, worth in {"rarity": by_rarity, "focus": searching.worths}.items():
        found = []
        for rung in rungs:
            with (
                patch.object(searching, "worths", worth),
                patch.object(searching, "places_of", lambda snapshot, rung=rung: {"balanced": rung}),
            ):
                found.append(bench.measure(order="focus", gather="cells"))
        print_rungs(bench, f"by {name}", found)
    for name, p in {"none: every word": words_of, "none: p = 4": 4, "none: p = 8": 8}.items():
        at = [level(rung) for rung in rungs]
        equal = [{"nprobe": int(rung.nprobe), "candidates": int(4 * rung.patience)} for rung in at]
        print_rungs(bench, name, [bench.measure(order="focus", p=p, gather="cells", **settings) for settings in equal])


def print_rungs(bench: Bench, name: str, rows: Sequence[Row]) -> None:
    found = [f"{row.overlap.mean():.3f} / {row.documents.mean():,.0f}" for row in rows]
    print(f"| {bench.name} | {name} | {' | '.join(found)} |")


ORDERS: dict[str, Order] = {"first": "first", "icf": "icf", "rarity": "rarity", "focus": "focus"}


class Bench:
    """A collection with what exhaustive search finds for its queries."""

    def __init__(self, name: str, collection: Collection) -> None:
        self.name, self.collection = name, collection
        self.exact: dict[str, set[str]] = {}
        run = {}
        for qid, query in progress(collection.queries.items(), description=f"{name}, exhaustive"):
            ranking = collection.index.search(query, effort="exact")
            self.exact[qid] = {hit.docno for hit in ranking}
            run[qid] = [(hit.docno, hit.score) for hit in ranking]
        self.exhaustive_ndcg = float(np.mean(self._ndcg(run)))

    def measure(self, **settings: Any) -> Row:
        run, overlap, documents = {}, [], []
        p = settings.pop("p", "auto")
        for qid, query in self.collection.queries.items():
            wanted = p(query) if callable(p) else p
            ranking = self.collection.index.search(query, p=wanted, **settings)
            found = {hit.docno for hit in ranking}
            overlap.append(len(found & self.exact[qid]) / max(len(self.exact[qid]), 1))
            documents.append(ranking.stats.documents_gathered)
            run[qid] = [(hit.docno, hit.score) for hit in ranking]
        return Row(np.array(overlap), np.array(documents), self._ndcg(run))

    def _ndcg(self, run: dict[str, list[tuple[str, float]]]) -> NDArray[np.float64]:
        values = per_query(self.collection.qrels, run, ["nDCG@10"])["nDCG@10"]
        return np.array([values[qid] for qid in self.collection.queries])


def compare(
    bench: Bench, gather: str, ps: Sequence[int], k_prime: int, nearest: bool = False
) -> dict[tuple[str, str], Row]:
    """(order, p) -> row; the default search is ("focus", "auto")."""
    rows: dict[tuple[str, str], Row] = {}
    orders = ORDERS | ({"nearest cells": nearest_cells(bench.collection.index)} if nearest else {})
    wanted: list[tuple[str, int]] = [(name, p) for name in orders for p in ps]
    for name, p in progress(wanted, description=f"{bench.name}, {gather}"):
        rows[name, str(p)] = bench.measure(order=orders[name], p=p, gather=gather, k_prime=k_prime)
    if gather == "cells":
        for name in ("icf", "rarity", "focus"):
            rows[name, "auto"] = bench.measure(order=name, gather=gather)
        if nearest:
            rows["nearest cells", "auto"] = bench.measure(order=orders["nearest cells"], gather=gather)
        rows["icf", "all words"] = bench.measure(order="icf", p=words_of, gather=gather, nprobe=32)
    return rows


def words_of(query: EncodedText) -> int:
    """All words, but half of those beyond the sixteenth, and four at least: with 32 cells each, a generous search."""
    words = int((query.token_kinds == TokenKind.WORD).sum())
    return max(words - max(words - 16, 0) // 2, 4)


def print_table(bench: Bench, gather: str, rows: dict[tuple[str, str], Row]) -> None:
    from scipy.stats import ttest_rel

    compared = [key for key in rows if key[0] != "icf" and ("icf", key[1]) in rows]
    for (order, p), row in rows.items():
        line = [bench.name, gather, order, p, f"{row.overlap.mean():.3f}", f"{row.documents.mean():,.0f}"]
        difference = ""
        if (order, p) in compared:
            other = rows["icf", p]
            change = row.ndcg - other.ndcg
            tested = ttest_rel(row.ndcg, other.ndcg).pvalue if np.abs(change).any() else 1.0
            difference = f"{change.mean():+.4f}{'*' if tested * len(compared) < 0.05 else ''}"
        print(f"| {' | '.join([*line, f'{row.ndcg.mean():.4f}', difference])} |")
    print(
        f"| {bench.name} | exhaustive | | | 1.000 | {len(bench.collection.index):,} | {bench.exhaustive_ndcg:.4f} | |"
    )


def choose(benches: Sequence[Bench], orders: dict[float, Order], gathers: Sequence[str], k_prime: int) -> None:
    """Mean overlap and nDCG@10 over p = 1 to 4 for each number, and the numbers that the other collections choose."""
    table = np.zeros((len(benches), len(orders)))
    ndcg = np.zeros_like(table)
    for b, bench in enumerate(benches):
        for n, order in enumerate(progress(orders.values(), description=bench.name)):
            measured = [
                bench.measure(order=order, p=p, gather=gather, k_prime=k_prime)
                for gather in gathers
                for p in (1, 2, 3, 4)
            ]
            table[b, n] = np.mean([row.overlap.mean() for row in measured])
            ndcg[b, n] = np.mean([row.ndcg.mean() for row in measured])
    numbers = list(orders)
    print(f"| collection | {' | '.join(map(str, numbers))} | the others choose, by overlap | by nDCG@10 |")
    print("|---" * (len(numbers) + 3) + "|")

    def line(name: str, of_bench: NDArray[np.float64], ndcg_of_bench: NDArray[np.float64], best: list[float]) -> None:
        values = [f"{a:.3f} / {b:.4f}" for a, b in zip(of_bench, ndcg_of_bench, strict=True)]
        print(f"| {' | '.join([name, *values, *map(str, best)])} |")

    for b, bench in enumerate(benches):
        others = [np.delete(values, b, axis=0).mean(axis=0) for values in (table, ndcg)]
        line(bench.name, table[b], ndcg[b], [numbers[int(mean.argmax())] for mean in others])
    means = table.mean(axis=0), ndcg.mean(axis=0)
    line("mean", *means, [numbers[int(mean.argmax())] for mean in means])


def draw(path: Path, results: dict[tuple[str, str], dict[tuple[str, str], Row]]) -> None:
    """Two plots for each collection, four collections side by side."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullFormatter

    names = list(dict.fromkeys(name for name, _ in results))
    gather = "cells" if any(key[1] == "cells" for key in results) else "faiss"
    styles = {"first": ("#999999", "o"), "icf": ("#1f77b4", "s"), "rarity": ("#e69f00", "^"), "focus": ("#d62728", "D")}
    if any(order == "nearest cells" for rows in results.values() for order, _ in rows):
        styles["nearest cells"] = ("#009e73", "v")
    columns = min(len(names), 4)
    lines = 2 * -(-len(names) // columns)
    plt.rcParams["svg.fonttype"] = "none"
    figure, axes = plt.subplots(
        lines, columns, figsize=(2.6 * columns, 2.1 * lines), squeeze=False, layout="constrained"
    )
    for number, name in enumerate(names):
        rows = results[name, gather]
        for value in ("overlap", "ndcg"):
            plot = axes[2 * (number // columns) + (value == "ndcg"), number % columns]
            for order, (colour, marker) in styles.items():
                points = [row for (given, p), row in rows.items() if given == order and p.isdigit()]
                x = [row.documents.mean() for row in points]
                y = [getattr(row, value).mean() for row in points]
                plot.plot(x, y, color=colour, marker=marker, markersize=3.5, linewidth=1.1, label=order)
            if ("focus", "auto") in rows:
                row = rows["focus", "auto"]
                label = "focus, p per query"
                plot.plot(row.documents.mean(), getattr(row, value).mean(), "k*", markersize=9, label=label)
            plot.spines[["top", "right"]].set_visible(False)
            plot.tick_params(labelsize=7)
            plot.set_xscale("log")  # `first` gathers many times as many
            plot.xaxis.set_major_formatter("{x:,.0f}")
            plot.xaxis.set_minor_formatter(NullFormatter())
            if value == "overlap":
                plot.set_title(name, fontsize=9)
                plot.set_ylim(0, 1.04)
            else:
                plot.set_xlabel("documents gathered", fontsize=8)
            if number % columns == 0:
                plot.set_ylabel("exact ten found" if value == "overlap" else "nDCG@10", fontsize=8)
    for number in range(len(names), lines // 2 * columns):
        for below in (0, 1):
            axes[2 * (number // columns) + below, number % columns].set_visible(False)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=100)
    arguments.add_argument("--gather", nargs="+", default=["faiss", "cells"])
    arguments.add_argument("--p", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8])
    arguments.add_argument("--k-prime", type=int, default=200)
    arguments.add_argument("--figure", type=Path)
    arguments.add_argument("--nearest", action="store_true")
    arguments.add_argument("--choose", choices=["rarity", "focus"])
    arguments.add_argument("--specials", action="store_true")
    arguments.add_argument("--summary", action="store_true")
    arguments.add_argument("--worth", action="store_true")
    arguments.add_argument("--means", action="store_true")
    options = arguments.parse_args()

    def open_bench(given: str) -> Bench:
        built_for = tuple(sorted(options.gather))
        return Bench(*open_slice(given, options.cache, options.most_queries, gather=built_for))

    if options.choose:
        orders = {"rarity": {share: with_share(share) for share in SHARES}}
        orders["focus"] = {times: with_other_words(times) for times in OTHER_WORDS}
        benches = [open_bench(given) for given in options.collections]
        choose(benches, orders[options.choose], options.gather, options.k_prime)
        return
    if options.summary:
        print("| collection | the summary counts | p = 2 | p = 3 | p = 4 | p per query |\n|---|---|---|---|---|---|")
        for bench in map(open_bench, options.collections):
            print_summary(bench)
        return
    if options.worth:
        print("| collection | worth | rung 2 | rung 3 | rung 4 | rung 5 |\n|---|---|---|---|---|---|")
        for bench in map(open_bench, options.collections):
            print_worth(bench)
        return
    if options.means:
        print("| collection | mean | distance | p = 1 | p = 2 | p = 3 | p = 4 |\n|---|---|---|---|---|---|---|")
        benches = [open_bench(given) for given in options.collections]
        for number, bench in enumerate(benches):
            print_means(bench, benches[(number + 1) % len(benches)])
        return
    if options.specials:
        print("| collection | gather | alone | overlap | documents |\n|---|---|---|---|---|")
        for bench in map(open_bench, options.collections):
            print_specials(bench, options.gather, options.k_prime)
        return
    head = ["collection", "gather", "order", "p", "overlap", "documents", "nDCG@10", "against ICF"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    results: dict[tuple[str, str], dict[tuple[str, str], Row]] = {}
    for bench in map(open_bench, options.collections):
        for gather in options.gather:
            results[bench.name, gather] = compare(bench, gather, options.p, options.k_prime, options.nearest)
            print_table(bench, gather, results[bench.name, gather])
    if options.figure:
        draw(options.figure, results)


if __name__ == "__main__":
    main()
