"""What the commands of the lab print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..lab.reproduction import Reproduced, Reproduction
from ..lab.results import Results
from ..lab.summary import summarise
from ..lab.summary_text import notes, summary_cells


def print_summary(results: Results, baseline: str | None = None, correction: str | None = None) -> None:
    """A line for each setting, and what the columns mean."""
    rows = summarise(results, baseline, correction)
    table = Table(box=None, pad_edge=False)
    table.add_column("setting", overflow="fold", min_width=12)
    for name in (*results.measures, "scored", "relevant", "saved", "ms", "speed-up"):
        table.add_column(Text(name), justify="right", no_wrap=True)
    for row in rows:
        table.add_row(Text(row["setting"]), *(Text(cell) for cell in summary_cells(row, results.measures)))
    console = Console()
    # In a narrow terminal the terminal wraps the lines, so that no number is cut.
    Console(width=max(console.width, Console(width=1000).measure(table).maximum)).print(table)
    for line in notes(results, baseline, correction):
        console.print(Text(line, style="dim"))


def print_reproductions(known: Sequence[Reproduction]) -> None:
    console = Console()
    for reproduction in known:
        console.print(Text(reproduction.name, style="bold"), Text(reproduction.title))
        console.print(Text(" ".join(reproduction.about.split()), style="dim"))
    console.print("\nRun one with:  secateurs reproduce NAME", highlight=False)


def print_verdicts(reproduced: Reproduced) -> None:
    console = Console()
    words = {True: "agrees   ", False: "DISAGREES", None: "skipped  "}
    for verdict in reproduced.verdicts:
        console.print(Text(f"{words[verdict.agrees]}  {verdict.text}"))
    conclusion = "The results agree." if reproduced.agrees else "The results do not agree."
    if all(verdict.agrees is None for verdict in reproduced.verdicts):
        conclusion = "Nothing of this is expected of this collection."
    console.print(Text(conclusion, style="bold"))
