"""How a summary is written, on a terminal and on a page alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..progress import counted
from .results import Results
from .summary import baseline_of


def summary_cells(row: dict[str, Any], measures: Sequence[str]) -> list[str]:
    """The measures, each with * where it differs significantly, and what it took."""
    return [
        *(f"{row[name]:.4f}{'*' if row[f'{name} significant'] else ' '}" for name in measures),
        number(row["documents_scored"], ",.0f"),
        number(row["relevant_scored"], ",.1f"),
        number(row["saved"], ".0%"),
        number(row["milliseconds"], ",.1f"),
        number(row["speed_up"], ",.2f"),
    ]


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def notes(results: Results, baseline: str | None = None, correction: str | None = None) -> list[str]:
    """What the columns of a summary mean, and what is missing from the experiment."""
    chosen = correction or results.about.get("correction") or "bonferroni"
    corrected = {"bonferroni": "Bonferroni's correction", "holm": "Holm's correction", "none": "no correction"}[chosen]
    queries = len(results.of(next(iter(results.settings))))
    lacking = [
        f"{label} has no ranking for {count:,} of the queries, which count as 0."
        for label, count in (results.about.get("lacking") or {}).items()
    ]
    return [
        *_not_there(results.about),
        f"{counted(queries, 'query', 'queries')}. The baseline is {baseline_of(results, baseline)}. "
        f"*: significantly different from it (paired t-test, p < 0.05, {corrected}).",
        "scored: documents scored exactly, mean per query; relevant: how many of those are relevant; saved: fewer "
        "scored than the baseline. ms: mean of pruning, gathering and scoring; speed-up: median over the queries of "
        "the baseline's time divided by the setting's.",
        *lacking,
    ]


def _not_there(about: Mapping[str, Any]) -> list[str]:
    """What the judgements, the queries and the index do not share; older results have not counted it."""
    lines = []
    if about.get("judged_documents_not_in_index"):
        missing, judged = about["judged_documents_not_in_index"], about["judged_documents"]
        relevant = about["relevant_documents_not_in_index"]
        lines.append(
            f"Judged documents that are not in the index, so that it cannot find them: {missing:,} of {judged:,}, "
            f"{relevant:,} of them relevant."
        )
    if about.get("judged_qids_without_query"):
        lines.append(f"Judged qids that are not among the queries: {about['judged_qids_without_query']:,}.")
    if about.get("unjudged_queries"):
        lines.append(f"Queries without a judgement, which are left out: {about['unjudged_queries']:,}.")
    return lines
