"""POST /v1/rerank and /v1/encode: texts that are in no index, with the encoders of the indexes that are served."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import build_random
from fastapi.testclient import TestClient
from service import BEARER, KEY

from secateurs import Index, rerank
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys
from secateurs.service.limits import Limits

QUERY = "how do I read a zip archive"
TEXTS = ["Cats sleep.", "Read the files of a zip archive.", " \t", "Goldfish grow."]
LIMITS = Limits(batch=8, text_characters=300, encode_work=1_500)


@pytest.fixture(scope="module")
def library(index_path: Path, encoder: OnnxEncoder) -> Index:
    return Index(index_path, encoder)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return build_random(tmp_path_factory.mktemp("vectors") / "vectors.sec")


@pytest.fixture(scope="module")
def client(library: Index, vectors: Index) -> Iterator[TestClient]:
    app = create_app({"library": library, "vectors": vectors}, LIMITS, Access(ApiKeys([KEY])))
    with TestClient(app) as client:
        yield client


def answer(client: TestClient, path: str, **request: Any) -> Any:
    response = client.post(path, json=request)
    assert response.status_code == 200, response.text
    return response.json()


def refused(client: TestClient, path: str, **request: Any) -> tuple[str, str]:
    """The field that is wrong, and why."""
    response = client.post(path, json=request)
    assert response.status_code == 422, response.text
    (error,) = response.json()["errors"]
    return error["field"], error["message"]


def test_rerank_answers_what_the_library_answers_and_a_blank_text_has_no_score(
    client: TestClient, encoder: OnnxEncoder
) -> None:
    expected = [(text.number, text.score, text.relevance) for text in rerank(QUERY, TEXTS, encoder)]
    hits = answer(client, "/v1/rerank", query=QUERY, texts=TEXTS)["hits"]
    assert expected[0][0] == 1
    assert expected[-1] == (2, float("-inf"), pytest.approx(0.0))
    assert [(hit["number"], hit["score"]) for hit in hits] == [*(text[:2] for text in expected[:-1]), (2, None)]
    assert [hit["relevance"] for hit in hits] == [relevance for _, _, relevance in expected]
    assert [(hit["rank"], hit["docno"]) for hit in hits] == [(rank, None) for rank in (1, 2, 3, 4)]


def test_texts_to_rerank_may_have_docnos(client: TestClient) -> None:
    texts = [TEXTS[0], {"docno": "zip", "text": TEXTS[1]}]
    hits = answer(client, "/v1/rerank", query=QUERY, texts=texts, index="library")["hits"]
    assert [hit["docno"] for hit in hits] == ["zip", None]
    assert answer(client, "/v1/rerank", query=QUERY, texts=[]) == {"hits": []}


def test_a_query_that_was_encoded_finds_what_its_text_finds(client: TestClient, library: Index) -> None:
    (encoded,) = answer(client, "/v1/encode", texts=[QUERY])["encoded"]
    sent = {name: encoded[name] for name in ("embeddings", "token_ids", "token_kinds", "embedding_weights")}
    found = answer(client, "/v1/indexes/library/search", **sent)
    ranking = library.search(QUERY)
    assert [(hit["docno"], hit["score"]) for hit in found["hits"]] == [(hit.docno, hit.score) for hit in ranking]
    assert found["kept"] == list(ranking.kept)
    assert {"zip", "archive"} <= set(encoded["tokens"])


def test_encode_gives_the_encoders_arrays_in_the_order_of_the_texts(client: TestClient, encoder: OnnxEncoder) -> None:
    texts = [TEXTS[1], TEXTS[0]]
    found = answer(client, "/v1/encode", texts=texts, role="document", index="library")
    assert found["model"] == "colbert-small"
    assert found["dim"] == encoder.dim
    for encoded, expected in zip(found["encoded"], encoder.encode_documents(texts), strict=True):
        assert encoded["embeddings"] == expected.embeddings.tolist()
        assert encoded["token_ids"] == expected.token_ids.tolist()
        assert encoded["token_kinds"] == expected.token_kinds.tolist()
        assert encoded["embedding_weights"] is None
        assert encoded["cut"] == 0


@pytest.mark.parametrize(
    ("path", "request_body", "field", "message"),
    [
        ("rerank", {"query": " ", "texts": ["a"]}, "query", "the query is empty"),
        ("rerank", {"query": "a", "texts": "b"}, "texts", "valid list"),
        ("rerank", {"query": "a", "texts": ["b", {"docno": "d"}]}, "texts.1.text", "is missing"),
        ("rerank", {"query": "a", "texts": ["b"] * 9}, "texts", "at most 8 items"),
        ("rerank", {"query": "a", "texts": ["b"], "index": "nothing"}, "index", "there is no index 'nothing' here"),
        ("rerank", {"query": "a", "texts": ["b"], "index": "vectors"}, "index", "built without an encoder"),
        ("rerank", {"query": "a", "texts": ["b" * 300] * 6}, "texts", "characters to encode, at least 64 for each"),
        ("encode", {"texts": ["a", "\n"]}, "texts.1", "is blank"),
        ("encode", {"texts": ["a" * 301]}, "texts.0", "at most 300 characters"),
        ("encode", {"texts": ["a" * 300] * 6}, "texts", "the limit encode_work is 1,500"),
        ("encode", {"texts": ["a"], "role": "passage"}, "role", "'query' or 'document'"),
    ],
)
def test_what_is_refused_names_the_field(
    client: TestClient, path: str, request_body: dict[str, Any], field: str, message: str
) -> None:
    response = client.post(f"/v1/{path}", json=request_body)
    assert response.status_code == 422, response.text
    errors = {error["field"]: error["message"] for error in response.json()["errors"]}
    assert message in errors[field]


def test_a_key_lifts_the_limit_on_the_work(client: TestClient) -> None:
    response = client.post("/v1/rerank", json={"query": "a", "texts": ["b" * 300] * 6}, headers=BEARER)
    assert response.status_code == 200, response.text


def test_the_index_is_needed_where_encoders_differ_or_none_has_any(
    library: Index, vectors: Index, tmp_path: Path
) -> None:
    other = Index.build(tmp_path / "other.sec", [{"docno": "a", "text": "Cats."}], encoder="colbert-small-1")
    with TestClient(create_app({"library": library, "other": other})) as client:
        field, message = refused(client, "/v1/encode", texts=["a"])
        assert (field, message) == (
            "index",
            "is needed: the indexes here have different encoders, such as library, other",
        )
        assert answer(client, "/v1/encode", texts=["a"], index="other")["model"] == "colbert-small-1"
    with TestClient(create_app({"vectors": vectors})) as client:
        assert refused(client, "/v1/encode", texts=["a"]) == ("index", "no index here has an encoder")


def test_reads_that_need_a_key_are_refused_without_it(library: Index) -> None:
    with TestClient(create_app({"library": library}, access=Access(ApiKeys([KEY]), True))) as client:
        for path in ("/v1/rerank", "/v1/encode"):
            assert client.post(path, json={"query": "a", "texts": []}).status_code == 401
        assert client.post("/v1/rerank", json={"query": "a", "texts": []}, headers=BEARER).status_code == 200
