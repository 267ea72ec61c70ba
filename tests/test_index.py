"""Building and opening an index, and what it refuses."""

import gc
import hashlib
import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from conftest import build_random, random_documents, random_text
from hypothesis import given, settings
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Index, SecateursError
from secateurs.cluster.layout import Layout, ShardRecord
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DamagedIndexError, EncoderMismatchError, UsageError
from secateurs.settings import STORES
from secateurs.storage.manifest import FORMAT_VERSION, MANIFEST
from secateurs.storage.repair import repair


def test_a_ranking_is_the_same_after_closing_and_opening(index_path: Path, index: Index, encoder: OnnxEncoder) -> None:
    for how in ({}, {"p": 3}, {"p": 2, "order": "first"}, {"gather": "exhaustive"}):
        ranking = index.search("read a zip archive", **how)  # type: ignore[arg-type]
        again = Index(index_path, encoder).search("read a zip archive", **how)  # type: ignore[arg-type]
        assert ranking.hits == again.hits
        assert len(ranking) == 10


@given(
    st.integers(0, 10_000), st.lists(st.integers(0, 9), min_size=1, max_size=12), st.sampled_from(["int8", "float16"])
)
@settings(max_examples=25, deadline=None)
def test_saving_and_opening_changes_no_ranking(
    tmp_path_factory: pytest.TempPathFactory, seed: int, lengths: list[int], store: str
) -> None:
    rng = np.random.default_rng(seed)
    items = [Document(f"d{i}", encoded=random_text(rng, length)) for i, length in enumerate(lengths)]
    path = tmp_path_factory.mktemp("saved") / "i.sec"
    built = Index.build(path, items, encoder=None, store=store)
    opened = Index(path)
    for p in (1, 3, None):
        query = random_text(rng, 5)
        assert opened.search(query, p=p).hits == built.search(query, p=p).hits
        assert len(opened.search(query, p=p, gather="exhaustive")) == min(10, sum(length > 0 for length in lengths))


def test_an_index_loads_its_own_encoder_when_asked_with_text(index_path: Path, index: Index) -> None:
    assert Index(index_path).search("a lock", k=3).hits == index.search("a lock", k=3).hits


def test_documents_come_back_with_text_and_metadata(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec")
    assert index.get("d007") == Document("d007", "text 7", {"i": 7})
    assert "d007" in index
    assert "d999" not in index
    with pytest.raises(SecateursError, match="no document 'd999'"):
        index.get("d999")


def test_info_counts_what_is_there(tmp_path: Path) -> None:
    facts = build_random(tmp_path / "i.sec", 14).info()
    assert facts["documents"] == 14
    assert facts["embeddings"] == 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7)
    assert facts["store"] == "int8"
    assert facts["bytes"] == sum(f.stat().st_size for f in (tmp_path / "i.sec").glob("*/*/*"))


def test_unusual_docnos_are_kept_to_the_letter(tmp_path: Path) -> None:
    names = ["a b", "ä/ö", "💐", "'; DROP TABLE documents; --", "007", "7", "two\nlines", "nul\0nul", " "]
    rng = np.random.default_rng(0)
    index = Index.build(tmp_path / "i.sec", [Document(n, encoded=random_text(rng, 2)) for n in names], encoder=None)
    assert {h.docno for h in index.search(random_text(rng, 2), gather="exhaustive")} == set(names)
    assert all(name in index for name in names)


def test_an_index_of_nothing_opens_and_finds_nothing(tmp_path: Path, encoder: OnnxEncoder) -> None:
    index = Index.build(tmp_path / "i.sec", [], encoder=encoder)
    assert len(index) == 0
    assert len(index.search("anything", gather="exhaustive")) == 0
    assert len(index.search("anything")) == 0


def test_an_existing_index_is_replaced_only_on_request(tmp_path: Path) -> None:
    build_random(tmp_path / "i.sec", 5)
    with pytest.raises(SecateursError, match=r"already: .*--overwrite \(overwrite=True\)"):
        build_random(tmp_path / "i.sec", 6)
    assert len(Index(tmp_path / "i.sec")) == 5
    assert len(build_random(tmp_path / "i.sec", 6, overwrite=True)) == 6
    assert [f.name for f in tmp_path.iterdir()] == ["i.sec"]


def test_a_folder_that_is_no_index_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    with pytest.raises(SecateursError, match="not an index"):
        build_random(tmp_path / "precious", overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_a_failed_build_leaves_nothing_and_keeps_the_old_index(tmp_path: Path) -> None:
    build_random(tmp_path / "i.sec", 5)
    broken = [*random_documents(3), Document("bad", encoded=random_text(np.random.default_rng(0), 2, dim=8))]
    with pytest.raises(UsageError, match="document 4: 'bad' has embeddings of 8 dimensions"):
        Index.build(tmp_path / "i.sec", broken, encoder=None, overwrite=True)
    assert [f.name for f in tmp_path.iterdir()] == ["i.sec"]
    assert len(Index(tmp_path / "i.sec")) == 5


def _build_for_ever(path: Path) -> None:
    def endless() -> object:
        number = 0
        while True:
            yield Document(str(number), encoded=random_text(np.random.default_rng(number), 3))
            number += 1

    Index.build(path, endless(), encoder=None)  # type: ignore[arg-type]


@pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")
def test_a_killed_build_leaves_nothing_that_looks_like_an_index(tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    process = multiprocessing.get_context("fork").Process(target=_build_for_ever, args=(path,))
    process.start()
    deadline = time.monotonic() + 20
    while not list(tmp_path.glob(".i.sec.building-*/segments/*/staged.rows")) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert list(tmp_path.glob(".i.sec.building-*"))
    assert not path.exists()
    with pytest.raises(SecateursError, match="no index at"):
        Index(path)
    build_random(path)  # the next build removes the folder of the one that was killed
    assert [f.name for f in tmp_path.iterdir()] == ["i.sec"]


def test_a_duplicate_docno_is_an_error_that_names_both(tmp_path: Path) -> None:
    with pytest.raises(SecateursError, match="document 4: docno 'd001' is already that of document 2"):
        Index.build(tmp_path / "i.sec", [*random_documents(3), random_documents(2)[1]], encoder=None)


def test_bad_documents_can_be_skipped_and_counted(tmp_path: Path) -> None:
    bad: list[str] = []
    items = [*random_documents(3), random_documents(2)[1], {"text": "nameless"}, *random_documents(5)[3:]]
    index = Index.build(tmp_path / "i.sec", items, encoder=None, on_bad=bad.append)
    assert len(index) == 5
    assert len(bad) == 2
    assert "document 5: no docno" in bad[1]


def test_a_document_without_embeddings_needs_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'x' has no embeddings"):
        Index.build(tmp_path / "i.sec", [{"docno": "x", "text": "words"}], encoder=None)


def test_metadata_must_be_json(tmp_path: Path) -> None:
    item = Document("x", "", {"when": object()}, random_text(np.random.default_rng(0), 1))
    with pytest.raises(SecateursError, match="metadata of 'x' is not JSON"):
        Index.build(tmp_path / "i.sec", [item], encoder=None)


def test_metadata_may_be_nested_but_not_without_end(tmp_path: Path) -> None:
    deep: dict[str, object] = {}
    for _ in range(98):
        deep = {"x": [deep]} if len(json.dumps(deep)) < 400 else {"x": deep}
    text = random_text(np.random.default_rng(0), 1)
    index = Index.build(tmp_path / "i.sec", [Document("a", "", {"ok": {"x": [{"y": 1}]}}, text)], encoder=None)
    assert [hit.docno for hit in index.search(text, where="ok.x.y = 1")] == ["a"]
    for _ in range(30):
        deep = {"x": deep}
    with pytest.raises(SecateursError, match="nested more than 100 deep"):
        index.add([Document("b", "", deep, text)])


def test_another_encoder_is_refused(index_path: Path) -> None:
    other = OnnxEncoder.load(projection=np.eye(384, 96, dtype=np.float32))
    with pytest.raises(EncoderMismatchError, match="Open the index with the encoder that built it"):
        Index(index_path, other)


def test_a_query_of_another_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="8 dimensions, those of the index 16"):
        build_random(tmp_path / "i.sec").search(random_text(np.random.default_rng(0), 2, dim=8))


def test_an_index_of_embeddings_says_that_it_has_no_encoder(tmp_path: Path) -> None:
    with pytest.raises(SecateursError, match="or search with an EncodedText"):
        build_random(tmp_path / "i.sec").search("words")


@pytest.mark.parametrize(
    ("version", "remedy"), [(99, "reads format 1: pip install --upgrade secateurs"), (0, "reads format 1: index again")]
)
def test_an_unknown_format_says_what_to_do(tmp_path: Path, version: int, remedy: str) -> None:
    build_random(tmp_path / "i.sec")
    manifest = tmp_path / "i.sec" / MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format_version": version}))
    with pytest.raises(SecateursError, match=f"has index format {version}, .*{remedy}"):
        Index(tmp_path / "i.sec")


def test_a_manifest_with_other_fields_under_the_same_version_says_so(tmp_path: Path) -> None:
    build_random(tmp_path / "i.sec")
    manifest = tmp_path / "i.sec" / MANIFEST
    content = json.loads(manifest.read_text())
    del content["codebook"], content["checksum"]
    content["checksum"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps(content))
    with pytest.raises(SecateursError, match="not a manifest of format 1"):
        Index(tmp_path / "i.sec")


def test_a_path_without_anything_and_a_folder_without_manifest_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(SecateursError, match=r"no index at .* secateurs index"):
        Index(tmp_path / "nowhere")
    with pytest.raises(SecateursError, match=f"not an index: it has no {MANIFEST}"):
        Index(tmp_path)
    (tmp_path / "notes.txt").write_text("not an index")
    with pytest.raises(SecateursError, match=r"notes\.txt is a file, not an index$"):
        Index(tmp_path / "notes.txt")


def test_an_index_whose_manifest_is_gone_says_how_to_repair_it(tmp_path: Path) -> None:
    path = build_random(tmp_path / "i.sec").path
    (path / MANIFEST).unlink()
    with pytest.raises(DamagedIndexError, match=re.escape(f"secateurs check {path} --repair")):
        Index(path)
    assert not repair(path).lost
    assert len(Index(path)) == 40


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_collection_in_shards_is_not_replaced_by_an_index(tmp_path: Path, overwrite: bool) -> None:
    build_random(tmp_path / "shards.sec" / "shard-0000")
    Layout((ShardRecord("shard-0000"),), "a test").write(tmp_path / "shards.sec")
    with pytest.raises(SecateursError, match=r"is a collection in shards.* secateurs shard build .*--overwrite"):
        build_random(tmp_path / "shards.sec", overwrite=overwrite)
    assert len(Index(tmp_path / "shards.sec" / "shard-0000")) == 40


def test_embeddings_and_an_encoder_together_are_refused(tmp_path: Path, encoder: OnnxEncoder) -> None:
    with pytest.raises(UsageError, match="'d000' brings its embeddings: build with encoder=None"):
        Index.build(tmp_path / "i.sec", random_documents(2, dim=encoder.dim), encoder=encoder)


class Forgetful:
    """An encoder that the library does not know, and that loses a text."""

    dim = 16
    spec: ClassVar = {"kind": "mine", "model": "forgetful", "fingerprint": "f"}

    def __init__(self, loses: bool) -> None:
        self.loses = loses

    def encode_query(self, text: str) -> EncodedText:
        return random_text(np.random.default_rng(len(text)), 3)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        return (self.encode_query(text) for text in texts if text != "two" or not self.loses)

    def token_text(self, token_id: int) -> str:
        return str(token_id)


def test_any_encoder_works_and_must_give_an_encoding_per_document(tmp_path: Path) -> None:
    items = [{"docno": "a", "text": "one"}, {"docno": "b", "text": "two"}]
    with pytest.raises(SecateursError, match="1 encodings for 2 documents"):
        Index.build(tmp_path / "i.sec", items, encoder=Forgetful(loses=True))
    assert len(Index.build(tmp_path / "i.sec", items, encoder=Forgetful(loses=False)).search("one")) == 2
    with pytest.raises(SecateursError, match=r"encoder of kind 'mine'.*Index\(path, encoder="):
        Index(tmp_path / "i.sec").search("one")


def test_embeddings_too_large_to_store_are_refused(tmp_path: Path) -> None:
    huge = EncodedText(np.full((1, 4), 1e6), [1], [0])
    with pytest.raises(UsageError, match="too large to store"):
        Index.build(tmp_path / "i.sec", [Document("a", encoded=huge)], encoder=None)


def test_long_documents_are_counted_when_they_are_cut(tmp_path: Path, encoder: OnnxEncoder) -> None:
    items = [{"docno": "long", "text": "word " * 400}, {"docno": "short", "text": "word"}]
    index = Index.build(tmp_path / "i.sec", items, encoder=encoder)
    assert index.info()["cut_documents"] == 1


def test_embeddings_must_be_finite_and_of_matching_shapes() -> None:
    with pytest.raises(UsageError, match="NaN"):
        EncodedText(np.array([[np.nan, 1]]), [1], [0])
    with pytest.raises(UsageError, match="one entry per embedding"):
        EncodedText(np.zeros((2, 4)), [1], [0, 0])
    with pytest.raises(UsageError, match="matrix"):
        EncodedText(np.zeros(4), [1], [0])
    with pytest.raises(UsageError, match="TokenKind"):
        EncodedText(np.zeros((1, 4)), [1], [9])


STORED = Path(__file__).parent / "data"


def test_there_is_a_stored_index_of_every_format_and_store() -> None:
    stored = [json.loads(path.read_text()) for path in STORED.glob("format-*/manifest.json")]
    kinds = {(manifest["format_version"], manifest["store"]) for manifest in stored}
    assert kinds == {(version, store) for version in range(1, FORMAT_VERSION + 1) for store in STORES}


@pytest.mark.parametrize("name", sorted(path.name for path in STORED.glob("format-*") if path.is_dir()))
def test_an_index_of_every_released_format_opens_with_the_ranking_it_had(name: str) -> None:
    query = random_text(np.random.default_rng(2), 5, 8)
    index = Index(STORED / name)
    index.check()
    expected = json.loads((STORED / f"{name}.expected.json").read_text())
    assert expected
    for gather, hits in expected.items():
        ranking = index.search(query, k=5, p=2, gather=gather, k_prime=6, nprobe=3)
        assert [hit.docno for hit in ranking] == [docno for docno, _ in hits]
        assert [hit.score for hit in ranking] == pytest.approx([score for _, score in hits], abs=1e-6)
    assert index.search(query, k=5)
    assert index.get("d3 ü") == Document("d3 ü", "text 3", {"i": 3})


@pytest.mark.parametrize("store", ["int8", "int16", "float16", "residual4"])
def test_an_index_of_nothing_finds_nothing(store: str, tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", [], encoder=None, store=store)
    for effort in ("fast", "balanced", "exact"):
        assert len(index.search(random_text(np.random.default_rng(0), 3), effort=effort)) == 0


@pytest.mark.parametrize("count", [8, 50])
def test_equal_scores_go_by_docno_however_many_there_are(count: int, tmp_path: Path) -> None:
    text = random_text(np.random.default_rng(0), 3)
    docnos = [f"d{i:02}" for i in range(count)]
    documents = [Document(docno, encoded=text) for docno in reversed(docnos)]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    assert [hit.docno for hit in index.search(text, k=5)] == docnos[:5]


def test_closing_an_index_closes_its_files_at_once(tmp_path: Path) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    build_random(tmp_path / "i.sec", 20).close()

    def open_files() -> list[str]:
        targets = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir()]
        return [target for target in targets if target.startswith(str(tmp_path))]

    gc.collect()
    gc.disable()
    try:
        index = Index(tmp_path / "i.sec")
        index.search(random_text(np.random.default_rng(0), 2))
        snapshot = index.snapshot  # as a search that still runs has it
        assert open_files()
        index.close()
        assert len(snapshot.docnos([0, 1])) == 2
        del snapshot
        assert open_files() == []
    finally:
        gc.enable()


def test_documents_without_embeddings_or_of_other_dimensions_are_skipped_and_named(tmp_path: Path) -> None:
    index, problems = build_random(tmp_path / "index.sec"), []
    rng = np.random.default_rng(1)
    wide, usable = Document("wide", encoded=random_text(rng, 2, dim=8)), Document("new", encoded=random_text(rng, 2))
    index.add([{"docno": "bare", "text": "x"}, wide, usable], on_bad=problems.append)
    assert "new" in index
    assert "bare" not in index
    assert "wide" not in index
    bare, other = problems
    assert "document 'bare' has no embeddings" in bare
    assert "'wide' has embeddings of 8 dimensions, those before it of 16" in other


@pytest.mark.parametrize("store", STORES)
def test_documents_without_embeddings_have_no_matches_before_and_after_others_are_added(
    store: Any, tmp_path: Path
) -> None:
    nothing = EncodedText(np.zeros((0, 0), dtype=np.float32), np.zeros(0), np.zeros(0))
    index = Index.build(tmp_path / "index.sec", [Document("blank", encoded=nothing)], encoder=None, store=store)
    query = random_text(np.random.default_rng(0), 3)
    for _ in range(2):
        assert index.score(query, ["blank"]) == [-np.inf]
        assert index.explain(query, "blank").rank is None
        similarities, token_ids = index.similarities(query, "blank")
        assert similarities.shape == (0, 3)
        assert len(token_ids) == 0
        if "d000" not in index:
            index.add(random_documents(3))


def test_similarities_of_a_query_of_other_dimensions_are_refused(tmp_path: Path) -> None:
    index = build_random(tmp_path / "index.sec")
    with pytest.raises(UsageError, match="8 dimensions"):
        index.similarities(random_text(np.random.default_rng(0), 3, dim=8), "d001")


def test_a_query_that_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    index = build_random(tmp_path / "index.sec", store="float16")
    large = EncodedText(np.full((1, 16), 7e4, dtype=np.float32), np.ones(1), np.zeros(1))
    with pytest.raises(UsageError, match="too large for the store float16"):
        index.search(large)
