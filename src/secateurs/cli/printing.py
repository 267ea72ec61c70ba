"""What the command line shows a person: tables of rankings, explanations and the demo's comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import UsageError
from ..progress import progress_bar
from ..queries import read_queries
from ..records import Ranking, SearchSettings, SearchStats
from ..trec import trec_line

if TYPE_CHECKING:
    from ..contract import AnyIndex
    from ..explain import Explanation


def ranking_to_json(qid: str, text: str, ranking: Ranking) -> dict[str, Any]:
    return {
        "qid": qid,
        "query": text,
        "hits": [{"rank": rank, **asdict(hit)} for rank, hit in enumerate(ranking, start=1)],
        "kept": ranking.kept,
        "stats": asdict(ranking.stats),
    }


def queries_asked(query: str | None, queries: str | None, as_json: bool, trec: bool) -> list[tuple[str | None, str]]:
    """(qid, text) of each; one query on its own has no qid."""
    if (query is None) == (queries is None):
        raise UsageError("give either a QUERY or --queries FILE")
    if as_json and trec:
        raise UsageError("give --json or --trec, not both")
    return [(None, query)] if query is not None else [*read_queries(str(queries))]


def print_rankings(
    opened: AnyIndex, asked: Sequence[tuple[str | None, str]], settings: SearchSettings, as_json: bool, trec: bool
) -> None:
    """Search for all of them, on all cores, and show each ranking as soon as it and those before it are there."""
    rankings = opened.search_many((text for _, text in asked), **vars(settings))
    with progress_bar("searching", len(asked), "queries", None if len(asked) > 1 else False) as advance:
        for (qid, text), ranking in zip(asked, rankings, strict=True):
            if trec:
                for rank, hit in enumerate(ranking, start=1):
                    typer.echo(trec_line(qid or "1", hit.docno, rank, hit.score))
            elif as_json:
                typer.echo(json.dumps(ranking_to_json(qid or "1", text, ranking), ensure_ascii=False))
            else:
                print_ranking(qid, text, ranking, opened)
            missing = ranking.stats.shards_missing
            if missing and (trec or as_json):
                typer.echo(f"not everything was searched: {_missing(missing)}", err=True)
            advance(1)


def _missing(shards: int) -> str:
    return f"{shards:,} shard{'s' if shards > 1 else ''} could not be reached"


def print_info(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    shards = facts.pop("shards", None)
    facts["bytes"] = f"{facts['bytes']:,} ({readable_size(facts['bytes'])})"
    facts["gather"] = ", ".join(facts["gather"])
    facts["encoder"] = ", ".join(f"{name} {value}" for name, value in facts["encoder"].items())
    for name, value in facts.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        typer.echo(f"{name.replace('_', ' '):<18}{shown}")
    for shard in shards or ():
        where = f", on node {shard['node']}" if shard["node"] is not None else ""
        what = "cannot be reached" if shard["missing"] else f"{size_of(shard)}, commit {shard['commit']:,}"
        typer.echo(f"{shard['name']:<18}{what}{where}")


def print_ranking(qid: str | None, text: str, ranking: Ranking, opened: AnyIndex) -> None:
    console = Console()
    title = Text(_printable(f"{qid}  {text}" if qid else text))
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, expand=True)
    table.add_column("", justify="right", style="dim", min_width=2)
    table.add_column("score", justify="right", min_width=7)
    longest = max((len(hit.docno) for hit in ranking), default=5)
    table.add_column("docno", overflow="fold", style="bold", min_width=min(longest, console.width // 2))
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for rank, hit in enumerate(ranking, start=1):
        table.add_row(str(rank), f"{hit.score:.3f}", Text(_printable(hit.docno)), Text(_printable(hit.text[:300])))
    console.print(table)
    if not ranking:
        console.print("nothing found", style="dim")
    stats = ranking.stats
    console.print(
        Text(
            f"gathered {stats.documents_gathered:,} of {_searched(stats)} documents "
            f"with {stats.embeddings_kept} of {stats.query_embeddings} embeddings{_kept(ranking, opened)}, "
            f"scored {stats.documents_scored:,}, {stats.total_milliseconds:.1f} ms\n",
            style="dim",
        )
    )
    if stats.shards_missing:
        console.print(f"Not everything was searched: {_missing(stats.shards_missing)}.\n", style="bold")


def _searched(stats: SearchStats) -> str:
    if stats.documents_matching == stats.documents_in_index:
        return f"{stats.documents_in_index:,}"
    return f"{stats.documents_matching:,} matching of {stats.documents_in_index:,}"


def _kept(ranking: Ranking, opened: AnyIndex) -> str:
    """The kept wordpieces, if they were chosen."""
    if len(ranking.kept) == len(ranking.query):
        return ""
    ids = ranking.query.token_ids[list(ranking.kept)].tolist()
    return " (" + ", ".join(opened.token_text(token_id) for token_id in ids) + ")"


def print_explanation(explanation: Explanation, order: str) -> None:
    console = Console()
    kept = sum(token.kept for token in explanation.tokens)
    table = Table(box=None, pad_edge=False)
    for name in ("", "token", "kind", "frequency", "gathers it", "best match", "similarity"):
        table.add_column(name, justify="right" if name in ("", "frequency", "similarity") else "left")
    for token in explanation.tokens:
        gathers = ("yes" if token.gathers else "no") if token.kept else "pruned"
        table.add_row(
            str(token.importance),
            Text(token.token),
            token.kind,
            f"{token.collection_frequency:,}",
            gathers,
            Text(token.match),
            f"{token.similarity:.3f}",
            style="" if token.kept else "dim",
        )
    console.print(table)
    where = f"not gathered: none of the {kept} most important embeddings by {order} finds it"
    if explanation.rank is not None:
        where = f"rank {explanation.rank:,} of {explanation.documents_scored:,} documents scored"
    elif explanation.gathered:
        where = f"gathered, but {explanation.documents_scored:,} others looked better and were scored instead"
    console.print(Text(f"{_printable(explanation.docno)}: score {explanation.score:.3f}, {where}"))


def print_side_by_side(question: str, full: Ranking, pruned: Ranking, opened: AnyIndex) -> None:
    table = Table(title=Text(question, style="bold"), title_justify="left", box=None, pad_edge=False, width=100)
    table.add_column("", justify="right", style="dim", width=2)
    for name, ranking in (("all", full), (f"p = {len(pruned.kept)}{_kept(pruned, opened)}", pruned)):
        stats = ranking.stats
        heading = (
            f"{name}\n{stats.documents_gathered:,} gathered, {stats.documents_scored:,} scored, "
            f"{ranking.stats.search_milliseconds:.1f} ms"
        )
        table.add_column(Text(heading), no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column("", justify="right", style="dim", width=7)
    for rank in range(max(len(full), len(pruned))):
        cells = [Text(str(rank + 1))]
        for ranking in (full, pruned):
            hit = ranking[rank] if rank < len(ranking) else None
            cells += [Text(_printable(hit.docno)), Text(f"{hit.score:.3f}")] if hit else [Text(), Text()]
        table.add_row(*cells)
    Console().print(table, "")


def _printable(text: str) -> str:
    """One line without control characters: somebody's document must not drive the reader's terminal."""
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def print_demo_summary(pairs: list[tuple[Ranking, Ranking]]) -> None:
    gathered = [sum(pair[side].stats.documents_gathered for pair in pairs) for side in (0, 1)]
    spent = [sum(pair[side].stats.search_milliseconds for pair in pairs) for side in (0, 1)]
    same = sum(len({h.docno for h in full} & {h.docno for h in pruned}) / max(len(full), 1) for full, pruned in pairs)
    encode = sum(ranking.stats.milliseconds["encode"] for pair in pairs for ranking in pair) / (2 * len(pairs))
    print(
        f"Over {len(pairs)} questions, pruned search gathered {1 - gathered[1] / max(gathered[0], 1):.0%} fewer "
        f"documents, was {spent[0] / max(spent[1], 1e-9):.1f} times as fast,\n"
        f"and found {same / len(pairs):.0%} of the same five best. Encoding a question took {encode:.0f} ms more."
    )


def readable_size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def size_of(facts: Mapping[str, Any]) -> str:
    """Of what Index.info() tells, the three numbers people ask for first."""
    return (
        f"{facts['documents']:,} documents, {facts['embeddings']:,} embeddings, {readable_size(facts['bytes'])} on disk"
    )


class Skipped:
    """Takes note of what was skipped: the first few are shown at once, the rest are counted."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, problem: str) -> None:
        self._count += 1
        if self._count <= 20:
            typer.echo(f"skipped: {problem}", err=True)

    def summarise(self) -> None:
        if self._count:
            typer.echo(f"skipped: {self._count:,}")
