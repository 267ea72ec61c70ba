"""A self-contained HTML page from a table of results: tables, figures, queries, and how to make it again.

All text from outside (queries, tokens, docnos, file names) is escaped, here or by matplotlib. The page has no script
and loads nothing; its content security policy forbids both.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from ..progress import counted
from .figures import COLOURS, figures, find_curves, to_svg
from .results import Results
from .summary import baseline_of, smallest_without_loss, summarise
from .summary_text import notes, number, summary_cells

MOST_QUERIES = 50  # in the drill-down: the page stays small enough for a phone
_MOST_TOKENS = 12
_TOP = 10  # ranks in which a lost document is missed
_ABOUT = {
    "embeddings": "What grows with the number of query embeddings that gather (Figure 2 of the paper).",
    "documents": "Effectiveness for the documents retrieved, from the smallest p on the left (Figure 3 of the paper). "
    "Hollow points differ significantly from the baseline.",
    "time": "Effectiveness for the time of a query. The thin line joins what no other beats in both. Hollow points "
    "differ significantly from the baseline.",
}

Cell = str | tuple[str, str]  # text, or (text, class)


def report(results: Results, title: str, baseline: str | None = None, correction: str | None = None) -> str:
    """The page, as text."""
    rows = summarise(results, baseline, correction)
    reference = baseline_of(results, baseline)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(_facts(results))}</p>',
        _smallest(results, rows),
        _summary(results, rows, notes(results, baseline, correction)),
        *_figures(results, baseline, correction),
        _significance(results, rows, reference),
        _times(results, rows),
        _queries(results, reference),
        _again(results),
    ]
    style = resources.files("secateurs.lab").joinpath("report.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _facts(results: Results) -> str:
    about = results.about
    index = about.get("index", {})
    sizes = f"{counted(index['documents'], 'document')}, {counted(index['embeddings'], 'embedding')}, " if index else ""
    return (
        f"{counted(len(results.of(next(iter(results.settings)))), 'query', 'queries')}, {sizes}"
        f"{counted(len(results.settings), 'setting')}. "
        f"Secateurs {about.get('secateurs', '')}, {about.get('made', '')[:10]}."
    )


def _smallest(results: Results, rows: list[dict[str, Any]]) -> str:
    """How few embeddings are enough: the table that comes first."""
    curves = [curve for curve in find_curves(results, rows) if len(curve.rows) > 1]
    if not curves:
        return ""
    body = []
    for curve in curves:
        for measure in results.measures:
            row = smallest_without_loss(curve.rows, measure)
            cells = ["none"] if row is None else [row["p"], f"{row[measure]:.4f}", *_what_it_saves(row)]
            body.append([(curve.name, "text"), (measure, "text"), *cells])
    header: list[Cell] = ["", ("measure", "text"), "smallest p", "value", "documents scored", "saved", "speed-up"]
    return (
        "<h2>How few embeddings are enough</h2>\n"
        + _table(header, body)
        + _note("The smallest p from which on no setting of the curve is significantly worse than the baseline.")
    )


def _what_it_saves(row: Mapping[str, Any]) -> list[str]:
    return [
        number(row["documents_scored"], ",.0f"),
        number(row["saved"], ".0%"),
        number(row["speed_up"], ",.2f"),
    ]


def _summary(results: Results, rows: list[dict[str, Any]], explained: Sequence[str]) -> str:
    header = ["setting", *results.measures, "scored", "relevant", "saved", "ms", "speed-up"]
    body: list[list[Cell]] = [[row["setting"], *summary_cells(row, results.measures)] for row in rows]
    return (
        "<h2>All settings</h2>\n"
        + _table(header, body, ["baseline" if row["baseline"] else "" for row in rows])
        + "".join(_note(line) for line in explained)
    )


def _figures(results: Results, baseline: str | None, correction: str | None) -> Iterable[str]:
    drawn = figures(results, baseline, correction)
    if drawn:
        yield "<h2>Figures</h2>"
    for name, figure in drawn.items():
        svg = to_svg(figure, "currentColor", "var(--page)")
        # Every figure numbers its parts from 1, and an id may occur only once in a page.
        svg = svg.replace('id="', f'id="{name}-').replace('"#', f'"#{name}-').replace("url(#", f"url(#{name}-")
        for place, colour in enumerate(COLOURS):
            svg = svg.replace(colour.lower(), f"var(--curve{place})")
        width = figure.get_figwidth()  # so that letters have the same size in all figures
        svg = svg.replace(
            "<svg", f'<svg role="img" style="min-width: {4.6 * width:.0f}rem; max-width: {8 * width:.0f}rem"', 1
        )
        yield (f'<figure>\n<div class="wide">{svg}</div>\n<figcaption>{escape(_ABOUT[name])}</figcaption>\n</figure>')


def _significance(results: Results, rows: list[dict[str, Any]], reference: str) -> str:
    header: list[Cell] = [
        "setting",
        ("measure", "text"),
        "difference",
        "95% interval",
        "p-value",
        "won",
        "lost",
        "tied",
    ]
    body: list[list[Cell]] = []
    for row in rows:
        for name in results.measures if not row["baseline"] else ():
            difference = row[f"{name} difference"]
            changed = ("lost" if difference < 0 else "won") if row[f"{name} significant"] else ""
            body.append(
                [
                    row["setting"],
                    (name, "text"),
                    (f"{difference:+.4f}", changed),
                    "" if row[f"{name} low"] is None else f"{row[f'{name} low']:+.4f} to {row[f'{name} high']:+.4f}",
                    f"{row[f'{name} p']:.4f}",
                    *(f"{row[f'{name} {word}']:,}" for word in ("won", "lost", "tied")),
                ]
            )
    if not body:
        return ""
    return (
        "<h2>Differences from the baseline</h2>\n<details><summary>"
        f"{len(body):,} comparisons with <b>{escape(reference)}</b></summary>\n{_table(header, body)}</details>\n"
        + _note(
            "p-values are corrected for the number of settings, intervals are not. Won, lost and tied count queries."
        )
    )


def _times(results: Results, rows: list[dict[str, Any]]) -> str:
    stages = [name for name in rows[0] if name.startswith("milliseconds")]
    timed = [row for row in rows if row["milliseconds"] is not None]
    if not timed:
        return ""
    header = [
        "setting",
        *(name.removeprefix("milliseconds_").replace("milliseconds", "mean").replace("_", " ") for name in stages),
    ]
    body: list[list[Cell]] = [[row["setting"], *(number(row[name], ",.2f") for name in stages)] for row in timed]
    return (
        "<h2>Response times</h2>\n<details><summary>Milliseconds: mean and percentiles, of all and by stage</summary>\n"
        + _table(header, body)
        + "</details>\n"
        + _note(
            "Queries ran singly, after a warm-up, with the settings interleaved. Encoding the query (once for all "
            "settings) and fetching the texts are not in the mean."
        )
    )


def _queries(results: Results, reference: str) -> str:
    """Query by query: what was kept, and which relevant documents were lost by it."""
    measure = results.measures[0]
    baseline = results.of(reference)
    others = [label for label in results.settings if label != reference]
    if not others:
        return ""
    changes = np.array([results.values(label, measure) - results.values(reference, measure) for label in others])
    worst = np.argsort(changes.min(axis=0), kind="stable")[:MOST_QUERIES]
    parts = [
        "<h2>Query by query</h2>",
        _note(
            f"The {len(worst)} of {len(baseline):,} queries whose {measure} falls most under some setting. Lost are "
            f"the relevant documents among the baseline's first {_TOP} that the setting did not find at all, with the "
            "rank they had."
        ),
    ]
    for place in worst.tolist():
        before = baseline[place]
        body = [_query_row(before, measure, before, True)]
        body += [_query_row(results.of(label)[place], measure, before, False) for label in others]
        parts.append(
            f'<details><summary><b>{escape(before["query"])}</b> <span class="soft">{escape(before["qid"])}, '
            f"{escape(measure)} {before[measure]:.4f}, at worst {changes[:, place].min():+.4f}</span></summary>\n"
            + _table(
                ["setting", measure, "change", "scored", ("gathered with", "text"), ("lost", "text")],
                body,
                ["baseline"] + [""] * len(others),
            )
            + "</details>"
        )
    return "\n".join(parts)


def _query_row(row: Mapping[str, Any], measure: str, before: Mapping[str, Any], is_baseline: bool) -> list[Cell]:
    change = row[measure] - before[measure]
    lost = [
        f"{docno} ({rank})"
        for docno, rank in before["relevant_ranks"].items()
        if rank <= _TOP and docno not in row["relevant_ranks"]
    ]
    tokens = row["kept"][:_MOST_TOKENS] + (["…"] if len(row["kept"]) > _MOST_TOKENS else [])
    return [
        row["setting"],
        f"{row[measure]:.4f}",
        "" if is_baseline else (f"{change:+.4f}", "lost" if change < 0 else "won" if change > 0 else ""),
        number(row.get("documents_scored"), ",.0f"),
        (" ".join(tokens), "long"),
        (", ".join(lost), "long"),
    ]


def _again(results: Results) -> str:
    about = dict(results.about)
    command = about.pop("command", None)
    shown = json.dumps(about, indent=2, ensure_ascii=False)
    how = f"<pre><code>{escape(command)}</code></pre>\n" if command else ""
    return (
        f"<h2>Make it again</h2>\n{how}<details><summary>Settings and versions</summary>\n"
        f"<pre><code>{escape(shown)}</code></pre></details>"
    )


def _table(header: Sequence[Cell], body: Sequence[Sequence[Cell]], classes: Sequence[str] = ()) -> str:
    head = "".join(_cell(cell, "th") for cell in header)
    lines = []
    for number_of_row, cells in enumerate(body):
        name = classes[number_of_row] if classes else ""
        lines.append(f"<tr{_class(name)}>{''.join(_cell(cell, 'td') for cell in cells)}</tr>")
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>\n"
    )


def _cell(cell: Cell, tag: str) -> str:
    text, name = (cell, "") if isinstance(cell, str) else cell
    return f"<{tag}{_class(name)}>{escape(text)}</{tag}>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'
