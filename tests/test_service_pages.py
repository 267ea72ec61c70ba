"""Search over HTTP: several queries in one request, pages, and the choice of what a hit comes with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import QUERIES
from fastapi.testclient import TestClient
from service import BEARER, KEY

from secateurs import Index
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys
from secateurs.service.limits import Limits

QUERY = "how do I read a zip archive"
SEARCH = "/v1/indexes/library/search"
UNTIMED = {"milliseconds": 0, "loading_milliseconds": 0}


@pytest.fixture(scope="module")
def library(index_path: Path, encoder: OnnxEncoder) -> Index:
    return Index(index_path, encoder)


@pytest.fixture(scope="module")
def client(library: Index) -> Iterator[TestClient]:
    with TestClient(create_app({"library": library}, access=Access(ApiKeys([KEY])))) as client:
        yield client


def search(client: TestClient, **request: Any) -> Any:
    response = client.post(SEARCH, json=request)
    assert response.status_code == 200, response.text
    return response.json()


def untimed(answer: dict[str, Any]) -> dict[str, Any]:
    return {**answer, "stats": {**answer["stats"], **UNTIMED}, "search_milliseconds": 0}


@pytest.mark.parametrize("settings", [{"k": 3}, {"k": 2, "offset": 1, "details": True, "fields": ["kind"]}])
def test_several_queries_are_answered_in_order_as_each_alone(client: TestClient, settings: dict[str, Any]) -> None:
    queries = [*QUERIES[:5], QUERIES[0]]
    several = search(client, queries=queries, **settings)["rankings"]
    assert [untimed(answer) for answer in several] == [
        untimed(search(client, query=query, **settings)) for query in queries
    ]


@pytest.mark.parametrize(
    ("limits", "field", "message"),
    [
        ({"batch": 2}, "queries", "at most 2 items"),
        ({"k": 29}, "queries", "3 queries x 10 hits, at most 29 are allowed"),
        ({"encode_work": 191}, "queries", "the limit encode_work is 191"),
    ],
)
def test_each_of_several_queries_counts_for_the_limits(
    library: Index, limits: dict[str, int], field: str, message: str
) -> None:
    with TestClient(create_app({"library": library}, Limits(**limits))) as client:
        assert client.post(SEARCH, json={"query": QUERY}).status_code == 200
        refused = client.post(SEARCH, json={"queries": [QUERY] * 3})
        assert refused.status_code == 422, refused.text
        (error,) = refused.json()["errors"]
        assert error["field"] == field
        assert message in error["message"]


def test_the_work_of_several_queries_is_limited_together(library: Index) -> None:
    ranking = library.search(QUERY)
    work = min(ranking.plan.candidates, len(library)) * ranking.stats.query_embeddings  # the estimate
    with TestClient(create_app({"library": library}, Limits(score_work=2 * work))) as client:
        assert client.post(SEARCH, json={"queries": [QUERY] * 2}).status_code == 200
        refused = client.post(SEARCH, json={"queries": [QUERY] * 3})
        assert refused.status_code == 422
        (error,) = refused.json()["errors"]
        assert error["field"] == "queries"
        assert f"documents to score x query embeddings = {3 * work:,}" in error["message"]


def test_a_key_lifts_the_limit_on_the_work_of_several_queries(library: Index) -> None:
    app = create_app({"library": library}, Limits(encode_work=100, score_work=100), Access(ApiKeys([KEY])))
    with TestClient(app) as client:
        assert client.post(SEARCH, json={"queries": [QUERY] * 3}, headers=BEARER).status_code == 200


def test_a_wrong_query_among_several_is_named(client: TestClient) -> None:
    refused = client.post(SEARCH, json={"queries": [QUERY, " "]})
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == ["queries.1"]


@pytest.mark.parametrize("wrong", [{"query": QUERY, "queries": [QUERY]}, {"queries": []}, {}])
def test_a_request_has_one_kind_of_query(client: TestClient, wrong: dict[str, Any]) -> None:
    assert client.post(SEARCH, json=wrong).status_code == 422


def test_a_page_is_the_slice_of_the_longer_ranking_with_its_ranks(client: TestClient) -> None:
    longer = search(client, query=QUERY, k=9)["hits"]
    page = search(client, query=QUERY, k=5, offset=4)
    assert page["hits"] == longer[4:]
    assert [hit["rank"] for hit in page["hits"]] == [5, 6, 7, 8, 9]
    assert page["plan"]["offset"] == 4


def test_the_limit_on_k_is_for_k_and_offset_together(client: TestClient) -> None:
    assert client.post(SEARCH, json={"query": QUERY, "k": 10, "offset": 990}).status_code == 200
    refused = client.post(SEARCH, json={"query": QUERY, "k": 10, "offset": 991})
    assert refused.status_code == 422
    assert refused.json()["detail"] == "offset: too many hits: k + offset = 1,001, at most 1,000 are allowed"


def test_facets_are_those_of_the_library(client: TestClient, library: Index) -> None:
    expected = library.search(QUERY, facets=["kind", "python"], where="kind like '%c%'").facets
    answer = search(client, query=QUERY, facets=["kind", "python"], where="kind like '%c%'")
    assert answer["facets"] == {
        key: [{"value": value, "documents": documents} for value, documents in values]
        for key, values in expected.items()
    }
    assert len(answer["facets"]["kind"]) > 1
    assert sum(value["documents"] for value in answer["facets"]["kind"]) == answer["stats"]["documents_matching"]
    assert search(client, query=QUERY)["facets"] == {}
    several = search(client, queries=QUERIES[:3], facets=["kind", "python"], where="kind like '%c%'")["rankings"]
    assert [ranking["facets"] for ranking in several] == [answer["facets"]] * 3


@pytest.mark.parametrize(
    ("facets", "message"), [(["knid"], "no document has the key 'knid'"), (["x"] * 17, "at most 16")]
)
def test_wrong_facets_are_named(client: TestClient, facets: list[str], message: str) -> None:
    refused = client.post(SEARCH, json={"query": QUERY, "facets": facets})
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["field"] == "facets"
    assert message in error["message"]


@pytest.mark.parametrize(
    ("fields", "has_text", "keys"),
    [
        (None, True, {"kind", "python"}),
        (["docno"], False, set()),
        ([], False, set()),
        (["text"], True, set()),
        (["docno", "kind", "no such key"], False, {"kind"}),
        (["metadata"], False, {"kind", "python"}),
    ],
)
def test_fields_choose_what_a_hit_comes_with(
    client: TestClient, fields: list[str] | None, has_text: bool, keys: set[str]
) -> None:
    everything = search(client, query=QUERY)["hits"]
    assert {"kind", "python"} <= everything[0]["metadata"].keys()
    for hit, whole in zip(search(client, query=QUERY, fields=fields)["hits"], everything, strict=True):
        kept = whole["metadata"].keys() & keys if keys != {"kind", "python"} else whole["metadata"].keys()
        assert hit == {
            **whole,
            "text": whole["text"] if has_text else None,
            "metadata": {key: whole["metadata"][key] for key in kept},
        }
