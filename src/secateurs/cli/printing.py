"""What the commands on an index print: rankings, explanations, facts, and what a change did."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..encoders.built_in import earlier_layer
from ..hit_fields import chosen_fields
from ..progress import counted
from ..rankings import Hit, Ranking, SearchStats
from ..records import Changes, Document, Field, TokenKind
from ..trec import trec_line

if TYPE_CHECKING:
    from ..contract import AnyIndex
    from ..explain import Explanation
    from ..matches import Match

_SHOWN_SKIPPED = 20
_SHOWN_LOADING = 100.0  # milliseconds: less is not worth a word
_SHOWN_TEXT = 300  # characters of a hit's text, of which a line shows as many as fit
_SHOWN_VALUES = 10  # of a facet
_TELLING = 0.35  # strength from which on a match is marked
_BEFORE_MATCH = 30  # characters that may be shown before the first of them


class SkippedDocuments:
    """Takes the message of each document that is skipped: prints the first few, and counts all."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, problem: str) -> None:
        self._count += 1
        if self._count <= _SHOWN_SKIPPED:
            typer.echo(f"skipped: {problem}", err=True)

    def print_count(self) -> None:
        if self._count:
            typer.echo(f"skipped: {self._count:,}")


def print_built(path: str | Path, facts: Mapping[str, Any], skipped: SkippedDocuments, corpus: str) -> None:
    """What was built; `facts` are those of Index.info(), or of all shards together."""
    if not facts["documents"]:
        typer.echo(f"no documents in {corpus}", err=True)
    shards = f", in {counted(facts['shards'], 'shard')}" if "shards" in facts else ""
    typer.echo(f"{path}: {size_of(facts)}{shards}")
    if facts["cut_documents"]:
        typer.echo(f"longer than the encoder takes, and cut: {facts['cut_documents']:,}")
    skipped.print_count()


def print_changes(path: Path, changes: Changes, facts: Mapping[str, Any], skipped: SkippedDocuments) -> None:
    typer.echo(f"added {changes.added:,}, replaced {changes.replaced:,}: {path} has {size_of(facts)}")
    skipped.print_count()


def print_deletions(path: Path, changes: Changes, facts: Mapping[str, Any]) -> None:
    typer.echo(f"deleted {changes.deleted:,}: {path} has {size_of(facts)}")
    print_missing(changes.missing)


def print_metadata_changes(path: Path, changes: Changes, facts: Mapping[str, Any]) -> None:
    typer.echo(f"changed the metadata of {changes.replaced:,}: {path} has {size_of(facts)}")
    print_missing(changes.missing)


def print_missing(docnos: Iterable[str]) -> None:
    for docno in docnos:
        typer.echo(f"not there: {docno.encode('utf-8', 'replace').decode()}", err=True)


def print_document(document: Document, as_json: bool) -> None:
    """Its docno, each of its metadata, and after an empty line its text."""
    if as_json:
        content = {"docno": document.docno, "text": document.text, "metadata": dict(document.metadata)}
        typer.echo(json.dumps(content, ensure_ascii=False))
        return
    typer.echo(f"docno: {printable(document.docno)}")
    for key, value in document.metadata.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        typer.echo(f"{printable(key)}: {printable(shown)}")
    typer.echo("\n" + "\n".join(map(printable, document.text.splitlines())))


def print_fields(fields: Mapping[str, Field], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({key: asdict(field) for key, field in fields.items()}, ensure_ascii=False))
        return
    if not fields:
        typer.echo("no document has metadata")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("key", "types", "documents", "example"):
        table.add_column(name, justify="right" if name == "documents" else "left", overflow="fold")
    for key, field in fields.items():
        example = "" if field.example is None else json.dumps(field.example, ensure_ascii=False)
        table.add_row(Text(printable(key)), ", ".join(field.types), f"{field.documents:,}", Text(printable(example)))
    Console().print(table)


def print_info(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(facts, ensure_ascii=False))
        return
    shown = {name: value for name, value in facts.items() if name != "shards"}
    shown["bytes"] = f"{facts['bytes']:,} ({readable_size(facts['bytes'])})"
    shown["gather"] = ", ".join(facts["gather"])
    encoder = dict(facts["encoder"])
    if "settings" in encoder:
        chosen = encoder["settings"].items()
        encoder["settings"] = " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in chosen)
    shown["encoder"] = ", ".join(f"{name} {value}" for name, value in encoder.items())
    background = facts["background"] or {"none": ""}
    shown["background"] = ", ".join(f"{name} {value}".strip() for name, value in background.items())
    shown["calibration"] = describe_calibration(facts["calibration"])
    for name, value in shown.items():
        typer.echo(f"{name.replace('_', ' '):<18}{f'{value:,}' if isinstance(value, int) else value}")
    for shard in facts.get("shards", ()):
        where = f", on node {shard['node']}" if shard["node"] is not None else ""
        what = "cannot be reached" if shard["missing"] else f"{size_of(shard)}, commit {shard['commit']:,}"
        typer.echo(f"{shard['name']:<18}{what}{where}")
    earlier = earlier_layer(facts["encoder"])
    if earlier is not None:
        typer.echo(
            f"\nThis index was made with an earlier layer of {facts['encoder']['model']}, and is searched with it, "
            f"as {earlier}. Index the documents again to use the present layer."
        )


def describe_calibration(measured: dict[str, Any] | None) -> str:
    if measured is None:
        return "none: fewer than 1,000 documents, or not built for cells"
    asked = f"{measured['queries']:,} {'queries' if measured['given'] else 'parts of documents'}"
    found = (
        f"{effort} finds {values['found']:.1%} of the exact ten best ({values['promised']:.0%} promised)"
        for effort, values in measured["efforts"].items()
    )
    return f"by {asked}: {', '.join(found)}"


def print_ranking_as_trec(qid: str, ranking: Ranking) -> None:
    for rank, hit in enumerate(ranking, start=ranking.plan.offset + 1):
        typer.echo(trec_line(qid, hit.docno, rank, hit.score))
    _print_missing_shards(ranking.stats)


def print_ranking_as_json(qid: str, text: str, ranking: Ranking, names: Collection[str] | None = None) -> None:
    """`names` choose what a hit comes with: see hit_fields.py."""
    first = ranking.plan.offset + 1
    content = {
        "qid": qid,
        "query": text,
        "hits": [{"rank": rank, **chosen_fields(hit, names)} for rank, hit in enumerate(ranking, start=first)],
        "kept": ranking.kept,
        "plan": asdict(ranking.plan),  # here `order` is always a name
        "stats": asdict(ranking.stats),
        "facets": {
            key: [{"value": value, "documents": documents} for value, documents in values]
            for key, values in ranking.facets.items()
        },
    }
    typer.echo(json.dumps(content, ensure_ascii=False))
    _print_missing_shards(ranking.stats)


def _print_missing_shards(stats: SearchStats) -> None:
    """On standard error: standard output is for a program."""
    if stats.shards_missing:
        typer.echo(f"not everything was searched: {_missing(stats.shards_missing)}", err=True)


def print_ranking(
    qid: str | None,
    text: str,
    ranking: Ranking,
    kept: Sequence[str],
    loading_milliseconds: float,
    marks: Callable[[Hit], Sequence[Match] | None] = lambda hit: None,
) -> None:
    """A table of the hits, and a line about the search; `kept` are the tokens that gathered.

    On a terminal, the words that matched are marked. `marks` finds them.
    """
    console = Console()
    title = f"{qid}  {text}" if qid else text
    _print_hits(console, title, ranking, lambda hit: _marked(hit.text, marks(hit)), ranking.plan.offset)
    if not ranking:
        console.print(_why_nothing(ranking), style="dim")
    for key, values in ranking.facets.items():
        console.print(Text(_described(key, values)), soft_wrap=True)
    stats = ranking.stats
    about = f"{_what_was_done(ranking, kept)}, {stats.total_milliseconds:.1f} ms\n"
    if loading_milliseconds > _SHOWN_LOADING:
        about += f"loading took {loading_milliseconds / 1000:.1f} s before that\n"
    console.print(Text(about, style="dim"))
    if stats.shards_missing:
        console.print(f"Not everything was searched: {_missing(stats.shards_missing)}.\n", style="bold")


def _described(key: str, values: Sequence[tuple[Any, int]]) -> str:
    """A facet in a line."""
    shown = [f"{json.dumps(value) if isinstance(value, bool) else value} ({count:,})" for value, count in values]
    more = [f"and {len(shown) - _SHOWN_VALUES:,} more"] if len(shown) > _SHOWN_VALUES else []
    return printable(f"{key}: {', '.join([*shown[:_SHOWN_VALUES], *more]) or 'no values'}")


def print_reranked(query: str, hits: Sequence[Hit], texts: int) -> None:
    """A table of the hits, and of how many texts they are the best."""
    console = Console()
    _print_hits(console, query, hits, lambda hit: Text(printable(hit.text[:_SHOWN_TEXT])))
    console.print(Text(f"scored {counted(texts, 'text')}\n", style="dim"))


def _print_hits(
    console: Console, title: str, hits: Sequence[Hit], marked: Callable[[Hit], Text], offset: int = 0
) -> None:
    """`marked` is the text of a hit for a terminal; `offset` hits are better than the first."""
    table = Table(title=Text(printable(title)), title_justify="left", box=None, pad_edge=False, expand=True)
    table.add_column("", justify="right", style="dim", min_width=2)
    table.add_column("score", justify="right", min_width=7)
    table.add_column("relevance", justify="right", min_width=9)
    longest = max((len(hit.docno) for hit in hits), default=5)
    table.add_column("docno", overflow="fold", style="bold", min_width=min(longest, console.width // 2))
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for rank, hit in enumerate(hits, start=offset + 1):
        shown = marked(hit) if console.is_terminal else Text(printable(hit.text[:_SHOWN_TEXT]))
        table.add_row(str(rank), f"{hit.score:.3f}", f"{hit.relevance:.2f}", Text(printable(hit.docno)), shown)
    console.print(table)


def _why_nothing(ranking: Ranking) -> str:
    plan = ranking.plan
    given = {"min_score": plan.min_score, "min_relevance": plan.min_relevance}
    thresholds = " and ".join(f"{name} {least:g}" for name, least in given.items() if least is not None)
    if thresholds and ranking.stats.documents_scored:
        return f"nothing found: no hit reaches {thresholds}"
    return "nothing found"


def _marked(text: str, matches: Sequence[Match] | None) -> Text:
    """The text from just before its first telling match on, with the telling matches in bold."""
    telling = [match for match in matches or () if match.strength >= _TELLING]
    start = 0
    if telling and telling[0].start > _BEFORE_MATCH:
        start = text.rfind(" ", 0, telling[0].start - _BEFORE_MATCH // 2) + 1
    marked = Text("… " if start else "")
    at = start
    for match in telling:
        if match.end > start + _SHOWN_TEXT:
            break
        marked.append(_piece(text[at : match.start]))
        marked.append(_piece(text[match.start : match.end]), style="bold green")
        at = match.end
    marked.append(_piece(text[at : start + _SHOWN_TEXT]))
    return marked


def _piece(text: str) -> str:
    """`printable`, with a space where the piece begins or ends with white space."""
    if not text.strip():
        return " " if text else ""
    return f"{' ' if text[0].isspace() else ''}{printable(text)}{' ' if text[-1].isspace() else ''}"


def _missing(shards: int) -> str:
    return f"{counted(shards, 'shard')} could not be reached"


def _what_was_done(ranking: Ranking, kept: Sequence[str]) -> str:
    stats = ranking.stats
    documents = counted(stats.documents_in_index, "document")
    if stats.documents_matching != stats.documents_in_index:
        documents = f"{stats.documents_matching:,} matching of {documents}"
    if ranking.plan.gather == "exhaustive":  # no embedding gathered, so none was pruned
        everything = stats.documents_scored == stats.documents_matching  # no shard was missing
        return f"scored all {documents}" if everything else f"scored {stats.documents_scored:,} of {documents}"
    gathered = f"gathered {stats.documents_gathered:,} of {documents} "
    if ranking.plan.gather == "text":
        return f"{gathered}by their words, scored {stats.documents_scored:,}"
    words = " and by their words" if "text" in ranking.plan.gather else ""
    return (
        f"{gathered}with {stats.embeddings_kept} of {stats.query_embeddings} embeddings"
        f"{kept_tokens(ranking, kept)}{words}, scored {stats.documents_scored:,}"
    )


def tokens_of(index: AnyIndex, ranking: Ranking) -> list[str]:
    """The tokens that gathered, most important first; a summary by what it is, because its token says nothing."""
    query = ranking.query
    return [
        "whole query"
        if query.token_kinds[position] == TokenKind.SUMMARY
        else index.token_text(int(query.token_ids[position]))
        for position in ranking.kept
    ]


def kept_tokens(ranking: Ranking, kept: Sequence[str]) -> str:
    """The tokens that gathered, in brackets; nothing if all did."""
    return "" if len(ranking.kept) == len(ranking.query) else f" ({', '.join(kept)})"


def print_explanation_as_json(explanation: Explanation) -> None:
    typer.echo(json.dumps(asdict(explanation), ensure_ascii=False))


def print_explanation(explanation: Explanation, order: str) -> None:
    console = Console()
    kept = sum(token.kept for token in explanation.tokens)
    weighted = any(token.weight != 1 for token in explanation.tokens)
    table = Table(box=None, pad_edge=False)
    for name in ("", "token", "kind", "frequency", "gathers it", "best match", "similarity"):
        table.add_column(name, justify="right" if name in ("", "frequency", "similarity") else "left")
    if weighted:
        table.add_column("weight", justify="right")
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
            *([f"{token.weight:.3f}"] if weighted else []),
            style="" if token.kept else "dim",
        )
    console.print(table)
    where = f"not gathered: none of the {kept} most important embeddings by {order} finds it"
    if explanation.rank is not None:
        where = f"rank {explanation.rank:,} of {explanation.documents_scored:,} documents scored"
    elif explanation.gathered:
        where = f"gathered, but {explanation.documents_scored:,} others looked better and were scored instead"
    values = f"score {explanation.score:.3f}, relevance {explanation.relevance:.2f}"
    if explanation.text_score is not None:
        values += f", BM25 of its words {explanation.text_score:.3f}"
        where = where.replace("finds it", "finds it, and its words do not either")
    console.print(Text(f"{printable(explanation.docno)}: {values}, {where}"))


def printable(text: str) -> str:
    """One line without control characters, so that a document cannot send commands to the terminal."""
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def readable_size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def size_of(facts: Mapping[str, Any]) -> str:
    """The numbers of documents, embeddings and bytes, from what Index.info() gives."""
    return (
        f"{counted(facts['documents'], 'document')}, {counted(facts['embeddings'], 'embedding')}, "
        f"{readable_size(facts['bytes'])} on disk"
    )
