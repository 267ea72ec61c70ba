"""What a notebook shows: short reprs, HTML views with everything escaped, data frames."""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import asdict
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from conftest import build_random, random_text

from secateurs import Index
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import MissingExtraError
from secateurs.html_views import Mark, _excerpt
from secateurs.rankings import Ranking

SCRIPT = "<script>document.title = 'owned'</script>"
ATTRIBUTE = "\"><img src=x onerror='alert(1)'>"
QUERY = "do goldfish grow"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, encoder: OnnxEncoder) -> Index:
    documents = [
        {"docno": f"a{SCRIPT}", "text": f"Goldfish {SCRIPT} grow & grow.", f"key{SCRIPT}": [SCRIPT, {"<b>": 1}]},
        {"docno": f"b{ATTRIBUTE}", "text": f"{ATTRIBUTE} goldfish", "year": 2020, "rank": 7},
        {"docno": "long", "text": "Nothing here. " * 40 + "A goldfish grows. " + "Nothing there. " * 100},
    ]
    return Index.build(tmp_path_factory.mktemp("html") / "<i>hostile.sec", documents, encoder=encoder)


class Tags(HTMLParser):
    """The elements and attributes of a view, and that every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def html_of(shown: object) -> str:
    html = shown._repr_html_()  # type: ignore[attr-defined]
    assert isinstance(html, str)
    return html


def test_nothing_of_a_document_becomes_markup(hostile: Index) -> None:
    ranking = hostile.search(f"{QUERY} {SCRIPT}", p=3)
    explained = [hostile.explain(f"{QUERY} {SCRIPT}", hit.docno) for hit in ranking]
    for shown in (hostile, ranking, *ranking, *explained):
        html = html_of(shown)
        found = Tags(html)
        assert found.tags <= {"style", "div", "p", "b", "span", "small", "mark", "table", "tr", "th", "td"}
        assert found.attributes <= {"class", "style", "title", "dir"}
        assert "<script" not in html
        assert "<img" not in html
    assert f"a{SCRIPT}" in unescape(html_of(ranking))


def test_a_ranking_shows_which_embeddings_gather_and_marks_the_words_that_matched(hostile: Index) -> None:
    ranking = hostile.search(QUERY, p=5)  # the words: do, gold, ##fish, grow
    html = html_of(ranking)
    kept = re.findall(r'class="chip kept"[^>]*>([^<]*)<', html)
    words = [hostile.token_text(int(ranking.query.token_ids[position])) for position in ranking.kept[:4]]
    assert kept == [*words, "whole query"]
    assert html.count('class="chip pruned"') >= 3
    assert re.search(r">\[MASK\] &times;\d+<", html)
    marked = [word.lower() for word in re.findall(r"<mark[^>]*>([^<]*)</mark>", html)]
    assert {"gold", "fish", "grow"} <= set(marked)
    assert html_of(ranking[0]).count("<mark") > 0


def test_the_map_of_an_explanation_outlines_the_best_match_of_each_row(hostile: Index) -> None:
    explained = hostile.explain(QUERY, "long", p=2)
    rows = re.findall(r"<tr><th>(.*?)</tr>", html_of(explained))[1:]
    shown = [token for token in explained.tokens if token.is_word or token.kept]
    assert len(rows) == len(shown)
    for row, token in zip(rows, shown, strict=True):
        best = re.findall(r'class="cell best"[^>]*>([-0-9.]+)<', row)
        assert set(best) == {f"{token.similarity:.2f}"}
        assert f"<td>{('yes' if token.gathers else 'no') if token.kept else 'pruned'}</td>" in row


def test_a_long_text_is_shown_where_it_matched(hostile: Index) -> None:
    hit = next(hit for hit in hostile.search(QUERY) if hit.docno == "long")
    text = re.sub(r"<style>.*</style>|<[^>]*>", "", html_of(hit), flags=re.DOTALL)
    assert "… " in text
    assert "A goldfish grows. Nothing there." in text
    assert len(text) < 600


def test_an_excerpt_begins_before_the_strongest_marks_and_between_words() -> None:
    text = "word " * 200  # 1,000 characters
    marks = [Mark(5, 9, 0.2, 1.0), Mark(600, 604, 0.9, 1.0), Mark(610, 614, 0.9, 1.0)]
    assert _excerpt(text, marks) == (565, 985)
    assert _excerpt(text, []) == (0, 420)
    assert _excerpt("word", marks) == (0, 4)


def test_without_an_encoder_tokens_are_numbers_and_no_word_is_marked(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 40)
    ranking = index.search(random_text(np.random.default_rng(0), 3), p=1, k=30)
    html = html_of(ranking)
    assert f"#{ranking.query.token_ids[ranking.kept[0]]}" in html
    assert "<mark" not in html
    assert "and 10 more" in html
    index.delete([ranking[0].docno])
    assert ranking[0].docno in html_of(ranking)  # found before it was deleted
    index.close()
    assert 'class="chip' not in html_of(ranking)
    assert index._repr_html_() is None  # a notebook shows the repr then


def test_reprs_are_short(hostile: Index) -> None:
    ranking = hostile.search(QUERY, k=2)
    best = ranking[0]
    assert repr(ranking) == f"Ranking(2 hits: {best.docno!r} {best.score:.3f}, ...)"
    assert repr(best) == f"Hit({best.docno!r}, score={best.score:.3f}, relevance={best.relevance:.2f})"
    assert repr(hostile.search(QUERY, min_score=1e6)) == "Ranking(0 hits)"
    assert "nothing found" in html_of(hostile.search(QUERY, min_score=1e6))
    explained = hostile.explain(QUERY, best.docno)
    assert repr(explained).startswith(f"Explanation({best.docno!r}, score={explained.score:.3f}, relevance=")


def test_a_slice_of_a_ranking_is_a_ranking(hostile: Index) -> None:
    ranking = hostile.search(QUERY)
    part = ranking[1:]
    assert isinstance(part, Ranking)
    assert part.hits == ranking.hits[1:]
    assert part.stats == ranking.stats
    assert 'class="chip kept"' in html_of(part)


def test_what_views_are_made_with_is_no_part_of_a_record(hostile: Index) -> None:
    ranking = hostile.search(QUERY)
    copy = pickle.loads(pickle.dumps(ranking))
    assert copy.hits == ranking.hits
    assert copy.viewer is None
    assert copy[0].docno in unescape(html_of(copy))
    fields = {"docno", "score", "text", "metadata", "relevance", "exact_score", "text_score"}
    assert set(asdict(ranking[0])) == fields


def test_a_ranking_becomes_a_data_frame(hostile: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    ranking = hostile.search(QUERY)
    frame = ranking.to_pandas()
    assert list(frame.columns[:5]) == ["rank", "docno", "score", "relevance", "text"]
    assert list(frame["rank"]) == [1, 2, 3]
    assert list(frame["score"]) == [hit.score for hit in ranking]
    row = frame[frame["docno"] == f"b{ATTRIBUTE}"].iloc[0]
    assert (row["year"], row["metadata.rank"]) == (2020, 7)
    empty = hostile.search(QUERY, min_score=1e6).to_pandas()
    assert (len(empty), list(empty.columns)) == (0, ["rank", "docno", "score", "relevance", "text"])
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=r'pandas is not installed: pip install "secateurs\[notebook\]"'):
        ranking.to_pandas()
