"""Whether a setting differs significantly from the baseline.

As in the paper: a paired t-test over the queries, against one named baseline, corrected for the number of settings
that are compared with it. Each measure is a family of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError, require

CORRECTIONS = ("bonferroni", "holm", "none")
LEVEL = 0.05
_TIE = 1e-9  # values of a measure that are closer than this are equal


@dataclass(frozen=True, slots=True)
class Comparison:
    """One setting against the baseline, by one measure."""

    difference: float  # mean over the queries; below 0, the setting is worse
    low: float | None  # 95% confidence interval of the difference, not corrected; None where there is none
    high: float | None
    p_value: float  # corrected
    significant: bool
    won: tuple[int, ...]  # numbers of the queries with a larger value than the baseline's
    lost: tuple[int, ...]
    tied: tuple[int, ...]


def compare(
    values: Sequence[NDArray[np.float64]],
    baseline: NDArray[np.float64],
    correction: str = "bonferroni",
    level: float = LEVEL,
) -> list[Comparison]:
    """Each of the settings' values, one per query, against the baseline's values of the same queries."""
    for given in (*values, baseline):
        if np.shape(given) != np.shape(baseline) or np.ndim(given) != 1 or not np.size(given):
            raise UsageError(
                "give one number for each query, of the same queries as the baseline: "
                f"shapes {np.shape(given)} and {np.shape(baseline)}"
            )
        if not np.isfinite(given).all():
            raise UsageError("a value that is not a number cannot be compared: leave the query out of all settings")
    reference = np.asarray(baseline, dtype=float)
    settings = [np.asarray(given, dtype=float) for given in values]
    differences = [given - reference for given in settings]
    tests = [_paired_t_test(given, reference, level) for given in settings]
    p_values = correct([p for p, _, _ in tests], correction)
    return [
        Comparison(
            difference=float(difference.mean()),
            low=low,
            high=high,
            p_value=p_value,
            significant=p_value < level,
            won=tuple(np.flatnonzero(difference > _TIE).tolist()),
            lost=tuple(np.flatnonzero(difference < -_TIE).tolist()),
            tied=tuple(np.flatnonzero(np.abs(difference) <= _TIE).tolist()),
        )
        for difference, (_, low, high), p_value in zip(differences, tests, p_values, strict=True)
    ]


def correct(p_values: Sequence[float], correction: str) -> list[float]:
    """P-values corrected for the number of comparisons.

    bonferroni multiplies each by that number n. holm multiplies the i-th smallest by n - i + 1, and gives each at least
    the value of the one before it: it controls the same error rate, and finds at least as much.
    """
    check_correction(correction)
    count = len(p_values)
    if correction == "none" or count == 0:
        return list(p_values)
    if correction == "bonferroni":
        return [min(1.0, p * count) for p in p_values]
    ascending = np.argsort(p_values, kind="stable")
    scaled = np.asarray(p_values)[ascending] * np.arange(count, 0, -1)
    holm = np.empty(count)
    holm[ascending] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(p) for p in holm]


def check_correction(name: str) -> None:
    if name not in CORRECTIONS:
        raise UsageError(f"correction is one of {', '.join(CORRECTIONS)}, not {name!r}")


def _paired_t_test(
    values: NDArray[np.float64], baseline: NDArray[np.float64], level: float
) -> tuple[float, float | None, float | None]:
    """P-value and confidence interval of the mean difference.

    Where all differences are the same, t would be infinite, even with two queries. There the p-value is that of the
    sign test: the probability that the signs of all queries agree by chance, 1 with one query, 1/2 with two, 1/4 with
    three.
    """
    difference = values - baseline
    mean, count = float(difference.mean()), len(difference)
    if count > 1 and np.abs(difference).max() <= _TIE:
        return 1.0, mean, mean
    if np.ptp(difference) <= _TIE:
        return 2.0 ** (1 - count), None, None
    test = require("scipy.stats", "lab").ttest_rel(values, baseline)
    low, high = test.confidence_interval(1 - level)
    return float(test.pvalue), float(low), float(high)
