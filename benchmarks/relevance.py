"""Relevance: a number between 0 and 1 beside the score, how it was chosen and how far it can be trusted.

    python benchmarks/relevance.py --collections DIR[:DOCUMENTS] [...] --cache DIR [--most-queries 150] [--weights idf]

Three Markdown tables. The first compares ways to make the score comparable between queries: the AUC of relevant
against other hits, all queries of a collection (the last column: of all collections) in one pool. The second is the
AUC of the best hit of answerable against that of unanswerable queries, which are queries of the other collections. The
third is the logistic curve of the shipped way, for each collection fitted on the others: expected calibration error
(ten bins of the same width) and what the threshold 0.5 keeps. The last line has the constants fitted on all.

Which hits are "relevant" and "other", among the ten best:
  deep judgements  msmarco-dl19: the judged hits alone, relevant from grade 2 on. cranfield, vaswani: all hits, because
                   these collections were judged whole.
  few judgements   every other collection has a relevant document or two per query, and other good ones are not judged.
                   The first table counts hits that are not judged as others, which puts its numbers too low. The curve
                   is not fitted on them.
The curve is fitted on relevant hits against the hits of unanswerable queries and, with deep judgements, other hits.
In the fit and in the third table a collection counts as much as any other, and its relevant hits as much as its others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from judged import Collection, open_slice, progress
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import rankdata

from secateurs import EncodedText, TokenKind

K = 10  # hits that are looked at
CANDIDATES = 100  # of which the worst is a baseline
SAMPLED = 64  # documents whose mean score is another baseline
FOREIGN = 20  # queries of each other collection
BINS = 10
JUDGED_WHOLE = ("cranfield", "vaswani")
RELEVANT_FROM = {"msmarco-dl19": 2}
SHIPPED = "score / most"
Hits = dict[str, NDArray[np.float64]]  # way -> (hits,)


def ways_of(
    collection: Collection, query: EncodedText, sample: Sequence[str], weights: str | None
) -> tuple[Hits, list[str]]:
    """For each way, a number for each of the ten best hits; and their docnos."""
    index = collection.index
    hits = index.search(query, CANDIDATES, weights=weights)
    docnos = [hit.docno for hit in hits[:K]]
    score = np.array([hit.score for hit in hits])
    query = hits.query  # with its weights
    lengths = np.linalg.norm(query.weighted, axis=1)  # (positions,)
    most = float(lengths.sum())  # every query embedding finds itself
    centre = index.frequencies.centre
    assert centre is not None
    to_centre = query.weighted @ centre  # (positions,)
    sampled, worst = float(np.mean(index.score(query, sample))), float(score[-1])
    score = score[:K]
    best = np.array([index.similarities(query, docno)[0].max(axis=0) for docno in docnos])  # (hits, positions)
    best *= query.all_weights
    attended, word = query.token_kinds != TokenKind.MASK, query.token_kinds == TokenKind.WORD  # (positions,)
    idf = np.log((len(index) + 1) / (index.frequencies.document_frequency(query.token_ids[word]) + 0.5))
    return {
        "score": score,
        SHIPPED: score / most,
        "above the centre": (score - to_centre.sum()) / (most - to_centre.sum()),
        "above sampled documents": (score - sampled) / (most - sampled),
        f"above hit {CANDIDATES}": (score - worst) / (most - worst),
        "score / most, no MASKs": best[:, attended].sum(axis=1) / lengths[attended].sum(),
        "above the centre, no MASKs": (best - to_centre)[:, attended].sum(axis=1)
        / (lengths - to_centre)[attended].sum(),
        "words by idf": best[:, word] @ idf / (lengths[word] @ idf),
    }, docnos


class Measured:
    """The numbers of a collection's hits, by what the hits are."""

    def __init__(self, name: str, collection: Collection, foreign: Sequence[EncodedText], weights: str | None) -> None:
        index = collection.index
        docnos = index.snapshot.docnos(np.arange(len(index)))
        sample = [docnos[i] for i in np.linspace(0, len(docnos) - 1, SAMPLED).astype(int)]
        grades = {(qrel.query_id, qrel.doc_id): qrel.relevance for qrel in collection.qrels}
        self.name, self.deep = name, name in JUDGED_WHOLE or name in RELEVANT_FROM
        relevant, others, answered, unanswered, of_foreign = [], [], [], [], []
        for qid, query in progress(collection.queries.items(), description=name):
            ways, found = ways_of(collection, query, sample, weights)
            grade = np.array([grades.get((qid, docno), np.nan) for docno in found])
            is_relevant = grade >= RELEVANT_FROM.get(name, 1)
            left_out = np.isnan(grade) if name in RELEVANT_FROM else np.zeros(len(grade), dtype=bool)
            relevant.append(_chosen(ways, is_relevant))
            others.append(_chosen(ways, ~is_relevant & ~left_out))
            answered.append(_chosen(ways, np.arange(len(found)) == 0))
        for query in progress(foreign, description=f"{name}, unanswerable"):
            ways, found = ways_of(collection, query, sample, weights)
            unanswered.append(_chosen(ways, np.arange(len(found)) == 0))
            of_foreign.append(ways)
        self.relevant, self.others = _joined(relevant), _joined(others)
        self.answered, self.unanswered = _joined(answered), _joined(unanswered)
        # What the curve is fitted on.
        self.certain_others = _joined([*(others if self.deep else ()), *of_foreign])


def _chosen(ways: Hits, which: NDArray[np.bool_]) -> Hits:
    return {way: values[which] for way, values in ways.items()}


def _joined(parts: Sequence[Hits]) -> Hits:
    return {way: np.concatenate([part[way] for part in parts]) for way in parts[0]}


def auc(higher: NDArray[np.float64], lower: NDArray[np.float64]) -> float:
    """How often a number of the first array is above one of the second; a tie is half."""
    ranks = rankdata(np.concatenate([higher, lower]))[: len(higher)]
    return float((ranks.sum() - len(higher) * (len(higher) + 1) / 2) / (len(higher) * len(lower)))


def fit(measured: Sequence[Measured], way: str) -> tuple[float, float]:
    """Middle and steepness of the logistic curve with the least cross-entropy."""
    values = np.concatenate([part for of in measured for part in (of.relevant[way], of.certain_others[way])])
    labels, weights = _labels(measured, way)
    scale = float(values.std())

    def loss(constants: NDArray[np.float64]) -> float:
        margin = (2 * labels - 1) * constants[1] * (values - constants[0]) / scale
        return float((weights * np.logaddexp(0, -margin)).sum())

    middle, steepness = minimize(loss, np.array([values.mean(), 1.0]), method="Nelder-Mead").x
    return float(middle), float(steepness / scale)


def _labels(measured: Sequence[Measured], way: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """1 for relevant hits and 0 for others, and what each hit counts for."""
    labels, weights = [], []
    for of in measured:
        for label, part in ((1.0, of.relevant[way]), (0.0, of.certain_others[way])):
            labels.append(np.full(len(part), label))
            weights.append(np.full(len(part), 1 / max(len(part), 1)))
    return np.concatenate(labels), np.concatenate(weights)


def logistic(values: NDArray[np.float64], middle: float, steepness: float) -> NDArray[np.float64]:
    curve: NDArray[np.float64] = 1 / (1 + np.exp(-steepness * (values - middle)))
    return curve


def calibration_error(relevance: NDArray[np.float64], of: Measured) -> float:
    """Of relevance as the probability of being relevant, if half of the hits were."""
    labels, weights = _labels([of], SHIPPED)
    bins = np.minimum((relevance * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights * (relevance - labels), minlength=BINS)
    return float(np.abs(gaps).sum() / weights.sum())


def print_aucs(measured: Sequence[Measured], higher: str, lower: str) -> None:
    print(f"| | {' | '.join(of.name for of in measured)} | all in one pool |\n|{'---|' * (len(measured) + 2)}")
    for way in measured[0].relevant:
        pairs = [(getattr(of, higher)[way], getattr(of, lower)[way]) for of in measured]
        pairs.append((np.concatenate([pair[0] for pair in pairs]), np.concatenate([pair[1] for pair in pairs])))
        print(f"| {way} | {' | '.join(f'{auc(*pair):.3f}' for pair in pairs)} |")
    print()


def print_curves(measured: Sequence[Measured]) -> None:
    head = ["collection", "middle", "steepness", "calibration error", "relevant kept", "other hits kept"]
    head += ["answerable kept", "unanswerable kept"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for of in measured:
        middle, steepness = fit([other for other in measured if other is not of], SHIPPED)
        certain = np.concatenate([of.relevant[SHIPPED], of.certain_others[SHIPPED]])
        cells = [of.name, f"{middle:.4f}", f"{steepness:.1f}"]
        cells.append(f"{calibration_error(logistic(certain, middle, steepness), of):.3f}")
        parts = (of.relevant, of.others, of.answered, of.unanswered)
        cells += [f"{(part[SHIPPED] >= middle).mean():.0%}" for part in parts]
        print(f"| {' | '.join(cells)} |")
    middle, steepness = fit(measured, SHIPPED)
    print(f"\nFitted on all of them: middle {middle:.4f}, steepness {steepness:.1f}.")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", nargs="+", required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-queries", type=int, default=150)
    arguments.add_argument("--weights", choices=["idf"], help="the search setting")
    options = arguments.parse_args()
    opened = [
        open_slice(given, options.cache, options.most_queries, gather=("cells",)) for given in options.collections
    ]
    measured = []
    for name, collection in opened:
        others = [list(other.queries.values())[:FOREIGN] for _, other in opened if other is not collection]
        measured.append(Measured(name, collection, [query for queries in others for query in queries], options.weights))
    print_aucs(measured, "relevant", "others")
    print_aucs(measured, "answered", "unanswered")
    print_curves(measured)


if __name__ == "__main__":
    main()
