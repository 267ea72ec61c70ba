"""What a reproduction expects, and whether it came true.

Each expectation names a setting and says one thing of it:

    {setting, measure, value, tolerance}     its mean is that, give or take
    {setting, measure, no_loss: true}        it is not significantly worse than the baseline
    {setting, measure, loss: true}           it is
    {setting, measure, as_good_as: SETTING}  its mean is at least that of another
    {setting, saves: 0.6}                    it scores at least that share of documents fewer than the baseline
    {setting, speed_up: 1.5}                 it is at least that many times as fast as the baseline

With `documents: N` it is only expected of a collection of that size: scores over a pool of passages are not those
over all of them.
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


@dataclass(frozen=True)
class Verdict:
    text: str
    agrees: bool | None  # None: not expected of this collection


def resolve(expected: Sequence[Mapping[str, Any]], rows: Results, measures: Sequence[str]) -> None:
    """Raise if one names a setting or a measure that there will not be: before hours of searching, not after."""
    for one in expected:
        for name in ("setting", "as_good_as"):
            if name in one:
                rows.find(one[name])
        if one.get("measure", measures[0]) not in measures:
            raise SecateursError(f"{one['measure']!r} is expected but not measured: {', '.join(measures)}")


def check_expectations(expected: Sequence[Mapping[str, Any]], results: Results) -> list[Verdict]:
    rows = {row["setting"]: row for row in summarise(results)}
    documents = results.about["index"]["documents"]
    return [_verdict(one, results, rows, documents) for one in expected]


def kind_of(expectation: Mapping[str, Any]) -> str:
    """Which of the six it is; raises if it is none of them."""
    if isinstance(expectation, Mapping):
        for kind, names in _KINDS.items():
            if set(expectation) - {"documents"} == names and all(_is_right(*item) for item in expectation.items()):
                return kind
    raise SecateursError(f"not an expectation: {expectation}; lab/expectations.py lists them")


def _is_right(name: str, value: Any) -> bool:
    if name in ("setting", "measure", "as_good_as"):
        return isinstance(value, str)
    if name in ("loss", "no_loss"):
        return value is True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _verdict(
    one: Mapping[str, Any], results: Results, rows: Mapping[str, Mapping[str, Any]], documents: int
) -> Verdict:
    kind = kind_of(one)
    row = rows[results.find(one["setting"])]
    name = one["setting"]
    measure = one.get("measure", "")
    if kind == "value":
        text = f"{name}: {measure} is {row[measure]:.4f}, expected {one['value']:.4f} +- {one['tolerance']:g}"
        agrees = abs(row[measure] - one["value"]) <= one["tolerance"]
    elif kind in ("no_loss", "loss"):
        # The baseline itself has no difference.
        difference, significant = row[f"{measure} difference"] or 0.0, bool(row[f"{measure} significant"])
        worse = significant and difference < 0
        wanted = "is not significantly worse" if kind == "no_loss" else "is significantly worse"
        p_value = 1.0 if row[f"{measure} p"] is None else row[f"{measure} p"]
        text = f"{name}: {measure} {wanted} than the baseline's ({difference:+.4f}, p = {p_value:.3f})"
        agrees = worse == (kind == "loss")
    elif kind == "as_good_as":
        other = rows[results.find(one["as_good_as"])]
        text = f"{name}: {measure} {row[measure]:.4f} is at least that of {one['as_good_as']}, {other[measure]:.4f}"
        agrees = row[measure] >= other[measure]
    elif kind == "saves":
        text = f"{name}: scores {number(row['saved'], '.0%')} fewer documents, expected at least {one['saves']:.0%}"
        agrees = row["saved"] is not None and row["saved"] >= one["saves"]
    else:
        text = f"{name}: is {number(row['speed_up'], '.2f')} times as fast, expected at least {one['speed_up']:g}"
        agrees = row["speed_up"] is not None and row["speed_up"] >= one["speed_up"]
    if one.get("documents", documents) != documents:
        return Verdict(f"{text} (only of {one['documents']:,} documents; here are {documents:,})", None)
    return Verdict(text, bool(agrees))
