"""Effectiveness by the names of `ir-measures`: nDCG@10, AP, RR@10, R@1000, AP(rel=2), and any other it knows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SecateursError, UsageError, require

Hits = Sequence[tuple[str, float]]  # (docno, score), best first
_DECIMALS = 6  # those of a TREC run, so that a ranking scores the same here and after a run file


def ranked(hits: Hits) -> list[tuple[str, float]]:
    """The ranking as it is measured: by the score that a TREC run has, and equal scores as trec_eval orders them."""
    rounded = [(str(docno), round(float(score), _DECIMALS)) for docno, score in hits]
    for docno, score in rounded:
        if not math.isfinite(score):
            raise SecateursError(f"the score of {docno!r} is {score}, by which nothing can be ranked")
    return sorted(rounded, key=lambda hit: (hit[1], hit[0]), reverse=True)


class Measures:
    """Measures of rankings, a query at a time."""

    def __init__(self, names: Sequence[str], qrels: Mapping[str, Mapping[str, int]]) -> None:
        self.names = list(dict.fromkeys(names))
        if not self.names:
            raise UsageError("name at least one measure, such as nDCG@10")
        self._parsed = {_parse(name): name for name in self.names}
        if len(self._parsed) < len(self.names):
            raise UsageError(f"{', '.join(self.names)}: two of these are the same measure")
        self._qrels = qrels
        self._evaluators: dict[str, Any] = {}
        qid = next(iter(qrels))
        for measure in self._parsed:  # a measure that cannot be computed is an error before anything is searched
            self._calculate(self._make([measure], qid), qid, list(qrels[qid]))

    def of(self, qid: str, ranking: Hits) -> dict[str, float]:
        """Each measure of one query's ranking, in the order in which it comes; 0 where nothing was found."""
        values = dict.fromkeys(self.names, 0.0)
        if ranking:
            if qid not in self._evaluators:  # a common evaluator would go over all queries every time
                self._evaluators[qid] = self._make(list(self._parsed), qid)
            values |= self._calculate(self._evaluators[qid], qid, [docno for docno, _ in ranking])
        return values

    def _make(self, measures: list[Any], qid: str) -> Any:
        import ir_measures

        try:
            return ir_measures.evaluator(measures, {qid: dict(self._qrels[qid])})
        except Exception as error:  # each provider of ir-measures raises its own types
            raise SecateursError(f"{self._named(measures)}: {' '.join(str(error).split())}") from error

    def _calculate(self, evaluator: Any, qid: str, docnos: Sequence[str]) -> dict[str, float]:
        # The libraries behind ir-measures break ties in different ways, so they get scores without any.
        run = {qid: {docno: float(len(docnos) - place) for place, docno in enumerate(docnos)}}
        try:
            found = {self._parsed[metric.measure]: float(metric.value) for metric in evaluator.iter_calc(run)}
        except Exception as error:  # each provider of ir-measures raises its own types
            named = self._named(evaluator.measures)
            raise SecateursError(f"{named} of query {qid!r}: {' '.join(str(error).split())}") from error
        for name, value in found.items():
            if not math.isfinite(value):
                raise SecateursError(f"{name} has no value for query {qid!r}")
        return found

    def _named(self, measures: Sequence[Any]) -> str:
        return ", ".join(self._parsed[measure] for measure in measures)


def _parse(name: str) -> Any:
    ir_measures = require("ir_measures", "lab")
    try:
        measure = ir_measures.parse_measure(name)
    except (NameError, ValueError, SyntaxError, TypeError, AssertionError) as error:
        raise UsageError(f"{name!r} is no measure of ir-measures, such as nDCG@10, AP, RR@10 or R@1000") from error
    try:
        measure.validate_params()
    except AssertionError as error:
        raise UsageError(
            f"{name!r} needs a cutoff, such as R@1000, or has a parameter that it cannot have or lacks one"
        ) from error
    for parameter, value in measure.params.items():
        if parameter in ("cutoff", "rel") and value < 1:  # trec_eval aborts the whole process
            raise UsageError(f"{name!r}: {parameter} is at least 1")
    return measure
