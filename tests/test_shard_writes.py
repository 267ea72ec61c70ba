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
from test_sharded import make_shards

from secateurs import Document, EncodedText, Index
from secateurs.cluster.layout import shard_names, shard_of
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.errors import DuplicateDocumentError, PartlyWrittenError, SecateursError
from secateurs.hashing import hash_of
from secateurs.records import Changes
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
