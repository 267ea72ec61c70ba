"""Writes to shards: the writer of each shard decides, and searches do not wait for writes."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from threading import Barrier as ThreadBarrier
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text
from fastapi.testclient import TestClient
from service import BEARER, KEY
from test_sharded import make_shards

from secateurs import Document, EncodedText, Index
from secateurs.cluster.layout import Layout, ShardRecord, shard_names, shard_of
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.corpus import BadDocumentError
from secateurs.errors import DuplicateDocumentError, PartlyWrittenError, SecateursError, UsageError
from secateurs.hashing import hash_of
from secateurs.records import Changes
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys
from secateurs.storage.changes import Writer, writing
from secateurs.storage.locks import write_lock
from secateurs.storage.recent_writes import present_before, with_write

ROUNDS = 8
NEW = [replace(document, docno=f"new-{i}") for i, document in enumerate(random_documents(ROUNDS))]


def add_at_the_same_time(path: Path, barrier: Barrier | ThreadBarrier) -> list[bool]:
    """Of each new document, whether this index has added it."""
    succeeded = []
    with ShardedIndex(path) as many:
        for document in NEW:
            barrier.wait()
            try:
                succeeded.append(many.add([document]) == Changes(added=1))
            except DuplicateDocumentError:
                succeeded.append(False)
    return succeeded


def add_in_a_process(path: Path, barrier: Barrier, results: Any) -> None:
    results.put(add_at_the_same_time(path, barrier))


def test_of_two_threads_that_add_a_docno_exactly_one_succeeds(tmp_path: Path) -> None:
    path = make_shards(tmp_path / "many.sec", random_documents(10), 2)
    barrier = ThreadBarrier(2)
    with ThreadPoolExecutor(2) as pool:
        first, second = (
            future.result() for future in [pool.submit(add_at_the_same_time, path, barrier) for _ in range(2)]
        )
    assert [added + added_by_other for added, added_by_other in zip(first, second, strict=True)] == [1] * ROUNDS


def test_of_two_processes_that_add_a_docno_exactly_one_succeeds(tmp_path: Path) -> None:
    path = make_shards(tmp_path / "many.sec", random_documents(10), 2)
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    processes = [context.Process(target=add_in_a_process, args=(path, barrier, results)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = results.get(timeout=120), results.get(timeout=120)
    for process in processes:
        process.join()
    assert [added + added_by_other for added, added_by_other in zip(first, second, strict=True)] == [1] * ROUNDS


def test_counts_of_simultaneous_updates_and_deletions_are_what_the_writers_did(tmp_path: Path) -> None:
    path = make_shards(tmp_path / "many.sec", random_documents(10), 2)
    barrier = ThreadBarrier(2)

    def change(many: ShardedIndex) -> tuple[list[Changes], list[Changes]]:
        updates, deletions = [], []
        for document in NEW:
            barrier.wait()
            updates.append(many.update([document]))
            barrier.wait()
            deletions.append(many.delete([document.docno]))
        return updates, deletions

    with ShardedIndex(path) as first, ShardedIndex(path) as second, ThreadPoolExecutor(2) as pool:
        results = [future.result() for future in [pool.submit(change, many) for many in (first, second)]]
    for turn, document in enumerate(NEW):
        updates, deletions = ([result[kind][turn] for result in results] for kind in (0, 1))
        assert {(changes.added, changes.replaced) for changes in updates} == {(1, 0), (0, 1)}
        assert {(changes.deleted, changes.missing) for changes in deletions} == {(1, ()), (0, (document.docno,))}


class InterruptedEncoder:
    """Calls `interrupt` before it encodes: after the check that comes before encoding, before the shards write."""

    dim = 16
    spec = {"kind": "interrupted", "model": "interrupted", "fingerprint": "0123456789abcdef"}  # noqa: RUF012

    def __init__(self) -> None:
        self.interrupt: Callable[[], object] = lambda: None

    def encode_query(self, text: str) -> EncodedText:
        return random_text(np.random.default_rng(hash_of(text)), 4)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        interrupt, self.interrupt = self.interrupt, lambda: None
        interrupt()
        return map(self.encode_query, texts)

    def token_text(self, token_id: int) -> str:
        return f"#{token_id}"


HERE = [f"e{i}" for i in range(50) if shard_of(f"e{i}", 2) == 0]
THERE = [f"e{i}" for i in range(50) if shard_of(f"e{i}", 2) == 1]


@pytest.fixture
def encoder() -> InterruptedEncoder:
    return InterruptedEncoder()


@pytest.fixture
def many(tmp_path: Path, encoder: InterruptedEncoder) -> Iterator[ShardedIndex]:
    path = make_shards(tmp_path / "many.sec", [Document("first", "a text")], 2, encoder=encoder)
    with ShardedIndex(path, encoder) as opened:
        yield opened


def added_elsewhere(many: ShardedIndex, docno: str) -> Callable[[], object]:
    """Another process adds the docno."""

    def add() -> None:
        with ShardedIndex(many.path, InterruptedEncoder()) as other:
            other.add([Document(docno, "added elsewhere")])

    return add


def test_a_docno_added_elsewhere_after_the_check_is_refused_by_the_shard_with_its_place(
    many: ShardedIndex, encoder: InterruptedEncoder
) -> None:
    encoder.interrupt = added_elsewhere(many, HERE[2])
    documents = [Document(docno, "a new text") for docno in HERE[:4]]
    with pytest.raises(DuplicateDocumentError, match=f"document 3: docno '{HERE[2]}' is in the index already"):
        many.add(documents)
    many.refresh()
    assert len(many) == 2
    assert many.get(HERE[2]).text == "added elsewhere"


def test_if_one_shard_refuses_the_error_names_what_the_others_have_added(
    many: ShardedIndex, encoder: InterruptedEncoder
) -> None:
    encoder.interrupt = added_elsewhere(many, HERE[2])
    documents = [Document(docno, "a new text") for docno in [*HERE[:4], *THERE[:3]]]
    with pytest.raises(PartlyWrittenError, match=r"1 of 2 shards were changed, but not shard-0000") as caught:
        many.add(documents)
    assert caught.value.written == tuple(THERE[:3])
    assert caught.value.not_written == tuple(HERE[:4])
    for docno in (*THERE[:3], *HERE[:4]):
        assert repr(docno) in str(caught.value)
    many.refresh()
    assert {document.docno for document in many.documents()} == {"first", HERE[2], *THERE[:3]}
    rest = [document for document in documents if document.docno in caught.value.not_written]
    assert many.add(rest, on_bad=lambda problem: None).added == 3
    assert many.get(HERE[2]).text == "added elsewhere"


def test_over_http_a_partly_refused_addition_is_a_conflict_that_names_what_was_added(
    many: ShardedIndex, encoder: InterruptedEncoder
) -> None:
    encoder.interrupt = added_elsewhere(many, HERE[2])
    documents = [{"docno": docno, "text": "a new text"} for docno in [*HERE[:4], *THERE[:3]]]
    with TestClient(create_app({"many": many}, access=Access(ApiKeys([KEY]))), headers=BEARER) as client:
        refused = client.post("/v1/indexes/many/documents", json={"documents": documents})
    assert refused.status_code == 409
    added, not_added = refused.json()["detail"].split(". Not added: ")
    assert all(repr(docno) in added for docno in THERE[:3])
    assert all(repr(docno) in not_added for docno in HERE[:4])


def test_a_docno_added_elsewhere_after_the_check_is_skipped_and_reported_with_on_bad(
    many: ShardedIndex, encoder: InterruptedEncoder
) -> None:
    encoder.interrupt = added_elsewhere(many, THERE[1])
    problems: list[str] = []
    documents = [Document(docno, "a new text") for docno in ("first", *HERE[:2], *THERE[:2])]
    assert many.add(documents, on_bad=problems.append) == Changes(added=3)
    assert problems == [
        "document 1: docno 'first' is in the index already: to replace it, update",
        f"document 5: docno '{THERE[1]}' is in the index already: to replace it, update",
    ]
    assert many.get(THERE[1]).text == "added elsewhere"


def test_an_update_counts_what_was_added_elsewhere_as_replaced(many: ShardedIndex, encoder: InterruptedEncoder) -> None:
    encoder.interrupt = added_elsewhere(many, HERE[0])
    assert many.update([Document(HERE[0], "mine"), Document(THERE[0], "mine")]) == Changes(added=1, replaced=1)
    assert many.get(HERE[0]).text == "mine"


def apply(path: Path, change: Callable[[Writer], Changes]) -> Changes:
    with Index(path) as index, writing(path, index.snapshot, False) as writer:
        return change(writer)


def test_a_write_that_comes_again_under_its_id_is_answered_again_and_not_done_again(tmp_path: Path) -> None:
    path = tmp_path / "one.sec"
    documents = random_documents(20)
    Index.build(path, documents[:5], encoder=None)
    items = [(f"place {i}", document) for i, document in enumerate(documents[:12])]
    problems: list[str] = []
    writes: list[tuple[Callable[[Writer], Changes], Changes]] = [
        (lambda writer: writer.add(items, None, problems.append, False, "add"), Changes(added=7)),
        (lambda writer: writer.add(items[10:12], None, None, True, "update"), Changes(replaced=2)),
        (lambda writer: writer.delete(["d003", "none"], "delete"), Changes(deleted=1, missing=("none",))),
    ]
    for change, changes in writes:
        assert apply(path, change) == changes
    commit = Index(path).manifest.commit
    reported, problems[:] = problems.copy(), []
    for change, changes in writes:  # others have written meanwhile
        assert apply(path, change) == changes
    assert problems == reported
    assert len(problems) == 5
    assert Index(path).manifest.commit == commit
    assert len(Index(path)) == 11
    Index(path).compact()
    assert apply(path, writes[0][0]) == Changes(added=7)


def test_the_latest_writes_are_recorded_and_the_record_stays_small() -> None:
    rng = np.random.default_rng(0)
    writes: dict[str, str] = {}
    recorded = {}
    for number in range(300):
        present = (rng.random(number % 20) < 0.5).tolist()
        writes = with_write(writes, f"{number}", present)
        recorded[f"{number}"] = present
    assert list(writes) == [f"{number}" for number in range(172, 300)]
    for write_id in writes:
        assert present_before(writes, write_id, len(recorded[write_id])) == recorded[write_id]
    assert present_before(writes, "0", 3) is None
    large = (rng.random(4_000_000) < 0.5).tolist()
    writes = with_write(with_write(writes, "large", large), "larger", large)
    assert list(writes)[-1] == "larger"
    assert "large" not in writes
    assert present_before(writes, "larger", len(large)) == large


def test_writes_go_to_the_shard_of_the_docno_and_nothing_is_lost(tmp_path: Path) -> None:
    documents = random_documents(60)
    path = make_shards(tmp_path / "many.sec", documents[:30], 3)
    with ShardedIndex(path) as many:
        assert many.add(documents[30:]).added == 30
        changed = [replace(document, text="changed") for document in documents[10:20]]
        fresh = Document("fresh", "a text", {}, documents[0].encoded)
        changes = many.update([*changed, fresh])
        assert (changes.added, changes.replaced) == (1, 10)
        changes = many.delete(["d000", "absent", "d030", "gone"])
        assert (changes.deleted, changes.missing) == (2, ("absent", "gone"))
        assert len(many) == 59
        assert many.get("d015").text == "changed"
        many.compact()
        many.check()
        assert len(many) == 59
        assert many.info()["documents"] == 59
    held = {}
    for number, name in enumerate(shard_names(3)):
        for document in Index(path / name).documents():
            assert shard_of(document.docno, 3) == number
            assert document.docno not in held
            held[document.docno] = document.text
    expected = {document.docno: document.text for document in documents} | {"fresh": "a text"}
    expected |= {document.docno: "changed" for document in changed}
    del expected["d000"], expected["d030"]
    assert held == expected


def test_a_batch_with_a_bad_or_duplicate_document_changes_no_shard(tmp_path: Path) -> None:
    documents = random_documents(30)
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents[:20], 3)) as many:
        with pytest.raises(DuplicateDocumentError, match=r"document 3: docno 'd005' is in the index already"):
            many.add([documents[25], documents[26], documents[5]])
        with pytest.raises(DuplicateDocumentError, match=r"document 2: docno 'd025' is already that of document 1"):
            many.add([documents[25], documents[25]])
        with pytest.raises(BadDocumentError, match=r"document 2: no docno"):
            many.update([documents[25], {"text": "no name"}])
        assert len(many) == 20
        problems: list[str] = []
        assert many.add([documents[25], documents[5], {"text": "no name"}], on_bad=problems.append).added == 1
        assert len(problems) == 2
        with pytest.raises(BadDocumentError, match="document 1: text of 'empty' is empty"):
            many.update([{"docno": "empty", "text": " "}])
        assert len(many) == 21


@pytest.mark.parametrize("wrong", [None, random_text(np.random.default_rng(0), 3, dim=7)])
def test_a_batch_with_missing_or_wrong_embeddings_changes_no_shard(tmp_path: Path, wrong: EncodedText | None) -> None:
    documents = random_documents(30)
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents[:20], 2)) as many:
        for write in (many.add, many.update):
            with pytest.raises(UsageError, match=r"document 11: 'odd' has (no embeddings|embeddings of 7 dimensions)"):
                write([*documents[20:], Document("odd", "a text", {}, wrong)])
        assert len(many) == 20


def test_an_empty_shard_refuses_embeddings_of_other_dimensions_than_the_collection(tmp_path: Path) -> None:
    here = [document for document in random_documents(30) if shard_of(document.docno, 2) == 0]
    there = next(f"e{i}" for i in range(30) if shard_of(f"e{i}", 2) == 1)
    odd = Document(there, "a text", {}, random_text(np.random.default_rng(0), 3, dim=7))
    with ShardedIndex(make_shards(tmp_path / "many.sec", here, 2)) as many:
        with pytest.raises(UsageError, match="7 dimensions"):
            many.add([odd])
        assert many.add([replace(odd, encoded=here[0].encoded)]).added == 1
        assert len(many.search(here[0].encoded, k=50, effort="exact")) == len(here) + 1  # type: ignore[arg-type]


def test_writes_to_a_collection_that_was_replaced_are_refused(tmp_path: Path) -> None:
    documents = random_documents(30)
    path = make_shards(tmp_path / "many.sec", documents[:20], 2)
    with ShardedIndex(path) as many:
        make_shards(tmp_path / "other.sec", documents, 3)
        for name in shard_names(3):
            (tmp_path / "other.sec" / name).rename(path / f"{name}-new")
        Layout(tuple(ShardRecord(f"{name}-new") for name in shard_names(3)), "a test").write(path)
        for change in (
            lambda: many.add(documents[20:]),
            lambda: many.update(documents[20:]),
            lambda: many.delete(["d001"]),
            many.compact,
            many.refresh,
        ):
            with pytest.raises(SecateursError, match="was built anew since it was opened: open it again"):
                change()
        assert len(many.search(documents[0].encoded, k=50, effort="exact")) == 20  # type: ignore[arg-type]


def test_a_write_that_a_shard_cannot_do_names_what_was_written_and_what_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(30)
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents[:20], 2)) as many:

        def full(*arguments: object) -> None:
            raise OSError("no space left")

        with monkeypatch.context() as broken:
            broken.setattr(many._shards.backend.shards[1], "add", full)  # type: ignore[attr-defined]
            with pytest.raises(
                PartlyWrittenError, match=r"1 of 2 shards .* not shard-0001 \(no space left\)"
            ) as caught:
                many.add(documents[20:])
        assert caught.value.written == tuple(d.docno for d in documents[20:] if shard_of(d.docno, 2) == 0)
        assert caught.value.not_written == tuple(d.docno for d in documents[20:] if shard_of(d.docno, 2) == 1)
        assert "do the same again, an addition as an update" in str(caught.value)
        added = len(many) - 20
        assert 0 < added < 10
        changes = many.update(documents[20:])
        assert (changes.added, changes.replaced) == (10 - added, added)
        assert len(many) == 30


def test_searches_are_answered_while_every_shard_waits_to_write(tmp_path: Path) -> None:
    documents = random_documents(40)
    path = make_shards(tmp_path / "many.sec", documents, 8)
    query = random_text(np.random.default_rng(1), 4)
    with ShardedIndex(path) as many, ThreadPoolExecutor(12) as pool:
        expected = many.search(query, k=40).hits
        with ExitStack() as locks:
            for name in shard_names(8):
                locks.enter_context(write_lock(path / name))
            compacting = pool.submit(many.compact)
            adding = pool.submit(ShardedIndex(path).add, NEW)
            searches = [pool.submit(many.search, query, k=40) for _ in range(10)]
            assert [search.result(timeout=60).hits for search in searches] == [expected] * 10
            assert not compacting.done()
            assert not adding.done()
        compacting.result(timeout=60)
        assert adding.result(timeout=60).added == len(NEW)
        many.refresh()
        many.check()
        assert len(many) == 48


def test_a_search_over_shards_stops_when_it_is_cancelled(tmp_path: Path) -> None:
    from threading import Event

    from secateurs.cancellation import cancelled_by
    from secateurs.errors import CancelledError

    stop = Event()
    stop.set()
    with ShardedIndex(make_shards(tmp_path / "many.sec", random_documents(10), 2)) as many, cancelled_by(stop):
        for partial in (False, True):
            with pytest.raises(CancelledError):
                many.search(random_text(np.random.default_rng(1), 4), partial=partial)
    assert issubclass(CancelledError, SecateursError)
