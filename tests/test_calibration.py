"""Calibration: an index measures how thorough each effort must be to find what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import QUERIES, build_random, random_documents

from secateurs import Document, EncodedText, Index, TokenKind, calibration
from secateurs.calibration import calibrate, describe, is_due, parts_of_documents
from secateurs.effort import LADDER, PLACES, PROMISES, level
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import EncoderMismatchError, LockedIndexError, SecateursError, UsageError
from secateurs.search import OneIndex, Stopwatch, decide, find
from secateurs.settings import SearchSettings
from secateurs.storage.manifest import CalibrationRecord, Manifest


@pytest.fixture
def small_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes of a few documents are measured too."""
    monkeypatch.setattr(calibration, "_FEWEST_DOCUMENTS", 30)


def record(place: float, recall: float, queries: int = 5) -> CalibrationRecord:
    return CalibrationRecord(
        dict.fromkeys(PROMISES, place), dict.fromkeys(PROMISES, recall), queries, False, "codebook", 100
    )


def recall_at(index: Index, queries: list[EncodedText], place: float) -> float:
    found = []
    for query in queries:
        exact = {hit.docno for hit in index.search(query, gather="exhaustive")}
        searched = OneIndex(index.snapshot, {"balanced": place})
        hits = find(index.snapshot, decide(searched, query, SearchSettings(gather="cells")), Stopwatch()).hits
        found.append(len(exact & {hit.docno for hit in hits}) / len(exact))
    return float(np.mean(found))


def test_the_ladder_grows_in_every_way_and_efforts_are_in_order_on_it() -> None:
    assert (np.diff(LADDER, axis=0) >= 0).all()
    assert list(PLACES.values()) == sorted(PLACES.values())
    assert level(4.0) == (0.8, 32, 64)
    assert level(4.5) == pytest.approx((0.85, 40, 80))
    assert level(len(LADDER) - 1) == pytest.approx(tuple(LADDER[-1]))


def test_the_place_of_an_effort_is_the_lowest_that_keeps_its_promise(index: Index) -> None:
    measured = calibrate(index.snapshot)
    assert measured.places["fast"] <= measured.places["balanced"] <= measured.places["thorough"]
    queries = parts_of_documents(index.snapshot)
    assert measured.queries == len(queries)
    for effort, promise in PROMISES.items():
        place = measured.places[effort]
        assert recall_at(index, queries, place) == pytest.approx(measured.recall[effort], abs=1e-4)
        assert measured.recall[effort] >= promise
        error = 0.06  # more than the standard error of so many queries
        assert place == 0 or recall_at(index, queries, place - 0.25) < promise + error


def test_the_same_documents_are_measured_in_the_same_way(index: Index) -> None:
    assert calibrate(index.snapshot) == calibrate(index.snapshot)


def test_real_queries_find_what_is_promised(index: Index, encoded_queries: list[EncodedText]) -> None:
    measured = calibrate(index.snapshot)
    assert recall_at(index, encoded_queries, measured.places["balanced"]) >= PROMISES["balanced"] - 0.03


def test_parts_of_documents_are_words_of_a_live_document(index: Index) -> None:
    stored = {(token, kind) for d in index.documents() for token, kind in zip(*_labels(d.encoded), strict=True)}
    for part in parts_of_documents(index.snapshot):
        assert set(part.token_kinds.tolist()) == {TokenKind.WORD}
        assert 1 <= len(part) <= 8
        assert set(zip(*_labels(part), strict=True)) <= stored


def _labels(text: EncodedText | None) -> tuple[list[int], list[int]]:
    assert text is not None
    return text.token_ids.tolist(), text.token_kinds.tolist()


def test_parts_of_documents_are_not_the_stored_embeddings_but_near_to_them(index: Index) -> None:
    rows = np.vstack([d.encoded.embeddings for d in index.documents()])  # type: ignore[union-attr]
    parts = np.vstack([part.embeddings for part in parts_of_documents(index.snapshot)])
    assert np.linalg.norm(parts, axis=1) == pytest.approx(1, abs=0.05)
    nearest = (parts @ rows.T).max(axis=1)
    assert 0.7 < nearest.mean() < 0.99


def test_larger_indexes_are_asked_fewer_queries(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    most = len(parts_of_documents(index.snapshot))
    monkeypatch.setattr(calibration, "_EMBEDDINGS", 40 * index.info()["embeddings"])
    assert most > 80
    assert len(parts_of_documents(index.snapshot)) == 40
    monkeypatch.setattr(calibration, "_EMBEDDINGS", 1)
    assert len(parts_of_documents(index.snapshot)) == 24


@pytest.mark.usefixtures("small_enough")
def test_an_index_is_measured_when_it_is_built_and_keeps_what_it_found(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 40)
    measured = index.manifest.calibration
    assert measured is not None
    assert measured.queries == 40
    assert Index(tmp_path / "i.sec").manifest.calibration == measured
    assert not is_due(index.snapshot)


def test_a_small_index_and_an_index_without_cells_are_not_measured(tmp_path: Path) -> None:
    assert build_random(tmp_path / "few.sec", 40).manifest.calibration is None
    index = build_random(tmp_path / "faiss.sec", 40, gather="faiss")
    assert index.info()["calibration"] is None
    with pytest.raises(UsageError, match="cells"):
        index.calibrate()


@pytest.mark.usefixtures("small_enough")
def test_an_index_is_measured_again_when_it_has_doubled_or_halved_and_when_its_cells_are_new(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 40)
    first = index.manifest.calibration
    more = [replace(document, docno=f"more{document.docno}") for document in random_documents(60, seed=1)]
    index.add(more[:10])
    assert index.manifest.calibration == first
    index.add(more[10:])
    second = index.manifest.calibration
    assert second is not None
    assert second.embeddings == index.info()["embeddings"] > 2 * first.embeddings  # type: ignore[union-attr]
    index.compact()
    third = index.manifest.calibration
    assert third is not None
    assert third.codebook == index.manifest.codebook.name != second.codebook
    index.delete([document.docno for document in more])
    assert index.manifest.calibration.embeddings == index.info()["embeddings"]  # type: ignore[union-attr]


def test_a_small_index_that_was_calibrated_is_measured_again_when_it_has_grown(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 20)
    index.calibrate()
    more = [replace(document, docno=f"more{document.docno}") for document in random_documents(40, seed=1)]
    index.add(more)
    assert index.manifest.calibration.embeddings == index.info()["embeddings"]  # type: ignore[union-attr]
    index.compact()
    assert index.manifest.calibration is None  # the cells are new, and it is too small to be measured by itself


@pytest.mark.usefixtures("small_enough")
def test_what_was_added_is_found_while_the_index_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_random(tmp_path / "i.sec", 20)
    measure, seen = calibration.calibrate, []

    def watching(*arguments: object, **named: object) -> CalibrationRecord:
        seen.append(len(index))
        return measure(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(calibration, "calibrate", watching)
    index.add([replace(document, docno=f"more{document.docno}") for document in random_documents(20, seed=1)])
    assert seen == [40]


@pytest.mark.usefixtures("small_enough")
def test_an_index_is_built_although_another_process_changes_it_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def locked(*arguments: object) -> Iterator[None]:
        raise LockedIndexError("another process is writing")
        yield

    monkeypatch.setattr("secateurs.index.writing", locked)
    with pytest.warns(UserWarning, match="was built, but its recall could not be measured"):
        index = build_random(tmp_path / "i.sec", 40)
    assert (len(index), index.manifest.calibration) == (40, None)


def test_an_index_that_was_replaced_by_another_encoders_is_not_calibrated(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 40)
    other = Manifest.read(tmp_path / "i.sec")
    replace(other, encoder={"kind": "other"}, commit=other.commit + 1).write(tmp_path / "i.sec")
    with pytest.raises(EncoderMismatchError):
        index.calibrate()
    assert Manifest.read(tmp_path / "i.sec").calibration is None


@pytest.mark.parametrize("queries", ["goldfish", 7, []])
def test_what_is_no_list_of_queries_is_refused(tmp_path: Path, queries: object) -> None:
    with pytest.raises(UsageError, match="quer"):
        build_random(tmp_path / "i.sec", 5).calibrate(queries)  # type: ignore[arg-type]


@pytest.mark.usefixtures("small_enough")
def test_documents_without_words_are_measured_by_their_other_positions(tmp_path: Path) -> None:
    documents = [
        replace(document, encoded=replace(document.encoded, token_kinds=np.full(len(document.encoded), TokenKind.CLS)))  # type: ignore[type-var, arg-type]
        for document in random_documents(40)
    ]
    assert Index.build(tmp_path / "i.sec", documents, encoder=None).manifest.calibration is not None


@pytest.mark.usefixtures("small_enough")
def test_a_change_is_kept_when_measuring_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_random(tmp_path / "i.sec", 20)

    def failing(*arguments: object, **named: object) -> None:
        raise SecateursError("no recall today")

    monkeypatch.setattr(calibration, "calibrate", failing)
    more = [replace(document, docno=f"more{document.docno}") for document in random_documents(20, seed=1)]
    with pytest.warns(UserWarning, match="was changed, but its recall could not be measured"):
        assert index.add(more).added == 20
    assert len(Index(tmp_path / "i.sec")) == 40


def test_searches_follow_the_places_of_the_index(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 300)
    query = random_documents(1, seed=5)[0].encoded
    assert query is not None

    def plans() -> list[tuple[int, int]]:
        found = (index.search(query, effort=effort, gather="cells").plan for effort in PROMISES)  # type: ignore[arg-type]
        return [(plan.nprobe, plan.patience) for plan in found]

    before = plans()
    embeddings, codebook = index.info()["embeddings"], index.manifest.codebook.name
    lowest = replace(record(0, 0.9), embeddings=embeddings, codebook=codebook)
    index.change(lambda writer: writer.set_calibration(lowest))
    assert plans() == [(min(4, index.snapshot.cells), 8)] * 3
    assert before != plans()
    budget = index.search(query, budget_ms=1000).plan  # a budget is spent along the whole ladder
    assert budget.candidates == 4096


def test_queries_that_are_given_are_used(index: Index, encoder: OnnxEncoder, tmp_path: Path) -> None:
    measured = calibrate(index.snapshot, [encoder.encode_query(query) for query in QUERIES])
    assert (measured.given, measured.queries) == (True, len(QUERIES))
    with pytest.raises(UsageError, match="no queries"):
        calibrate(index.snapshot, [])


def without_tokens(documents: list[Document]) -> Iterator[Document]:
    for document in documents:
        assert document.encoded is not None
        rows = document.encoded.embeddings
        yield replace(document, encoded=EncodedText(rows, np.full(len(rows), -1), np.zeros(len(rows))))


@pytest.mark.usefixtures("small_enough")
def test_embeddings_without_tokens_are_measured_too(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", without_tokens(random_documents(60)), encoder=None)
    assert index.manifest.calibration is not None
    assert index.info()["calibration"]["efforts"]["balanced"]["found"] >= 0.95


def test_what_is_described_of_several_shards_is_that_of_the_least_good() -> None:
    described = describe([record(3, 0.99, 4), record(5, 0.97, 6)])
    assert described is not None
    assert (described["queries"], described["given"]) == (10, False)
    given = describe([replace(record(3, 0.99, 4), given=True), replace(record(5, 0.97, 4), given=True)])
    assert (given["queries"], given["given"]) == (4, True)  # type: ignore[index]
    assert described["efforts"]["fast"] == {"promised": 0.85, "found": 0.97, "place": 5}
    assert describe([]) is None


def test_a_manifest_of_before_has_no_calibration(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    content = index.manifest
    assert content.calibration is None
    replace(content, calibration=record(2.25, 0.9)).write(tmp_path / "i.sec")
    assert Manifest.read(tmp_path / "i.sec").calibration == record(2.25, 0.9)
