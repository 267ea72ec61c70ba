"""What an export writes is read as the same documents, and an imported export gives the same rankings."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import QUERIES, random_documents, random_text
from hypothesis import given
from hypothesis import strategies as st
from test_sharded import hits_of, make_shards

from secateurs import Document, Index
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.contract import AnyIndex
from secateurs.corpus import TEXT_FIELDS, read_corpus, to_document
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import SecateursError, UsageError
from secateurs.importing import import_embeddings
from secateurs.transfer.export import json_line

METADATA: list[dict[str, Any]] = [
    {},
    {"year": 2020, "tags": ["a", "b"], "author": {"name": "Ada"}, "doi": None},
    {"title": "Fish"},
    {"title": "  "},
    {"title": 7},
    {"id": "another", "contents": "more"},
]
DOCUMENTS = [
    replace(document, text=f"Fish grow, line {i}.\nThe end \u2028", metadata=METADATA[i % len(METADATA)])
    for i, document in enumerate(random_documents(60))
]
RNG = np.random.default_rng(3)
ENCODED_QUERIES = [random_text(RNG, 5) for _ in range(10)]


@pytest.fixture(params=["one index", "shards"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AnyIndex:
    if request.param == "shards":
        return ShardedIndex(make_shards(tmp_path / "some.sec", DOCUMENTS, 3))
    index = Index.build(tmp_path / "some.sec", DOCUMENTS[:40], encoder=None)
    index.add(DOCUMENTS[40:])
    index.add([replace(DOCUMENTS[0], docno="deleted")])
    index.delete("deleted")
    return index


def texts(documents: Any) -> dict[str, tuple[str, Any]]:
    return {document.docno: (document.text, dict(document.metadata)) for document in documents}


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz"])
def test_an_exported_jsonl_is_read_as_the_same_documents(opened: AnyIndex, tmp_path: Path, name: str) -> None:
    assert opened.export(tmp_path / name) == 60
    assert texts(read_corpus(tmp_path / name)) == texts(DOCUMENTS)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".new"]


def test_documents_without_embeddings_are_the_same_documents(opened: AnyIndex) -> None:
    plain = list(opened.documents(embeddings=False))
    assert [document.docno for document in plain] == [document.docno for document in opened.documents()]
    assert texts(plain) == texts(DOCUMENTS)
    assert all(document.encoded is None for document in plain)


words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(str.strip)
keys = st.sampled_from(["title", "year", "full_text", "body", "id"]) | words


@given(
    words,
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.dictionaries(keys, words | st.integers()),
    st.booleans(),
)
def test_every_line_is_read_as_its_document_or_refused(
    docno: str, text: str, metadata: dict[str, Any], titled: bool
) -> None:
    if titled and isinstance(metadata.get("title"), str):
        text = f"{metadata['title'].strip()} {text}"
    document = Document(docno, f"{text}.", metadata)
    try:
        line = json_line(document)
    except SecateursError:
        assert metadata.keys() & {"docno", *TEXT_FIELDS}
    else:
        assert line.count("\n") == 1
        assert to_document(json.loads(line)) == document


def test_a_title_is_taken_off_the_text_that_it_is_in_front_of() -> None:
    line = json_line(to_document({"docno": "d", "title": " Fish ", "text": "They grow."}))
    assert json.loads(line) == {"docno": "d", "title": " Fish ", "text": "They grow."}
    apart = Document("d", "They grow.", {"title": "Fish"})
    assert json.loads(json_line(apart)) == {"docno": "d", "title": "Fish", "full_text": "They grow."}


def test_trec_text_has_entities_so_that_a_text_ends_no_element(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "a.sec", [replace(DOCUMENTS[0], docno="a<1", text="x </TEXT> & y")], encoder=None)
    expected = "<DOC>\n<DOCNO>a&lt;1</DOCNO>\n<TEXT>\nx &lt;/TEXT&gt; &amp; y\n</TEXT>\n</DOC>\n"
    index.export(tmp_path / "a.trec")
    assert (tmp_path / "a.trec").read_text() == expected
    index.export(tmp_path / "a.txt.gz", format="trec")
    assert gzip.decompress((tmp_path / "a.txt.gz").read_bytes()).decode() == expected


def test_a_file_is_replaced_only_if_asked_for_and_only_by_a_complete_one(tmp_path: Path) -> None:
    index = Index.build(
        tmp_path / "a.sec", [DOCUMENTS[0], Document("bad", "x", {"text": 1}, DOCUMENTS[1].encoded)], encoder=None
    )
    target = tmp_path / "all.jsonl"
    target.write_text("before")
    with pytest.raises(SecateursError, match=r"there is a file .* already"):
        index.export(target)
    with pytest.raises(SecateursError, match="'bad' has 'text' in its metadata"):
        index.export(target, overwrite=True)
    assert target.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sec", "all.jsonl"]
    index.delete("bad")
    assert index.export(target, overwrite=True) == 1
    assert json.loads(target.read_text())["docno"] == "d000"


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("all.doc", None, "end the name in .jsonl"),
        ("all.jsonl", "xml", "format"),
        ("-", "parquet", "parquet goes to a file"),
        ("all.parquet.gz", None, "parquet goes to a file"),
    ],
)
def test_a_format_that_is_not_known_is_refused(tmp_path: Path, name: str, format: str | None, message: str) -> None:
    index = Index.build(tmp_path / "a.sec", DOCUMENTS[:1], encoder=None)
    with pytest.raises(UsageError, match=message):
        index.export(name if name == "-" else tmp_path / name, format=format)


def test_a_folder_that_is_not_there_and_one_in_the_place_of_the_file_are_named(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "a.sec", DOCUMENTS[:1], encoder=None)
    with pytest.raises(SecateursError, match="there is no folder"):
        index.export(tmp_path / "nowhere" / "all.jsonl")
    with pytest.raises(UsageError, match="is a folder"):
        index.export(tmp_path, format="jsonl")


@pytest.mark.parametrize("store", ["int8", "float16", "residual4"])
def test_an_imported_export_gives_the_same_rankings(tmp_path: Path, store: Any) -> None:
    pytest.importorskip("pyarrow")
    index = Index.build(tmp_path / "a.sec", DOCUMENTS, encoder=None, store=store, merge=0.6, pool=2)
    assert index.export(tmp_path / "a.parquet") == 60
    again = import_embeddings(tmp_path / "a.parquet", tmp_path / "b.sec")
    for query in ENCODED_QUERIES:
        assert hits_of(again.search(query)) == hits_of(index.search(query))
        assert hits_of(again.search(query, gather="exhaustive")) == hits_of(index.search(query, gather="exhaustive"))
    assert texts(again.documents()) == texts(DOCUMENTS)
    told = ("documents", "embeddings", "merged_embeddings", "merge", "pool", "gather", "encoder")
    assert {name: again.info()[name] for name in told} == {name: index.info()[name] for name in told}
    assert again.info()["store"] == ("int8" if store == "residual4" else store)


def test_an_import_of_int16_has_the_same_embeddings(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    index = Index.build(tmp_path / "a.sec", DOCUMENTS, encoder=None, store="int16")
    index.export(tmp_path / "a.parquet")
    again = import_embeddings(tmp_path / "a.parquet", tmp_path / "b.sec")
    for before, after in zip(index.documents(), again.documents(), strict=True):
        assert before.encoded is not None
        assert after.encoded is not None
        np.testing.assert_array_equal(before.encoded.embeddings, after.encoded.embeddings)
        np.testing.assert_array_equal(before.encoded.token_ids, after.encoded.token_ids)


def test_shards_are_exported_to_one_table_and_keep_their_scores(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    shards = ShardedIndex(make_shards(tmp_path / "many.sec", DOCUMENTS, 3, store="float16"))
    assert shards.export(tmp_path / "a.parquet") == 60
    again = import_embeddings(tmp_path / "a.parquet", tmp_path / "b.sec")
    for query in ENCODED_QUERIES:
        assert hits_of(again.search(query)) == hits_of(shards.search(query))


def test_an_imported_export_has_its_encoder_and_background_again(
    index: Index, encoder: OnnxEncoder, tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    index.export(tmp_path / "a.parquet")
    again = import_embeddings(tmp_path / "a.parquet", tmp_path / "b.sec")
    again.use_encoder(encoder)
    assert again.info()["background"] == index.info()["background"]
    assert again.info()["encoder"] == index.info()["encoder"]
    for query in QUERIES:
        expected = index.search(query, p=3)
        assert hits_of(again.search(query, p=3)) == hits_of(expected)
        assert again.search(query, p=3).kept == expected.kept


def test_an_empty_index_is_exported_and_imported(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    index = Index.build(tmp_path / "a.sec", [], encoder=None)
    assert index.export(tmp_path / "a.jsonl") == index.export(tmp_path / "a.parquet") == 0
    assert (tmp_path / "a.jsonl").read_bytes() == b""
    assert len(import_embeddings(tmp_path / "a.parquet", tmp_path / "b.sec")) == 0


def test_a_table_that_lost_a_column_or_has_another_header_is_refused(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    Index.build(tmp_path / "a.sec", DOCUMENTS, encoder=None).export(tmp_path / "a.parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    parquet.write_table(table.drop_columns(["cut"]), tmp_path / "b.parquet")
    with pytest.raises(SecateursError, match=r"b\.parquet was exported by secateurs, but cut is gone"):
        import_embeddings(tmp_path / "b.parquet", tmp_path / "b.sec")
    parquet.write_table(table.replace_schema_metadata({b"secateurs": b'{"version": 2}'}), tmp_path / "c.parquet")
    with pytest.raises(SecateursError, match="its header was not written by this version"):
        import_embeddings(tmp_path / "c.parquet", tmp_path / "c.sec")
    parquet.write_table(table.slice(5, 7), tmp_path / "d.parquet")  # a part of an export is fine
    assert [d.docno for d in import_embeddings(tmp_path / "d.parquet", tmp_path / "d.sec").documents()] == [
        document.docno for document in DOCUMENTS[5:12]
    ]
