"""DSPy: its client for ColBERTv2 reads what `secateurs serve` answers, with search settings in the address."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import QUERIES

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from fastapi.testclient import TestClient
from pages import blocks
from service import BEARER, KEY, running

from secateurs import Index
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys
from secateurs.service.limits import Limits

QUERY = QUERIES[0]
PATH = "/v1/indexes/library/colbertv2"


@pytest.fixture
def client(index: Index) -> Iterator[TestClient]:
    with TestClient(create_app({"library": index}, Limits(gather_work=200), Access(ApiKeys([KEY])))) as client:
        yield client


# ---- The endpoint


def test_the_passages_are_the_hits_in_the_words_of_the_server(client: TestClient, index: Index) -> None:
    answer = client.get(PATH, params={"query": QUERY, "k": 4, "p": 2, "where": "kind = 'class'"}).json()
    ranking = index.search(QUERY, k=4, p=2, where="kind = 'class'")
    assert answer["query"] == QUERY
    total = sum(math.exp(hit.score) for hit in ranking)
    assert answer["topk"] == [
        {
            "text": hit.text,
            "pid": hit.docno,
            "rank": rank,
            "score": hit.score,
            "prob": pytest.approx(math.exp(hit.score) / total),
            "relevance": hit.relevance,
            "metadata": hit.metadata,
        }
        for rank, hit in enumerate(ranking, start=1)
    ]
    assert len(answer["topk"]) == 4


def test_no_hit_is_an_empty_list(client: TestClient) -> None:
    assert client.get(PATH, params={"query": QUERY, "min_score": 1e5}).json() == {"query": QUERY, "topk": []}


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({}, "query"),
        ({"query": " "}, "query"),
        ({"query": "x" * 2001}, "query"),
        ({"query": QUERY, "k": 1001}, "k"),
        ({"query": QUERY, "order": "best"}, "order"),
        ({"query": QUERY, "topk": 3}, "topk"),
        ({"query": QUERY, "where": "colour = 'red'"}, "where"),
        ({"query": QUERY, "gather": "cells", "nprobe": 201, "p": 1}, "nprobe"),  # beyond gather_work
    ],
)
def test_limits_and_problems_are_those_of_the_other_endpoints(
    client: TestClient, parameters: dict[str, Any], field: str
) -> None:
    response = client.get(PATH, params=parameters)
    assert response.status_code == 422
    assert response.headers["content-type"] == "application/problem+json"
    assert [error["field"] for error in response.json()["errors"]] == [field]


def test_a_key_lifts_the_limit_on_work_and_an_unknown_index_is_not_found(client: TestClient) -> None:
    heavy = {"query": QUERY, "gather": "cells", "nprobe": 201, "p": 1}
    assert client.get(PATH, params=heavy, headers=BEARER).status_code == 200
    assert client.get("/v1/indexes/elsewhere/colbertv2", params={"query": QUERY}).status_code == 404


# ---- DSPy's client


@pytest.fixture(scope="module")
def dspy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Without its caches, which would answer in place of the server."""
    patch = pytest.MonkeyPatch()
    patch.setenv("DSPY_CACHEDIR", str(tmp_path_factory.mktemp("dspy")))
    package = pytest.importorskip("dspy", reason='pip install "secateurs[dspy]"')
    package.configure_cache(enable_disk_cache=False, enable_memory_cache=False)
    yield package
    patch.undo()


@pytest.fixture(scope="module")
def port(index_path: Path, encoder: OnnxEncoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    demo = tmp_path_factory.mktemp("served") / "demo.sec"
    shutil.copytree(index_path, demo)
    with running(demo) as (_, port, _said):
        yield port


@pytest.mark.slow
def test_the_client_gets_the_hits_of_the_index(dspy: Any, port: int, index: Index) -> None:
    client = dspy.ColBERTv2(f"http://127.0.0.1:{port}/v1/indexes/demo/colbertv2")
    found, expected = client(QUERY, k=3), index.search(QUERY, k=3)
    assert [(passage.pid, passage.long_text) for passage in found] == [(hit.docno, hit.text) for hit in expected]
    assert [passage.score for passage in found] == pytest.approx([hit.score for hit in expected])
    assert sum(passage.prob for passage in found) == pytest.approx(1)
    assert client(QUERY, k=2, simplify=True) == [hit.text for hit in expected][:2]


@pytest.mark.slow
def test_settings_in_the_address_hold_for_every_search(dspy: Any, port: int, index: Index) -> None:
    address = f"http://127.0.0.1:{port}/v1/indexes/demo/colbertv2?p=1&where=kind = 'class'"
    with dspy.context(rm=dspy.ColBERTv2(address)):
        found = dspy.Retrieve(k=5)(QUERY)
    assert found.passages == [hit.text for hit in index.search(QUERY, k=5, p=1, where="kind = 'class'")]


@pytest.mark.slow
def test_a_refused_search_is_an_error_of_the_client(dspy: Any, port: int) -> None:
    client = dspy.ColBERTv2(f"http://127.0.0.1:{port}/v1/indexes/demo/colbertv2?effort=much")
    with pytest.raises(Exception, match="422"):
        client(QUERY)


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(dspy: Any, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks("integrations.md", "python", "DSPy"):
        exec(compile(block.replace("127.0.0.1:8000", f"127.0.0.1:{port}"), "integrations.md", "exec"), {})
    assert len(capsys.readouterr().out.splitlines()) >= 3
