"""What the demo prints: unpruned and pruned search side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..progress import counted
from ..rankings import Ranking
from .printing import kept_tokens, printable

_WIDEST = 100  # a wider table is harder to read


@dataclass(frozen=True)
class Pair:
    """One question searched with all query embeddings and with some."""

    question: str
    full: Ranking
    pruned: Ranking
    kept: Sequence[str]  # the tokens that gathered in the pruned search


def print_side_by_side(pair: Pair) -> None:
    console = Console()
    width = min(console.width, _WIDEST)
    table = Table(title=Text(pair.question, style="bold"), title_justify="left", box=None, pad_edge=False, width=width)
    table.add_column("", justify="right", style="dim", width=2)
    names = ("all", f"p = {len(pair.pruned.kept)}{kept_tokens(pair.pruned, pair.kept)}")
    for name, ranking in zip(names, (pair.full, pair.pruned), strict=True):
        stats = ranking.stats
        counts = f"{stats.documents_gathered:,} gathered, {stats.documents_scored:,} scored, "
        # The heading goes over several lines where there is no room: its numbers must not be cut.
        heading = Text(f"{name}\n{counts}{stats.search_milliseconds:.1f} ms", no_wrap=False, overflow="fold")
        table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column("", justify="right", style="dim", width=7)
    for rank in range(max(len(pair.full), len(pair.pruned))):
        cells = [Text(str(rank + 1))]
        for ranking in (pair.full, pair.pruned):
            hit = ranking[rank] if rank < len(ranking) else None
            cells += [Text(printable(hit.docno)), Text(f"{hit.score:.3f}")] if hit else [Text(), Text()]
        table.add_row(*cells)
    console.print(table, "")


def print_demo_summary(pairs: Sequence[Pair]) -> None:
    gathered_in_full = sum(pair.full.stats.documents_gathered for pair in pairs)
    gathered_pruned = sum(pair.pruned.stats.documents_gathered for pair in pairs)
    milliseconds_in_full = sum(pair.full.stats.search_milliseconds for pair in pairs)
    milliseconds_pruned = sum(pair.pruned.stats.search_milliseconds for pair in pairs)
    same = sum(
        len({hit.docno for hit in pair.full} & {hit.docno for hit in pair.pruned}) / max(len(pair.full), 1)
        for pair in pairs
    )
    saved = 1 - gathered_pruned / max(gathered_in_full, 1)
    encoding = [ranking.stats.milliseconds["encode"] for pair in pairs for ranking in (pair.full, pair.pruned)]
    typer.echo(
        f"Over {counted(len(pairs), 'question')}, pruned search gathered {saved:.0%} fewer documents, "
        f"was {milliseconds_in_full / max(milliseconds_pruned, 1e-9):.1f} times as fast,\n"
        f"and found {same / len(pairs):.0%} of the same five best. "
        f"Encoding a question takes another {sum(encoding) / len(encoding):.0f} ms, not counted above."
    )
