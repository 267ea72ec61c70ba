"""What the command line shows of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .results import Results
from .summary import baseline_of, summarise


def print_summary(results: Results, baseline: str | None = None, correction: str | None = None) -> None:
    """A line per setting: what a person looks at first. The rest is in the files."""
    rows = summarise(results, baseline, correction)
    table = Table(box=None, pad_edge=False)
    table.add_column("setting", overflow="fold", min_width=12)
    for name in (*results.measures, "scored", "relevant", "saved", "ms", "speed-up"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row["setting"]), *(Text(cell) for cell in summary_cells(row, results.measures)))
    console = Console()
    console.print(table)
    for line in notes(results, baseline, correction):
        console.print(Text(line, style="dim"))


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
    """What the columns of a summary mean."""
    chosen = correction or results.about.get("correction") or "bonferroni"
    corrected = {"bonferroni": "Bonferroni's correction", "holm": "Holm's correction", "none": "no correction"}[chosen]
    queries = len(next(iter(results._by_setting.values())))
    return [
        f"{queries:,} queries. The baseline is {baseline_of(results, baseline)}. "
        f"*: significantly different from it (paired t-test, p < 0.05, {corrected}).",
        "scored: documents scored exactly, mean per query; relevant: how many of those are relevant; saved: fewer scored "
        "than the baseline. ms: mean of pruning, gathering and scoring; speed-up: median over the queries of the "
        "baseline's time divided by the setting's.",
    ]
