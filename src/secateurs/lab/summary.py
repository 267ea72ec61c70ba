"""One row per setting: means over the queries, what was saved, how fast, and whether it differs from the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError
from ..storage.files import write_atomically
from .results import Results, write_csv
from .significance import Comparison, compare

COUNTS = ("query_embeddings", "embeddings_kept", "documents_gathered", "documents_scored", "relevant_scored")
PERCENTILES = (50, 95, 99)


def summarise(results: Results, baseline: str | None = None, correction: str | None = None) -> list[dict[str, Any]]:
    """Rows of plain values, in the order of the settings.

    For a measure M there are M (its mean), M difference, M low and M high (the 95% confidence interval of the
    difference), M p (corrected), M significant, M won, M lost and M tied (numbers of queries). `saved` is the share of
    the baseline's scored documents that the setting does not score. `speed_up` is the median over the queries of the
    baseline's time divided by the setting's. Each stage's milliseconds have a mean and percentiles too. used_* is the
    value of a setting that was left open.
    """
    reference = baseline_of(results, baseline)
    compared = comparisons(results, reference, correction)
    scored, spent = (results.values(reference, name) for name in ("documents_scored", "milliseconds"))
    rows = []
    for label, first in results.settings.items():
        row: dict[str, Any] = {"setting": label, **{name: first.get(name) for name in results.setting_columns}}
        row["queries"] = len(results.of(label))
        for name in results.measures:
            row[name] = float(results.values(label, name).mean())
        for name in COUNTS:
            row[name] = _mean(results.values(label, name))
        row["saved"] = _saved(results.values(label, "documents_scored"), scored)
        ratios = spent / results.values(label, "milliseconds")
        row["speed_up"] = None if np.isnan(ratios).any() else float(np.median(ratios))
        for name in results.columns:
            if name.startswith("used_"):
                used = {result.get(name) for result in results.of(label)}
                row[name] = used.pop() if len(used) == 1 else "varies"
            if name.startswith("milliseconds"):
                values = results.values(label, name)
                row[name] = _mean(values)
                for percentile in PERCENTILES:
                    timed = row[name] is not None
                    row[f"{name}_p{percentile}"] = float(np.percentile(values, percentile)) if timed else None
        row["baseline"] = label == reference
        for name in results.measures:
            row.update(_columns(name, compared[name].get(label)))
        rows.append(row)
    return rows


def save_summary(results: Results, out: str | Path) -> None:
    """Write the rows of `summarise` to OUT.settings.csv."""
    rows = summarise(results)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    write_atomically(Path(f"{out}.settings.csv"), lambda path: write_csv(path, list(rows[0]), rows))


def baseline_of(results: Results, baseline: str | None = None) -> str:
    """The label that a baseline's name means; without a name, that of the experiment, or the fullest setting."""
    named = baseline or results.about.get("baseline")
    return results.find(named) if named else results.fullest


def comparisons(results: Results, baseline: str, correction: str | None = None) -> dict[str, dict[str, Comparison]]:
    """measure -> label -> its comparison with the baseline; the baseline itself has none."""
    others = [label for label in results.settings if label != baseline]
    for label in others:
        if [row["qid"] for row in results.of(label)] != [row["qid"] for row in results.of(baseline)]:
            raise SecateursError(f"{label!r} and {baseline!r} have not the same queries")
    chosen = correction or results.about.get("correction") or "bonferroni"
    return {
        name: dict(
            zip(
                others,
                compare([results.values(label, name) for label in others], results.values(baseline, name), chosen),
                strict=True,
            )
        )
        for name in results.measures
    }


def smallest_without_loss(rows: list[dict[str, Any]], measure: str) -> dict[str, Any] | None:
    """Of a curve's rows, by rising p: the first from which on none is significantly worse than the baseline."""
    smallest = None
    for row in reversed(rows):
        if row[f"{measure} significant"] and row[f"{measure} difference"] < 0:
            break
        smallest = row
    return smallest


def _columns(measure: str, comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {f"{measure} {word}": None for word in ("difference", "low", "high", "p", "significant", *_COUNTED)}
    return {
        f"{measure} difference": comparison.difference,
        f"{measure} low": comparison.low,
        f"{measure} high": comparison.high,
        f"{measure} p": comparison.p_value,
        f"{measure} significant": comparison.significant,
        **{f"{measure} {word}": len(getattr(comparison, word)) for word in _COUNTED},
    }


_COUNTED = ("won", "lost", "tied")


def _mean(values: NDArray[np.float64]) -> float | None:
    return None if np.isnan(values).any() else float(values.mean())


def _saved(scored: NDArray[np.float64], baseline: NDArray[np.float64]) -> float | None:
    if np.isnan(scored).any() or np.isnan(baseline).any():
        return None
    return 1 - float(scored.mean()) / float(baseline.mean()) if baseline.any() else None
