"""Requests that are wrong, ambiguous or too large cost the server little, and the answer names what is wrong."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import build_random
from fastapi.testclient import TestClient
from pydantic import ValidationError
from service import BEARER, KEY

from secateurs import Index, refresh
from secateurs.errors import SecateursError
from secateurs.service import app as application
from secateurs.service.admission import Admission
from secateurs.service.answers import DocumentAnswer
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys
from secateurs.service.limits import Limits
from secateurs.service.metrics import Metrics
from secateurs.service.requests import RequestModels
from secateurs.service.server import address_to_open, host_names

ROW = [1.0] + [0.0] * 15
QUERY = {"embeddings": [ROW], "token_ids": [1], "token_kinds": [0]}
SEARCH, DOCUMENTS = "/v1/indexes/vectors/search", "/v1/indexes/vectors/documents"


@pytest.fixture
def vectors(tmp_path: Path) -> Index:
    return build_random(tmp_path / "vectors.sec", 40)


@pytest.fixture
def client(vectors: Index) -> Iterator[TestClient]:
    with TestClient(create_app({"vectors": vectors}, access=Access(ApiKeys([KEY]))), headers=BEARER) as client:
        yield client


# ---- Large bodies


@pytest.mark.parametrize(
    "body",
    [
        {**QUERY, "embeddings": [["x"] * 1000] * 100},
        {**QUERY, "token_ids": ["x"] * 500},
        {**QUERY, "embeddings": [[0.0] * 4097]},
        {f"field {i}": 0 for i in range(10_000)},
    ],
)
def test_a_body_that_is_wrong_in_many_places_has_few_findings(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        RequestModels.within(Limits()).search.model_validate(body)
    assert caught.value.error_count() == 1


def test_documents_that_are_wrong_in_many_places_have_few_findings() -> None:
    wrong = {"docno": "a", "embeddings": [["x"] * 1000] * 100, "token_ids": [0], "token_kinds": [0]}
    with pytest.raises(ValidationError) as caught:
        RequestModels.within(Limits()).documents.model_validate({"documents": [wrong] * 50})
    assert caught.value.error_count() == 1


def test_bodies_are_read_on_the_threads_and_not_on_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    parse = application.parse

    def watched(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return parse(*arguments)

    monkeypatch.setattr(application, "parse", watched)
    assert client.post(SEARCH, json=QUERY).status_code == 200
    assert client.put(DOCUMENTS, json={"documents": [{"docno": "new", **QUERY}]}).status_code == 200
    assert [name.rsplit("_", 1)[0] for name in threads] == ["secateurs-searches", "secateurs-writes"]


def test_a_body_of_another_content_type_is_refused(client: TestClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = client.post(SEARCH, content=json.dumps(QUERY), headers={"Content-Type": kind})
        assert response.status_code == 415
    typed = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert client.post(SEARCH, content=json.dumps(QUERY), headers=typed).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/", "/web/main.js", "/v1/indexes"])
def test_the_body_of_a_get_is_refused_before_it_is_read(client: TestClient, path: str) -> None:
    for content in (b"x", (b"x" for _ in range(3))):
        response = client.request("GET", path, content=content)  # type: ignore[arg-type]
        assert response.status_code == 413
        assert response.json()["detail"] == "a GET request has no body"


def test_requests_for_the_page_take_no_place_of_requests_for_an_index() -> None:
    async def scenario() -> list[int]:
        go, statuses = asyncio.Event(), []

        async def inside(scope: Any, receive: Any, send: Any) -> None:
            await go.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})

        async def ask(path: str) -> None:
            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    statuses.append(message["status"])

            scope = {"type": "http", "method": "GET", "path": path, "headers": []}
            await admission(scope, None, send)  # type: ignore[arg-type]

        admission = Admission(
            inside,
            limits=Limits(),
            metrics=Metrics(),
            most_small=1,
            most_large=1,
            keys=None,
            reads_need_a_key=False,
            hosts=None,
        )
        held = [asyncio.create_task(ask(path)) for path in ["/", "/web/main.js"] * 4 + ["/v1/indexes"]]
        await asyncio.sleep(0)
        assert statuses == []
        await ask("/v1/indexes")
        go.set()
        await asyncio.gather(*held)
        return statuses

    assert asyncio.run(scenario()) == [429] + [200] * 9


def test_each_index_adds_places_for_its_writes(vectors: Index) -> None:
    app = create_app({"a": vectors, "b": vectors}, Limits(threads=2, waiting=3, writes=8))
    options = app.user_middleware[0].kwargs
    assert options["most_small"] == (2 + 3) + (1 + 3) + 8 + 8  # reads, large reads, writes of two indexes
    assert options["most_large"] == (1 + 3) + 8 + 8


# ---- Names that differ by a newline or in case


def test_a_newline_belongs_to_the_docno(client: TestClient, vectors: Index) -> None:
    client.put(DOCUMENTS, json={"documents": [{"docno": docno, **QUERY} for docno in ("a", "a\n", "a\nb")]})
    assert client.get(f"{DOCUMENTS}/a%0A").json()["docno"] == "a\n"
    assert client.get(f"{DOCUMENTS}/a%0Ab").json()["docno"] == "a\nb"
    assert client.delete(f"{DOCUMENTS}/a%0A").json()["deleted"] == 1
    assert client.delete(f"{DOCUMENTS}/a%0A").status_code == 404
    assert "a" in vectors
    assert "a\nb" in vectors


@pytest.mark.parametrize("path", ["/healthz%0A", "/v1/indexes%0A", "/v1/indexes/vectors/info%0A", "/web/main.js%0A"])
def test_a_path_with_a_newline_at_its_end_is_another_path(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("host", "allowed", "names"),
    [
        ("127.0.0.1", [], {"localhost", "127.0.0.1", "[::1]"}),
        ("127.0.0.2", [], {"localhost", "127.0.0.1", "[::1]", "127.0.0.2"}),
        ("LOCALHOST", ["Proxy"], {"localhost", "127.0.0.1", "[::1]", "proxy"}),
        ("0.0.0.0", ["proxy"], {"localhost", "127.0.0.1", "[::1]", "0.0.0.0", "proxy"}),
        ("fd00::1", ["proxy"], {"localhost", "127.0.0.1", "[::1]", "[fd00::1]", "proxy"}),
        ("0.0.0.0", [], None),
    ],
)
def test_the_server_answers_to_localhost_and_to_the_address_it_prints(
    host: str, allowed: list[str], names: set[str] | None
) -> None:
    assert host_names(host, allowed) == names


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("box", "box")],
)
def test_the_printed_address_can_be_opened(host: str, address: str) -> None:
    assert address_to_open(host) == address


# ---- Fields


def test_the_limit_on_p_does_not_limit_the_length_of_documents(vectors: Index) -> None:
    long = {"embeddings": [ROW] * 9, "token_ids": [1] * 9, "token_kinds": [0] * 9}
    app = create_app({"vectors": vectors}, Limits(p=8), Access(ApiKeys([KEY])))
    with TestClient(app, headers=BEARER) as client:
        assert client.post(DOCUMENTS, json={"documents": [{"docno": "long", **long}]}).status_code == 200
        assert client.post(SEARCH, json=long).json()["errors"][0]["field"] == "embeddings"
    with TestClient(create_app({"vectors": vectors}, Limits(document_embeddings=8), Access(ApiKeys([KEY])))) as client:
        response = client.put(DOCUMENTS, json={"documents": [{"docno": "long", **long}]}, headers=BEARER)
        assert response.json()["errors"][0]["field"] == "documents.0.embeddings"


def test_what_belongs_to_embeddings_is_refused_beside_text(client: TestClient) -> None:
    query = client.post(SEARCH, json={"query": "text", "token_ids": [1]})
    assert query.status_code == 422
    assert "belong to embeddings" in query.json()["detail"]
    document = client.post(DOCUMENTS, json={"documents": [{"docno": "a", "text": "text", "token_kinds": [0]}]})
    assert document.status_code == 422
    assert "belong to them" in document.json()["detail"]


def test_a_document_of_another_width_and_a_number_in_quotes_are_named(client: TestClient) -> None:
    good = {"docno": "good", **QUERY}
    for wrong, field in (({"embeddings": [[1.0]]}, "embeddings"), ({"token_ids": ["1"]}, "token_ids.0")):
        response = client.post(DOCUMENTS, json={"documents": [good, {**good, "docno": "bad", **wrong}]})
        assert response.status_code == 422
        assert response.json()["errors"][0]["field"] == f"documents.1.{field}"


def test_metadata_is_written_however_deep_it_is() -> None:
    deep: dict[str, Any] = {}
    for _ in range(500):
        deep = {"in": deep}
    written = application._answer(lambda: DocumentAnswer(docno="a", text="ä", metadata=deep))
    assert json.loads(bytes(written.body)) == {"docno": "a", "text": "ä", "metadata": deep}


def test_a_limit_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(SecateursError, match="the limit seconds must be at least"):
        Limits(seconds=float("nan"))


# ---- Answers


def test_health_can_be_asked_without_the_answer(client: TestClient) -> None:
    assert client.head("/healthz").status_code == 200


def test_answers_from_an_index_are_not_cached(client: TestClient) -> None:
    assert client.get("/v1/indexes").headers["cache-control"] == "no-store"
    assert client.get("/").headers["cache-control"] == "no-cache"


def test_the_list_of_indexes_has_the_limits(vectors: Index) -> None:
    limits = {"k": 5, "p": 8, "query_characters": 99, "gather_work": 1000, "score_work": 2000}
    limits |= {"batch": 3, "text_characters": 98, "encode_work": 3000}
    with TestClient(create_app({"vectors": vectors}, Limits(**limits))) as client:
        assert client.get("/v1/indexes").json()["limits"] == limits


@pytest.mark.parametrize("for_reads", [False, True])
def test_the_description_names_what_every_request_may_get_and_who_needs_a_key(vectors: Index, for_reads: bool) -> None:
    app = create_app({"vectors": vectors}, access=Access(ApiKeys([KEY]), for_reads))
    described = app.openapi()["paths"]
    for path, operations in described.items():
        for method, operation in operations.items():
            if path.startswith("/v1/"):
                assert {"401", "413", "421", "429", "500", "503"} <= operation["responses"].keys()
            writes = method in ("put", "patch", "delete") or (method == "post" and path.endswith("/documents"))
            assert ("security" in operation) == (writes or (for_reads and path != "/healthz"))


def test_a_newer_state_that_cannot_be_read_leaves_the_earlier_one_served(
    client: TestClient, vectors: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refresh, "SECONDS", -1)
    manifest = vectors.path / "manifest.json"
    good = manifest.read_bytes()
    manifest.write_bytes(b"{")
    for _ in range(3):
        assert client.post(SEARCH, json=QUERY).status_code == 200
        assert client.get("/healthz").json()["stale"] == ["vectors"]
    assert caplog.text.count("the earlier state stays in use") == 1
    manifest.write_bytes(good)
    assert client.post(SEARCH, json=QUERY).status_code == 200
    assert client.get("/healthz").json()["stale"] == []
