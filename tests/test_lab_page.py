"""Figures and the report page: hostile text stays text, nothing is loaded from elsewhere, numbers are the table's."""

import re
import xml.etree.ElementTree as ElementTree
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from secateurs.lab import Results, figures, report, save_figures, summarise
from secateurs.lab.figures import find_curves, pareto
from secateurs.lab.summary import smallest_without_loss

HOSTILE = '<script>alert(1)</script> & "$\\frac$" <img src=x onerror=y>'


def row(p: str, order: str, qid: str, value: float, scored: int, **more: Any) -> dict[str, Any]:
    return {
        "setting": f"p={p} order={order}", "system": "secateurs", "p": p, "order": order, "qid": qid,
        "query": f"{HOSTILE} {qid}", "nDCG@10": value, "AP": value / 2, "query_embeddings": 32,
        "embeddings_kept": 32 if p == "all" else int(p), "documents_gathered": scored, "documents_scored": scored,
        "relevant": 2, "relevant_scored": 1, "milliseconds": scored / 10, "milliseconds_encode": 1.0,
        "milliseconds_gather": scored / 10, "kept": [HOSTILE], "relevant_ranks": {f"{HOSTILE}{p}": 3}, **more,
    }  # fmt: skip


def small_results() -> Results:
    rows = []
    for order, losses in (("first", (0.5, 0.3, 0.01, 0)), ("icf", (0.2, 0.01, 0, 0))):
        for p, loss, scored in zip(("1", "2", "3", "all"), losses, (10, 20, 30, 100), strict=True):
            rows += [row(p, order, f"q{i}", 0.9 - loss * (1 + i % 3 / 3), scored) for i in range(20)]
    run = {"setting": HOSTILE, "system": "run"}
    found = {"query": "x", "nDCG@10": 0.5, "AP": 0.1, "documents_scored": 50, "kept": [], "relevant_ranks": {}}
    rows += [{**run, "qid": f"q{i}", **found} for i in range(20)]
    return Results(rows, ["nDCG@10", "AP"], {"command": f"secateurs evaluate {HOSTILE}", "secateurs": "9"})


@pytest.fixture(scope="module")
def page() -> str:
    return report(small_results(), f"A title {HOSTILE}")


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    return figures(small_results())


class Tags(HTMLParser):
    """Every tag and attribute of a page, and whether its tags close in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_hostile_text_stays_text_on_the_page(page: str) -> None:
    tags = Tags(page)
    assert tags.open == []
    assert not {"script", "img", "iframe", "link", "object"} & set(tags.tags)
    assert not [name for name, _ in tags.attributes if name.startswith("on")]
    assert tags.text.count("<script>alert(1)</script>") > 20


def test_the_page_loads_nothing_and_its_policy_forbids_it(page: str) -> None:
    assert "default-src 'none'" in page
    loaded = [value for name, value in Tags(page).attributes if name in ("src", "href", "xlink:href", "action")]
    assert loaded
    assert all(value and value.startswith("#") for value in loaded)
    assert "prefers-color-scheme: dark" in page


def test_ids_are_unique_on_the_page_and_every_reference_has_a_target(page: str) -> None:
    tags = Tags(page)
    ids = [value for name, value in tags.attributes if name == "id"]
    assert len(ids) == len(set(ids)) > 3
    references = {value[1:] for name, value in tags.attributes if name == "xlink:href" and value}
    assert references <= set(ids)


def rows_of(page: str) -> list[list[str]]:
    """The cells of every table row."""
    body = re.findall(r"<tr[^>]*>(.*?)</tr>", page)
    return [[unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] or [""] for row in body]


def test_the_page_shows_the_numbers_of_the_summary(page: str) -> None:
    text = Tags(page).text
    for row in summarise(small_results()):
        assert f"{row['nDCG@10']:.4f}{'*' if row['nDCG@10 significant'] else ' '}" in text
    # the first setting loses what only the baseline has: a relevant document at rank 3
    lost = [cells for cells in rows_of(page) if cells[0] == "p=1 order=first" and cells[-1] == f"{HOSTILE}all (3)"]
    assert len(lost) == 20


def test_the_smallest_p_is_that_from_which_on_no_setting_is_significantly_worse() -> None:
    results = small_results()
    rows = summarise(results)
    first, icf = find_curves(results, rows)[:2]
    assert (first.name, icf.name) == ("First", "ICF")
    assert [row["p"] for row in first.rows] == ["1", "2", "3", "all"]
    # every loss above varies between the queries by the same pattern, so each that is not zero is significant
    found = [smallest_without_loss(curve.rows, "nDCG@10") for curve in (first, icf)]
    assert [row["p"] for row in found if row] == ["all", "3"]
    worse = {"m significant": True, "m difference": -0.1}
    fine = {"m significant": False, "m difference": -0.1}
    last = dict(fine)
    assert smallest_without_loss([fine, worse, last], "m") is last
    assert smallest_without_loss([fine, worse], "m") is None


def test_the_pareto_front_has_the_rows_that_no_other_beats_in_time_and_effectiveness() -> None:
    rows = [{"milliseconds_p50": ms, "m": value} for ms, value in ((3, 0.5), (1, 0.2), (2, 0.1), (4, 0.5), (5, 0.9))]
    rows.append({"milliseconds_p50": None, "m": 1.0})
    assert [row["milliseconds_p50"] for row in pareto(rows, "m")] == [1, 3, 5]


def test_figures_are_png_and_svg_of_the_same_points(drawn: dict[str, Any], tmp_path: Path) -> None:
    assert list(drawn) == ["embeddings", "documents", "time"]
    paths = save_figures(drawn, tmp_path, "x-")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert (tmp_path / "x-time.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "x-documents.svg").read_text("utf-8")
    ElementTree.fromstring(svg)
    assert "#010203" not in svg
    assert "&lt;script&gt;" in svg
    lines = {line.get_label(): line for line in drawn["documents"].axes[0].get_lines()}
    assert list(lines["ICF"].get_xdata()) == [10, 20, 30, 100]
    means = [row["nDCG@10"] for row in summarise(small_results()) if row["order"] == "icf"]
    assert list(lines["ICF"].get_ydata()) == pytest.approx(means)


def test_hollow_points_are_the_significant_ones(drawn: dict[str, Any]) -> None:
    lines = drawn["documents"].axes[0].get_lines()
    hollow = [line for line in lines if line.get_markerfacecolor() == "#fefdfc" and len(line.get_xdata()) > 1]
    assert [list(line.get_xdata()) for line in hollow] == [[10, 20, 30], [10, 20]]


@pytest.mark.parametrize("count", [8, 24, 30])
def test_many_curves_look_different_and_do_not_shrink_the_axes(count: int) -> None:
    rows = [
        row(p, f"order{number:02}", qid, 0.5 + number / 100, int(p) * 10 + number)
        for number in range(count)
        for p in ("1", "2")
        for qid in ("q0", "q1")
    ]
    few = figures(small_results())
    for name, figure in figures(Results(rows, ["nDCG@10", "AP"], {})).items():
        lines = [line for line in figure.axes[0].get_lines() if str(line.get_label()).startswith("order")]
        looks = {(line.get_color(), line.get_marker(), str(line.get_linestyle())) for line in lines}
        assert len(looks) == len(lines) == min(count, 24)
        figure.draw_without_rendering()
        few[name].draw_without_rendering()
        height, usual = (drawn.axes[0].get_window_extent().height for drawn in (figure, few[name]))
        assert height > 0.8 * usual
        assert ("the first 24 of 30 curves" in (figure.get_supxlabel() or "")) == (count > 24)


def test_the_figure_of_time_says_what_hollow_means(drawn: dict[str, Any]) -> None:
    assert drawn["time"].get_supxlabel() == "hollow: significantly different from p=all order=first"


def test_one_query_has_a_page_without_intervals() -> None:
    rows = [row("1", "icf", "q1", 0.5, 10), row("all", "icf", "q1", 0.7, 20)]
    tables = rows_of(report(Results(rows, ["AP"], {}), "one"))
    assert ["p=1 order=icf", "AP", "-0.1000", "", "1.0000", "0", "1", "0"] in tables


def test_results_without_a_sweep_have_a_page_too() -> None:
    results = Results([row("3", "icf", "q1", 0.5, 10)], ["nDCG@10"], {})
    assert figures(results) == {}
    assert "0.5000" in report(results, "one")
