"""Rankings, hits, explanations and indexes as HTML, for notebooks. All text that is not markup of this file is escaped.

Colours are translucent, or those of the page around them: one style fits light and dark themes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, Protocol, Self

_EXCERPT = 420  # characters of a text that is longer than this
_BEFORE_MARK = 40  # of them before the first mark
_FAINT, _FULL = 0.3, 0.9  # strengths of a mark that has no colour yet, and of one that has all of it
_SHOWN_METADATA = 6
_SHOWN_HITS = 20
_STYLE = """<style>
.secateurs-view { font: 14px/1.5 system-ui, sans-serif; color: inherit; max-width: 62em; }
.secateurs-view p { margin: 2px 0; }
.secateurs-view .quiet { opacity: 0.7; font-size: 12.5px; overflow-wrap: anywhere; }
.secateurs-view .chip { display: inline-block; border: 1px solid #2c6b3f; border-radius: 99px;
  padding: 0 9px; margin: 2px 4px 2px 0; }
.secateurs-view .kept { background: #2c6b3f; color: #fff; font-weight: 600; }
.secateurs-view .pruned { border: 1px dashed rgb(128 128 128 / 0.7); opacity: 0.75; }
.secateurs-view .chip small { margin-left: 6px; font-weight: 400; }
.secateurs-view mark { color: inherit; border-radius: 3px; }
.secateurs-view .hit { border-top: 1px solid rgb(128 128 128 / 0.35); padding: 6px 0; }
.secateurs-view .hit b { overflow-wrap: anywhere; }
.secateurs-view .text { overflow-wrap: anywhere; white-space: pre-line; }
.secateurs-view .scroll { overflow-x: auto; }
.secateurs-view table { border-collapse: separate; border-spacing: 2px; font-size: 12.5px; margin: 6px 0; }
.secateurs-view th, .secateurs-view td { background: none; border: 0; padding: 2px 6px; text-align: left; }
.secateurs-view th { font-weight: 400; vertical-align: bottom; }
.secateurs-view .column { writing-mode: vertical-rl; transform: rotate(180deg); max-height: 9em;
  overflow: hidden; display: inline-block; }
.secateurs-view td.cell { text-align: center; border-radius: 3px; }
.secateurs-view td.best { outline: 2px solid #2c8a4b; outline-offset: -2px; font-weight: 700; }
</style>"""


class Chip(NamedTuple):
    """A query embedding, or several of the same special token in a row."""

    token: str
    kept: bool  # it gathers
    frequency: int | None  # in the collection; None for special tokens
    times: int = 1


class Mark(NamedTuple):
    """A piece of a text that matched."""

    start: int
    end: int
    strength: float  # from 0 to 1
    adds: float  # to the score


class MapRow(NamedTuple):
    """A query embedding with its similarities to some of the document's tokens."""

    token: str
    gathers: str
    weight: float
    similarities: Sequence[float]
    best: Sequence[bool]  # whether a column is the best match


class Viewer(Protocol):
    """Finds what a view shows beside the record: by the index, when the view is made. It may find nothing."""

    def chips(self, kept: Sequence[int]) -> Sequence[Chip]: ...

    def marks(self, docno: str, text: str) -> Sequence[Mark]: ...

    def text(self, docno: str) -> str: ...

    def document_tokens(self, docno: str) -> Sequence[tuple[str, Sequence[float]]]:
        """Each token with its similarities to all query embeddings."""


class Viewed:
    """A record with an HTML view. Its viewer is no part of the record: it is not compared, copied or pickled."""

    __slots__ = ("_viewer",)
    _viewer: Viewer

    def viewed_by(self, viewer: Viewer) -> Self:
        object.__setattr__(self, "_viewer", viewer)  # records are frozen
        return self

    @property
    def viewer(self) -> Viewer | None:
        return getattr(self, "_viewer", None)


def ranking_html(ranking: Any) -> str:
    """Of a Ranking. rankings.py imports this file, so that its classes cannot be named here."""
    stats = ranking.stats
    facts = (
        f"{stats.documents_gathered:,} of {stats.documents_in_index:,} documents gathered with "
        f"{stats.embeddings_kept} of {stats.query_embeddings} embeddings, {stats.documents_scored:,} scored, "
        f"{stats.total_milliseconds:.1f} ms"
    )
    if ranking.plan.gather in ("exhaustive", "text"):  # no embedding gathered
        facts = f"{stats.documents_scored:,} of {stats.documents_in_index:,} documents scored"
    if stats.shards_missing:
        facts += f", {stats.shards_missing} shards could not be reached"
    chips = ranking.viewer.chips(ranking.kept) if ranking.viewer is not None else ()
    hits = [_hit(hit, rank) for rank, hit in enumerate(ranking.hits[:_SHOWN_HITS], start=1)] or ["<p>nothing found</p>"]
    more = len(ranking) - _SHOWN_HITS
    if more > 0:
        hits.append(f'<p class="quiet">and {more:,} more: a slice of the ranking shows others</p>')
    return _view(_chips(chips), f'<p class="quiet">{escape(facts)}</p>', *hits)


def hit_html(hit: Any) -> str:
    """Of a Hit."""
    return _view(_hit(hit, None))


def explanation_html(
    docno: str, facts: Sequence[str], text: str, marks: Sequence[Mark], columns: Sequence[str], rows: Sequence[MapRow]
) -> str:
    about = "".join(f"<p>{escape(fact)}</p>" for fact in facts)
    return _view(f'<p><b dir="auto">{escape(docno)}</b></p>', about, _text(text, marks), _map(columns, rows))


def index_html(name: str, info: Mapping[str, Any]) -> str:
    """`info` as Index.info() gives it."""
    facts = {key: f"{info[key]:,}" for key in ("documents", "embeddings", "dim")}
    facts |= {"on disk": f"{info['bytes'] / 1e6:,.1f} MB", "store": info["store"]}
    facts |= {"gather": ", ".join(info["gather"]), "encoder": str(info["encoder"].get("model", "none"))}
    rows = [f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in facts.items()]
    return _view(f"<p><b>{escape(name)}</b></p><table>{''.join(rows)}</table>")


def _view(*parts: str) -> str:
    return f'{_STYLE}<div class="secateurs-view">{"".join(parts)}</div>'


def _hit(hit: Any, rank: int | None) -> str:
    marks = hit.viewer.marks(hit.docno, hit.text) if hit.viewer is not None else ()
    place = "" if rank is None else f'<span class="quiet">{rank}</span> '
    scores = f"score {hit.score:.3f}"
    if hit.exact_score is not None:  # fused
        scores += f" &middot; exact score {hit.exact_score:.3f} &middot; BM25 {hit.text_score:.3f}"
    numbers = f'<span class="quiet">{scores} &middot; relevance {hit.relevance:.2f}</span>'
    head = f'<p>{place}<b dir="auto">{escape(hit.docno)}</b> {numbers}</p>'
    return f'<div class="hit">{head}{_text(hit.text, marks)}{_metadata(hit.metadata)}</div>'


def _chips(chips: Sequence[Chip]) -> str:
    return f"<p>{''.join(map(_chip, chips))}</p>" if chips else ""


def _chip(chip: Chip) -> str:
    state = "kept" if chip.kept else "pruned"
    often = "" if chip.frequency is None else f"<small>{chip.frequency:,}</small>"
    times = f" &times;{chip.times}" if chip.times > 1 else ""
    what = "gathers" if chip.kept else "does not gather"
    counted = "special" if chip.frequency is None else f"{chip.frequency:,} in the collection"
    return f'<span class="chip {state}" title="{counted}, {what}">{escape(chip.token)}{times}{often}</span>'


def _text(text: str, marks: Sequence[Mark]) -> str:
    start, end = _excerpt(text, marks)
    pieces, at = ["… " if start else ""], start
    for mark in marks:
        first, last = max(mark.start, at), min(mark.end, end)
        if first >= last:
            continue
        depth = min(max((mark.strength - _FAINT) / (_FULL - _FAINT), 0.0), 1.0)
        colour = f"background: rgb(52 150 86 / {0.05 + 0.5 * depth:.2f})"
        pieces.append(escape(text[at:first]))
        adds = f"adds {mark.adds:.2f} to the score"
        pieces.append(f'<mark style="{colour}" title="{adds}">{escape(text[first:last])}</mark>')
        at = last
    pieces += [escape(text[at:end]), " …" if end < len(text) else ""]
    return f'<p class="text" dir="auto">{"".join(pieces)}</p>'


def _excerpt(text: str, marks: Sequence[Mark]) -> tuple[int, int]:
    """The whole text if it is short, else the stretch with the strongest marks, begun between words."""
    if len(text) <= _EXCERPT:
        return 0, len(text)
    starts = [max(0, min(mark.start - _BEFORE_MARK, len(text) - _EXCERPT)) for mark in marks] or [0]
    start = max(starts, key=lambda s: sum(m.strength for m in marks if s <= m.start and m.end <= s + _EXCERPT))
    if start:
        space = text.find(" ", start, start + _BEFORE_MARK // 2)
        start = space + 1 if space >= 0 else start
    return start, min(start + _EXCERPT, len(text))


def _metadata(metadata: Mapping[str, Any]) -> str:
    shown = []
    for key, value in list(metadata.items())[:_SHOWN_METADATA]:
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        shown.append(f"{escape(key)} {escape(written[:60])}{'…' if len(written) > 60 else ''}")
    return f'<p class="quiet" dir="auto">{" &middot; ".join(shown)}</p>' if shown else ""


def _map(columns: Sequence[str], rows: Sequence[MapRow]) -> str:
    if not columns or not rows:
        return ""
    weighted = any(row.weight != 1 for row in rows)
    values = [value for row in rows for value in row.similarities]
    low, reach = min(values), max(max(values) - min(values), 1e-9)
    head = "".join(f'<th><span class="column">{escape(column)}</span></th>' for column in columns)
    body = []
    for row in rows:
        cells = [f"<th>{escape(row.token)}</th><td>{escape(row.gathers)}</td>"]
        if weighted:
            cells.append(f"<td>{row.weight:.2f}</td>")
        for value, best in zip(row.similarities, row.best, strict=True):
            colour = f"background: rgb(52 150 86 / {0.03 + 0.5 * (value - low) / reach:.2f})"
            cells.append(f'<td class="cell{" best" if best else ""}" style="{colour}">{value:.2f}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    names = "<th>query</th><th>gathers</th>" + ("<th>weight</th>" if weighted else "")
    return f'<div class="scroll"><table><tr>{names}{head}</tr>{"".join(body)}</table></div>'
