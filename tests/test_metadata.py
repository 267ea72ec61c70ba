"""Metadata is changed without encoding, documents are deleted by it, and an index knows its keys: also over shards."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text
from test_sharded import hits_of, make_shards

from secateurs import Index
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.contract import AnyIndex
from secateurs.corpus import BadDocumentError
from secateurs.errors import SecateursError, UsageError
from secateurs.metadata import read_metadata
from secateurs.records import Changes, Field
from secateurs.storage.recent_writes import count_before, with_count

DOCUMENTS = [
    replace(document, metadata={"year": 2000 + i, "lang": "en" if i % 2 else "de", "note": None, "tags": ["a", i % 3]})
    for i, document in enumerate(random_documents(40))
]
QUERY = random_text(np.random.default_rng(1), 4)


@pytest.fixture(params=["one index", "shards"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyIndex]:
    index: AnyIndex
    if request.param == "shards":
        index = ShardedIndex(make_shards(tmp_path / "some.sec", DOCUMENTS, 3, gather=("cells", "faiss")))
    else:
        index = Index.build(tmp_path / "some.sec", DOCUMENTS, encoder=None, gather=("cells", "faiss"))
    yield index
    index.close()


def test_keys_are_set_and_removed_and_others_stay(opened: AnyIndex) -> None:
    before = {document.docno: document for document in opened.documents()}
    scores = hits_of(opened.search(QUERY, k=40))
    changes = opened.update_metadata(
        {
            "d003": {"year": 1900, "lang": None, "new": {"x": [1]}},
            "d004": {},
            "nope": {"year": 1},
            "d001": {"gone": None},
        }
    )
    assert changes == Changes(replaced=3, missing=("nope",))
    assert dict(opened.get("d003").metadata) == {"year": 1900, "note": None, "tags": ["a", 0], "new": {"x": [1]}}
    assert opened.get("d001").metadata == before["d001"].metadata
    assert opened.get("d003").text == before["d003"].text
    assert hits_of(opened.search(QUERY, k=40)) == scores
    for gather in ("cells", "faiss", "exhaustive"):
        (hit,) = opened.search(QUERY, where="year < 2000", gather=gather)
        assert (hit.docno, hit.score) in scores
    for document in opened.documents():
        assert document.encoded is not None
        earlier = before[document.docno].encoded
        assert earlier is not None
        np.testing.assert_array_equal(document.encoded.embeddings, earlier.embeddings)
        np.testing.assert_array_equal(document.encoded.token_ids, earlier.token_ids)
    opened.check()
    assert len(opened) == 40


@pytest.mark.parametrize("store", ["int8", "int16", "float16", "residual4"])
def test_stored_embeddings_are_copied_byte_by_byte_and_merged_ones_stay_merged(tmp_path: Path, store: Any) -> None:
    index = Index.build(tmp_path / "a.sec", DOCUMENTS, encoder=None, store=store, merge=0.5, pool=2)
    before = index.info()
    scores = hits_of(index.search(QUERY, k=40, gather="exhaustive"))
    (segment,) = index.snapshot.segments
    rows = segment.arrays["embeddings.npy"].tobytes()
    index.update_metadata({document.docno: {"year": 1} for document in DOCUMENTS})
    (segment,) = index.snapshot.segments
    assert segment.arrays["embeddings.npy"].tobytes() == rows
    assert hits_of(index.search(QUERY, k=40, gather="exhaustive", where="year = 1")) == scores
    told = ("documents", "embeddings", "merged_embeddings", "token_types", "cut_documents")
    assert {name: index.info()[name] for name in told} == {name: before[name] for name in told}
    assert index.info()["commit"] == before["commit"] + 1
    index.check()


def test_nothing_is_changed_if_nothing_is_there(opened: AnyIndex) -> None:
    commit = opened.info().get("commit")
    assert opened.update_metadata({"nope": {"year": 1}}) == Changes(missing=("nope",))
    assert opened.update_metadata({}) == Changes()
    assert opened.info().get("commit") == commit


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["d001"], "metadata are given by docno"),
        ({1: {}}, "a docno is a text"),
        ({"d001": 5}, "metadata of 'd001' is not a mapping"),
        ({"d001": {"x": object()}}, "metadata of 'd001' is not JSON"),
        ({"d001": {1: "x"}}, "metadata of 'd001' has the key 1: keys are texts"),
        ({"d001": {"x": float("nan")}}, "metadata of 'd001' is not JSON"),
    ],
)
def test_metadata_that_cannot_be_stored_is_refused_and_nothing_is_changed(
    opened: AnyIndex, given: Any, message: str
) -> None:
    with pytest.raises(SecateursError, match=message):
        opened.update_metadata({"d002": {"year": 1}, **given} if isinstance(given, dict) else given)
    assert opened.get("d002").metadata["year"] == 2002


def test_documents_that_match_a_filter_are_deleted_and_counted(opened: AnyIndex) -> None:
    assert opened.delete(where="year < 2010 and lang = 'en'") == Changes(deleted=5)
    assert len(opened) == 35
    assert {document.docno for document in opened.documents()} == {
        document.docno for i, document in enumerate(DOCUMENTS) if not (i < 10 and i % 2)
    }
    assert opened.delete(where="year < 2010 and lang = 'en'") == Changes()
    opened.check()
    assert opened.delete(where="year > 0") == Changes(deleted=35)
    assert len(opened) == 0


@pytest.mark.parametrize("where", ["", "  ", "yaer < 2000", "year = 'x'", "year <"])
def test_a_filter_that_says_nothing_or_nothing_right_deletes_nothing(opened: AnyIndex, where: str) -> None:
    with pytest.raises(UsageError, match="where"):
        opened.delete(where=where)
    assert len(opened) == 40


def test_a_delete_names_docnos_or_a_filter(opened: AnyIndex) -> None:
    with pytest.raises(UsageError, match="exactly one of them"):
        opened.delete()
    with pytest.raises(UsageError, match="exactly one of them"):
        opened.delete(["d001"], where="year < 2000")
    with pytest.raises(UsageError, match="exactly one of them"):
        opened.delete(where=None)
    assert len(opened) == 40


def test_writes_that_are_sent_again_are_done_once(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "a.sec", DOCUMENTS, encoder=None)
    first = index.change(lambda writer: writer.delete_where("year < 2005", "first"))
    assert index.change(lambda writer: writer.delete_where("year < 2005", "first")) == first == Changes(deleted=5)
    metadata = {"d010": {"year": 2}, "nope": {"year": 2}}
    second = index.change(lambda writer: writer.update_metadata(metadata, "second"))
    commit = index.info()["commit"]
    assert index.change(lambda writer: writer.update_metadata(metadata, "second")) == second
    assert index.info()["commit"] == commit
    assert count_before(with_count({}, "a", 2**40 + 3), "a") == 2**40 + 3
    assert count_before({}, "a") is None


def test_fields_are_the_keys_that_live_documents_have_values_for(opened: AnyIndex) -> None:
    fields = opened.fields()
    assert list(fields) == ["lang", "tags", "year"]  # note is null everywhere
    assert fields["year"] == Field(("number",), 40, fields["year"].example)
    assert fields["tags"] == Field(("number", "text", "nested"), 40, fields["tags"].example)
    assert fields["lang"].types == ("text",)
    assert fields["lang"].example in ("en", "de")
    opened.update_metadata({"d001": {"ok": True, "author": {"name": "x" * 200}}, "d002": {"year": "old"}})
    fields = opened.fields()
    assert fields["ok"] == Field(("boolean",), 1, True)
    assert fields["author"] == Field(("nested",), 1, None)
    assert fields["author.name"] == Field(("text",), 1, "x" * 100 + "…")
    assert fields["year"].types == ("number", "text")
    assert fields["year"].documents == 40
    opened.delete("d001")
    assert not {"ok", "author", "author.name"} & opened.fields().keys()
    assert opened.fields()["year"].documents == 39


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_changes_of_metadata_are_read_from_lines(tmp_path: Path) -> None:
    path = lines(tmp_path / "a.jsonl", {"docno": "a", "year": 1, "x": None}, {"_id": 7, "title": "T"})
    assert read_metadata(path) == {"a": {"year": 1, "x": None}, "7": {"title": "T"}}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"year": 1}], "line 1: no docno"),
        ([{"docno": "a", "text": "t"}], r"line 1: has a text \(text\): to replace texts"),
        ([{"docno": "a"}, {"docno": "a"}], "line 2: docno 'a' is in an earlier line too"),
        ([[1]], "line 1: not a JSON object"),
    ],
)
def test_a_line_that_is_no_change_of_metadata_is_named(tmp_path: Path, records: Any, message: str) -> None:
    with pytest.raises(BadDocumentError, match=message):
        read_metadata(lines(tmp_path / "a.jsonl", *records))
