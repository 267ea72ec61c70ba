"""What a reproduction expects, and whether the results agree.

Each expectation names a setting and has one of six kinds:

    {setting, measure, value, tolerance}     its mean is within the tolerance of the value
    {setting, measure, no_loss: true}        it is not significantly worse than the baseline
    {setting, measure, loss: true}           it is significantly worse than the baseline
    {setting, measure, as_good_as: SETTING}  its mean is at least that of the other setting
    {setting, saves: 0.6}                    it scores fewer documents than the baseline, by at least that share
    {setting, speed_up: 1.5}                 it is at least that many times as fast as the baseline

An expectation with `documents: N` holds only for a collection of N documents: scores over a pool of passages are not
those over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import SecateursError
from .results import Results
from .summary import summarise
from .summary_text import number

_KINDS = {
    "value": {"setting", "measure", "value", "tolerance"},
    "no_loss": {"setting", "measure", "no_loss"},
    "loss": {"setting", "measure", "loss"},
    "as_good_as": {"setting", "measure", "as_good_as"},
    "saves": {"setting", "saves"},
    "speed_up": {"setting", "speed_up"},
}

_KEYS = ("setting", "measure", "value", "tolerance", "no_loss", "loss", "as_good_as", "saves", "speed_up")


@dataclass(frozen=True)
class Verdict:
    text: str
    agrees: bool | None  # None: not expected of this collection


def resolve(expected: Sequence[Mapping[str, Any]], rows: Results, measures: Sequence[str]) -> None:
    """Raise if an expectation names a setting or a measure that the experiment has not, before anything is searched."""
    for expectation in expected:
        for name in ("setting", "as_good_as"):
            if name in expectation:
                rows.find(expectation[name])
        if expectation.get("measure", measures[0]) not in measures:
            raise SecateursError(f"{expectation['measure']!r} is expected but not measured: {', '.join(measures)}")


def check_expectations(expected: Sequence[Mapping[str, Any]], results: Results) -> list[Verdict]:
    rows = {row["setting"]: row for row in summarise(results)}
    documents = results.about["index"]["documents"]
    return [_verdict(expectation, results, rows, documents) for expectation in expected]


def kind_of(expectation: Mapping[str, Any]) -> str:
    """Which of the six kinds it is; raises if it is none of them."""
    if isinstance(expectation, Mapping):
        for kind, names in _KINDS.items():
            if set(expectation) - {"documents"} == names and all(_is_valid(*item) for item in expectation.items()):
                return kind
    known = "; ".join(", ".join(sorted(names, key=_KEYS.index)) for names in _KINDS.values())
    raise SecateursError(
        f"not an expectation: {expectation}. It has the keys of one kind: {known}; and may have documents"
    )


def _is_valid(name: str, value: Any) -> bool:
    if name in ("setting", "measure", "as_good_as"):
        return isinstance(value, str)
    if name in ("loss", "no_loss"):
        return value is True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _verdict(
    expected: Mapping[str, Any], results: Results, rows: Mapping[str, Mapping[str, Any]], documents: int
) -> Verdict:
    kind = kind_of(expected)
    row = rows[results.find(expected["setting"])]
    name = expected["setting"]
    measure = expected.get("measure", "")
    if kind == "value":
        text = f"{name}: {measure} is {row[measure]:.4f}, expected {expected['value']:.4f} +- {expected['tolerance']:g}"
        agrees = abs(row[measure] - expected["value"]) <= expected["tolerance"]
    elif kind in ("no_loss", "loss"):
        # The baseline itself has no difference.
        difference, significant = row[f"{measure} difference"] or 0.0, bool(row[f"{measure} significant"])
        worse = significant and difference < 0
        wanted = "is not significantly worse" if kind == "no_loss" else "is significantly worse"
        p_value = 1.0 if row[f"{measure} p"] is None else row[f"{measure} p"]
        text = f"{name}: {measure} {wanted} than the baseline's ({difference:+.4f}, p = {p_value:.3f})"
        agrees = worse == (kind == "loss")
    elif kind == "as_good_as":
        other = rows[results.find(expected["as_good_as"])]
        text = (
            f"{name}: {measure} {row[measure]:.4f} is at least that of {expected['as_good_as']}, {other[measure]:.4f}"
        )
        agrees = row[measure] >= other[measure]
    elif kind == "saves":
        text = (
            f"{name}: scores {number(row['saved'], '.0%')} fewer documents, expected at least {expected['saves']:.0%}"
        )
        agrees = row["saved"] is not None and row["saved"] >= expected["saves"]
    else:
        text = f"{name}: is {number(row['speed_up'], '.2f')} times as fast, expected at least {expected['speed_up']:g}"
        agrees = row["speed_up"] is not None and row["speed_up"] >= expected["speed_up"]
    if expected.get("documents", documents) != documents:
        return Verdict(f"{text} (only of {expected['documents']:,} documents; here are {documents:,})", None)
    return Verdict(text, bool(agrees))
