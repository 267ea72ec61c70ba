"""`facets`: how many documents have each value of a key, as a plain loop counts them, in one index and in shards."""

from collections import Counter
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from conftest import random_text
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sharded import make_shards

from secateurs import Document, Index
from secateurs.cancellation import cancelled_by
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.contract import AnyIndex
from secateurs.errors import CancelledError, UsageError

TEXT = random_text(np.random.default_rng(0), 2)
METADATA: list[dict[str, Any]] = [
    {"year": 2020, "lang": "en", "tags": ["a", "b", "a"], "ok": True},
    {"year": 2021, "lang": "de", "tags": ["b"], "ok": True},
    {"year": 2020.0, "lang": "en", "tags": [], "ok": False, "author": {"name": "Ada"}},
    {"year": "2020", "lang": None, "ok": 1, "author": {"name": "Bob"}},
    {"lang": "fr", "year": 1999},
]


def documents_of(metadata: list[dict[str, Any]]) -> list[Document]:
    return [Document(f"d{number}", "", given, TEXT) for number, given in enumerate(metadata)]


@pytest.fixture(params=["one index", "shards"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AnyIndex:
    documents = documents_of(METADATA)
    if request.param == "shards":
        return ShardedIndex(make_shards(tmp_path / "i.sec", documents, 3))
    index = Index.build(tmp_path / "i.sec", documents[:3], encoder=None)
    index.add(documents[3:])
    return index


def facets(index: AnyIndex, *keys: str, **others: Any) -> dict[str, Any]:
    return dict(index.search(TEXT, k=1, facets=keys, **others).facets)


def test_all_documents_are_counted_and_not_only_the_hits(opened: AnyIndex) -> None:
    assert facets(opened, "lang", "year") == {
        "lang": [("en", 2), ("de", 1), ("fr", 1)],
        "year": [(2020, 2), (1999, 1), (2021, 1), ("2020", 1)],  # a number is not a text
    }
    assert facets(opened) == {}


def test_an_entry_of_a_list_counts_once_for_its_document_and_keys_lead_into_objects(opened: AnyIndex) -> None:
    assert facets(opened, "tags", "author.name", "author") == {
        "tags": [("b", 2), ("a", 1)],
        "author.name": [("Ada", 1), ("Bob", 1)],
        "author": [],
    }


def test_true_is_not_1(opened: AnyIndex) -> None:
    counted = facets(opened, "ok")["ok"]
    assert counted == [(True, 2), (1, 1), (False, 1)]
    assert [type(value) for value, _ in counted] == [bool, int, bool]


def test_a_filter_and_a_deletion_leave_documents_out(opened: AnyIndex) -> None:
    assert facets(opened, "lang", "tags", where="year = 2020") == {"lang": [("en", 2)], "tags": [("a", 1), ("b", 1)]}
    assert facets(opened, "lang", where="year > 3000") == {"lang": []}
    opened.delete(["d0"])
    assert facets(opened, "lang") == {"lang": [("de", 1), ("en", 1), ("fr", 1)]}
    assert facets(opened, "lang", where="year = 2020") == {"lang": [("en", 1)]}


def test_the_time_of_counting_is_told_where_there_is_any(opened: AnyIndex) -> None:
    assert "facets" in opened.search(TEXT, facets=["lang"]).stats.milliseconds
    assert "facets" not in opened.search(TEXT).stats.milliseconds


def test_a_key_that_no_document_has_is_an_error(opened: AnyIndex) -> None:
    with pytest.raises(
        UsageError, match=r"^facets: no document has the key 'lnag'; there are: author, author\.name, lang,"
    ):
        facets(opened, "lang", "lnag")


def test_a_key_with_very_many_values_is_an_error(tmp_path: Path) -> None:
    documents = documents_of([{"i": number, "half": number // 2} for number in range(1001)])
    for index in (
        Index.build(tmp_path / "i.sec", documents, encoder=None),
        ShardedIndex(make_shards(tmp_path / "s.sec", documents, 2)),
    ):
        with pytest.raises(UsageError, match="facets: 'i' has more than 1,000 different values"):
            facets(index, "i")
        assert facets(index, "i", where="i >= 999") == {"i": [(999, 1), (1000, 1)]}
        assert len(facets(index, "half")["half"]) == 501


@pytest.mark.parametrize("wrong", ["year", 3, None, [3], ["\ud800"], [["year"]], ["x"] * 17, {"year"}])
def test_facets_are_a_list_of_keys(opened: AnyIndex, wrong: Any) -> None:
    with pytest.raises(UsageError, match="facets is a list of up to 16 keys of the metadata, not "):
        opened.search(TEXT, facets=wrong)


def test_values_are_counted_in_blocks_without_a_gap_or_a_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index.build(tmp_path / "i.sec", documents_of(METADATA), encoder=None)
    whole = facets(index, "year", "tags", "ok"), facets(index, "year", "tags", "ok", where="lang = 'en'")
    for block in (1, 2, 3, 4):
        monkeypatch.setattr("secateurs.storage.documents._VALUES_AT_ONCE", block)
        assert facets(index, "year", "tags", "ok") == whole[0]
        assert facets(index, "year", "tags", "ok", where="lang = 'en'") == whole[1]


def test_counting_stops_when_the_search_is_cancelled(opened: AnyIndex) -> None:
    snapshot = Index.build(opened.path.parent / "j.sec", documents_of(METADATA), encoder=None).snapshot
    stop = Event()
    stop.set()
    with cancelled_by(stop), pytest.raises(CancelledError):
        list(snapshot.segments[0].documents.value_counts("year", None))


SINGLE = st.one_of(st.integers(-3, 3), st.sampled_from([0.5, 1.0]), st.booleans(), st.sampled_from(["x", "y", "1"]))


@given(st.lists(st.one_of(SINGLE, st.none(), st.lists(SINGLE, max_size=4)), min_size=1, max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_counts_are_those_of_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], data: st.DataObject
) -> None:
    allowed = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    documents = documents_of([{"x": value, "inside": inside} for value, inside in zip(values, allowed, strict=True)])
    index = Index.build(tmp_path_factory.mktemp("facets") / "i.sec", documents, encoder=None, gather="exhaustive")
    for where, counted in (
        (None, [True] * len(values)),
        ("inside = true", allowed),
        ("not inside = true", np.invert(allowed)),
    ):
        expected = Counter[tuple[bool, Any]]()
        for value, is_counted in zip(values, counted, strict=True):
            if is_counted and value is not None:
                entries = value if isinstance(value, list) else [value]
                expected.update({(isinstance(entry, bool), entry) for entry in entries})
        found = facets(index, "x", where=where)["x"]
        assert {(isinstance(value, bool), value): documents for value, documents in found} == dict(expected)
        assert [documents for _, documents in found] == sorted(expected.values(), reverse=True)
