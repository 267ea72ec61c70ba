"""Adding, replacing, deleting and compacting: the index always equals one built from its present documents."""

import multiprocessing
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import build_random, random_documents, random_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Index, SecateursError
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DuplicateDocumentError, EncoderMismatchError, LockedIndexError, UsageError
from secateurs.frequencies import Frequencies
from secateurs.storage import changes as writing
from secateurs.storage import locks
from secateurs.storage.compaction import clips_too_much, has_outgrown, to_merge
from secateurs.storage.manifest import CodebookRecord, DeletionsRecord, Manifest, SegmentRecord

STORED = Path(__file__).parent / "data"


def document(docno: str, seed: int, tokens: int = 4, **metadata: Any) -> Document:
    return Document(docno, f"text of {docno}, {seed}", metadata, random_text(np.random.default_rng(seed), tokens))


def ranking_of(index: Index, query: EncodedText, **how: Any) -> list[tuple[str, float]]:
    return [(hit.docno, hit.score) for hit in index.search(query, k=max(len(index), 1), gather="exhaustive", **how)]


def folders(path: Path) -> set[tuple[str, str]]:
    return {(f.parent.name, f.name) for part in ("segments", "codebooks", "deletions") for f in (path / part).glob("*")}


Step = tuple[str, tuple[int, ...]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "update", "delete", "compact", "reopen"]),
        st.lists(st.integers(0, 15), min_size=1, max_size=6, unique=True).map(tuple),
    ),
    min_size=1,
    max_size=10,
)


@given(STEPS, st.sampled_from(["float16", "int8", "int16", "residual4"]), st.sampled_from([("cells",), ("faiss",)]))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_changes_the_index_is_that_of_its_documents(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[Step], store: str, gather: tuple[str, ...]
) -> None:
    path = tmp_path_factory.mktemp("living") / "i.sec"
    index = Index.build(path, [document("d0", 0)], encoder=None, store=store, gather=gather)
    held = {"d0": document("d0", 0)}
    for turn, (verb, numbers) in enumerate(steps, start=1):
        given_documents = [document(f"d{number}", 100 * turn + number, number % 5) for number in numbers]
        if verb == "add":
            fresh = [item for item in given_documents if item.docno not in held]
            assert index.add(fresh).added == len(fresh)
            held |= {item.docno: item for item in fresh}
        elif verb == "update":
            known = {item.docno for item in given_documents} & held.keys()
            changes = index.update(given_documents)
            assert (changes.added, changes.replaced) == (len(given_documents) - len(known), len(known))
            held |= {item.docno: item for item in given_documents}
        elif verb == "delete":
            known = {item.docno for item in given_documents} & held.keys()
            changes = index.delete([item.docno for item in given_documents])
            assert changes.deleted == len(known)
            assert set(changes.missing) == {item.docno for item in given_documents} - known
            held = {docno: item for docno, item in held.items() if docno not in known}
        elif verb == "compact":
            index.compact()
            assert len(index.snapshot.segments) == 1
        else:
            index = Index(path)
        assert len(index) == len(held)
    index.check()
    assert {docno for docno, _ in ranking_of(index, random_text(np.random.default_rng(1), 3))} == {
        docno for docno, item in held.items() if item.encoded is not None and len(item.encoded)
    }
    for docno, item in held.items():
        assert index.get(docno) == Document(docno, item.text, item.metadata)
    fresh_index = Index.build(path.parent / "fresh.sec", held.values(), encoder=None, store=store, gather=gather)
    for name in ("token_ids", "collection", "document"):
        assert np.array_equal(getattr(index.frequencies, name), getattr(fresh_index.frequencies, name))
    if store == "float16":  # whose rows do not depend on what was learnt
        for seed in range(3):
            query = random_text(np.random.default_rng(seed), 5)
            assert ranking_of(index, query) == ranking_of(fresh_index, query)
    assert folders(path) == set(index.manifest.named())


def test_new_documents_are_found_by_every_index_opened_or_refreshed_afterwards(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 300)
    other = Index(tmp_path / "i.sec")
    new = document("new", 5)
    assert new.encoded is not None
    index.add([new])
    for gather in ("cells", "exhaustive"):
        assert index.search(new.encoded, gather=gather)[0].docno == "new"
    assert other.search(new.encoded)[0].docno != "new"  # still on the state it opened
    assert other.refresh()
    assert other.search(new.encoded)[0].docno == "new"
    assert not other.refresh()
    assert Index(tmp_path / "i.sec").search(new.encoded)[0].docno == "new"


def test_text_is_encoded_with_the_encoder_of_the_index(tmp_path: Path, encoder: OnnxEncoder) -> None:
    Index.build(tmp_path / "i.sec", [{"docno": "cats", "text": "Cats sleep all day."}], encoder=encoder)
    index = Index(tmp_path / "i.sec")
    index.add([{"docno": "fish", "text": "Goldfish grow as large as their pond lets them.", "year": 2020}])
    assert index.search("do goldfish grow")[0].docno == "fish"
    index.update([{"docno": "fish", "text": "Salmon swim up the river."}])
    assert index.get("fish") == Document("fish", "Salmon swim up the river.")
    assert len(index) == 2


def test_the_codebook_stays_and_only_small_segments_are_written(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 400)
    before = index.manifest
    index.add([document("one", 1)])
    index.add([document("two", 2)])
    assert index.manifest.codebook == before.codebook
    assert index.manifest.segments[0] == before.segments[0]
    assert [record.documents for record in index.manifest.segments[1:]] == [1, 1]


def test_many_small_adds_leave_few_segments_and_one_codebook(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 300, gather=("cells", "faiss"))
    for number in range(40):
        index.add([document(f"new{number}", number)])
        assert len(index.snapshot.segments) <= 4
    assert len(index) == 340
    index.check()
    assert folders(tmp_path / "i.sec") == set(index.manifest.named())
    for number in range(40):
        query = document(f"new{number}", number).encoded
        assert query is not None
        assert index.search(query, gather="cells")[0].docno == f"new{number}"
        assert index.search(query, gather="faiss")[0].docno == f"new{number}"


def test_merged_cells_are_the_cells_of_the_segments(tmp_path: Path) -> None:
    """Before and after a merge the same documents are found, with the same approximate scores."""
    index = build_random(tmp_path / "i.sec", 300)
    for number in range(2):
        index.add([document(f"new{number}-{i}", 10 * number + i) for i in range(5)])
    index.delete(["new0-3"])
    queries = [random_text(np.random.default_rng(seed), 4) for seed in range(20)]
    assert len(index.snapshot.segments) == 3
    before = [index.search(query, gather="cells", nprobe=4, candidates=50) for query in queries]
    index.add([document("last", 99)])  # the fourth of its size
    assert len(index.snapshot.segments) == 1
    index.delete(["last"])
    for query, was in zip(queries, before, strict=True):
        now = index.search(query, gather="cells", nprobe=4, candidates=50)
        assert now.hits == was.hits
        assert now.stats.documents_gathered == was.stats.documents_gathered


def test_a_collection_that_outgrows_its_codebook_gets_another(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 40)
    before = index.manifest.codebook
    for seed in range(4):
        index.add([Document(f"{seed}-{d.docno}", encoded=d.encoded) for d in random_documents(40, seed=seed + 1)])
    assert index.manifest.codebook.name != before.name
    assert index.manifest.codebook.embeddings > before.embeddings
    assert len(index) == 200


def manifest_of(
    *sizes: int, learnt: int = 10_000, deleted: int = 0, spread: float = 100, clipped: float = 0
) -> Manifest:
    gone = DeletionsRecord("gone", 1, deleted, 0, {}) if deleted else None
    records = tuple(
        SegmentRecord(
            *(str(i), size, size, size, 0, {}, 64, 4096, None, spread, clipped),
            unit=True,
            deletions=gone if i == 0 else None,
        )
        for i, size in enumerate(sizes)
    )
    return Manifest(8, "int8", ("cells",), None, 1, {}, CodebookRecord("c", learnt, 0.1, 100.0, {}), records, "test")


def test_what_is_rewritten_and_when() -> None:
    assert not has_outgrown(manifest_of(10_000, 30_000))
    assert has_outgrown(manifest_of(10_000, 30_001))  # grown fourfold
    assert has_outgrown(manifest_of(10_000, deleted=8_751))  # an eighth is left
    assert has_outgrown(manifest_of(10_000, spread=151))
    assert not clips_too_much(manifest_of(10_000, clipped=0.0001), 10, 0.25)
    assert clips_too_much(manifest_of(10_000, clipped=0.0001), 1_000, 0.01)
    assert not has_outgrown(manifest_of())
    assert to_merge(manifest_of(100_000, 10, 10, 10)) == []
    assert to_merge(manifest_of(100_000, 10, 10, 10, 4_000)) == ["1", "2", "3", "4"]
    assert to_merge(manifest_of(100_000, 10, 10, 10, 20_000)) == []  # the last is of another size
    assert to_merge(manifest_of(100_000, 10, deleted=33_333)) == []
    assert to_merge(manifest_of(100_000, 10, deleted=33_334)) == ["0"]


def test_importance_follows_the_collection(tmp_path: Path) -> None:
    def text(*ids: int) -> EncodedText:
        vectors = np.eye(8, dtype=np.float32)[list(ids)]
        return EncodedText(vectors, ids, [0] * len(ids))

    common = [Document(f"c{i}", encoded=text(1)) for i in range(3)]
    index = Index.build(tmp_path / "i.sec", [*common, Document("rare", encoded=text(2))], encoder=None)
    query = text(1, 2)
    assert index.search(query, p=1, order="icf").kept == (1,)
    index.add([Document(f"r{i}", encoded=text(2)) for i in range(5)])
    assert index.search(query, p=1, order="icf").kept == (0,)
    index.delete([f"r{i}" for i in range(4)])
    assert index.search(query, p=1, order="icf").kept == (1,)
    assert index.frequencies.collection_frequency([1, 2]).tolist() == [3, 2]


def test_a_docno_that_is_there_already_adds_nothing_at_all(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    with pytest.raises(DuplicateDocumentError, match=r"document 2: docno 'd003' is in the index already: .* update"):
        index.add([document("new", 1), document("d003", 2)])
    assert len(index) == 5
    assert "new" not in index
    assert folders(tmp_path / "i.sec") == set(index.manifest.named())
    bad: list[str] = []
    assert index.add([document("new", 1), document("d003", 2)], on_bad=bad.append).added == 1
    assert len(bad) == 1


@pytest.mark.parametrize("verb", ["add", "update"])
def test_a_docno_twice_in_one_change_is_an_error_that_names_both(tmp_path: Path, verb: str) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    with pytest.raises(DuplicateDocumentError, match="document 3: docno 'x' is already that of document 1"):
        getattr(index, verb)([document("x", 1), document("y", 2), document("x", 3)])
    assert len(index) == 5


def test_deleting_what_is_not_there_is_reported(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    changes = index.delete(["d001", "missing", "d001"])
    assert changes.deleted == 1
    assert changes.missing == ("missing",)
    assert index.delete("d002").deleted == 1  # one docno is not a list of letters
    assert index.delete("d002").missing == ("d002",)
    with pytest.raises(UsageError, match="a docno is a text, not 3"):
        index.delete([3])  # type: ignore[list-item]


def test_deleting_reads_only_the_documents_concerned(tmp_path: Path) -> None:
    """Other documents may even be damaged: nothing of them is read."""
    rng = np.random.default_rng(0)
    items = [Document(f"d{i:04}", f"needle{i:04}", {"i": i}, random_text(rng, 5)) for i in range(1500)]
    path = tmp_path / "i.sec"
    Index.build(path, items, encoder=None)
    (segment,) = (path / "segments").iterdir()
    tokens = bytearray((segment / "token_ids.npy").read_bytes())
    tokens[-1] ^= 1  # of the last document, in another block than those of the first ones
    (segment / "token_ids.npy").write_bytes(tokens)
    database = (segment / "documents.sqlite").read_bytes()
    assert database.count(b"needle1400") == 1
    (segment / "documents.sqlite").write_bytes(database.replace(b"needle1400", b"noodle1400"))
    index = Index(path)
    assert index.delete([f"d{i:04}" for i in range(10)]).deleted == 10
    assert len(index) == 1490
    with pytest.raises(SecateursError, match="altered"):
        index.delete(["d1400"])
    with pytest.raises(SecateursError, match="altered"):  # that there is none is certain only if nothing is damaged
        index.delete(["missing"])


def test_deleted_and_replaced_documents_are_no_longer_counted_as_cut(tmp_path: Path) -> None:
    def cut(docno: str, tokens: int) -> Document:
        text = random_text(np.random.default_rng(0), 4)
        return Document(docno, "", {}, EncodedText(text.embeddings, text.token_ids, text.token_kinds, cut=tokens))

    index = Index.build(tmp_path / "i.sec", [cut(f"d{i:02}", i % 2) for i in range(40)], encoder=None)
    assert index.info()["cut_documents"] == 20
    index.delete(["d01", "d02"])
    index.delete(["d03", "d04"])
    assert index.info()["cut_documents"] == 18
    index.update([cut("d05", 0), cut("d06", 7)])
    assert index.info()["cut_documents"] == 18
    index.compact()
    assert index.info()["cut_documents"] == 18
    kept = {document.docno: document.encoded.cut for document in index.documents() if document.encoded is not None}
    assert kept == {f"d{i:02}": i % 2 for i in range(7, 40)} | {"d00": 0, "d05": 0, "d06": 7}
    index.check()


def test_half_a_character_among_docnos_hides_no_other(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    assert index.delete(["d001", "\ud800"]).deleted == 1


def test_a_deleted_document_is_found_by_no_way_of_gathering_and_its_docno_is_free(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 300, gather=("cells", "faiss"))
    query = random_documents(300)[123].encoded
    assert query is not None
    for gather in ("cells", "faiss", "exhaustive"):
        assert index.search(query, gather=gather)[0].docno == "d123"
    index.delete(["d123"])
    for gather in ("cells", "faiss", "exhaustive"):
        assert "d123" not in {hit.docno for hit in index.search(query, k=300, gather=gather)}
    assert "d123" not in index
    with pytest.raises(SecateursError, match="no document 'd123'"):
        index.explain(query, "d123")
    index.add([document("d123", 1)])  # the docno is free again
    assert index.get("d123").text == "text of d123, 1"


def test_an_index_can_be_emptied_and_filled_again(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    index.delete([f"d{i:03}" for i in range(5)])
    assert len(index) == len(index.search(random_text(np.random.default_rng(0), 2))) == 0
    index.compact()
    index.add([document("again", 3)])
    assert [docno for docno, _ in ranking_of(Index(tmp_path / "i.sec"), random_text(np.random.default_rng(0), 2))] == [
        "again"
    ]


@pytest.mark.parametrize("store", ["int8", "int16", "float16", "residual4"])
def test_an_index_of_nothing_can_be_added_to(tmp_path: Path, store: str) -> None:
    index = Index.build(tmp_path / "i.sec", [], encoder=None, store=store)
    index.add(random_documents(20))
    assert len(index.search(random_text(np.random.default_rng(0), 2))) == 10
    index.check()


def test_embeddings_of_another_dimension_are_refused(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    with pytest.raises(UsageError, match="8 dimensions, those before it of 16"):
        index.add([Document("new", encoded=random_text(np.random.default_rng(0), 2, dim=8))])
    assert len(index) == 5
    assert folders(tmp_path / "i.sec") == set(index.manifest.named())


@pytest.mark.parametrize("name", sorted(path.name for path in STORED.glob("format-*") if path.is_dir()))
def test_an_index_of_every_released_format_can_be_changed(name: str, tmp_path: Path) -> None:
    shutil.copytree(STORED / name, tmp_path / "i.sec")
    index = Index(tmp_path / "i.sec")
    query = random_text(np.random.default_rng(2), 5, 8)
    before = ranking_of(index, query)
    new = Document("new", encoded=random_text(np.random.default_rng(9), 4, 8))
    index.add([new])
    index.delete(["new"])
    assert [docno for docno, _ in ranking_of(index, query)] == [docno for docno, _ in before]
    assert [score for _, score in ranking_of(index, query)] == pytest.approx([score for _, score in before], abs=0.1)
    assert index.get("d3 ü") == Document("d3 ü", "text 3", {"i": 3})
    index.check()


def test_a_writer_waits_for_another_and_says_when_it_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: Index(tmp_path / "i.sec").add([document(f"t{i}", i)]), range(8)))
    assert index.refresh()
    assert len(index) == 13
    monkeypatch.setattr(locks.write_lock.__wrapped__, "__defaults__", (0.1,))  # type: ignore[attr-defined]
    with locks.write_lock(tmp_path / "i.sec"), pytest.raises(LockedIndexError, match="try again later"):
        index.delete(["d001"])


def test_a_writer_that_waits_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    monkeypatch.setattr(locks, "_SILENCE", 0.1)
    with ThreadPoolExecutor(1) as pool:
        with locks.write_lock(tmp_path / "i.sec"):
            waiting = pool.submit(index.delete, ["d001"])
            while not caplog.records:
                time.sleep(0.01)
            time.sleep(0.1)
        assert waiting.result().deleted == 1
    (record,) = caplog.records
    assert record.name == "secateurs"
    assert record.levelname == "WARNING"
    assert "i.sec: another process is writing to it: waiting up to 60 s" in record.getMessage()


def test_readers_keep_their_state_while_everything_is_rewritten(tmp_path: Path) -> None:
    """Also files that they have not opened yet; and files that no reader uses are removed by the next change."""
    path = tmp_path / "i.sec"
    writer = build_random(path, 300, gather=("cells", "faiss"))
    query = random_text(np.random.default_rng(9), 3)
    expected = {gather: writer.search(query, gather=gather).hits for gather in ("cells", "faiss", "exhaustive")}
    reader = Index(path)
    held = set(reader.manifest.named())
    for turn in range(3):
        writer.update([document(f"d{i:03}", turn) for i in range(0, 300, 2)])
        writer.compact()
    for gather, hits in expected.items():
        assert reader.search(query, gather=gather).hits == hits
    reader.check()
    assert held <= folders(path)
    del reader
    writer.delete(["d000"])
    assert folders(path) == set(writer.manifest.named())


def test_searches_go_on_while_the_index_changes(tmp_path: Path) -> None:
    """Every ranking is that of one state: all documents of a generation are there, or none of them."""
    path = tmp_path / "i.sec"
    vector = random_text(np.random.default_rng(0), 3)

    def generation(number: int) -> list[Document]:
        return [Document(f"d{i}", f"{number}", {"generation": number}, vector) for i in range(20)]

    index = Index.build(path, generation(0), encoder=None)
    done: list[bool] = []

    def look(reader: Index) -> int:
        looked = 0
        while not done or not looked:
            reader.refresh()
            hits = reader.search(vector, k=30)
            assert len(hits) == 20
            assert len({hit.metadata["generation"] for hit in hits}) == 1
            looked += 1
            time.sleep(0.002)  # or the readers leave the writer no time
        return looked

    with ThreadPoolExecutor(3) as pool:
        looking = [pool.submit(look, reader) for reader in (index, Index(path), Index(path))]
        for number in range(1, 25):
            index.update(generation(number))
            if number % 8 == 0:
                index.compact()
        done.append(True)
        assert all(future.result() > 0 for future in looking)


@pytest.mark.parametrize("verb", ["add", "delete", "compact"])
def test_an_interruption_just_after_the_commit_loses_nothing(
    tmp_path: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build_random(tmp_path / "i.sec", 20)
    change = {
        "add": lambda: index.add([document("new", 1)]),
        "delete": lambda: index.delete(["d003"]),
        "compact": lambda: index.compact(),
    }[verb]
    real = Manifest.write

    def interrupted(self: Manifest, folder: Path) -> None:
        real(self, folder)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Manifest, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            change()
    again = Index(tmp_path / "i.sec")
    again.check()
    assert len(again) == {"add": 21, "delete": 19, "compact": 20}[verb]


def test_a_change_whose_tidying_fails_is_committed_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build_random(tmp_path / "i.sec", 300)
    for number in range(2):
        index.add([document(f"n{number}", number)])

    def full(*arguments: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "merge", full)
        with pytest.warns(UserWarning, match=r"no space left on device\): the next change tries again"):
            assert index.add([document("n2", 2)]).added == 1
    assert "n2" in Index(tmp_path / "i.sec")
    assert len(index.snapshot.segments) == 4
    index.add([document("n3", 3)])
    assert len(index.snapshot.segments) == 1
    assert folders(tmp_path / "i.sec") == set(index.manifest.named())


def test_embeddings_beyond_the_scale_bring_a_new_scale_and_are_not_cut_off(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)

    def documents_of_width(name: str, count: int, width: float) -> list[Document]:
        return [
            Document(f"{name}{i}", encoded=EncodedText(rng.normal(0, width, (6, 16)), [1] * 6, [0] * 6))
            for i in range(count)
        ]

    small, large = documents_of_width("s", 200, 1), documents_of_width("l", 40, 3)
    index = Index.build(tmp_path / "i.sec", small, encoder=None)
    index.add(large)
    at_once = Index.build(tmp_path / "f.sec", [*small, *large], encoder=None)
    query = EncodedText(rng.normal(0, 1, (4, 16)), [1] * 4, [0] * 4)
    expected = dict(ranking_of(at_once, query))
    assert dict(ranking_of(index, query)) == pytest.approx(expected, abs=1)
    settled = index.manifest.codebook
    for item in documents_of_width("again", 5, 3):
        index.add([item])
    assert index.manifest.codebook == settled


class Other:
    """Another encoder of the same dimension."""

    dim = 16

    def __init__(self, name: str) -> None:
        self.spec = {"kind": "mine", "model": name, "fingerprint": name}

    def encode_query(self, text: str) -> EncodedText:
        return random_text(np.random.default_rng(len(text)), 3)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        return map(self.encode_query, texts)

    def token_text(self, token_id: int) -> str:
        return str(token_id)


def test_an_index_that_was_replaced_by_one_of_another_encoder_is_not_mixed_with_it(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", [{"docno": "a", "text": "a"}], encoder=Other("one"))
    Index.build(tmp_path / "i.sec", [{"docno": "b", "text": "b"}], encoder=Other("two"), overwrite=True)
    for change in (index.refresh, lambda: index.add([{"docno": "c", "text": "c"}])):
        with pytest.raises(EncoderMismatchError, match="open it again"):
            change()
    assert [hit.docno for hit in index.search("a")] == ["a"]
    assert len(Index(tmp_path / "i.sec")) == 1


def test_an_open_index_never_goes_back_to_an_earlier_state(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    early = index.snapshot
    index.add([document("new", 1)])
    assert not index.refresh()
    assert not index._move_to(early)  # a thread that opened it before the add and comes back late
    assert "new" in index


@pytest.mark.skipif(os.name == "nt", reason="forks")
def test_a_process_forked_during_a_change_does_not_keep_the_lock(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    children = []

    def forking() -> Iterator[Document]:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        child.start()
        children.append(child)
        yield document("new", 1)

    try:
        index.add(forking())
        index.add([document("newer", 2)])
    finally:
        children[0].kill()
    assert len(index) == 7


def test_a_duplicate_in_a_file_is_named_with_both_its_lines(tmp_path: Path, encoder: OnnxEncoder) -> None:
    index = Index.build(tmp_path / "i.sec", [], encoder=encoder)
    (tmp_path / "c.tsv").write_text("a\tone\n\nb\ttwo\na\tthree\n")
    with pytest.raises(DuplicateDocumentError, match=r"c\.tsv, line 4: docno 'a' is already that of .*c\.tsv, line 1"):
        index.add(tmp_path / "c.tsv")


def test_subtracting_frequencies_undoes_adding_them() -> None:
    counted = Frequencies.from_counts({1: 2, 5: 3}, {1: 1, 5: 2})
    more = Frequencies.from_counts({1: 1, 7: 4}, {1: 1, 7: 1})
    left = (counted + more) - counted
    assert left.token_ids.tolist() == [1, 7]
    assert left.collection.tolist() == [1, 4]
    assert left.document.tolist() == [1, 1]


def test_a_change_during_which_the_index_is_closed_is_committed_without_an_error(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 20)

    def documents() -> Iterator[Document]:
        yield document("new", seed=7)
        index.close()

    assert index.add(documents()).added == 1
    with pytest.raises(SecateursError, match="is closed"):
        len(index)
    assert "new" in Index(tmp_path / "i.sec")
