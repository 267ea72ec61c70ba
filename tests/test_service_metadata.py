"""Over HTTP: the keys of the metadata, changes of metadata alone, and deleting by a filter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import random_documents
from fastapi.testclient import TestClient
from service import BEARER, KEY

from secateurs import Index
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys

DOCUMENTS = "/v1/indexes/vectors/documents"
FIELDS = "/v1/indexes/vectors/fields"


@pytest.fixture
def vectors(tmp_path: Path) -> Index:
    documents = [
        replace(document, metadata={"year": 2000 + i, "ok": i > 3, "tags": ["a"]})
        for i, document in enumerate(random_documents(6))
    ]
    return Index.build(tmp_path / "vectors.sec", documents, encoder=None)


@pytest.fixture
def client(vectors: Index) -> Iterator[TestClient]:
    with TestClient(create_app({"vectors": vectors}, access=Access(ApiKeys([KEY]))), headers=BEARER) as client:
        yield client


def test_fields_are_those_of_the_library(client: TestClient) -> None:
    assert client.get(FIELDS).json() == {
        "fields": {
            "ok": {"types": ["boolean"], "documents": 6, "example": False},
            "tags": {"types": ["text", "nested"], "documents": 6, "example": "a"},
            "year": {"types": ["number"], "documents": 6, "example": 2000},
        }
    }


def test_metadata_alone_is_changed_and_what_is_not_there_is_missing(client: TestClient, vectors: Index) -> None:
    changes = [{"docno": "d001", "year": None, "lang": "en"}, {"docno": "nope", "year": 1}]
    answer = client.patch(DOCUMENTS, json={"documents": changes})
    assert answer.json() == {"added": 0, "replaced": 1, "deleted": 0, "missing": ["nope"]}
    assert client.get(f"{DOCUMENTS}/d001").json()["metadata"] == {"ok": False, "tags": ["a"], "lang": "en"}
    assert Index(vectors.path).get("d001").metadata["lang"] == "en"


@pytest.mark.parametrize(
    ("documents", "field"),
    [
        ([], "documents"),
        ([{"year": 1}], "documents.0.docno"),
        ([{"docno": ""}], "documents.0.docno"),
        ([{"docno": 7}], "documents.0.docno"),
        ([{"docno": "d001", "text": "new"}], "documents.0.text"),
        ([{"docno": "d001"}, {"docno": "d001"}], "documents.1.docno"),
    ],
)
def test_a_change_that_makes_no_sense_names_its_field_and_changes_nothing(
    client: TestClient, vectors: Index, documents: Any, field: str
) -> None:
    commit = vectors.manifest.commit
    refused = client.patch(DOCUMENTS, json={"documents": documents})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == field
    assert vectors.manifest.commit == Index(vectors.path).manifest.commit == commit


def test_documents_that_match_are_deleted(client: TestClient, vectors: Index) -> None:
    answer = client.delete(DOCUMENTS, params={"where": "year < 2002"})
    assert answer.json() == {"added": 0, "replaced": 0, "deleted": 2, "missing": []}
    assert len(vectors) == 4


@pytest.mark.parametrize("params", [{}, {"where": ""}, {"where": " "}, {"where": "yaer < 1"}, {"all": "yes"}])
def test_a_delete_without_a_filter_that_says_something_is_refused(
    client: TestClient, vectors: Index, params: dict[str, str]
) -> None:
    refused = client.delete(DOCUMENTS, params=params)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] in ("where", "all")
    assert len(vectors) == 6


def test_both_writes_need_a_key(vectors: Index) -> None:
    with TestClient(create_app({"vectors": vectors}, access=Access(ApiKeys([KEY])))) as client:
        assert client.patch(DOCUMENTS, json={"documents": [{"docno": "d001"}]}).status_code == 401
        assert client.delete(DOCUMENTS, params={"where": "year < 2002"}).status_code == 401
        assert client.get(FIELDS).status_code == 200
    with TestClient(create_app({"vectors": vectors})) as client:
        assert client.patch(DOCUMENTS, json={"documents": [{"docno": "d001"}]}).status_code == 403
