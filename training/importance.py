"""Can a small model order query embeddings better than the order `focus` does? Labels come from exhaustive search.

    PYTHONPATH=benchmarks python training/importance.py --collections DIR --cache DIR [--questions 1000]
        [NAME[:MOST_DOCUMENTS] ...]

DIR holds collection folders as benchmarks/judged.py reads them; indexes are kept in the cache. Each collection is held
out in turn: the models, and the share of the background frequency in the two-frequency order, are learnt from the
others. The background of a collection counts the wordpieces of the Wikipedia collections without the collection itself.
With `--questions`, models also learn from so many of the questions in DIR/questions/questions.tsv.gz (source, tab,
text), asked of boolq-wiki, except where that is held out: labels need no judgements.

    1 observe   for each position of a query: features that are known before gathering, and which of the ten best
                documents of exhaustive search it gathers alone (FAISS with k' = 200; cells with nprobe 32, candidates
                256)
    2 learn     what a word is worth, from its features: ridge regression, a small network, boosted trees
    3 report    the share of the ten best that the first p positions gather: models against `focus`

Labels, each a number per word: `alone`, how many of the ten it gathers; `shared`, each of the ten divided among the
words that gather it (the Shapley value of coverage); `added`, how many it gathers that the words before it in the
two-frequency order do not. Where the summary comes first, what it gathers is not counted again.

Beside the models are orders without any training: a word is worth more, the farther its embedding is from the mean of
all stored embeddings (the centre), the nearer to a cell's centroid, and the nearer to the other words. `focus` is such
an order. `greedy` knows the ten best: no order can be much better. The last columns of a table are means over the
collections at some p. + and - mark a significant difference from `focus` (paired t-test over the queries of a
collection, on their mean over p; p < 0.05, Bonferroni over all orders and collections of a table).
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
from judged import open_collection, progress
from numpy.typing import NDArray

from secateurs import EncodedText, Index, TokenKind
from secateurs.effort import make_plan
from secateurs.encoders.model_folder import wheel_folder
from secateurs.gather import gatherer
from secateurs.kernels.simd import round_query
from secateurs.lab.significance import compare
from secateurs.search import score
from secateurs.settings import SearchSettings

Array = NDArray[np.float64]
Order = NDArray[np.int64]  # positions, the most important first
Model = Callable[[Array], Array]  # features (positions, features) -> worth (positions,)
Learner = Callable[[Array, Array, NDArray[np.int64]], Model]  # from features, labels, and the number of the query

COLLECTIONS = ["squad-dev", "nq-wiki-mini:10000", "boolq-wiki:10000", "cranfield", "vaswani", "msmarco-dl19"]
COLLECTIONS += ["debian-descriptions:15000", "scifact"]
BACKGROUND = ("squad-dev", "nq-wiki-mini", "boolq-wiki")
SHARES = (0, 0.25, 0.5, 0.75, 1.0)
PS = tuple(range(1, 9))
BEST, NPROBE = 10, 32
WAYS = {"faiss": SearchSettings(gather="faiss", k_prime=200)}
WAYS["cells"] = SearchSettings(gather="cells", nprobe=NPROBE, candidates=256)
LABELS = ("alone", "shared", "added")
WORD_FEATURES = (
    *("log cf", "log background cf", "their product", "log cf squared", "log background cf squared", "unseen"),
    *("continues a word", "begins a word of pieces", "place in the word", "pieces of the word"),
    *("log background cf of the word's rarest piece", "share of the query before it", "repeats an earlier token"),
    *("log documents in the nearest cell", "in the nearest 4", "in the nearest 32", "similarity of the nearest cell"),
    *("spread to the 8th", "spread to the 32nd", "largest similarity with another word", "mean with other words"),
    *("similarity with the summary", "with CLS"),
)
KINDS = (TokenKind.PUNCTUATION, TokenKind.CLS, TokenKind.SEP, TokenKind.MASK, TokenKind.SUMMARY)


@dataclass(frozen=True)
class Observed:
    """A query, what is known of its positions before gathering, and what each of them gathers."""

    query: EncodedText
    log_cf: Array  # (positions,) log of the collection frequency + 1
    log_background: Array  # (positions,) log of the background frequency + 1
    features: Array  # (positions, features)
    centre: Array  # (positions,) similarity with the mean of all stored embeddings
    best: NDArray[np.int64]  # (10,) documents
    found: dict[str, NDArray[np.bool_]]  # by way, (positions, 10): whether the position gathers that one of the best

    @property
    def words(self) -> NDArray[np.bool_]:
        return np.asarray(self.query.token_kinds == TokenKind.WORD)


# ---------------------------------------------------------------- 1 observe


def count_wordpieces(folder: Path, cache: Path) -> NDArray[np.int64]:
    """How often each wordpiece occurs in the texts of a collection."""
    path = cache / f"{folder.name}.wordpieces.npy"
    if not path.exists():
        tokenizer = tokenizers.Tokenizer.from_file(str(wheel_folder() / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        counts = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
        with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
            for line in progress(lines, f"counting {folder.name}"):
                ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
                np.add.at(counts, ids, 1)
        np.save(path, counts)
    return np.load(path)


def read_questions(folder: Path, most: int) -> list[str]:
    """A seeded sample of questions that belong to no collection."""
    with gzip.open(folder / "questions.tsv.gz", "rt", encoding="utf-8") as lines:
        texts = [line.rstrip("\n").split("\t", 1)[1] for line in lines]
    return random.Random(0).sample(texts, min(most, len(texts)))


def observe(options: argparse.Namespace, name: str, questions: int = 0) -> tuple[Index, list[Observed]]:
    """The queries of a collection, given as NAME or NAME:MOST_DOCUMENTS; or so many other questions."""
    name, _, most = name.partition(":")
    judged = open_collection(
        options.collections / name, options.cache, options.most_queries, most_documents=int(most) if most else None
    )
    queries = list(judged.queries.values())
    if questions:
        texts = read_questions(options.collections / "questions", questions)
        queries = [judged.index.encode_query(text) for text in progress(texts, "encoding questions")]
    counted = [count_wordpieces(options.collections / other, options.cache) for other in BACKGROUND if other != name]
    background = np.sum(counted, axis=0)  # (vocabulary,)
    vocabulary = tokenizers.Tokenizer.from_file(str(wheel_folder() / "tokenizer.json"))
    continues = np.array([vocabulary.id_to_token(i).startswith("##") for i in range(vocabulary.get_vocab_size())])
    snapshot = judged.index.snapshot
    documents = np.arange(int(snapshot.firsts[-1]))
    observed = []
    for query in progress(queries, f"observing {name}"):
        best = np.argsort(-score(snapshot, query, documents), kind="stable")[:BEST]
        found = {}
        for way in WAYS:
            each = [gather(judged.index, way, query, np.array([i])) for i in range(len(query))]
            found[way] = np.array([np.isin(best, numbers) for numbers in each])
        log_cf = np.log1p(snapshot.frequencies.collection_frequency(query.token_ids))
        log_background = np.log1p(background[query.token_ids])
        features = describe(query, log_cf, log_background, continues[query.token_ids], judged.index)
        centre = query.embeddings @ snapshot.codebook.int8.centre
        observed.append(Observed(query, log_cf, log_background, features, centre, best, found))
    return judged.index, observed


def gather(index: Index, way: str, query: EncodedText, kept: Order) -> NDArray[np.int64]:
    plan = make_plan(WAYS[way], np.zeros(len(query)), index.snapshot.gatherers, len(index))
    return gatherer(index.snapshot, way).gather(query, kept, plan)[0]


def describe(
    query: EncodedText, log_cf: Array, log_background: Array, continues: NDArray[np.bool_], index: Index
) -> Array:
    """(positions, features): WORD_FEATURES, a column per kind of special, words in the query."""
    words = query.token_kinds == TokenKind.WORD
    count = max(int(words.sum()), 1)
    position = np.arange(len(query))
    continues = continues & words
    start = np.maximum.accumulate(np.where(continues, 0, position))  # where the position's word begins
    pieces = np.bincount(start, minlength=len(query))[start]
    rarest = np.full(len(query), np.inf)
    np.minimum.at(rarest, start, log_background)
    repeats = np.ones(len(query), dtype=bool)
    repeats[np.unique(query.token_ids, return_index=True)[1]] = False
    # Cells: how many documents the nearest ones list, and how fast the similarity falls from one to the next.
    snapshot = index.snapshot
    rounded, unit = round_query(query.embeddings)
    cells, products = snapshot.codebook.cells.nearest(rounded, NPROBE)
    similarity = products * unit[:, None] * snapshot.codebook.int8.step  # (positions, NPROBE), around the centre
    listed = np.sum([np.diff(segment.lists.offsets) for segment in snapshot.segments], axis=0)[cells]
    among = query.embeddings @ query.embeddings.T  # (positions, positions)
    others = np.where(words & ~np.eye(len(query), dtype=bool), among, np.nan)
    no_other = np.isnan(others).all(axis=1, keepdims=True)
    others = np.where(no_other, 0.0, others)
    summary = np.flatnonzero(query.token_kinds == TokenKind.SUMMARY)
    cls = np.flatnonzero(query.token_kinds == TokenKind.CLS)
    columns = [
        *(log_cf, log_background, log_cf * log_background / 10, log_cf**2 / 10, log_background**2 / 10, log_cf == 0),
        *(continues, (pieces > 1) & ~continues, position - start, pieces, rarest[start]),
        *(np.cumsum(words) / count, repeats),
        *(np.log1p(listed[:, 0]), np.log1p(listed[:, :4].sum(axis=1)), np.log1p(listed.sum(axis=1))),
        *(similarity[:, 0], similarity[:, 0] - similarity[:, 7], similarity[:, 0] - similarity[:, -1]),
        *(np.nanmax(others, axis=1), np.nanmean(others, axis=1)),
        among[:, summary[0]] if len(summary) else np.zeros(len(query)),
        among[:, cls[0]] if len(cls) else np.zeros(len(query)),
        *(query.token_kinds == kind for kind in KINDS),
        np.full(len(query), np.log(count)),
    ]
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=1)


# ---------------------------------------------------------------- orders


def order_by(seen: Observed, worth: Array, summary_first: bool) -> Order:
    """Words by worth, unseen words behind, then specials by kind and position: as in `icf`, with another number."""
    kinds = seen.query.token_kinds
    rank = np.array([0, 1, 2, 3, 3, 4, 3])[kinds]
    if summary_first:
        rank = np.where(kinds == TokenKind.SUMMARY, -1, rank)
    worth = np.where(seen.words, worth, 0.0)
    return np.lexsort((np.arange(len(kinds)), -worth, seen.words & (seen.log_cf == 0), rank))


def two_frequencies(seen: Observed, share: float, summary_first: bool) -> Order:
    return order_by(seen, -(1 - share) * seen.log_cf - share * seen.log_background, summary_first)


def greedy(seen: Observed, way: str, summary_first: bool) -> Order:
    """Not possible in a search: at each step the word that adds most of the ten best, or the summary if that may be."""
    allowed = seen.words | (summary_first & (seen.query.token_kinds == TokenKind.SUMMARY))
    missing = np.ones(BEST, dtype=bool)
    left, ordered = list(np.flatnonzero(allowed)), []
    while left:
        chosen = max(left, key=lambda i: (int((seen.found[way][i] & missing).sum()), -seen.log_background[i]))
        ordered.append(chosen)
        left.remove(chosen)
        missing &= ~seen.found[way][chosen]
    return np.array([*ordered, *np.flatnonzero(~allowed)])


def overlap(index: Index, way: str, seen: Observed, ordered: Order) -> Array:
    """(p,) share of the ten best that the first p positions gather, for p in PS."""
    if way == "faiss":  # a union: known from the positions alone
        covered = np.logical_or.accumulate(seen.found[way][ordered], axis=0).mean(axis=1)
        return covered[np.minimum(PS, len(covered)) - 1]
    return np.array([np.isin(seen.best, gather(index, way, seen.query, ordered[:p])).mean() for p in PS])


# ---------------------------------------------------------------- 2 learn


def label(seen: Observed, name: str, share: float, summary_first: bool) -> Array:
    """What each word is worth, by both ways of gathering together; 0 for positions that are no words."""
    found = np.concatenate(list(seen.found.values()), axis=1)  # (positions, 20)
    if summary_first:
        found = found & ~found[seen.query.token_kinds == TokenKind.SUMMARY].any(axis=0)
    found = found & seen.words[:, None]
    if name == "alone":
        return found.sum(axis=1).astype(float)
    if name == "shared":
        return (found / np.maximum(found.sum(axis=0), 1)).sum(axis=1)
    ordered = two_frequencies(seen, share, summary_first)
    before = np.logical_or.accumulate(found[ordered], axis=0)
    added = np.empty(len(found))
    added[ordered] = np.diff(before.sum(axis=1), prepend=0)
    return added


def training_rows(
    queries: Sequence[Observed], columns: list[int], name: str, share: float, summary_first: bool
) -> tuple[Array, Array, NDArray[np.int64]]:
    """Of all words that the collection has: features, labels, and the number of the query."""
    known = [seen.words & (seen.log_cf > 0) for seen in queries]
    rows = [seen.features[there][:, columns] for seen, there in zip(queries, known, strict=True)]
    worth = [label(seen, name, share, summary_first)[there] for seen, there in zip(queries, known, strict=True)]
    groups = np.unique(np.repeat(np.arange(len(known)), [there.sum() for there in known]), return_inverse=True)[1]
    return np.concatenate(rows), np.concatenate(worth), groups


def standardised(rows: Array) -> tuple[Array, Array]:
    return rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-9)


def ridge(rows: Array, worth: Array, groups: NDArray[np.int64], strength: float = 10.0) -> Model:
    """Linear regression within queries: what all positions of a query share cannot change their order."""
    mean, spread = standardised(rows)
    x = _within((rows - mean) / spread, groups)
    y = _within(worth[:, None], groups)[:, 0]
    weights = np.linalg.solve(x.T @ x + strength * np.eye(x.shape[1]), x.T @ y)
    return lambda features: ((features - mean) / spread) @ weights


def _within(values: Array, groups: NDArray[np.int64]) -> Array:
    """Minus the mean of the group."""
    totals = np.zeros((groups.max() + 1, values.shape[1]))
    np.add.at(totals, groups, values)
    return values - (totals / np.bincount(groups)[:, None])[groups]


def network(
    rows: Array, worth: Array, groups: NDArray[np.int64], hidden: int = 16, epochs: int = 60, decay: float = 1e-3
) -> Model:
    """One hidden layer, least squares, Adam."""
    rng = np.random.default_rng(0)
    mean, spread = standardised(rows)
    x, y = (rows - mean) / spread, (worth - worth.mean()) / worth.std()
    weights = [rng.normal(0, x.shape[1] ** -0.5, (x.shape[1], hidden)), np.zeros(hidden)]
    weights += [rng.normal(0, hidden**-0.5, hidden), np.zeros(1)]
    first, second = [np.zeros_like(w) for w in weights], [np.zeros_like(w) for w in weights]
    step, steps = 0, epochs * (len(x) // 64)
    while step < steps:
        shuffled = rng.permutation(len(x))
        for begin in range(0, len(x) - 63, 64):
            step += 1
            part_x, part_y = x[shuffled[begin : begin + 64]], y[shuffled[begin : begin + 64]]
            inner = np.tanh(part_x @ weights[0] + weights[1])
            error = (inner @ weights[2] + weights[3] - part_y) / 64  # (64,)
            back = error[:, None] * weights[2] * (1 - inner**2)
            slopes = [part_x.T @ back, back.sum(axis=0), inner.T @ error, error.sum(keepdims=True)]
            rate = 3e-3 * (1 - step / (steps + 64))
            for w, slope, m, v in zip(weights, slopes, first, second, strict=True):
                m += 0.1 * (slope - m)
                v += 0.001 * (slope**2 - v)
                corrected = (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
                w -= rate * (corrected + decay * w)
    return lambda features: np.tanh(((features - mean) / spread) @ weights[0] + weights[1]) @ weights[2]


def boosted(rows: Array, worth: Array, groups: NDArray[np.int64], trees: int = 150, depth: int = 4) -> Model:
    """Gradient boosting with symmetric trees (each level asks the same question): an upper bound, not for shipping."""
    edges = [np.unique(np.quantile(column, np.linspace(0, 1, 33)[1:-1])) for column in rows.T]
    bins = np.stack([np.searchsorted(e, column, side="left") for e, column in zip(edges, rows.T, strict=True)])
    left = worth - worth.mean()
    forest: list[tuple[list[tuple[int, float]], Array]] = []
    for _ in range(trees):
        leaf = np.zeros(len(left), dtype=np.int64)
        questions = []
        for level in range(depth):
            best = (-1.0, 0, 0)
            for feature, binned in enumerate(bins):
                size = (32 << level, leaf * 32 + binned)
                sums = np.bincount(size[1], left, minlength=size[0]).reshape(-1, 32).cumsum(axis=1)
                counts = np.bincount(size[1], minlength=size[0]).reshape(-1, 32).cumsum(axis=1)
                gain = sums**2 / (counts + 20) + (sums[:, -1:] - sums) ** 2 / (counts[:, -1:] - counts + 20)
                total = gain.sum(axis=0)[: len(edges[feature])]
                if len(total) and total.max() > best[0]:
                    best = (float(total.max()), feature, int(total.argmax()))
            questions.append((best[1], float(edges[best[1]][best[2]])))
            leaf = 2 * leaf + (bins[best[1]] > best[2])
        values = 0.1 * np.bincount(leaf, left, minlength=2**depth) / (np.bincount(leaf, minlength=2**depth) + 20)
        left = left - values[leaf]
        forest.append((questions, values))

    def model(features: Array) -> Array:
        total = np.zeros(len(features))
        for questions, values in forest:
            leaf = np.zeros(len(features), dtype=np.int64)
            for feature, edge in questions:
                leaf = 2 * leaf + (features[:, feature] > edge)
            total += values[leaf]
        return total

    return model


# ---------------------------------------------------------------- 3 report

ALL = list(range(len(WORD_FEATURES)))
CELLS, SIMILARITIES = 13, 19  # the first feature of the cells, the first of the similarities within the query
NEAREST, OTHERS = (WORD_FEATURES.index(name) for name in ("similarity of the nearest cell", "mean with other words"))
TRIED: dict[str, tuple[Learner, str, list[int]]] = {
    "ridge, alone": (ridge, "alone", ALL),
    "ridge, shared": (ridge, "shared", ALL),
    "ridge, added": (ridge, "added", ALL),
    "ridge, shared, no token ids": (ridge, "shared", ALL[CELLS:]),
    "ridge, shared, no cells": (ridge, "shared", ALL[:CELLS] + ALL[SIMILARITIES:]),
    "network, shared": (network, "shared", [*ALL, -1]),
    "boosted, shared": (boosted, "shared", [*ALL, -1]),
}
UNTRAINED: dict[str, Callable[[Observed], Array]] = {
    "icf": lambda seen: -seen.log_cf,
    "focus": lambda seen: seen.features[:, OTHERS] / 2 - seen.centre,
    "- q . centre": lambda seen: -seen.centre,
    "q . (nearest - centre)": lambda seen: seen.features[:, NEAREST],
    "q . (nearest - centre) + others / 2": lambda seen: seen.features[:, NEAREST] + seen.features[:, OTHERS] / 2,
}


def make_orders(
    held_out: list[Observed],
    others: list[list[Observed]],
    indexes: list[Index],
    more: list[Observed],
    summary_first: bool,
) -> dict[str, list[Order]]:
    """For each order, the positions of each query of the held-out collection. Models learn from `more` too."""

    def quality(share: float) -> float:
        return float(
            np.mean(
                [
                    np.mean([overlap(index, "faiss", q, two_frequencies(q, share, summary_first)) for q in queries])
                    for index, queries in zip(indexes, others, strict=True)
                ]
            )
        )

    share = max(SHARES, key=quality)
    orders = {"two frequencies": [two_frequencies(seen, share, summary_first) for seen in held_out]}
    for name, worth in UNTRAINED.items():
        orders[name] = [order_by(seen, worth(seen), summary_first) for seen in held_out]
    queries = [seen for collection in others for seen in collection] + more
    for name, (learn, labels, columns) in TRIED.items():
        model = learn(*training_rows(queries, columns, labels, share, summary_first))
        orders[name] = [order_by(seen, model(seen.features[:, columns]), summary_first) for seen in held_out]
        if name == "ridge, shared":
            slopes = model(np.eye(len(columns))) - model(np.zeros((1, len(columns))))
            named = [f"{WORD_FEATURES[c]} {slope:.3f}" for c, slope in zip(columns, slopes, strict=True)]
            print(f"share {share}; {name}: {', '.join(named)}", file=sys.stderr)
    return orders


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=200)
    arguments.add_argument("--questions", type=int, default=0)
    arguments.add_argument("names", nargs="*", default=COLLECTIONS)
    options = arguments.parse_args()
    observed = {name: observe(options, name) for name in options.names}
    asked = next((name for name in options.names if name.startswith("boolq-wiki")), None)
    if options.questions and asked is None:
        arguments.error("questions are asked of boolq-wiki: name it, with as many documents as there is time for")
    questions = observe(options, asked, options.questions)[1] if options.questions else []
    for summary_first in (False, True):
        values: dict[str, dict[str, dict[str, Array]]] = {way: {} for way in WAYS}
        for name, (index, queries) in observed.items():
            others = [observed[other] for other in observed if other != name]
            more = [] if name == asked else questions
            orders = make_orders(queries, [q for _, q in others], [i for i, _ in others], more, summary_first)
            for way in WAYS:
                best = [greedy(seen, way, summary_first) for seen in queries]
                values[way][name] = {
                    order: np.array([overlap(index, way, seen, o) for seen, o in zip(queries, ordered, strict=True)])
                    for order, ordered in {**orders, "greedy": best}.items()
                }
        for way in WAYS:
            print(f"\n{way}, {'the summary first, then words' if summary_first else 'words'}:\n")
            print_table(values[way])


def print_table(values: dict[str, dict[str, Array]]) -> None:
    """`values`: collection -> order -> (queries, p)."""
    shown = (1, 2, 3, 4, 6, 8)
    print(f"| order | {' | '.join(values)} | mean | {' | '.join(f'p = {p}' for p in shown)} |")
    print("|---" * (len(values) + len(shown) + 2) + "|")
    orders = list(next(iter(values.values())))
    tests = (len(orders) - 1) * len(values)
    for order in orders:
        line = []
        for by_order in values.values():
            mean, baseline = by_order[order].mean(axis=1), by_order["focus"].mean(axis=1)  # (queries,)
            (test,) = compare([mean], baseline, correction="none")
            mark = ("+" if test.difference > 0 else "-") if test.p_value * tests < 0.05 else ""
            line.append(f"{mean.mean():.3f}{mark}")
        at = np.mean([by_order[order].mean(axis=0) for by_order in values.values()], axis=0)  # (p,)
        line += [f"{at.mean():.4f}", *(f"{at[PS.index(p)]:.3f}" for p in shown)]
        print(f"| {order} | {' | '.join(line)} |")


if __name__ == "__main__":
    main()
