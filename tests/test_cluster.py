"""Shards on a real Ray cluster of several nodes on one machine, whose actors and nodes are killed."""

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text
from service import BEARER, KEY
from test_sharded import hits_of, make_shards

from secateurs import EncodedText, Index, SecateursError
from secateurs.cluster.layout import Layout, shard_of
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.errors import DuplicateDocumentError, ShardsMissingError, UsageError
from secateurs.records import Changes
from secateurs.storage.locks import write_lock

ray = pytest.importorskip("ray", reason='needs  pip install "secateurs[ray]"')

SHARDS = 2
DOCUMENTS = random_documents(120)
QUERIES = [random_text(np.random.default_rng(seed), 6) for seed in range(10)]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(tmp_path_factory.mktemp("one") / "one.sec", DOCUMENTS, encoder=None, store="float16")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return make_shards(tmp_path / "many.sec", DOCUMENTS, SHARDS, store="float16")


@pytest.fixture
def open_on(ray_cluster: Any) -> Iterator[Callable[..., ShardedIndex]]:
    opened = []

    def open_shards(path: Path, **options: Any) -> ShardedIndex:
        opened.append(ShardedIndex(path, ray=ray_cluster.address, **options))
        return opened[-1]

    yield open_shards
    for index in opened:
        index.close()


def actors(index: ShardedIndex) -> list[list[Any]]:
    return [[replica.actor for replica in replicas] for replicas in index._shards.backend._replicas]  # type: ignore[attr-defined]


def pid_of(actor: Any) -> int:
    return int(ray.get(actor.__ray_call__.remote(lambda self: os.getpid())))


def node_of(actor: Any) -> str:
    return str(ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id())))


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


def missing(index: ShardedIndex) -> int:
    return index.search(QUERIES[0], partial=True).stats.shards_missing


def test_no_query_is_lost_or_wrong_while_actors_and_a_node_die(
    ray_cluster: Any, open_on: Callable[..., ShardedIndex], path: Path, one: Index
) -> None:
    expected = [hits_of(one.search(query, effort="exact", k=20)) for query in QUERIES]
    doomed = ray_cluster.add_node(num_cpus=1, node_name="doomed")
    many = open_on(path, replicas=2, seconds=60)
    for replicas in actors(many):  # the replicas of a shard are not on the same node
        assert len({node_of(actor) for actor in replicas}) == 2
    assert any(node_of(actor) == doomed.node_id for replicas in actors(many) for actor in replicas)
    backend: Any = many._shards.backend
    stop = False
    answered = [0, 0, 0]  # by each thread

    def search_until_stopped(thread: int) -> None:
        while not stop:
            number = answered[thread] % len(QUERIES)
            ranking = many.search(QUERIES[number], effort="exact", k=20)
            assert ranking.stats.shards_missing == 0
            assert hits_of(ranking) == expected[number]
            answered[thread] += 1

    def wait_for_more_answers(running: list[Future[None]]) -> None:
        before = answered.copy()
        wait_until(
            lambda: any(future.done() for future in running) or all(map(lambda a, b: a > b + 5, answered, before))
        )

    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(search_until_stopped, thread) for thread in range(3)]
        try:
            wait_for_more_answers(running)
            ray.kill(actors(many)[0][0], no_restart=False)
            wait_for_more_answers(running)
            os.kill(pid_of(actors(many)[1][1]), signal.SIGKILL)
            wait_for_more_answers(running)
            ray.kill(actors(many)[1][0])  # for good: another actor is started in its place
            wait_for_more_answers(running)
            ray_cluster.remove_node(doomed, allow_graceful=False)
            wait_until(lambda: not any(node["NodeName"] == "doomed" and node["Alive"] for node in ray.nodes()))
            wait_for_more_answers(running)
        finally:
            stop = True
    for future in running:
        future.result()

    def every_replica_is_back() -> bool:
        many.search(QUERIES[0])
        return all(backend._is_reachable(replica) for replica in backend.replicas)

    wait_until(every_replica_is_back)
    request = pickle.dumps(("has", 0, pickle.dumps(([document.docno for document in DOCUMENTS],))))
    for replicas in actors(many):
        for actor in replicas:
            assert len(pickle.loads(ray.get(actor.call.remote(request)))) > 0


def test_if_no_replica_is_left_a_search_waits_or_with_partial_leaves_the_shard_out(
    open_on: Callable[..., ShardedIndex], path: Path, one: Index
) -> None:
    many = open_on(path, seconds=60)
    expected = hits_of(one.search(QUERIES[0], effort="exact", k=120))
    home = path / Layout.read(path).shards[1].name
    home.rename(path / "away")  # so that an actor that is started again has nothing to open
    ray.kill(actors(many)[1][0], no_restart=False)
    wait_until(lambda: missing(many) == 1)
    part = many.search(QUERIES[0], effort="exact", k=120, partial=True)
    assert part.stats.shards_missing == 1
    assert part.stats.documents_in_index == 120
    assert hits_of(part) == [(docno, score) for docno, score in expected if shard_of(docno, SHARDS) != 1]
    (path / "away").rename(home)
    ray.kill(actors(many)[0][0], no_restart=False)
    whole = many.search(QUERIES[0], effort="exact", k=120)  # waits for the actors, which open their shards again
    assert whole.stats.shards_missing == 0
    assert hits_of(whole) == expected


def test_a_shard_on_a_nodes_own_disk_is_missing_with_its_node_and_back_with_it(
    ray_cluster: Any, open_on: Callable[..., ShardedIndex], path: Path, one: Index
) -> None:
    node = ray_cluster.add_node(num_cpus=1, node_name="with-a-disk")
    *others, last = Layout.read(path).shards
    Layout((*others, replace(last, node="with-a-disk")), "a test").write(path)
    many = open_on(path, replicas=2, seconds=2)
    assert {node_of(actor) for actor in actors(many)[1]} == {node.node_id}
    expected = hits_of(one.search(QUERIES[0], effort="exact", k=120))
    assert hits_of(many.search(QUERIES[0], effort="exact", k=120)) == expected

    ray_cluster.remove_node(node, allow_graceful=False)
    wait_until(lambda: missing(many) == 1)  # its workers live for a moment longer
    part = many.search(QUERIES[0], effort="exact", k=120, partial=True)
    assert part.stats.shards_missing == 1
    assert hits_of(part) == [(docno, score) for docno, score in expected if shard_of(docno, SHARDS) != 1]
    with pytest.raises(ShardsMissingError, match=r"shard-0001 .*\(on node 'with-a-disk'\) cannot be reached"):
        many.search(QUERIES[0])
    lost = next(document.docno for document in DOCUMENTS if shard_of(document.docno, SHARDS) == 1)
    with pytest.raises(ShardsMissingError, match="shard-0001"):
        many.get(lost)
    assert [shard["missing"] for shard in many.info()["shards"]] == [False, True]

    again = ray_cluster.add_node(num_cpus=1, node_name="with-a-disk")
    try:
        wait_until(lambda: missing(many) == 0)
        assert hits_of(many.search(QUERIES[0], effort="exact", k=120)) == expected
        assert many.get(lost).docno == lost
    finally:
        ray_cluster.remove_node(again, allow_graceful=False)


def test_writes_are_routed_seen_by_every_replica_and_change_the_frequencies(
    open_on: Callable[..., ShardedIndex], path: Path
) -> None:
    many = open_on(path, replicas=2)
    new = [replace(document, docno=f"new-{document.docno}") for document in DOCUMENTS[:30]]
    before = many.frequencies.collection.sum()
    assert many.add(new).added == 30
    with pytest.raises(DuplicateDocumentError):
        many.add(new[:1])
    assert many.frequencies.collection.sum() == before + sum(len(document.encoded) for document in new)  # type: ignore[arg-type, misc]
    for _ in range(6):  # whichever replica answers
        assert len(many.search(QUERIES[0], k=200, effort="exact")) == 150
    assert many.delete([document.docno for document in new]).deleted == 30
    for _ in range(6):
        assert len(many.search(QUERIES[0], k=200, effort="exact")) == 120
    for number in range(SHARDS):
        held = {document.docno for document in Index(path / f"shard-{number:04}").documents()}
        assert held == {document.docno for document in DOCUMENTS if shard_of(document.docno, SHARDS) == number}


def test_a_write_that_loses_its_actor_is_done_once(open_on: Callable[..., ShardedIndex], path: Path) -> None:
    many = open_on(path, seconds=60)
    for turn in range(2):
        new = [replace(document, docno=f"{turn}-{document.docno}") for document in DOCUMENTS]
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(many.add, new)
            time.sleep(0.02 * turn)
            for replicas in actors(many):
                ray.kill(replicas[0], no_restart=False)
            changes = writing.result()
        assert (changes.added, changes.replaced) == (len(new), 0)
        assert len(many) == (turn + 2) * len(DOCUMENTS)
    many.check()


def test_pages_and_facets_on_a_cluster_are_those_of_one_index(
    open_on: Callable[..., ShardedIndex], tmp_path: Path
) -> None:
    documents = [replace(document, metadata={"third": number % 3}) for number, document in enumerate(DOCUMENTS)]
    one = Index.build(tmp_path / "one.sec", documents, encoder=None, store="float16")
    many = open_on(make_shards(tmp_path / "many.sec", documents, SHARDS, store="float16"), seconds=60)
    how: dict[str, Any] = {
        "effort": "exact",
        "k": 7,
        "offset": 5,
        "facets": ["third"],
        "where": "third between 1 and 2",
    }
    expected, found = one.search(QUERIES[0], **how), many.search(QUERIES[0], **how)
    assert hits_of(found) == hits_of(expected)
    assert found.facets == expected.facets == {"third": [(1, 40), (2, 40)]}
    with pytest.raises(UsageError, match="facets: no document has the key 'fourth'"):
        many.search(QUERIES[0], facets=["fourth"])


def test_several_queries_in_one_call_are_answered_as_one_by_one_while_an_actor_dies(
    open_on: Callable[..., ShardedIndex], path: Path, one: Index
) -> None:
    many = open_on(path, seconds=60)
    expected = [hits_of(one.search(query, effort="exact", k=20)) for query in QUERIES]
    assert [hits_of(ranking) for ranking in many.search_many(QUERIES, effort="exact", k=20)] == expected
    rankings = many.search_many(QUERIES * 10, effort="exact", k=20)
    first = next(rankings)
    ray.kill(actors(many)[0][0], no_restart=False)
    assert [hits_of(ranking) for ranking in (first, *rankings)] == expected * 10


def test_a_pickled_index_starts_other_actors(open_on: Callable[..., ShardedIndex], path: Path) -> None:
    many = open_on(path)
    expected = hits_of(many.search(QUERIES[0]))
    twin = pickle.loads(pickle.dumps(many))
    assert hits_of(twin.search(QUERIES[0])) == expected
    pids = {pid_of(replicas[0]) for index in (many, twin) for replicas in actors(index)}
    assert len(pids) == 2 * SHARDS
    twin.close()
    twin.close()
    assert hits_of(many.search(QUERIES[0])) == expected


def kill_after_next_commit(actor: Any) -> None:
    """The actor's process kills itself when it has committed its next change, before it answers."""

    def install(self: Any) -> None:
        index = self._open_shard()._index
        change = index.change

        def change_and_die(make_change: Any) -> None:
            change(make_change)
            os.kill(os.getpid(), signal.SIGKILL)

        index.change = change_and_die

    ray.get(actor.__ray_call__.remote(install))


def test_a_write_that_was_committed_before_its_actor_died_is_answered_with_its_counts(
    open_on: Callable[..., ShardedIndex], path: Path
) -> None:
    many = open_on(path, seconds=60)
    new = [replace(document, docno=f"new-{document.docno}") for document in DOCUMENTS[:10]]
    problems: list[str] = []
    for write, changes in (
        (lambda: many.add(new), Changes(added=10)),
        (lambda: many.update([*new, *(replace(d, docno=f"up-{d.docno}") for d in new)]), Changes(10, 10)),
        (lambda: many.delete([new[0].docno, "none", new[1].docno]), Changes(deleted=2, missing=("none",))),
        (lambda: many.add(new, on_bad=problems.append), Changes(added=2)),
    ):
        before = pid_of(actors(many)[0][0])
        kill_after_next_commit(actors(many)[0][0])
        assert write() == changes
        assert pid_of(actors(many)[0][0]) != before
    assert len(problems) == 8
    assert len(many) == len(DOCUMENTS) + 20
    with pytest.raises(DuplicateDocumentError):
        many.add(new[:1])
    many.check()


def test_actors_answer_searches_while_more_writes_wait_than_they_have_threads(
    open_on: Callable[..., ShardedIndex], path: Path
) -> None:
    many = open_on(path)
    expected = hits_of(many.search(QUERIES[0]))
    waiting = 10
    with ThreadPoolExecutor(waiting) as pool:
        with write_lock(path / "shard-0000"):
            backend = many._shards.backend
            writes = [pool.submit(backend.work, "delete", 0, 0, (["none"], f"{i}")) for i in range(waiting)]
            for _ in range(3):
                assert hits_of(many.search(QUERIES[0])) == expected
            assert not any(write.done() for write in writes)
        for write in writes:
            write.result(timeout=60)


def test_a_wrong_call_raises_its_error_and_no_replica_becomes_suspect(
    open_on: Callable[..., ShardedIndex], path: Path
) -> None:
    many = open_on(path)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"sideways|where|filter|expected"):
            many.search(QUERIES[0], where="i >>> sideways")
        with pytest.raises(SecateursError, match="no document 'absent'"):
            many.get("absent")
    backend: Any = many._shards.backend
    assert not any(replica.suspect for replica in backend.replicas)
    assert len(many.search(QUERIES[0])) == 10


def test_the_service_answers_from_the_cluster_and_says_when_a_shard_is_gone(
    ray_cluster: Any, open_on: Callable[..., ShardedIndex], path: Path, one: Index
) -> None:
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from secateurs.service.app import Access, create_app
    from secateurs.service.keys import ApiKeys

    node = ray_cluster.add_node(num_cpus=1, node_name="served")
    first, *others = Layout.read(path).shards
    Layout((replace(first, node="served"), *others), "a test").write(path)
    many = open_on(path, seconds=5)
    app = create_app({"many": many}, access=Access(ApiKeys([KEY])))
    query = _as_json(QUERIES[0])
    with TestClient(app, base_url="http://localhost") as client:
        found = client.post("/v1/indexes/many/search", json={**query, "k": 20, "effort": "exact", "details": True})
        assert found.status_code == 200, found.text
        assert [(hit["docno"], hit["score"]) for hit in found.json()["hits"]] == hits_of(
            one.search(QUERIES[0], k=20, effort="exact")
        )
        assert found.json()["stats"]["shards_missing"] == 0
        facts = client.get("/v1/indexes/many/info").json()
        assert (facts["documents"], facts["shards"], facts["shards_missing"]) == (120, 2, 0)
        assert "served" not in str(facts)
        new = _as_json(random_text(np.random.default_rng(99), 3)) | {"docno": "new", "text": "by HTTP"}
        added = client.post("/v1/indexes/many/documents", json={"documents": [new]}, headers=BEARER)
        assert added.status_code == 200, added.text
        assert client.get("/v1/indexes/many/documents/new").json()["text"] == "by HTTP"
        assert client.delete("/v1/indexes/many/documents/new", headers=BEARER).json()["deleted"] == 1
        ray_cluster.remove_node(node, allow_graceful=False)
        wait_until(lambda: missing(many) == 1)
        refused = client.post("/v1/indexes/many/search", json=query)
        assert refused.status_code == 503
        assert "Retry-After" in refused.headers
        assert str(path) not in refused.text
        part = client.post("/v1/indexes/many/search", json={**query, "partial": True})
        assert part.status_code == 200
        assert part.json()["stats"]["shards_missing"] == 1


def _as_json(text: EncodedText) -> dict[str, Any]:
    return {
        "embeddings": text.embeddings.tolist(),
        "token_ids": text.token_ids.tolist(),
        "token_kinds": text.token_kinds.tolist(),
    }
