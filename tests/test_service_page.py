"""The explorer page in a real browser. Skipped, with the reason, where there is no browser to try it in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
playwright: Any = pytest.importorskip("playwright.sync_api", reason="pip install playwright, to try the page")
from service import KEY, running  # noqa: E402

from secateurs import Index  # noqa: E402
from secateurs.encoders.onnx import OnnxEncoder  # noqa: E402

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine, to try the page in")

QUERY = "how do I read a zip archive"
SCRIPT = "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\"><b>goldfish</b>"
HOSTILE = [
    {"docno": "<script>alert(1)</script>", "text": SCRIPT, "<i>": "<svg onload=alert(1)>"},
    {"docno": "rtl", "text": "דג זהב goldfish גדל בבריכה \u202e reversed \u202c", "lang": "he"},
    {"docno": "emoji 🐟", "text": "🐟🐟🐟🐟🐟 👩‍👩‍👧 goldfish 🐟 grow"},
    {"docno": "x" * 3000, "text": "a goldfish " + "w" * 100_000 + " grows"},
    {"docno": "no words", "text": "."},
]


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, index_path: Path, encoder: OnnxEncoder, passages: list[dict[str, str]]
) -> Path:
    folder = tmp_path_factory.mktemp("page")
    (folder / "library.sec").symlink_to(index_path)
    Index.build(folder / "hostile.sec", HOSTILE, encoder=encoder)
    Index.build(folder / "nothing.sec", [], encoder=encoder)
    (folder / "keys").write_text(KEY)
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with running(*(folder / f"{name}.sec" for name in ("library", "hostile", "nothing"))) as (_, port, _said):
        yield f"http://127.0.0.1:{port}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    page = browser.new_page()
    page.set_default_timeout(20_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text) if "Content Security" in message.text else None)
    yield page
    page.close()
    assert complaints == []


def search(page: Any, query: str = QUERY) -> None:
    page.get_by_role("searchbox", name="Query").fill(query)
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits li")


def docnos(page: Any) -> list[str]:
    return [str(text) for text in page.locator("#hits h3").all_inner_texts()]


def test_typing_shows_the_ranking_of_the_library(page: Any, address: str, index: Index) -> None:
    page.goto(address)
    page.get_by_role("heading", name="A few embeddings find").wait_for()
    page.get_by_role("searchbox", name="Query").press_sequentially(QUERY)  # no Enter: a pause is enough
    page.wait_for_function("text => document.title.startsWith(text)", arg=QUERY)
    ranking = index.search(QUERY)
    assert docnos(page) == [hit.docno for hit in ranking]
    kept = page.locator(".chip.kept .token").all_inner_texts()
    assert kept[:2] == [index.token_text(int(ranking.query.token_ids[ranking.kept[0]])), "whole query"]
    assert f"{ranking.stats.documents_gathered} of" in page.locator("#results-facts").inner_text()


def test_the_slider_prunes_and_the_address_follows(page: Any, address: str, index: Index) -> None:
    page.goto(address)
    search(page)
    slider = page.get_by_role("slider")
    slider.focus()
    page.keyboard.press("Home")
    page.wait_for_function("() => document.querySelectorAll('.chip.kept').length === 1")
    assert slider.get_attribute("aria-valuetext") == "1 of 32 embeddings"
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelectorAll('.chip.kept').length === 2")
    assert "p=2" in page.url
    assert docnos(page) == [hit.docno for hit in index.search(QUERY, p=2)]
    cells = page.locator("#compare tbody tr").nth(1).locator("td").all_inner_texts()
    expected = [index.search(QUERY, p=p).stats.documents_gathered for p in (2, None)]
    assert [int(cell.replace(",", "")) for cell in cells] == expected
    page.get_by_role("button", name="p = auto").click()
    page.wait_for_function("() => document.querySelectorAll('.chip.kept').length > 2")
    assert "p=" not in page.url


def test_another_order_ranks_the_chips_anew(page: Any, address: str) -> None:
    page.goto(address)
    search(page)
    page.get_by_label("Order").select_option("first")
    page.wait_for_function("() => document.querySelector('.chip .token').textContent === '[CLS]'")
    assert "order=first" in page.url


@pytest.mark.parametrize(
    ("choice", "shown", "settings"),
    [
        ("p=1", "p = 1", {"p": 1}),
        ("order=first", "order first", {"p": 2, "order": "first"}),
        ("effort=exact", "effort exact", {"effort": "exact"}),
    ],
)
def test_the_ranking_is_compared_with_one_of_other_settings(
    page: Any, address: str, index: Index, choice: str, shown: str, settings: dict[str, Any]
) -> None:
    page.goto(f"{address}#index=library&q={QUERY}&p=2")
    page.wait_for_selector("#compare tbody tr")
    page.get_by_label("Compare with").select_option(choice)
    page.get_by_role("columnheader", name=shown).wait_for()
    here, there = index.search(QUERY, p=2), index.search(QUERY, **settings)
    rows = page.locator("#compare tbody tr")
    for row, name in ((0, "embeddings_kept"), (1, "documents_gathered"), (2, "documents_scored")):
        cells = [int(cell.replace(",", "")) for cell in rows.nth(row).locator("td").all_inner_texts()]
        assert cells == [getattr(here.stats, name), getattr(there.stats, name)]
    assert page.locator("#compare .docno").all_inner_texts() == [hit.docno for hit in there]
    absent = [hit.docno for hit in there if hit.docno not in {hit.docno for hit in here}]
    assert page.locator("#compare .lost .docno").all_inner_texts() == absent
    assert docnos(page) == [hit.docno for hit in here]
    page.reload()  # the address holds it
    page.get_by_role("columnheader", name=shown).wait_for()


def test_a_filter_finds_only_what_matches_and_the_address_holds_it(page: Any, address: str, index: Index) -> None:
    where = "kind = 'method'"
    page.goto(f"{address}#index=library&q={QUERY}&p=2")
    page.wait_for_selector("#hits li")
    page.get_by_role("textbox", name="Filter").fill(where)
    page.get_by_role("textbox", name="Filter").press("Enter")
    page.wait_for_function("() => document.getElementById('results-facts').textContent.includes('matching')")
    ranking = index.search(QUERY, p=2, where=where)
    assert docnos(page) == [hit.docno for hit in ranking]
    assert f"of {ranking.stats.documents_matching} matching" in page.locator("#results-facts").inner_text()
    assert page.locator("#compare .docno").all_inner_texts() == [
        hit.docno for hit in index.search(QUERY, p=None, where=where)
    ]
    page.get_by_role("button", name="Why?").first.click()
    page.wait_for_selector(".map")
    page.reload()
    page.wait_for_function("() => document.getElementById('results-facts').textContent.includes('matching')")
    assert page.get_by_role("textbox", name="Filter").input_value() == where


def test_a_wrong_filter_says_which_keys_there_are(page: Any, address: str) -> None:
    page.goto(f"{address}#index=library&q={QUERY}")
    page.wait_for_selector("#hits li")
    field = page.get_by_role("textbox", name="Filter")
    field.fill("knd = 'method'")
    field.press("Enter")
    page.get_by_role("alert").get_by_text("no document has the key 'knd'; there are: kind, python").wait_for()
    assert field.get_attribute("aria-invalid") == "true"
    field.fill("")
    field.press("Enter")
    page.wait_for_function("() => !document.getElementById('where').hasAttribute('aria-invalid')")


def test_keys_that_the_server_names_begin_a_filter(page: Any, address: str) -> None:
    fields = {
        "kind": {"types": ["text"], "documents": 494, "example": "it's a method"},
        "<b>odd": {"types": ["number"], "documents": 3, "example": 2020},
    }
    page.route("**/v1/indexes/library/fields", lambda route: route.fulfill(json={"fields": fields}))
    page.goto(f"{address}#index=library&q={QUERY}")
    page.get_by_role("button", name="kind", exact=True).click()
    field = page.get_by_role("textbox", name="Filter")
    assert field.input_value() == "kind = 'it''s a method'"
    page.get_by_role("button", name="<b>odd", exact=True).click()
    assert field.input_value() == "kind = 'it''s a method' and \"<b>odd\" >= 2020"


def test_a_chip_says_how_often_its_token_occurs_and_sets_p(page: Any, address: str, index: Index) -> None:
    page.goto(address)
    search(page)
    chip = page.locator(".chip").first
    token = index.explain(QUERY, index.search(QUERY)[0].docno).tokens[0]
    assert chip.inner_text().split() == [token.token, f"{token.collection_frequency:,}"]
    chip.click()
    page.wait_for_function("() => document.querySelectorAll('.chip.kept').length === 1")


def test_matched_words_are_marked_and_the_closer_the_darker(page: Any, address: str) -> None:
    page.goto(f"{address}#index=library&q={QUERY}")
    page.wait_for_selector("mark.word")
    marks = page.locator("#hits > li").first.locator("mark.word")
    assert "zip" in {text.lower() for text in marks.all_inner_texts()}
    depths = {float(mark.evaluate("m => m.style.getPropertyValue('--depth')")) for mark in marks.all()}
    assert len(depths) > 1
    title = marks.filter(has_text=re.compile("^zip$", re.I)).first.get_attribute("title")
    assert re.match(r"adds \d\.\d\d to the score: zip 0\.\d\d", title)


def test_the_match_of_a_common_word_is_marked_less_than_that_of_a_rare_one(page: Any, address: str) -> None:
    page.goto(f"{address}#index=library&q={QUERY}")
    page.wait_for_selector("mark.word")
    depths: dict[str, float] = {}  # of the darkest mark of each word
    for mark in page.locator("#hits mark.word").all():
        word = mark.inner_text().lower()
        depths[word] = max(depths.get(word, 0), float(mark.evaluate("m => m.style.getPropertyValue('--depth')")))
    common = {"a", "the", "and", "of", "to"} & depths.keys()
    assert depths["zip"] > 0.4
    assert len(common) > 1
    assert all(depths[word] < 0.1 for word in common), depths


def test_weights_change_the_ranking_and_the_map_says_how_they_add_up(page: Any, address: str, index: Index) -> None:
    page.goto(f"{address}#index=library&q={QUERY}&p=2")
    page.get_by_role("button", name="Why?").first.click()
    page.wait_for_selector(".map")
    assert page.locator(".map .weight").count() == 0
    assert "outlined, add up to the score" in page.locator(".why").first.inner_text()
    page.get_by_label("Weights in the score").select_option("idf")
    page.wait_for_selector(".map .weight")
    assert "weights=idf" in page.url
    ranking = index.search(QUERY, p=2, weights="idf")
    assert docnos(page) == [hit.docno for hit in ranking]
    assert page.locator(".hit .score").all_inner_texts() == [f"{hit.score:.2f}" for hit in ranking]
    assert page.locator(".hit .relevance").all_inner_texts() == [f"{hit.relevance:.2f}" for hit in ranking]
    explained = index.explain(QUERY, ranking[0].docno, p=2, weights="idf")
    shown = page.locator(".map .weight").all_inner_texts()
    assert shown == [f"{token.weight:.2f}" for token in explained.tokens if token.kind == "word"]
    sentence = f"outlined, times its weight, add up to the score: {explained.score:.2f} over 32"
    assert sentence in page.locator(".why:visible").inner_text()
    page.reload()
    page.wait_for_selector(".map .weight")
    assert page.get_by_label("Weights in the score").input_value() == "idf"
    page.get_by_label("Weights in the score").select_option("none")
    page.wait_for_selector(".map .weight", state="detached")
    assert "weights" not in page.url


def test_the_map_names_the_gatherers_and_outlines_each_rows_best(page: Any, address: str, index: Index) -> None:
    page.goto(f"{address}#index=library&q={QUERY}&p=2")
    page.get_by_role("button", name="Why?").first.click()
    page.wait_for_selector(".map")
    docno = docnos(page)[0]
    explanation = index.explain(QUERY, docno, p=2)
    assert page.locator(".map tbody th").all_inner_texts() == [t.token for t in explanation.tokens if t.kind == "word"]
    finders = [
        "whole query" if token.kind == "summary" else token.token for token in explanation.tokens if token.gathers
    ]
    assert page.locator(".why strong").inner_text() == f"Gathered by {', '.join(finders)}"
    best = page.locator(".map tbody tr").first.locator(".best").first.inner_text()
    first_word = next(token for token in explanation.tokens if token.kind == "word")
    assert float(best) == pytest.approx(first_word.similarity, abs=0.006)
    columns = {
        token.match_positions[0]: len(token.match_positions) for token in explanation.tokens if token.kind == "word"
    }
    shown = page.locator(".document-token").all_inner_texts()
    counts = [int(text.partition(" \u00d7")[2] or 1) for text in shown]
    assert counts == [columns[position] for position in sorted(columns)]
    page.get_by_label("[MASK] and other special embeddings too").check()
    assert page.locator(".map tbody tr").count() == 32
    page.get_by_label(re.compile("all .* document tokens")).check()
    segment, number = index.snapshot.place(index.snapshot.number(docno))
    assert (
        page.locator(".document-token").count()
        == segment.position_offsets[number + 1] - segment.position_offsets[number]
    )


def test_an_address_opens_the_same_view_in_another_browser(page: Any, address: str, browser: Any) -> None:
    page.goto(address)
    search(page)
    page.locator(".chip").nth(2).click()
    page.wait_for_function("() => document.querySelectorAll('.chip.kept').length === 3")
    page.get_by_role("button", name="Why?").nth(1).click()
    page.wait_for_selector(".map")
    other = browser.new_page()
    other.goto(page.url)
    other.wait_for_selector(".map")
    for place in ("#chips", "#hits"):
        assert other.locator(place).inner_text() == page.locator(place).inner_text()
    assert other.get_by_role("slider").input_value() == "3"
    other.close()
    page.go_back()  # from the query to the empty page
    page.wait_for_selector("#welcome:not([hidden])")


def test_the_curve_is_drawn_and_its_numbers_can_be_read(page: Any, address: str) -> None:
    page.goto(f"{address}#index=library&q={QUERY}&p=3")
    page.wait_for_selector(".curve")
    assert "At p = 3:" in page.locator(".curve").get_attribute("aria-label")
    page.get_by_text("The numbers").click()
    rows = page.locator("#curve tbody tr")
    assert rows.count() == 32
    assert rows.last.inner_text().split()[3] == "100%"


def test_everything_can_be_done_with_the_keyboard(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#welcome:not([hidden])")
    page.keyboard.press("/")
    page.keyboard.type(QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector("#hits li")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("() => document.activeElement.id || document.activeElement.textContent"))
        if str(reached[-1]).startswith("Why?"):
            break
    assert {"p", "p-auto", "order", "weights"} <= set(reached)
    page.keyboard.press("Enter")
    page.wait_for_selector(".map")


def test_hostile_documents_are_shown_as_the_text_they_are(page: Any, address: str) -> None:
    page.goto(f"{address}#index=hostile&q=goldfish")
    page.wait_for_selector("#hits li")
    shown = dict(zip(docnos(page), page.locator("#hits > li").all(), strict=True))
    assert shown.keys() == {document["docno"] for document in HOSTILE}
    script = shown["<script>alert(1)</script>"]
    assert script.locator(".text").inner_text() == SCRIPT
    assert page.locator("#hits script, #hits img, #hits b, #hits svg").count() == 0
    assert page.title().startswith("goldfish")
    assert shown["rtl"].locator(".text").evaluate("e => getComputedStyle(e).direction") == "rtl"
    # Places count code points: an emoji before the word must not shift what is marked.
    for name in ("rtl", "emoji 🐟"):
        marked = "".join(shown[name].locator("mark.word").all_inner_texts())
        assert "goldfish" in marked, name
    long = shown["x" * 3000]
    assert long.locator(".text").evaluate("e => e.textContent.length") < 600
    long.get_by_role("button", name="All of the text").click()
    assert long.locator(".text").evaluate("e => e.textContent.length") > 100_000
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    for item in shown.values():
        item.get_by_role("button", name="Why?").click()
        item.locator(".map").wait_for()
        assert page.locator(".map").count() == 1  # one map at a time, which is the one in the address
    assert page.title().startswith("goldfish")


def test_an_empty_index_says_so(page: Any, address: str) -> None:
    page.goto(f"{address}#index=nothing&q=goldfish")
    page.get_by_role("heading", name="This index is empty").wait_for()
    page.get_by_label("Index", exact=True).select_option("library")
    page.wait_for_selector("#hits li")


def test_nothing_is_wider_than_a_phone(page: Any, address: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{address}#index=library&q={QUERY}&p=3")
    page.wait_for_selector(".curve")
    page.get_by_role("button", name="Why?").first.click()
    page.wait_for_selector(".map")
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")


def test_failures_are_shown_and_can_be_tried_again(page: Any, address: str) -> None:
    page.goto(address)
    search(page)
    page.route("**/search", lambda route: route.abort())
    page.get_by_role("slider").press("Home")
    alert = page.get_by_role("alert")
    page.wait_for_selector(".notice.error")
    assert "The server does not answer" in alert.inner_text()
    page.unroute("**/search")
    alert.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".notice", state="hidden")
    assert page.locator(".chip.kept").count() == 1
    problem = '{"detail": "too many searches at once: try again in a moment"}'
    page.route("**/search", lambda route: route.fulfill(status=429, body=problem))
    page.get_by_role("slider").press("End")
    page.wait_for_selector(".notice.error")
    assert "too many searches" in alert.inner_text()
    page.unroute("**/search")
    page.get_by_role("searchbox", name="Query").fill("x" * 2001)
    page.wait_for_function("() => document.getElementById('notice').textContent.includes('2000 characters')")


def test_a_slow_server_is_shown_as_slow(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#welcome:not([hidden])")
    page.clock.install()
    held: list[Any] = []
    page.route("**/search", lambda route: route.continue_() if held else held.append(route))
    page.get_by_role("searchbox", name="Query").fill(QUERY)
    page.keyboard.press("Enter")
    page.wait_for_selector("body.busy")
    page.clock.run_for(3000)
    assert "Still searching" in page.get_by_role("alert").inner_text()
    held[0].continue_()
    page.wait_for_selector("#hits li")
    assert page.get_by_role("alert").is_hidden()


def test_a_server_that_wants_a_key_asks_for_it(page: Any, folder: Path) -> None:
    options = ("--api-key-file", folder / "keys", "--require-key-for-reads")
    with running(folder / "library.sec", *options) as (_, port, _said):
        page.goto(f"http://127.0.0.1:{port}/#q={QUERY}")
        page.get_by_label("Key").fill("not-the-key-that-is-wanted")
        page.keyboard.press("Enter")
        page.get_by_text("That key was not accepted").wait_for()
        page.get_by_label("Key").fill(KEY)
        page.keyboard.press("Enter")
        page.wait_for_selector("#hits li")


def test_the_page_keeps_to_the_limits_of_the_server(page: Any, folder: Path) -> None:
    with running(folder / "library.sec", "--max-k", "5", "--max-p", "8") as (_, port, _said):
        page.goto(f"http://127.0.0.1:{port}/#q={QUERY}&p=600")
        page.wait_for_selector(".curve")
        assert len(docnos(page)) == 5
        assert page.get_by_role("slider").get_attribute("max") == "8"
        assert page.locator("#p-shown").inner_text() == "8 of 32 embeddings"
        page.locator(".chip").last.click()
        page.get_by_role("button", name="Why?").first.click()
        page.wait_for_selector(".map")
        assert page.get_by_role("alert").is_hidden()
        assert "p=8" in page.url


def test_a_pressed_chip_keeps_the_focus(page: Any, address: str) -> None:
    page.goto(f"{address}#index=library&q={QUERY}")
    page.wait_for_selector(".chip")
    page.locator(".chip").nth(1).focus()
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelectorAll('.chip.kept').length === 2")
    assert page.evaluate("() => document.activeElement.dataset.last") == "2"


def test_back_goes_to_the_query_submitted_before(page: Any, address: str) -> None:
    page.goto(address)
    box = page.get_by_role("searchbox", name="Query")
    for query in (QUERY, "sort a list"):
        box.fill("")
        box.press_sequentially(query)
        page.wait_for_function("text => document.title.startsWith(text)", arg=query)  # found while typing
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")  # again is no step of its own
    page.go_back()
    page.wait_for_function("text => document.title.startsWith(text)", arg=QUERY)
    assert box.input_value() == QUERY
    page.go_back()
    page.wait_for_selector("#welcome:not([hidden])")
    page.go_forward()
    page.wait_for_function("text => document.title.startsWith(text)", arg=QUERY)


def test_the_curve_is_asked_for_once_for_all_p_and_given_up_with_its_query(page: Any, address: str) -> None:
    asked: list[Any] = []
    failed: list[str] = []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.route("**/prune-curve?*", lambda route: asked.append(route))  # held
    page.goto(f"{address}#index=library&q={QUERY}&p=3")
    page.get_by_text("Searching with every p").wait_for()
    page.locator(".chip").first.click()
    page.wait_for_function("() => document.querySelectorAll('.chip.kept').length === 1")
    assert len(asked) == 1
    asked[0].continue_()
    page.wait_for_selector(".curve")
    assert "At p = 1:" in page.locator(".curve").get_attribute("aria-label")
    search(page, "sort a list")
    page.wait_for_function("() => document.title.startsWith('sort a list')")
    assert page.locator(".curve").count() == 0  # that of the query before
    assert failed == []
    search(page, "parse json")
    page.wait_for_function("() => document.title.startsWith('parse json')")
    assert len(failed) == 1
    assert "sort" in failed[0]


def test_a_notice_stays_until_it_is_no_longer_true(page: Any, address: str) -> None:
    page.goto(f"{address}#index=unknown&q={QUERY}")
    page.wait_for_selector("#hits li")
    assert "There is no index “unknown” here" in page.get_by_role("alert").inner_text()
    page.route("**/search", lambda route: route.abort())
    page.get_by_role("slider").press("Home")
    page.wait_for_selector(".notice.error")
    page.get_by_role("searchbox", name="Query").fill("")
    page.wait_for_selector("#welcome:not([hidden])")
    assert page.get_by_role("alert").is_hidden()


@pytest.mark.parametrize(
    ("body", "said"), [('{"hits": [', "answer was cut short"), ("{}", "answer was not understood")]
)
def test_after_an_answer_that_is_not_understood_the_request_can_be_sent_again(
    page: Any, address: str, body: str, said: str
) -> None:
    page.goto(address)
    page.wait_for_selector("#welcome:not([hidden])")
    page.route("**/search", lambda route: route.fulfill(status=200, body=body))
    page.get_by_role("searchbox", name="Query").fill(QUERY)
    page.wait_for_selector(".notice.error")
    assert said in page.get_by_role("alert").inner_text()
    page.unroute("**/search")
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector("#hits li")


def test_skipping_to_the_results_keeps_the_view(page: Any, address: str) -> None:
    page.goto(f"{address}#index=library&q={QUERY}")
    page.wait_for_selector("#hits li")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "results-title"
    assert "zip" in page.url
