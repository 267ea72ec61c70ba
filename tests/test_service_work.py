"""The work of a request has a limit without a key, and work whose result is not wanted any longer stops."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import numpy as np
import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import QUERIES, random_text
from fastapi.testclient import TestClient
from service import BEARER, KEY

from secateurs import Document, EncodedText, Index, Ranking, SearchSettings
from secateurs.cluster.layout import Layout, ShardRecord, shard_names, shard_of
from secateurs.cluster.search.open_index import open_index
from secateurs.contract import AnyIndex
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import CancelledError
from secateurs.explain import Explanation
from secateurs.frequencies import Frequencies
from secateurs.search import decide
from secateurs.service import request_work
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys
from secateurs.service.limits import Limits
from secateurs.service.problems import Problem
from secateurs.service.request_work import Work
from secateurs.service.workers import Workers

T = TypeVar("T")
QUERY = QUERIES[0]
SEARCH = "/v1/indexes/library/search"
EXPLAIN = "/v1/indexes/library/explain"
CURVE = "/v1/indexes/library/prune-curve"


@pytest.fixture(scope="module")
def library(index_path: Path, encoder: OnnxEncoder) -> Index:
    return Index(index_path, encoder)


@pytest.fixture(scope="module")
def client(library: Index) -> Iterator[TestClient]:
    limits = Limits(gather_work=200, score_work=10_000)  # 6 embeddings x 32 cells, 312 documents x 32 embeddings
    with TestClient(create_app({"library": library}, limits, Access(ApiKeys([KEY])))) as client:
        yield client


class Slow(Index):
    """An index whose searches wait, while their embeddings are ordered, until they may go on."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun, self.go, self.slow = threading.Event(), threading.Event(), True
        self.outcomes: list[type[BaseException] | None] = []  # of each search: the error, or None

    def search(self, query: str | EncodedText, *arguments: Any, **settings: Any) -> Ranking:
        ranking = self._watched(super().search, query, **settings)
        return replace(ranking, plan=replace(ranking.plan, order="icf"))  # JSON has no functions

    def explain(self, query: str | EncodedText, docno: str, **settings: Any) -> Explanation:
        return self._watched(super().explain, query, docno, **settings)

    def _watched(self, work: Callable[..., T], *arguments: Any, **settings: Any) -> T:
        try:
            result = work(*arguments, **settings | ({"order": self._wait} if self.slow else {}))
        except BaseException as error:
            self.outcomes.append(type(error))
            raise
        self.outcomes.append(None)
        return result

    def _wait(self, query: EncodedText, frequencies: Frequencies) -> Any:
        self.begun.set()
        assert self.go.wait(60)
        return np.arange(len(query))


@pytest.fixture
def slow(index_path: Path, encoder: OnnxEncoder) -> Iterator[Slow]:
    index = Slow(index_path, encoder)
    yield index
    index.go.set()


# ---- Limits on work


@pytest.mark.parametrize(
    ("settings", "setting", "limit"),
    [
        ({"gather": "cells", "p": "all"}, "p", "gather_work"),
        ({"gather": "cells", "p": 1, "nprobe": 201}, "nprobe", "gather_work"),
        ({"effort": "exact"}, "effort", "score_work"),
        ({"gather": "exhaustive"}, "gather", "score_work"),
        ({"gather": "cells", "p": 1, "candidates": 400}, "candidates", "score_work"),
        ({"gather": "cells", "p": 1, "k": 100}, "k", "score_work"),
        # Fewer than k documents are gathered, so that every matching one is scored.
        (
            {"gather": "cells", "p": 1, "nprobe": 1, "candidates": 20, "where": "kind != 'x'"},
            "candidates",
            "score_work",
        ),
    ],
)
def test_too_much_work_without_a_key_is_refused_by_setting_and_limit(
    client: TestClient, settings: dict[str, Any], setting: str, limit: str
) -> None:
    refused = client.post(SEARCH, json={"query": QUERY, **settings})
    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert error["field"] == setting
    assert limit in error["message"]
    assert "key" in error["message"]
    assert client.post(SEARCH, json={"query": QUERY, **settings}, headers=BEARER).status_code == 200


@pytest.mark.parametrize("settings", [{}, {"effort": "exact"}])
def test_a_wrong_key_is_refused_for_reads_that_need_none(client: TestClient, settings: dict[str, str]) -> None:
    wrong = {"Authorization": "Bearer wrong-key-but-long-enough"}
    refused = client.post(SEARCH, json={"query": QUERY, **settings}, headers=wrong)
    assert refused.status_code == 401
    assert refused.json()["detail"].startswith("the key is not valid")
    assert client.get("/v1/indexes", headers=wrong).status_code == 401
    assert client.get("/healthz", headers=wrong).status_code == 200


def test_explanations_and_curves_have_the_same_limits(client: TestClient, library: Index) -> None:
    docno = library.search(QUERY)[0].docno
    for path, settings, limit in (
        (EXPLAIN, {"docno": docno, "gather": "cells", "p": "all"}, "gather_work"),
        (EXPLAIN, {"docno": docno, "effort": "exact"}, "score_work"),
        (CURVE, {"gather": "cells"}, "gather_work"),
        (CURVE, {"effort": "exact"}, "score_work"),
    ):
        refused = client.get(path, params={"query": QUERY, **settings})
        assert refused.status_code == 422, refused.text
        assert limit in refused.json()["detail"]
        assert client.get(path, params={"query": QUERY, **settings}, headers=BEARER).status_code == 200


def test_a_curve_has_as_many_points_as_the_limits_allow(library: Index) -> None:
    params = {"query": QUERY, "gather": "cells", "nprobe": "10", "candidates": "10"}
    for gather_work, score_work, points in ((320 * 9, 10**9, 8), (10**9, 320 * 17, 8), (10**9, 10**9, 32)):
        limits = Limits(gather_work=gather_work, score_work=score_work)
        with TestClient(create_app({"library": library}, limits)) as client:
            found = client.get(CURVE, params=params).json()["points"]
        assert len(found) == points
        assert (found[0]["p"], found[-1]["p"]) == (1, 32)


def test_exact_search_of_a_small_index_is_within_the_default_limits(library: Index) -> None:
    with TestClient(create_app({"library": library})) as client:
        answer = client.post(SEARCH, json={"query": QUERY, "effort": "exact"}).json()
    assert answer["stats"]["documents_scored"] == len(library)


def test_a_filter_that_nothing_matches_is_no_work(client: TestClient) -> None:
    settings = {"gather": "cells", "p": "all", "nprobe": 4096, "where": "kind = 'none'"}
    answer = client.post(SEARCH, json={"query": QUERY, **settings})
    assert answer.status_code == 200
    assert answer.json()["hits"] == []


@pytest.mark.parametrize("gather", ["auto", "cells", "exhaustive"])
@pytest.mark.parametrize("where", [None, "kind != 'x'", "kind = 'method'", "kind = 'none'"])
def test_a_search_does_not_score_more_than_was_estimated(library: Index, gather: str, where: str | None) -> None:
    for k, p, nprobe, candidates in ((10, None, None, None), (1, 1, 1, 1), (300, 1, 1, None), (10, 3, 400, 50)):
        given = {"k": k, "p": p, "nprobe": nprobe, "candidates": candidates, "gather": gather, "where": where}
        query = library.encode_query(QUERY)
        work = Work.of(decide(library.searched(), query, SearchSettings.of(given)), len(query), len(library))
        ranking = library.search(query, **given)
        assert ranking.stats.documents_scored * len(query) <= work.score
        if ranking.plan.gather == "cells" and ranking.stats.documents_matching:
            plan, kept = ranking.plan, ranking.stats.embeddings_kept
            assert work.gather == sum(plan.nprobe_each or [plan.nprobe] * kept)


def _without_what_is_gathered(query: EncodedText, index: AnyIndex) -> dict[str, Any]:
    """Settings of a search that gathers none of the documents that match, and an estimate of its work that is small."""
    settings = {"gather": "cells", "nprobe": 2, "p": 1, "k": 1, "order": "first"}
    gathered = index.candidates(query, **settings, candidates=len(index))
    docnos = ",".join(f"'{docno}'" for docno in gathered)
    return {**settings, "candidates": 1, "where": f"docno not in ({docnos})"}


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("partial", [False, True])
def test_scoring_every_matching_document_is_within_the_limit_too(
    tmp_path: Path, is_sharded: bool, partial: bool
) -> None:
    rng = np.random.default_rng(0)
    documents = [Document(f"d{i}", "", {}, random_text(rng, 4)) for i in range(400)]
    names = shard_names(2) if is_sharded else [""]
    for number, name in enumerate(names):
        part = [document for document in documents if not is_sharded or shard_of(document.docno, 2) == number]
        Index.build(tmp_path / "i.sec" / name, part, encoder=None)
    if is_sharded:
        Layout(tuple(map(ShardRecord, names)), "a test").write(tmp_path / "i.sec")
    query = random_text(rng, 4)
    sent = {
        "embeddings": query.embeddings.tolist(),
        "token_ids": query.token_ids.tolist(),
        "token_kinds": query.token_kinds.tolist(),
    }
    with open_index(tmp_path / "i.sec") as index:
        settings = _without_what_is_gathered(query, index)
        ranking = index.search(query, **settings)
        least = ranking.stats.documents_scored * len(query)
        assert ranking.stats.documents_scored == ranking.stats.documents_matching > 300
        sent |= settings | {"partial": partial}
        for score_work, status in ((least - 1, 422), (least, 200)):
            with TestClient(create_app({"i": index}, Limits(score_work=score_work), Access(ApiKeys([KEY])))) as client:
                response = client.post("/v1/indexes/i/search", json=sent)
                assert response.status_code == status, response.text
                if status == 422:
                    (error,) = response.json()["errors"]
                    assert error["field"] == "where"
                    assert "score_work" in error["message"]
                assert client.post("/v1/indexes/i/search", json=sent, headers=BEARER).status_code == 200


def test_a_search_that_scores_more_than_a_small_one_may_runs_again_on_the_threads_for_large_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    class Watched(Index):
        def search(self, query: str | EncodedText, *arguments: Any, **settings: Any) -> Ranking:
            threads.append(threading.current_thread().name.rsplit("_", 1)[0])
            return super().search(query, *arguments, **settings)

    rng = np.random.default_rng(0)
    documents = [Document(f"d{i}", "", {}, random_text(rng, 4)) for i in range(400)]
    query = random_text(rng, 4)
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    settings = {"gather": "cells", "nprobe": 2, "p": 1, "k": 1, "order": "first"}
    gathered = set(index.candidates(query, **settings, candidates=400))
    marked = [replace(document, metadata={"gathered": document.docno in gathered}) for document in documents]
    watched = Watched.build(tmp_path / "i.sec", marked, encoder=None, overwrite=True)
    monkeypatch.setattr(request_work, "_SMALL_SCORE", 1_000)
    sent = {
        "embeddings": query.embeddings.tolist(),
        "token_ids": query.token_ids.tolist(),
        "token_kinds": query.token_kinds.tolist(),
        **settings,
        "candidates": 1,
        "where": "gathered = false",
    }
    with TestClient(create_app({"i": watched})) as client:
        answer = client.post("/v1/indexes/i/search", json=sent).json()
    assert answer["stats"]["documents_scored"] == 400 - len(gathered) > 250
    assert threads == ["secateurs-searches", "secateurs-large-searches"]


# ---- Large requests


@pytest.mark.parametrize("path", [SEARCH, EXPLAIN])
def test_a_request_with_a_long_filter_is_large(slow: Slow, path: str) -> None:
    where = " or ".join(["kind = 'method'"] * 20)
    large = {"query": QUERY, "where": where} | ({"docno": next(slow.documents()).docno} if path == EXPLAIN else {})

    def send() -> Any:
        return client.post(path, json=large) if path == SEARCH else client.get(path, params=large)

    app = create_app({"library": slow}, Limits(threads=1, waiting=0, seconds=60))
    with TestClient(app) as client, ThreadPoolExecutor(1) as clients:
        held = clients.submit(send)
        assert slow.begun.wait(60)
        slow.slow = False
        refused = send()
        assert refused.status_code == 429
        assert "too many large searches" in refused.json()["detail"]
        assert client.post(SEARCH, json={"query": QUERY}).status_code == 200
        slow.go.set()
        assert held.result().status_code == 200


@pytest.mark.parametrize("query", ["words " * 60, "ä " * 900, QUERY])
def test_a_small_search_does_not_wait_for_large_ones(slow: Slow, query: str) -> None:
    large = {"query": query, "k": 101 if query == QUERY else 10}
    app = create_app({"library": slow}, Limits(threads=1, waiting=0, seconds=60))
    with TestClient(app) as client, ThreadPoolExecutor(1) as clients:
        held = clients.submit(client.post, SEARCH, json=large)
        assert slow.begun.wait(60)
        slow.slow = False
        refused = client.post(SEARCH, json=large)
        assert refused.status_code == 429
        assert "too many large searches" in refused.json()["detail"]
        assert client.post(SEARCH, json={"query": QUERY}).status_code == 200
        slow.go.set()
        assert held.result().status_code == 200


# ---- Work whose result is not wanted any longer


@pytest.mark.parametrize("settings", [{"gather": "cells"}, {"effort": "exact"}])
def test_a_search_past_its_time_gives_its_thread_back(slow: Slow, settings: dict[str, str]) -> None:
    app = create_app({"library": slow}, Limits(threads=1, waiting=0, seconds=1))
    with TestClient(app) as client:
        assert client.post(SEARCH, json={"query": QUERY, **settings}).status_code == 503
        assert slow.begun.is_set()
        assert client.post(SEARCH, json={"query": QUERY}).status_code == 429  # its thread is still busy
        slow.slow = False
        slow.go.set()
        until = time.monotonic() + 60
        while client.post(SEARCH, json={"query": QUERY}).status_code != 200:
            assert time.monotonic() < until
        assert slow.outcomes[0] is CancelledError


@pytest.mark.parametrize(("method", "path"), [("POST", SEARCH), ("GET", EXPLAIN), ("GET", CURVE)])
def test_a_search_stops_when_its_client_has_gone(slow: Slow, method: str, path: str) -> None:
    statuses = []
    docno = next(slow.documents()).docno
    asked = (
        {"query": QUERY, "docno": docno, "gather": "cells"} if path == EXPLAIN else {"query": QUERY, "gather": "cells"}
    )

    async def scenario() -> None:
        unread = [{"type": "http.request", "body": json.dumps(asked).encode() if method == "POST" else b""}]

        async def receive() -> Any:
            if unread:
                return unread.pop()
            while not slow.begun.is_set():
                await asyncio.sleep(0.001)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": b"" if method == "POST" else urlencode(asked).encode(),
            "headers": [(b"content-type", b"application/json")],
        }
        async with app.router.lifespan_context(app):
            await app(scope, receive, send)
            slow.go.set()

    app = create_app({"library": slow})
    asyncio.run(scenario())
    assert statuses == [499]
    assert slow.outcomes == [CancelledError]


def test_a_request_that_waits_is_dropped_when_its_client_has_gone() -> None:
    async def scenario() -> None:
        go = threading.Event()

        async def gone() -> None:
            pass

        with Workers("searches", 1, 2, seconds=30) as workers:
            running = asyncio.create_task(workers.run(go.wait, 30))
            await asyncio.sleep(0)
            with pytest.raises(Problem, match="the client has gone away"):
                await workers.run(lambda: pytest.fail("it was dropped"), gone=gone)
            await asyncio.sleep(0.01)
            waiting = asyncio.create_task(workers.run(lambda: "there was a place"))
            await asyncio.sleep(0)
            go.set()
            assert await running
            assert await waiting == "there was a place"

    asyncio.run(scenario())


def test_an_error_of_work_that_was_given_up_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    def work() -> None:
        assert go.wait(30)
        raise Problem(503, "too late")

    async def scenario() -> None:
        with Workers("searches", 1, 1, seconds=0.01) as workers:
            with pytest.raises(Problem, match="not finished after"):
                await workers.run(work)
            go.set()
        await asyncio.sleep(0.05)
        gc.collect()

    asyncio.run(scenario())
    assert "never retrieved" not in caplog.text
