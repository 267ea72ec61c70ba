"""The paper's figures, of any results: readable in print, in black and white, and by the colour-blind.

A curve joins the settings that differ in p alone. Each has a colour (of Okabe and Ito), a marker and a line style. A
point is hollow where it differs significantly from the baseline.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import require
from .results import Results
from .summary import baseline_of, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Placeholders that a web page replaces by its colours, so that a figure follows its theme.
INK, PAPER = "#010203", "#fefdfc"
# 6 colours, 7 markers and 5 lines: no two of 210 curves have all three the same.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P", "<")
_LINES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)))
_OTHERS = ("X", "*", "p", "h", ">", "d", "8")  # markers of rows that are no curve
_RC = {
    "font.size": 8,
    "font.family": "sans-serif",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 8.5,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "text.color": INK,
    "text.parse_math": False,  # a dollar in a name stays a dollar
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.2,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "secateurs",
}
_ORDERS = {"focus": "Focus", "rarity": "Rarity", "first": "First", "icf": "ICF", "idf": "IDF", "random": "random"}
_MOST_MEASURES = 3
_MEDIAN = "milliseconds_p50"  # other load on the machine changes it less than the mean
_MANY_POINTS = 12
_MOST_CURVES = 24
_LEGEND_ROW = 0.16  # inches


@dataclass(frozen=True)
class Curve:
    name: str
    rows: list[dict[str, Any]]  # of the summary, by rising p


def figures(results: Results, baseline: str | None = None, correction: str | None = None) -> dict[str, Figure]:
    """Every figure that these results have points for: name -> figure."""
    rows = summarise(results, baseline, correction)
    reference = next(row for row in rows if row["setting"] == baseline_of(results, baseline))
    every = find_curves(results, rows)
    curves = every[:_MOST_CURVES]
    note = f"the first {len(curves)} of {len(every)} curves; " if len(every) > len(curves) else ""
    note += f"hollow: significantly different from {reference['setting']}"
    measures = list(results.measures)[:_MOST_MEASURES]
    drawn: dict[str, Figure] = {}
    with _style():
        if any(len(curve.rows) > 1 for curve in curves):
            drawn["embeddings"] = _embeddings(curves, list(results.measures)[:2], note.rpartition("; ")[0])
            drawn["documents"] = _documents(curves, measures, reference, rows, note)
        if sum(row[_MEDIAN] is not None for row in rows) > 1:
            drawn["time"] = _time(curves, measures[0], rows, note)
    return drawn


def find_curves(results: Results, rows: list[dict[str, Any]]) -> list[Curve]:
    """The settings of the index, grouped by everything but p."""
    grouped: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    names = [name for name in results.setting_columns if name not in ("p", "system")]
    for row in rows:
        if row["system"] == "secateurs":
            grouped.setdefault(tuple(row[name] for name in names), []).append(row)
    varied = [i for i in range(len(names)) if len({key[i] for key in grouped}) > 1]
    return [
        Curve(_curve_name({names[i]: key[i] for i in varied}), sorted(group, key=lambda row: row["embeddings_kept"]))
        for key, group in grouped.items()
    ]


def save_figures(drawn: Mapping[str, Figure], folder: str | Path, prefix: str = "") -> list[Path]:
    """Each figure as PNG and SVG."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in drawn.items():
        png, svg = (Path(folder) / f"{prefix}{name}.{kind}" for kind in ("png", "svg"))
        with _style():
            figure.savefig(png, dpi=200, facecolor="white")
        svg.write_text(to_svg(figure, "#000000", "#ffffff", background=True), "utf-8")
        paths += [png, svg]
    return paths


def to_svg(figure: Figure, ink: str, paper: str, background: bool = False) -> str:
    """The figure as SVG with these colours for ink and paper, from its <svg> on; a background is paper."""
    file = io.StringIO()
    with _style():
        figure.savefig(file, format="svg", facecolor=PAPER if background else "none", metadata={"Date": None})
    content = file.getvalue().replace(INK, ink).replace(PAPER, paper)
    return content[content.index("<svg") :]


def _style() -> Any:
    matplotlib = require("matplotlib", "lab")
    return matplotlib.rc_context(_RC)


def _figure(panels: int, height: float) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(2.4 * panels + 0.3, 7.2), height), layout="constrained")
    axes = [figure.add_subplot(1, panels, place + 1) for place in range(panels)]
    for axis in axes:
        axis.set_facecolor("none")
        axis.grid(True, color="#999999", linewidth=0.3, alpha=0.5)
        axis.locator_params(axis="x", nbins=5)
    return figure, axes


def _embeddings(curves: list[Curve], measures: list[str], note: str) -> Figure:
    """Figure 2 of the paper: what grows with the number of query embeddings."""
    panels = [*measures, "relevant_scored", "documents_scored"]
    titles = {"relevant_scored": "relevant retrieved", "documents_scored": "documents retrieved"}
    figure, axes = _figure(len(panels), 2.2 if note else 2.0)
    for axis, name in zip(axes, panels, strict=True):
        axis.set_title(titles.get(name, name), loc="left")
        axis.set_xlabel("query embeddings")
        for number, curve in enumerate(curves):
            colour, marker, line = _look(number)
            x = [row["embeddings_kept"] for row in curve.rows]
            y = [row[name] for row in curve.rows]
            axis.plot(
                x, y, color=colour, marker=marker, linestyle=line, label=curve.name, markersize=0.7 * _size(curve)
            )
        if name == "documents_scored":
            axis.yaxis.set_major_formatter(_thousands)
    _legend(figure, axes[0], note)
    return figure


def _documents(
    curves: list[Curve], measures: list[str], reference: dict[str, Any], rows: list[dict[str, Any]], note: str
) -> Figure:
    """Figure 3 of the paper: effectiveness for the documents retrieved; hollow is significantly different."""
    figure, axes = _figure(len(measures), 2.5)
    for axis, name in zip(axes, measures, strict=True):
        axis.set_title(name, loc="left")
        axis.set_xlabel("documents retrieved")
        axis.xaxis.set_major_formatter(_thousands)
        axis.axhline(reference[name], color=INK, linewidth=0.6, linestyle=(0, (1, 2)))
        for number, curve in enumerate(curves):
            colour, marker, line = _look(number)
            axis.plot(
                [row["documents_scored"] for row in curve.rows],
                [row[name] for row in curve.rows],
                color=colour,
                linestyle=line,
                marker=marker,
                markersize=_size(curve),
                label=curve.name,
            )
            _hollow(axis, curve, "documents_scored", name, colour, marker)
        for number, row in enumerate(_points(rows)):
            if row["documents_scored"] is not None:
                marker = _OTHERS[number % len(_OTHERS)]
                _point(axis, row, "documents_scored", name, marker)
    _legend(figure, axes[0], f"dotted: the baseline; {note}")
    return figure


def _time(curves: list[Curve], measure: str, rows: list[dict[str, Any]], note: str) -> Figure:
    """Effectiveness against time, and the settings that no other beats in both."""
    figure, (axis,) = _figure(1, 3.0)
    figure.set_size_inches(5.2, 3.2)
    axis.set_title(measure, loc="left")
    axis.set_xlabel("median milliseconds per query: prune, gather and score")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(_short)
    axis.xaxis.set_minor_formatter(_short_minor)
    for number, curve in enumerate(curves):
        colour, marker, line = _look(number)
        x = [row[_MEDIAN] for row in curve.rows]
        y = [row[measure] for row in curve.rows]
        axis.plot(x, y, color=colour, marker=marker, linestyle=line, label=curve.name, markersize=_size(curve))
        _hollow(axis, curve, _MEDIAN, measure, colour, marker)
    for number, row in enumerate(_points(rows)):
        if row[_MEDIAN] is not None:
            _point(axis, row, _MEDIAN, measure, _OTHERS[number % len(_OTHERS)])
    front = pareto(rows, measure)
    axis.step(
        [row[_MEDIAN] for row in front],
        [row[measure] for row in front],
        where="post",
        color=INK,
        linewidth=0.7,
        alpha=0.6,
        label="not beaten in both",
    )
    _legend(figure, axis, note)
    return figure


def pareto(rows: list[dict[str, Any]], measure: str) -> list[dict[str, Any]]:
    """The rows that no other row beats in both time and effectiveness, from the fastest on."""
    front: list[dict[str, Any]] = []
    timed = [row for row in rows if row[_MEDIAN] is not None]
    for row in sorted(timed, key=lambda row: (row[_MEDIAN], -row[measure])):
        if not front or row[measure] > front[-1][measure]:
            front.append(row)
    return front


def _points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Baselines and run files."""
    return [row for row in rows if row["system"] != "secateurs"]


def _point(axes: Axes, row: dict[str, Any], x: str, y: str, marker: str) -> None:
    face = PAPER if row[f"{y} significant"] else INK
    axes.plot(
        [row[x]], [row[y]], color=INK, marker=marker, markersize=6, linestyle="", label=row["setting"],
        markerfacecolor=face, zorder=4,
    )  # fmt: skip


def _look(number: int) -> tuple[str, str, Any]:
    """Colour, marker and line of a curve."""
    return COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)], _LINES[number % len(_LINES)]


def _size(curve: Curve) -> float:
    return 3.0 if len(curve.rows) > _MANY_POINTS else 4.2


def _hollow(axes: Axes, curve: Curve, x: str, y: str, colour: str, marker: str) -> None:
    significant = [row for row in curve.rows if row[f"{y} significant"]]
    axes.plot(
        [row[x] for row in significant], [row[y] for row in significant], color=colour, marker=marker, linestyle="",
        markerfacecolor=PAPER, markersize=_size(curve), zorder=3,
    )  # fmt: skip


def _legend(figure: Figure, axes: Axes, note: str = "") -> None:
    handles, names = axes.get_legend_handles_labels()
    room = int(figure.get_figwidth() * 17)  # characters
    columns = max(1, min(len(names), room // (max(map(len, names), default=1) + 11)))
    more = -(-len(names) // columns) - 1
    figure.set_figheight(figure.get_figheight() + more * _LEGEND_ROW)  # the axes keep their room
    legend = figure.legend(handles, names, loc="outside upper left", ncols=columns, handlelength=3.2)
    for line in legend.get_lines():
        line.set_markerfacecolor(line.get_color())  # hollow says something about a point, not about its curve
    if note:
        figure.supxlabel(textwrap.fill(note, int(figure.get_figwidth() * 19)), fontsize=7)


def _curve_name(varied: Mapping[str, Any]) -> str:
    if list(varied) == ["order"]:
        return _ORDERS.get(varied["order"], str(varied["order"]))
    return " ".join(f"{name}={'auto' if value is None else value}" for name, value in varied.items()) or "secateurs"


_thousands: Callable[[float, Any], str] = lambda value, _: f"{value:,.0f}"  # noqa: E731
_short: Callable[[float, Any], str] = lambda value, _: f"{value:g}"  # noqa: E731


def _short_minor(value: float, _: Any) -> str:
    """Of the ticks between the powers of ten, only 2 and 5 are written."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""
