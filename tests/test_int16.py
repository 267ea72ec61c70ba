"""Store int16: what a search returns, and what happens to the second file through changes and damage."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import random_documents, random_text

from secateurs import Document, EncodedText, Index
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DamagedIndexError
from secateurs.storage.manifest import Manifest
from secateurs.storage.repair import repair


def build(path: Path, documents: list[Document]) -> Index:
    return Index.build(path, documents, encoder=None, store="int16")


def file_of(path: Path, name: str) -> Path:
    return path / "segments" / Manifest.read(path).segments[0].name / name


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 8
    path.write_bytes(content)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory, encoded_passages: list[Document]) -> Index:
    """Two segments, and something deleted."""
    index = build(tmp_path_factory.mktemp("int16") / "i.sec", encoded_passages[:-40])
    index.add(encoded_passages[-40:])
    index.delete([encoded_passages[3].docno, encoded_passages[-3].docno])
    return index


@pytest.mark.parametrize("gather", ["cells", "exhaustive"])
def test_search_score_and_explain_give_the_same_score(
    real: Index, encoded_queries: list[EncodedText], gather: str
) -> None:
    for query in encoded_queries:
        hits = real.search(query, k=12, gather=gather).hits  # type: ignore[arg-type]
        assert len(hits) == 12
        assert real.score(query, [hit.docno for hit in hits]) == [hit.score for hit in hits]
        for rank, hit in enumerate(hits[:3], start=1):
            explained = real.explain(query, hit.docno, k=12, gather=gather)  # type: ignore[arg-type]
            assert (explained.score, explained.rank) == (hit.score, rank)
            total = sum(token.weight * token.similarity for token in explained.tokens)
            assert total == pytest.approx(hit.score, abs=1e-6)


def test_the_ten_best_are_those_of_refining_every_document(real: Index, encoded_queries: list[EncodedText]) -> None:
    docnos = [document.docno for document in real.documents()]
    for query in encoded_queries:
        scores = real.score(query, docnos)  # without k: all are refined
        best = sorted(zip(scores, docnos, strict=True), key=lambda pair: (-pair[0], pair[1]))[:10]
        found = real.search(query, gather="exhaustive")
        assert [(hit.score, hit.docno) for hit in found] == best


def test_a_filter_finds_the_best_of_the_matching_documents(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    items = [Document(f"d{i}", "", {"i": i}, random_text(rng, 6)) for i in range(80)]
    index = build(tmp_path / "i.sec", items)
    query = random_text(rng, 5)
    scores = index.score(query, [f"d{i}" for i in range(30)])
    found = index.search(query, where="i < 30", gather="exhaustive", k=5)
    assert [hit.score for hit in found] == sorted(scores, reverse=True)[:5]


def test_documents_come_back_to_half_of_a_128th_of_a_step(real: Index, encoded_passages: list[Document]) -> None:
    stored = {document.docno: document.encoded for document in real.documents()}
    scale = real.snapshot.codebook.int8
    assert scale is not None
    for document in encoded_passages[10:40]:
        assert document.encoded is not None
        given, kept = document.encoded.embeddings, stored[document.docno]
        assert kept is not None
        wrong = np.abs(kept.embeddings - given)
        clipped = np.abs(given - scale.centre) > 126 * scale.step
        assert wrong[~clipped].max() <= scale.step / 256 + 1e-6
        assert wrong.max() <= scale.step


def test_compacting_again_and_again_changes_no_embedding(tmp_path: Path, encoded_passages: list[Document]) -> None:
    index = build(tmp_path / "i.sec", encoded_passages[:200])
    embeddings = []
    for _ in range(3):
        embeddings.append([document.encoded.embeddings for document in index.documents() if document.encoded])
        index.compact()
    for before, once, twice in zip(*embeddings, strict=True):
        assert np.array_equal(before, once)
        assert np.array_equal(before, twice)


def test_merging_segments_copies_the_refinements(tmp_path: Path) -> None:
    items = random_documents(120)
    index = build(tmp_path / "i.sec", items[:60])
    query = random_text(np.random.default_rng(1), 4)
    for first in range(60, 120, 10):
        index.add(items[first : first + 10])
    index.delete([item.docno for item in items[:40]])
    index.check()
    left = [item.docno for item in items[40:]]
    scores = index.score(query, left)
    index.compact()
    index.check()
    assert index.score(query, left) == pytest.approx(scores, abs=1e-3)


def test_a_new_scale_is_made_from_refined_values(tmp_path: Path) -> None:
    """Added embeddings lie far outside: all is rewritten on a scale that is many times coarser, then added to."""
    rng = np.random.default_rng(0)
    near = [random_text(rng, 5, 8) for _ in range(30)]
    small = [EncodedText(text.embeddings / 8, text.token_ids, text.token_kinds) for text in near]
    index = build(tmp_path / "i.sec", [Document(f"s{i}", encoded=text) for i, text in enumerate(small)])
    steps = [index.manifest.codebook.step]
    index.add([Document(f"n{i}", encoded=text) for i, text in enumerate(near)])
    steps.append(index.manifest.codebook.step)
    assert steps[0] is not None
    assert steps[1] is not None
    assert steps[1] > 4 * steps[0]
    query = random_text(rng, 4, 8)
    exact = [
        float((text.embeddings.astype(np.float64) @ query.embeddings.T).max(axis=0).sum()) for text in [*small, *near]
    ]
    docnos = [f"s{i}" for i in range(30)] + [f"n{i}" for i in range(30)]
    assert index.score(query, docnos) == pytest.approx(exact, abs=steps[1] / 32)


def test_damaged_refinements_are_found_by_the_search_that_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "secateurs.compiling._compiled", set()
    )  # as in a new process: its first search calls all kernels
    items = random_documents(300)
    build(tmp_path / "i.sec", items)
    flip(file_of(tmp_path / "i.sec", "refinements.npy"), 200)  # of the first document
    index = Index(tmp_path / "i.sec")  # opening does not read them
    with pytest.raises(DamagedIndexError, match=r"refinements\.npy was altered \(rows from 0\)"):
        index.search(items[0].encoded, k=1, gather="exhaustive")  # type: ignore[arg-type]
    assert index.search(items[-1].encoded, k=1, gather="exhaustive").hits[0].docno == items[-1].docno  # type: ignore[arg-type]
    for read in (index.check, lambda: list(index.documents()), index.compact):
        with pytest.raises(DamagedIndexError, match="refinements"):
            read()


@pytest.mark.parametrize("name", ["refinements.npy", "refinement_blocks.npy"])
@pytest.mark.parametrize("change", ["header", "cut", "removed"])
def test_a_file_that_is_not_whole_is_named(tmp_path: Path, name: str, change: str) -> None:
    build(tmp_path / "i.sec", random_documents(20))
    path = file_of(tmp_path / "i.sec", name)
    if change == "removed":
        path.unlink()
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, 30)
    with pytest.raises(DamagedIndexError, match=name):
        Index(tmp_path / "i.sec")


def test_repair_encodes_again_where_refinements_are_damaged(tmp_path: Path, encoder: OnnxEncoder) -> None:
    texts = ["Goldfish grow.", "Cats sleep.", "Bees dance to tell where flowers are."]
    path = tmp_path / "i.sec"
    Index.build(path, [{"docno": str(i), "text": t} for i, t in enumerate(texts)], encoder=encoder, store="int16")
    expected = [(hit.docno, hit.score) for hit in Index(path, encoder).search("where are flowers")]
    flip(file_of(path, "refinements.npy"), 300)
    report = repair(path)
    assert not report.lost
    assert "encoded again from their text: 3 documents" in report.lines
    found = [(hit.docno, hit.score) for hit in Index(path, encoder).search("where are flowers")]
    assert [docno for docno, _ in found] == [docno for docno, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)


@pytest.mark.parametrize("name", ["refinements.npy", "refinement_blocks.npy", "both"])
def test_repair_keeps_the_int8_rows_of_documents_that_no_encoder_made(tmp_path: Path, name: str) -> None:
    items = random_documents(60)
    path = tmp_path / "i.sec"
    build(path, items)
    shutil.copytree(path, tmp_path / "sound.sec")
    if name != "refinement_blocks.npy":
        flip(file_of(path, "refinements.npy"), 200)
    if name != "refinements.npy":
        flip(file_of(path, "refinement_blocks.npy"), -1)
    report = repair(path)
    assert "no document is lost" in report.lines
    assert report.lost == (name != "refinement_blocks.npy")
    assert any("keep their int8 rows" in line for line in report.lines) == report.lost
    query, docnos = random_text(np.random.default_rng(1), 3), [item.docno for item in items]
    repaired, sound = (np.array(Index(p).score(query, docnos)) for p in (path, tmp_path / "sound.sec"))
    step = Index(path).manifest.codebook.step
    assert step is not None
    assert np.abs(repaired - sound).max() <= 3 * 16 * step / 2  # three similarities, half a step in 16 dimensions
    assert (np.abs(repaired - sound)[-5:].max() <= 1e-3) == (name != "both")  # whether their block is known to be sound


def test_an_empty_document_is_never_found(tmp_path: Path) -> None:
    items = [*random_documents(5), Document("empty", encoded=random_text(np.random.default_rng(0), 0))]
    index = build(tmp_path / "i.sec", items)
    assert len(index.search(random_text(np.random.default_rng(1), 3), gather="exhaustive", k=10)) == 5
