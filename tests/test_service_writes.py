"""Documents written over HTTP are there for the next search, and for another process that opens the index."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import build_random, random_documents
from fastapi.testclient import TestClient
from service import BEARER, KEY, call, running

from secateurs import Index
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys

ANIMALS = [
    {"docno": "fish", "text": "Goldfish grow as large as their pond lets them.", "year": 2020},
    {"docno": "cats", "text": "Cats sleep for most of the day."},
]
BEES = {"docno": "a/bees 1", "text": "Bees dance to tell each other where flowers are.", "year": 2021}
DOCUMENTS = "/v1/indexes/animals/documents"
SEARCH = "/v1/indexes/animals/search"


@pytest.fixture
def animals(tmp_path: Path, encoder: OnnxEncoder) -> Index:
    return Index.build(tmp_path / "animals.sec", ANIMALS, encoder=encoder)


@pytest.fixture
def client(animals: Index) -> Iterator[TestClient]:
    app = create_app({"animals": animals}, access=Access(ApiKeys([KEY])))
    with TestClient(app, headers=BEARER) as client:
        yield client


def test_an_added_document_is_found_at_once_and_by_others(client: TestClient, animals: Index) -> None:
    added = client.post(DOCUMENTS, json={"documents": [BEES]})
    assert added.status_code == 200, added.text
    assert added.json() == {"added": 1, "replaced": 0, "deleted": 0, "missing": []}
    hit = client.post(SEARCH, json={"query": "bees dance", "k": 1}).json()["hits"][0]
    assert (hit["docno"], hit["metadata"]) == ("a/bees 1", {"year": 2021})
    assert "a/bees 1" in Index(animals.path)
    assert client.get(f"{DOCUMENTS}/a/bees%201").json()["text"] == BEES["text"]


def test_adding_what_is_there_is_a_conflict_and_changes_nothing(client: TestClient) -> None:
    refused = client.post(DOCUMENTS, json={"documents": [BEES, ANIMALS[0]]})
    assert refused.status_code == 409
    message = "'fish' is in the index already: to replace it, send it with PUT"
    assert refused.json()["errors"] == [{"field": "documents.1.docno", "message": message}]
    assert client.get(f"{DOCUMENTS}/a/bees%201").status_code == 404
    assert client.get("/v1/indexes/animals/info").json()["documents"] == 2


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_docno_that_is_twice_in_a_write_is_a_conflict_counted_from_zero(client: TestClient, method: str) -> None:
    refused = client.request(method, DOCUMENTS, json={"documents": [BEES, {"docno": "ants", "text": "Ants."}, BEES]})
    assert refused.status_code == 409
    message = "'a/bees 1' is already that of documents.0"
    assert refused.json()["errors"] == [{"field": "documents.2.docno", "message": message}]
    assert client.get("/v1/indexes/animals/info").json()["documents"] == 2


def test_putting_replaces_and_adds(client: TestClient) -> None:
    changed = {"docno": "cats", "text": "Cats hunt at dusk."}
    answer = client.put(DOCUMENTS, json={"documents": [changed, BEES]}).json()
    assert answer == {"added": 1, "replaced": 1, "deleted": 0, "missing": []}
    assert client.get(f"{DOCUMENTS}/cats").json()["text"] == "Cats hunt at dusk."
    assert client.get("/v1/indexes/animals/info").json()["documents"] == 3


def test_a_deleted_document_is_gone_and_deleting_it_again_is_not_found(client: TestClient) -> None:
    assert client.delete(f"{DOCUMENTS}/fish").json() == {"added": 0, "replaced": 0, "deleted": 1, "missing": []}
    assert [hit["docno"] for hit in client.post(SEARCH, json={"query": "goldfish"}).json()["hits"]] == ["cats"]
    again = client.delete(f"{DOCUMENTS}/fish")
    assert again.status_code == 404
    assert again.json()["errors"][0]["field"] == "docno"


def test_an_index_of_embeddings_takes_documents_with_embeddings(tmp_path: Path) -> None:
    index = build_random(tmp_path / "vectors.sec", 40)
    new = random_documents(1, seed=9)[0].encoded
    assert new is not None
    lists = {name: getattr(new, name).tolist() for name in ("embeddings", "token_ids", "token_kinds")}
    app = create_app({"vectors": index}, access=Access(ApiKeys([KEY])))
    with TestClient(app, headers=BEARER) as client:
        where = "/v1/indexes/vectors/documents"
        added = client.post(where, json={"documents": [{"docno": "own", "text": "shown", "year": 1, **lists}]})
        assert added.status_code == 200, added.text
        hit = client.post("/v1/indexes/vectors/search", json={**lists, "k": 1, "effort": "exact"}).json()["hits"][0]
        assert (hit["docno"], hit["text"], hit["metadata"]) == ("own", "shown", {"year": 1})
        refused = client.post(where, json={"documents": [BEES]})
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "documents.0.embeddings"


@pytest.mark.parametrize(
    ("documents", "field"),
    [
        ([], "documents"),
        ([{"text": "nameless"}], "documents.0.docno"),
        ([{"docno": "", "text": "a"}], "documents.0.docno"),
        ([{"docno": True, "text": "a"}], "documents.0.docno"),
        ([{"docno": "a", "text": None}], "documents.0.text"),
        ([{"docno": "a", "text": "a", "half a pair": "\ud800"}], "documents.0"),
        ([{"docno": "a", "text": "a", "not a number": float("nan")}], "documents.0"),
        ([{"docno": "a", "text": "a", "embeddings": [[1.0]]}], "documents.0.token_ids"),
        ([{"docno": "a", "embeddings": [[1.0]], "token_ids": [1], "token_kinds": [0]}], "documents.0.embeddings"),
        ([{"docno": str(i), "text": ""} for i in range(101)], "documents"),
    ],
)
def test_a_document_that_cannot_be_used_is_named(client: TestClient, documents: list[object], field: str) -> None:
    body = json.dumps({"documents": documents})  # with what strict JSON does not allow
    refused = client.post(DOCUMENTS, content=body, headers={"Content-Type": "application/json"})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == field, refused.text
    assert client.get("/v1/indexes/animals/info").json()["documents"] == 2


def test_what_another_process_writes_is_seen(client: TestClient, animals: Index, encoder: OnnxEncoder) -> None:
    Index(animals.path, encoder).add([BEES])
    for _ in range(200):
        if client.get(f"{DOCUMENTS}/a/bees%201").status_code == 200:
            break
        time.sleep(0.05)  # the service looks once a second
    else:
        pytest.fail("not seen after ten seconds")


def test_searches_go_on_while_documents_are_written(animals: Index, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEY)
    with running(animals.path, "--api-key-file", tmp_path / "keys") as (_, port, _said), ThreadPoolExecutor(3) as pool:
        writes = [
            pool.submit(call, port, "POST", DOCUMENTS, {"documents": [{"docno": f"n{i}", "text": "More."}]}, **BEARER)
            for i in range(5)
        ]
        reads = [pool.submit(call, port, "POST", SEARCH, {"query": f"goldfish {i}"}) for i in range(20)]
        assert [write.result()[0] for write in writes] == [200] * 5
        assert [read.result()[0] for read in reads] == [200] * 20
        assert call(port, "GET", "/v1/indexes/animals/info")[1]["documents"] == 7


def test_the_first_documents_of_an_empty_index_of_embeddings_decide_the_dimensions(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", [], encoder=None)

    def documents(*widths: int) -> dict[str, list[dict[str, object]]]:
        return {
            "documents": [
                {"docno": f"{index.dim}-{number}", "embeddings": [[0.5] * width], "token_ids": [1], "token_kinds": [0]}
                for number, width in enumerate(widths)
            ]
        }

    with TestClient(create_app({"i": index}, access=Access(ApiKeys([KEY]))), headers=BEARER) as client:
        refused = client.post("/v1/indexes/i/documents", json=documents(4, 3))
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["field"] == "documents.1.embeddings"
        assert client.post("/v1/indexes/i/documents", json=documents(4, 4)).status_code == 200
        assert client.post("/v1/indexes/i/documents", json=documents(3)).status_code == 422
        assert client.post("/v1/indexes/i/documents", json=documents(4)).status_code == 200
    assert (index.dim, len(index)) == (4, 3)
