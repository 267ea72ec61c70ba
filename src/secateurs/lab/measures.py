"""Effectiveness by the names of `ir-measures`: nDCG@10, AP, RR@10, R@1000, AP(rel=2), and any other it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import SecateursError, UsageError, require

Hits = Sequence[tuple[str, float]]  # (docno, score), best first
_DECIMALS = 6  # those of a TREC run, so that a ranking scores the same here and after a run file


class Measures:
    """Some measures of some queries' rankings, a query at a time."""

    def __init__(self, names: Sequence[str], qrels: Mapping[str, Mapping[str, int]]) -> None:
        self.names = list(dict.fromkeys(names))
        if not self.names:
            raise UsageError("name at least one measure, such as nDCG@10")
        self._parsed = {_parse(name): name for name in self.names}
        if len(self._parsed) < len(self.names):
            raise UsageError(f"{', '.join(self.names)}: two of these are the same measure")
        self._qrels = qrels
        self._evaluators: dict[str, Any] = {}
        self._evaluator(next(iter(qrels)))  # a measure that needs a package which is not there fails here

    def of(self, qid: str, hits: Hits) -> dict[str, float]:
        """Each measure of one query's ranking; 0 where nothing was found."""
        run = {qid: {docno: round(score, _DECIMALS) for docno, score in hits}}
        values = dict.fromkeys(self.names, 0.0)
        if hits:
            for metric in self._evaluator(qid).iter_calc(run):
                values[self._parsed[metric.measure]] = float(metric.value)
        return values

    def _evaluator(self, qid: str) -> Any:
        if qid not in self._evaluators:  # one for each query: a common one goes over all queries every time
            import ir_measures

            try:
                self._evaluators[qid] = ir_measures.evaluator(list(self._parsed), {qid: dict(self._qrels[qid])})
            except AssertionError as error:
                raise UsageError(f"one of {', '.join(self.names)} needs a cutoff, such as R@1000") from error
            except ValueError as error:
                raise SecateursError(" ".join(str(error).split())) from error
        return self._evaluators[qid]


def _parse(name: str) -> Any:
    ir_measures = require("ir_measures", "lab")
    try:
        return ir_measures.parse_measure(name)
    except (NameError, ValueError, SyntaxError, TypeError, AssertionError) as error:
        raise UsageError(f"{name!r} is no measure of ir-measures, such as nDCG@10, AP, RR@10 or R@1000") from error
