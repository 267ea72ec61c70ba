"""The service accepts and refuses the documents that the library accepts and refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from service import BEARER, KEY

from secateurs import Document, Index
from secateurs.corpus import DOCNO_FIELDS, TEXT_FIELDS, BadDocumentError, to_document
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys
from secateurs.service.limits import Limits
from secateurs.service.parsing import parse, to_documents
from secateurs.service.problems import Problem
from secateurs.service.requests import RequestModels

FISH = {"docno": "fish", "text": "Goldfish grow as large as their pond lets them.", "year": 2020}
DOCUMENTS = "/v1/indexes/animals/documents"
MODELS = RequestModels.within(Limits())
ENCODED = {"embeddings": [[1.0, 0.0]], "token_ids": [1], "token_kinds": [0]}


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory, encoder: OnnxEncoder) -> Index:
    return Index.build(tmp_path_factory.mktemp("documents") / "animals.sec", [FISH], encoder=encoder)


@pytest.fixture(scope="module")
def client(animals: Index) -> Iterator[TestClient]:
    with TestClient(create_app({"animals": animals}, access=Access(ApiKeys([KEY]))), headers=BEARER) as client:
        yield client


def send(client: TestClient, method: str, *documents: Any) -> Any:
    body = json.dumps({"documents": documents})  # NaN and lone surrogates included
    return client.request(method, DOCUMENTS, content=body, headers={"Content-Type": "application/json"})


def by_the_library(fields: dict[str, Any]) -> Document | None:
    try:
        return to_document(fields)
    except BadDocumentError:
        return None


def by_the_service(fields: dict[str, Any]) -> Document | None:
    try:
        return to_documents(parse(MODELS.documents, json.dumps({"documents": [fields]}).encode()))[0]
    except Problem as problem:
        if problem.status != 422 or not problem.errors[0][0].startswith("documents.0"):
            raise
        return None


# ---- The fields that a document may have

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", " ", "\t\n", "\ud800"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)
names = st.sampled_from((*DOCNO_FIELDS, *TEXT_FIELDS, "title", "txt", "Docno", "year", "\ud800"))
mostly_text = st.one_of(st.text(max_size=12), values)


def nested(depth: int) -> dict[str, Any]:
    deep: dict[str, Any] = {}
    for _ in range(depth):
        deep = {"in": deep}
    return deep


@given(fields=st.dictionaries(names, mostly_text, max_size=5))
@example(fields={"docno": "d57"})
@example(fields={"docno": "d57", "txt": "words"})
@example(fields={"docno": "d57", "text": ""})
@example(fields={"docno": "d57", "text": " \n"})
@example(fields={"docno": "d57", "text": "", "title": "Words"})
@example(fields={"_id": 57, "contents": "words"})
@example(fields={"docno": True, "text": "words"})
@example(fields={"docno": "d57", "text": None})
@example(fields={"docno": "d57", "text": "words", "deep": nested(99)})
@example(fields={"docno": "d57", "text": "words", "deep": nested(101)})
@settings(max_examples=400, deadline=None)
def test_the_service_reads_every_json_object_as_the_library_does(fields: dict[str, Any]) -> None:
    assert by_the_service(fields) == by_the_library(fields)


@given(fields=st.dictionaries(names, mostly_text, max_size=4))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_write_is_answered_200_or_422_as_the_library_decides(client: TestClient, fields: dict[str, Any]) -> None:
    expected = 422 if by_the_library(fields) is None else 200
    assert send(client, "PUT", fields).status_code == expected


def test_a_put_without_text_leaves_the_document_as_it_is(client: TestClient, animals: Index) -> None:
    refused = send(client, "PUT", {"docno": "fish"})
    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {"field": "documents.0.text", "message": "is missing: give one of text, contents, body, passage, full_text"}
    ]
    assert animals.get("fish").text == FISH["text"]


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_misspelt_text_field_is_refused_and_named(client: TestClient, animals: Index, method: str) -> None:
    good = {"docno": "good", "text": "Bees dance."}
    refused = send(client, method, good, {"docno": "misspelt", "txt": "Cats sleep."})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "documents.1.text"
    assert "good" not in animals
    assert "misspelt" not in animals


@pytest.mark.parametrize("docno_field", DOCNO_FIELDS)
@pytest.mark.parametrize("text_field", TEXT_FIELDS)
def test_the_library_names_of_docno_and_text_are_accepted(
    client: TestClient, animals: Index, docno_field: str, text_field: str
) -> None:
    fields = {docno_field: "bees", text_field: "Bees dance.", "title": "Bees", "year": 2021}
    answer = send(client, "PUT", fields)
    assert answer.status_code == 200, answer.text
    stored = animals.get("bees")
    text = "Bees dance." if text_field == "full_text" else "Bees Bees dance."
    assert (stored.text, stored.metadata) == (text, {"title": "Bees", "year": 2021})


def test_the_field_that_is_wrong_is_named_as_it_was_sent(client: TestClient) -> None:
    for fields, field in (
        ({"_id": [], "text": "a"}, "documents.0._id"),
        ({"docno": "a", "contents": 3}, "documents.0.contents"),
        ({"docno": "text", "text": "\ud800"}, "documents.0.text"),
        ({"docno": "a", "text": "a", "deep": nested(200)}, "documents.0"),
    ):
        refused = send(client, "PUT", fields)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == field, refused.text


def test_a_long_value_is_not_sent_back(client: TestClient) -> None:
    for fields in ({"docno": ["x" * 10_000], "text": "a"}, {"docno": "x" * 10_000, "text": 3}):
        assert len(send(client, "PUT", fields).content) < 1000


# ---- Documents that bring their embeddings


def read(fields: dict[str, Any]) -> Any:
    return to_documents(MODELS.documents.model_validate({"documents": [{**fields, **ENCODED}]}))[0]


def test_a_document_with_embeddings_needs_no_text(client: TestClient) -> None:
    document = read({"_id": "a", "year": 1})
    assert (document.docno, document.text, document.metadata) == ("a", "", {"year": 1})
    assert document.encoded is not None
    assert read({"docno": "a", "text": " "}).text == " "
    assert read({"docno": "a", "body": "shown", "title": "Not in front"}).text == "shown"


@pytest.mark.parametrize(
    ("fields", "field"), [({}, "docno"), ({"docno": None}, "docno"), ({"docno": "a", "contents": 3}, "contents")]
)
def test_a_document_with_embeddings_is_checked_like_the_others(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(Problem) as caught:
        read(fields)
    assert caught.value.errors[0][0] == f"documents.0.{field}"


# ---- The description


def test_the_description_names_the_fields_of_a_document(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    document = schemas["DocumentRequest"]
    assert set(document["properties"]) == {"docno", "text", "title", "embeddings", "token_ids", "token_kinds"}
    assert document["additionalProperties"] is True
    for name in (*DOCNO_FIELDS[1:], *TEXT_FIELDS[1:]):
        assert name in document["properties"]["docno" if name in DOCNO_FIELDS else "text"]["description"]
