"""The HTTP service answers what the library answers, and says in a sentence what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import build_random, random_documents
from fastapi.testclient import TestClient

from secateurs import EncodedText, Index, SearchSettings
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import SecateursError
from secateurs.importance import match_rarity
from secateurs.service import highlights
from secateurs.service.app import create_app
from secateurs.service.limits import Limits
from secateurs.service.served_index import query_cache

QUERY = "how do I read a zip archive"

UNTIMED = {"milliseconds": 0, "loading_milliseconds": 0}


@pytest.fixture(scope="module")
def library(index_path: Path, encoder: OnnxEncoder) -> Index:
    return Index(index_path, encoder)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return build_random(tmp_path_factory.mktemp("vectors") / "vectors.sec", 400)


@pytest.fixture(scope="module")
def client(library: Index, vectors: Index) -> Iterator[TestClient]:
    with TestClient(create_app({"library": library, "vectors": vectors})) as client:
        yield client


def search(client: TestClient, name: str = "library", **request: Any) -> Any:
    response = client.post(f"/v1/indexes/{name}/search", json=request)
    assert response.status_code == 200, response.text
    return response.json()


# ---- The same answers as the library


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"k": 3, "p": 2},
        {"p": None, "order": "first"},
        {"effort": "exact", "k": 7},
        {"gather": "cells", "nprobe": 4, "candidates": 20, "order": "idf", "p": 1},
        {"where": "kind = 'method'", "p": 2},
        {"where": "kind = 'method'", "frequencies": "matching", "p": 2},
        {"weights": "idf", "p": 3},
        {"weights": None},
        {"min_relevance": 0.5},
        {"min_score": 28, "min_relevance": None},
        {"min_score": 99.5},
    ],
)
def test_search_answers_what_the_library_answers(client: TestClient, library: Index, settings: dict[str, Any]) -> None:
    answer, ranking = search(client, query=QUERY, **settings), library.search(QUERY, **settings)
    assert [(h["docno"], h["score"], h["relevance"], h["text"], h["metadata"]) for h in answer["hits"]] == [
        (h.docno, h.score, h.relevance, h.text, h.metadata) for h in ranking
    ]
    assert [h["rank"] for h in answer["hits"]] == list(range(1, len(ranking) + 1))
    assert answer["kept"] == list(ranking.kept)
    assert answer["plan"] == json.loads(json.dumps(asdict(ranking.plan)))
    expected = asdict(ranking.stats)
    assert answer["stats"] | UNTIMED == expected | UNTIMED
    assert answer["stats"]["milliseconds"].keys() == expected["milliseconds"].keys()
    without_encoding = sum(spent for stage, spent in answer["stats"]["milliseconds"].items() if stage != "encode")
    assert answer["search_milliseconds"] == pytest.approx(without_encoding)


def test_p_all_and_p_null_both_prune_nothing(client: TestClient) -> None:
    for p in ("all", None):
        answer = search(client, query=QUERY, p=p)
        assert answer["plan"]["p"] is None
        assert answer["stats"]["embeddings_kept"] == answer["stats"]["query_embeddings"] == 32


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("min_relevance", 1.5),
        ("min_relevance", -0.1),
        ("min_relevance", "0.5"),
        ("min_score", True),
        ("min_score", 1e9),
    ],
)
def test_a_wrong_threshold_is_refused_by_its_name(client: TestClient, field: str, wrong: Any) -> None:
    response = client.post("/v1/indexes/library/search", json={"query": QUERY, field: wrong})
    assert response.status_code == 422
    assert field in response.text


def test_explain_answers_the_relevance_of_the_hit(client: TestClient) -> None:
    best = search(client, query=QUERY)["hits"][0]
    answer = client.get("/v1/indexes/library/explain", params={"query": QUERY, "docno": best["docno"]}).json()
    assert answer["relevance"] == pytest.approx(best["relevance"], abs=1e-6)


def test_weights_none_and_weights_null_are_both_eq_1(client: TestClient) -> None:
    plain = search(client, query=QUERY)["hits"]
    assert (
        search(client, query=QUERY, weights="none")["hits"]
        == search(client, query=QUERY, weights=None)["hits"]
        == plain
    )
    assert search(client, query=QUERY, weights="idf")["hits"] != plain


def test_embeddings_may_bring_weights_which_the_setting_multiplies(client: TestClient, library: Index) -> None:
    encoded = library.encode_query(QUERY)
    query = replace(encoded, weights=np.linspace(0, 2, len(encoded)))
    body = {name: getattr(query, name).tolist() for name in ("embeddings", "token_ids", "token_kinds")}
    body["embedding_weights"] = query.all_weights.tolist()
    for settings in ({}, {"weights": "idf"}):
        ranking = library.search(query, **settings)
        answer = search(client, **body, **settings, details=True)
        assert [(h["docno"], h["score"]) for h in answer["hits"]] == [(h.docno, h.score) for h in ranking]
        weights = {token["position"]: token["weight"] for token in answer["tokens"]}
        assert [weights[p] for p in range(len(query))] == ranking.query.all_weights.tolist()


def test_embeddings_of_a_text_find_what_the_text_finds(client: TestClient, library: Index) -> None:
    encoded = library.encode_query(QUERY)
    answer = search(
        client,
        embeddings=encoded.embeddings.tolist(),
        token_ids=encoded.token_ids.tolist(),
        token_kinds=encoded.token_kinds.tolist(),
        p=3,
    )
    assert [h["docno"] for h in answer["hits"]] == [h.docno for h in library.search(QUERY, p=3)]


def test_an_index_of_embeddings_is_searched_with_embeddings(client: TestClient, vectors: Index) -> None:
    query = random_documents(1, seed=3)[0].encoded
    assert query is not None
    lists = {name: getattr(query, name).tolist() for name in ("embeddings", "token_ids", "token_kinds")}
    answer = search(client, "vectors", **lists, details=True)
    assert [(h["docno"], h["score"]) for h in answer["hits"]] == [(h.docno, h.score) for h in vectors.search(query)]
    assert answer["tokens"][0]["token"].startswith("#")
    assert answer["hits"][0]["highlights"] is None
    refused = client.post("/v1/indexes/vectors/search", json={"query": "text"})
    assert refused.status_code == 422
    assert refused.json()["errors"] == [
        {"field": "query", "message": "vectors was built without an encoder: search with embeddings"}
    ]


def test_every_search_setting_can_be_sent_with_the_librarys_default(client: TestClient) -> None:
    description = client.get("/openapi.json").json()
    sent = description["components"]["schemas"]["SearchRequest"]["properties"]
    for field in fields(SearchSettings):
        default = [] if field.name == "facets" else field.default  # JSON has no tuples
        assert sent[field.name].get("default") == default
        assert sent[field.name]["description"]
    explained = {p["name"] for p in description["paths"]["/v1/indexes/{name}/explain"]["get"]["parameters"]}
    assert {field.name for field in fields(SearchSettings)} - {"facets"} < explained


def test_explain_answers_what_the_library_answers(client: TestClient, library: Index) -> None:
    docno = library.search(QUERY)[1].docno
    answer = client.get("/v1/indexes/library/explain", params={"query": QUERY, "docno": docno, "p": 3}).json()
    expected = asdict(library.explain(QUERY, docno, p=3))
    assert answer.pop("map") is None
    assert answer == json.loads(json.dumps(expected))


def test_an_explanation_has_the_weights(client: TestClient, library: Index) -> None:
    docno = library.search(QUERY, weights="idf")[1].docno
    for name, setting in (("idf", "idf"), ("none", None)):
        params = {"query": QUERY, "docno": docno, "p": 3, "weights": name}
        answer = client.get("/v1/indexes/library/explain", params=params).json()
        del answer["map"]
        assert answer == json.loads(json.dumps(asdict(library.explain(QUERY, docno, p=3, weights=setting))))
        total = sum(token["weight"] * token["similarity"] for token in answer["tokens"])
        assert total == pytest.approx(answer["score"], abs=1e-4)


def test_a_map_that_is_too_large_is_refused(
    client: TestClient, library: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(highlights, "_LARGEST_MAP", 320)
    params = {"query": QUERY, "docno": library.search(QUERY)[0].docno, "map": "true"}
    response = client.get("/v1/indexes/library/explain", params=params)
    assert response.status_code == 422
    assert response.json()["errors"][0]["field"] == "map"
    assert "a map for this query has at most 10: ask without it" in response.json()["detail"]
    del params["map"]
    assert client.get("/v1/indexes/library/explain", params=params).status_code == 200


def test_the_map_holds_every_pair_and_its_maxima_are_the_score(client: TestClient, library: Index) -> None:
    docno = library.search(QUERY)[0].docno
    params = {"query": QUERY, "docno": docno, "p": "all", "map": "true"}
    answer = client.get("/v1/indexes/library/explain", params=params).json()
    similarities = np.array(answer["map"]["similarities"])
    assert similarities.shape == (len(answer["map"]["document_tokens"]), 32)
    assert similarities.max(axis=0).sum() == pytest.approx(answer["score"], abs=0.01)
    token = next(token for token in answer["tokens"] if token["token"] == "zip")
    for position in token["match_positions"]:
        assert answer["map"]["document_tokens"][position]["token"] == token["match"]


def test_highlights_name_the_matched_pieces_of_the_text(client: TestClient, library: Index) -> None:
    answer = search(client, query=QUERY, k=1, details=True)
    hit = answer["hits"][0]
    zip_at = next(token["position"] for token in answer["tokens"] if token["token"] == "zip")
    pieces = {p: hit["text"][h["start"] : h["end"]].lower() for h in hit["highlights"] for p in h["positions"]}
    assert pieces[zip_at] == "zip"
    places = Counter(p for highlight in hit["highlights"] for p in highlight["positions"])  # several of merged words
    for highlight in hit["highlights"]:
        shares = zip(highlight["positions"], highlight["similarities"], strict=True)
        assert highlight["contribution"] == pytest.approx(sum(similarity / places[p] for p, similarity in shares))
    rarities = {p: h["rarity"] for h in hit["highlights"] for p in h["positions"]}
    encoded = library.encode_query(QUERY)
    assert rarities[zip_at] == match_rarity(encoded.token_ids[[zip_at]], encoded, library.frequencies)[0]  # zip is zip
    weighed = search(client, query=QUERY, k=1, details=True, weights="idf")
    weights = {token["position"]: token["weight"] for token in weighed["tokens"]}
    for highlight in weighed["hits"][0]["highlights"]:
        shares = zip(highlight["positions"], highlight["similarities"], strict=True)
        expected = sum(weights[p] * similarity / places[p] for p, similarity in shares)
        assert highlight["contribution"] == pytest.approx(expected)
    matches = {token.position: token for token in library.explain(QUERY, hit["docno"]).tokens}
    assert pieces.keys() == {p for p, token in matches.items() if not token.match.startswith("[")}
    assert all(pieces[p] == matches[p].match.removeprefix("##") for p in pieces)


def test_tokens_are_in_the_order_of_importance_with_their_frequency(client: TestClient, library: Index) -> None:
    for settings in ({}, {"where": "kind = 'method'", "frequencies": "matching"}, {"weights": "idf"}):
        tokens = search(client, query=QUERY, p=2, details=True, **settings)["tokens"]
        expected = library.explain(QUERY, library.search(QUERY)[0].docno, p=2, **settings).tokens
        for token, wanted in zip(tokens, expected, strict=True):
            assert token == {name: getattr(wanted, name) for name in token}


def test_the_curve_has_every_p_and_agrees_with_search(client: TestClient, library: Index) -> None:
    params = {"query": QUERY, "gather": "cells", "candidates": 40}
    answer = client.get("/v1/indexes/library/prune-curve", params=params).json()
    assert [point["p"] for point in answer["points"]] == list(range(1, 33))
    full = {hit.docno for hit in library.search(QUERY, p=None, gather="cells", candidates=40)}
    for point in answer["points"]:
        pruned = library.search(QUERY, p=point["p"], gather="cells", candidates=40)
        assert point["documents_gathered"] == pruned.stats.documents_gathered
        assert point["documents_scored"] == pruned.stats.documents_scored
        assert point["overlap"] == len(full & {hit.docno for hit in pruned}) / len(full)
    assert answer["points"][-1]["overlap"] == 1


def test_info_is_the_librarys_without_the_folder(client: TestClient, library: Index) -> None:
    facts = library.info()
    answer = client.get("/v1/indexes/library/info").json()
    assert answer == {**{name: value for name, value in facts.items() if name != "path"}, "name": "library"}
    assert answer["background"]["name"] == "english"
    listed = client.get("/v1/indexes").json()
    assert [index["name"] for index in listed["indexes"]] == ["library", "vectors"]
    assert listed["writable"] is False
    assert str(library.path) not in json.dumps(listed)


def test_a_document_can_be_read(client: TestClient, library: Index) -> None:
    docno = library.search(QUERY)[0].docno
    document = library.get(docno)
    assert client.get(f"/v1/indexes/library/documents/{docno}").json() == {
        "docno": docno,
        "text": document.text,
        "metadata": document.metadata,
    }


def test_an_empty_index_answers_with_nothing(tmp_path: Path, encoder: OnnxEncoder) -> None:
    empty = Index.build(tmp_path / "empty.sec", [], encoder=encoder)
    with TestClient(create_app({"empty": empty})) as client:
        assert search(client, "empty", query="anything", details=True)["hits"] == []
        answer = client.get("/v1/indexes/empty/prune-curve", params={"query": "anything"}).json()
        assert {point["overlap"] for point in answer["points"]} <= {0.0}


# ---- What is refused, and how

SEARCH = "/v1/indexes/library/search"
EXPLAIN = "/v1/indexes/library/explain"
PAIR = {"embeddings": [[1.0], [1.0]], "token_ids": [1, 2], "token_kinds": [0, 0]}
WRONG: list[tuple[str, Any, int, str, str]] = [
    (SEARCH, {"query": "a", "k": 0}, 422, "k", "greater than or equal to 1"),
    (SEARCH, {"query": "a", "k": 1001}, 422, "k", "less than or equal to 1000"),
    (SEARCH, {"query": "a", "k": "3"}, 422, "k", "valid integer"),
    (SEARCH, {"query": "a", "k": True}, 422, "k", "valid integer"),
    (SEARCH, {"query": "a", "p": 0}, 422, "p", "greater than or equal to 1"),
    (SEARCH, {"query": "a", "p": 10**30}, 422, "p", "less than or equal to 512"),
    (SEARCH, {"query": "a", "p": "some"}, 422, "p", "input should be a valid integer, or 'auto' or 'all'"),
    (SEARCH, {"query": "a", "order": "best"}, 422, "order", "'rarity', 'icf', 'idf', 'first' or 'random'"),
    (SEARCH, {"query": "a", "effort": "most"}, 422, "effort", "'fast', 'balanced', 'thorough' or 'exact'"),
    (SEARCH, {"query": "a", "gather": "magic"}, 422, "gather", "'cells'"),
    (SEARCH, {"query": "a", "gather": "faiss"}, 422, "gather", "library is prepared for cells, exhaustive only"),
    (SEARCH, {"query": "a", "gather": "cells", "effort": "exact"}, 422, "effort", "scores every document"),
    (SEARCH, {"query": "a", "candidates": 10**9}, 422, "candidates", "less than or equal to"),
    (SEARCH, {"query": "a", "where": "year >"}, 422, "where", "at"),
    (SEARCH, {"query": "a", "where": 3}, 422, "where", "valid string"),
    (SEARCH, {"query": "a", "frequencies": "mine"}, 422, "frequencies", "'collection' or 'matching'"),
    (SEARCH, {"query": "a", "weights": "heavy"}, 422, "weights", "'idf' or 'none'"),
    (SEARCH, {"query": "a", "weights": [1.0]}, 422, "weights", "'idf' or 'none'"),
    (f"{EXPLAIN}?query=a&docno=x&weights=heavy", None, 422, "weights", "'idf' or 'none'"),
    (SEARCH, {"query": "a", "embedding_weights": [1.0]}, 422, "body", "embedding_weights belong to embeddings"),
    (SEARCH, {**PAIR, "embedding_weights": [1.0]}, 422, "embedding_weights", "2 embeddings, 1 weights"),
    (SEARCH, {**PAIR, "embedding_weights": [1.0, -0.1]}, 422, "embedding_weights.1", "greater than or equal to 0"),
    (SEARCH, {**PAIR, "embedding_weights": [1.0, 1e9]}, 422, "embedding_weights.1", "less than or equal to 1000"),
    (SEARCH, {**PAIR, "embedding_weights": ["1", 1.0]}, 422, "embedding_weights.0", "valid number"),
    (SEARCH, {**PAIR, "embedding_weights": 1.0}, 422, "embedding_weights", "valid list"),
    (SEARCH, {"query": "a", "kk": 3}, 422, "kk", "there is no such field"),
    (SEARCH, {"query": "x" * 2001}, 422, "query", "at most 2000 characters"),
    (SEARCH, {"query": 3}, 422, "query", "valid string"),
    (SEARCH, {"query": ""}, 422, "query", "the query is empty"),
    (SEARCH, {"query": " \n"}, 422, "query", "the query is empty"),
    (SEARCH, {}, 422, "body", "give either query, or queries, or embeddings"),
    (SEARCH, [], 422, "body", "valid dictionary"),
    (SEARCH, {"embeddings": [[1.0]]}, 422, "token_ids", "is missing"),
    (SEARCH, {"embeddings": [[1.0]], "token_ids": [1], "token_kinds": [9]}, 422, "token_kinds.0", "less than or equal"),
    (SEARCH, {"embeddings": [[1.0]], "token_ids": [1, 2], "token_kinds": [0]}, 422, "token_ids", "one entry per"),
    (SEARCH, {"embeddings": [[1.0]], "token_ids": [2**40], "token_kinds": [0]}, 422, "token_ids.0", "less than"),
    (SEARCH, {"embeddings": [[1.0], []], "token_ids": [1, 2], "token_kinds": [0, 0]}, 422, "embeddings", "same number"),
    (SEARCH, {"embeddings": [[1.0]], "token_ids": [1], "token_kinds": [0]}, 422, "embeddings", "1 dimensions"),
    (SEARCH, {"embeddings": [[1e300]], "token_ids": [1], "token_kinds": [0]}, 422, "embeddings.0.0", "less than"),
    ("/v1/indexes/unknown/search", {"query": "a"}, 404, "name", "no such index"),
    (EXPLAIN, None, 422, "query", "is missing"),
    (f"{EXPLAIN}?query=a&docno=unknown", None, 404, "docno", "there is no document 'unknown' in library"),
    (f"{EXPLAIN}?query=&docno=x", None, 422, "query", "the query is empty"),
    (f"{EXPLAIN}?query=%20&docno=x", None, 422, "query", "the query is empty"),
    ("/v1/indexes/library/prune-curve?query=", None, 422, "query", "the query is empty"),
    ("/v1/indexes/library/prune-curve?query=%20", None, 422, "query", "the query is empty"),
    (f"{EXPLAIN}?query=a&docno=x&k=many", None, 422, "k", "valid integer"),
    ("/v1/indexes/library/prune-curve?query=a&p=3", None, 422, "p", "there is no such field"),
    ("/v1/indexes/library/documents/unknown", None, 404, "docno", "there is no document"),
]


@pytest.mark.parametrize(("path", "body", "status", "field", "message"), WRONG)
def test_a_wrong_request_is_answered_with_the_field_that_is_wrong(
    client: TestClient, path: str, body: Any, status: int, field: str, message: str
) -> None:
    response = client.get(path) if body is None else client.post(path, json=body)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert any(error["field"] == field and message in error["message"] for error in problem["errors"]), problem
    assert len({error["field"] for error in problem["errors"]}) == len(problem["errors"])
    assert not any(error["message"].startswith(f"{error['field']}: ") for error in problem["errors"])
    assert len(response.content) < 2000  # what was sent is not sent back


def test_what_is_not_json_or_not_there_or_not_possible_is_a_problem_too(client: TestClient) -> None:
    json_type = {"Content-Type": "application/json"}
    assert client.post(SEARCH, content=b"{", headers=json_type).status_code == 400
    assert client.post(SEARCH, content=b'{"query": "\xff"}', headers=json_type).status_code in (400, 422)
    assert client.post(SEARCH, content=b"[" * 100_000, headers=json_type).status_code == 400
    for response, status in (
        (client.get("/v1/nothing"), 404),
        (client.get(SEARCH), 405),
        (client.get("/web/../app.py"), 404),
        (client.get("/web/%2e%2e%2fapp.py"), 404),
    ):
        assert response.status_code == status
        assert response.headers["content-type"] == "application/problem+json"


def test_half_a_surrogate_pair_is_refused_in_every_field(client: TestClient) -> None:
    for body in (
        b'{"query": "\\ud800"}',
        b'{"query": "a", "\\ud800": 1}',
        b'{"query": "a", "order": "\\ud800"}',
        b'{"query": "a", "where": "year = \'\\ud800\'"}',
    ):
        response = client.post(SEARCH, content=body, headers={"Content-Type": "application/json"})
        assert response.status_code == 422, body
        assert response.json()["errors"]


# ---- The page's files


def test_the_page_loads_nothing_from_other_sites_and_makes_no_html_of_strings(client: TestClient) -> None:
    page = client.get("/").text
    assert "http://" not in page
    assert "https://" not in page
    assert "<style" not in page
    web = Path(__file__).parent.parent / "src/secateurs/service/web"
    for script in web.glob("*.js"):
        code = script.read_text("utf-8")
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "https://"):
            assert forbidden not in code, script.name


# ---- Counting


def test_metrics_count_requests_by_route_and_the_cache_remembers_queries(library: Index) -> None:
    with TestClient(create_app({"library": library})) as client:
        for _ in range(3):
            search(client, query="asked three times")
        client.get("/v1/no-such-thing-7")
        client.request("WEIRD", "/healthz")
        text = client.get("/metrics").text
    lines = text.splitlines()
    route = 'method="POST",route="/v1/indexes/{name}/search",status="200"'
    assert f"secateurs_requests_total{{{route}}} 3.0" in lines
    assert 'secateurs_query_cache_total{found="no"} 1.0' in lines
    assert 'secateurs_query_cache_total{found="yes"} 2.0' in lines
    assert f'secateurs_documents{{index="library"}} {len(library)}.0' in lines
    assert "no-such-thing" not in text
    assert "WEIRD" not in text
    assert "asked three times" not in text


def test_the_cache_drops_the_query_that_was_asked_longest_ago(library: Index) -> None:
    encoded = library.encode_query("any")
    cache = query_cache(2 * encoded.embeddings.nbytes)
    cache["first"] = cache["second"] = encoded
    assert cache.get("first") is encoded
    cache["third"] = encoded
    assert list(cache) == ["first", "third"]


def test_the_model_is_loaded_before_the_time_of_encoding_begins(index_path: Path) -> None:
    loaded_before_encoding = []

    class Watched(Index):
        def encode_query(self, query: str | EncodedText) -> EncodedText:
            loaded_before_encoding.append(self._encoder is not None)
            return super().encode_query(query)

    with TestClient(create_app({"library": Watched(index_path)})) as client:
        stats = search(client, query=QUERY)["stats"]
    assert loaded_before_encoding[0]
    assert stats["loading_milliseconds"] > 0
    assert "loading" not in stats["milliseconds"]


def test_limits_are_positive() -> None:
    for name in ("k", "p", "threads", "body_bytes", "batch"):
        with pytest.raises(SecateursError, match=f"the limit {name} must be at least 1"):
            Limits(**{name: 0})
