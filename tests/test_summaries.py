"""Summaries: a special token that stands for the whole text, in queries and in documents."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import random_text
from hypothesis import given, settings
from hypothesis import strategies as st
from test_gather import approximate_scores

from secateurs import Document, EncodedText, Index, TokenKind
from secateurs.gather import gatherer
from secateurs.gather.cells import times_counted
from secateurs.kernels.cell_scores import add_summary_points, pack_summaries, packed_width
from secateurs.kernels.simd import round_query
from secateurs.settings import SearchPlan
from secateurs.storage.position_rows import TextPositions
from secateurs.storage.summaries import summary_rows

DIM = 16
SUMMARY_ID, WORD_IDS = 99, 30


def text(rng: np.random.Generator, words: int, summary: np.ndarray | None, masks: int = 0) -> EncodedText:
    """A summary in front, if there is one; then words; then MASKs."""
    encoded = random_text(rng, words + masks, DIM, WORD_IDS)
    kinds = np.array([TokenKind.WORD] * words + [TokenKind.MASK] * masks, dtype=np.uint8)
    if summary is None:
        return EncodedText(encoded.embeddings, encoded.token_ids, kinds)
    return EncodedText(
        np.vstack([summary, encoded.embeddings]),
        np.concatenate([[SUMMARY_ID], encoded.token_ids]),
        np.concatenate([[TokenKind.SUMMARY], kinds]),
    )


def about(topic: int, rng: np.random.Generator) -> np.ndarray:
    """A unit vector near one of sixteen directions."""
    vector = np.eye(DIM)[topic] + rng.normal(scale=0.1, size=DIM)
    return vector / np.linalg.norm(vector)


def documents(count: int, useful: bool = True, seed: int = 0) -> list[Document]:
    """Words are random. The summary tells the topic, i % 16, or is the same for all documents."""
    rng = np.random.default_rng(seed)
    return [
        Document(f"d{i:04}", "", {}, text(rng, i % 7 + 3, about(i % DIM if useful else 0, rng))) for i in range(count)
    ]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(tmp_path_factory.mktemp("summaries") / "i.sec", documents(1500), encoder=None)


def rows_of_summaries(offsets: list[int], kinds: np.ndarray) -> list[int] | None:
    rows = summary_rows(np.array(offsets), TextPositions(np.array(offsets), None), kinds)
    return None if rows is None else rows.tolist()


def test_the_row_of_each_documents_first_summary_is_found() -> None:
    s, w = TokenKind.SUMMARY, TokenKind.WORD
    kinds = np.array([w, s, w, s, s, w], dtype=np.uint8)
    assert rows_of_summaries([0, 3, 3, 4, 6], kinds) == [1, -1, 3, 4]


def test_documents_of_which_one_has_no_summary_have_none() -> None:
    s, w = TokenKind.SUMMARY, TokenKind.WORD
    assert rows_of_summaries([0, 2, 4], np.array([s, w, w, w], dtype=np.uint8)) is None
    assert rows_of_summaries([0, 2, 4], np.array([w, w, s, w], dtype=np.uint8)) is None
    assert rows_of_summaries([0, 0], np.zeros(0, dtype=np.uint8)) is None


def test_the_row_of_a_summary_is_found_behind_positions_that_share_rows() -> None:
    s, w = TokenKind.SUMMARY, TokenKind.WORD
    positions = TextPositions(np.array([0, 4, 7]), np.array([0, 0, 0, 1, 0, 1, 0]))
    rows = summary_rows(np.array([0, 2, 4]), positions, np.array([w, w, w, s, w, s, w], dtype=np.uint8))
    assert rows is not None
    assert rows.tolist() == [1, 3]


@given(st.integers(0, 10_000), st.integers(1, 200), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_summary_points_are_the_products_of_int8_rows_above_the_least_possible(seed: int, dim: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-128, 128, (count, dim)).astype(np.int8)
    query = rng.integers(-127, 128, dim).astype(np.int8)
    filled = np.zeros(packed_width(dim), dtype=np.int8)
    filled[:dim] = query
    found = rng.permutation(count)[: rng.integers(1, count + 1)].astype(np.int64)
    sums = np.zeros((count, 2), dtype=np.float32)
    add_summary_points(found, len(found), pack_summaries(rows), filled, 0.5, sums)
    expected = 0.5 * (rows.astype(np.int64) @ query + 128 * np.abs(query.astype(np.int64)).sum())
    assert sums[found, 1] == pytest.approx(expected[found], rel=1e-6)
    assert (sums[:, 0] == 0).all()
    assert sums[np.setdiff1d(np.arange(count), found), 1].sum() == 0


def test_the_summary_alone_gathers_the_documents_with_the_nearest_summaries(index: Index) -> None:
    """Exactly by their products, although all summaries have one token id and share cells."""
    rng = np.random.default_rng(5)
    rows = np.array([document.encoded.embeddings[0] for document in index.documents()])  # type: ignore[union-attr]
    found = 0
    for topic in range(DIM):
        query = text(rng, 4, about(topic, rng))
        gathered = index.candidates(query, p=1, order="first", gather="cells", candidates=20)
        nearest = np.argsort(-(rows @ query.embeddings[0]))[:20]
        found += len({f"d{i:04}" for i in nearest} & set(gathered))
    assert found >= 0.9 * 20 * DIM


def test_documents_that_words_find_get_the_exact_similarity_of_their_summary(index: Index) -> None:
    """The best candidates are those of the words' points plus the summary's product, worked out in plain NumPy."""
    rng = np.random.default_rng(7)
    query = text(rng, 3, about(3, rng))
    expected = approximate_scores(index, query.embeddings[1:], nprobe=8)
    segment = index.snapshot.segments[0]
    rounded, unit = round_query(query.embeddings[:1])
    products = segment.rows[segment.offsets[:-1]].astype(np.int64) @ rounded[0].astype(np.int64)
    plan = SearchPlan(1, None, "rarity", "cells", 1, 8, 30)
    numbers, gathered = gatherer(index.snapshot, "cells").gather(query, np.array([0, 1, 2, 3]), plan)
    assert gathered > len(expected)  # the summary finds documents that the words do not
    scores = np.array([expected.get(number, 0.0) + unit[0] * products[number] for number in range(1500)])
    assert scores[numbers] == pytest.approx(np.sort(scores[numbers])[::-1], abs=1e-4)  # best first
    best_of_words = [number for number in np.argsort(-scores)[:30].tolist() if number in expected]
    assert set(best_of_words) <= set(numbers.tolist())


def test_documents_get_the_exact_similarity_of_their_summary_although_it_is_not_kept(index: Index) -> None:
    """The words alone find documents. With the summary's product, others of them are the best candidates."""
    rng = np.random.default_rng(7)
    query = text(rng, 3, about(3, rng))
    expected = approximate_scores(index, query.embeddings[1:], nprobe=8)
    segment = index.snapshot.segments[0]
    rounded, unit = round_query(query.embeddings[:1])
    products = segment.rows[segment.offsets[:-1]].astype(np.int64) @ rounded[0].astype(np.int64)
    plan = SearchPlan(1, None, "focus", "cells", 1, 8, 30)
    numbers, gathered = gatherer(index.snapshot, "cells").gather(query, np.array([1, 2, 3]), plan)
    assert gathered == len(expected)
    scores = {number: score + unit[0] * products[number] for number, score in expected.items()}
    assert set(numbers.tolist()) == set(sorted(scores, key=lambda number: -scores[number])[:30])
    assert set(numbers.tolist()) != set(sorted(expected, key=lambda number: -expected[number])[:30])


def test_masks_make_the_summary_count_up_to_three_times() -> None:
    rng = np.random.default_rng(0)
    counted = [times_counted(text(rng, 3, about(2, rng), masks)) for masks in (0, 2, 8, 20)]
    assert counted == [1.0, 1.5, 3.0, 3.0]
    query = text(rng, 3, about(2, rng), masks=2)
    assert times_counted(replace(query, weights=[1, 1, 1, 1, 3, 3])) == 2.5  # two MASKs that stand for six


@pytest.mark.parametrize("store", ["int8", "int16", "float16", "residual4"])
def test_summaries_stay_those_of_their_documents_through_changes(tmp_path: Path, store: str) -> None:
    built = Index.build(tmp_path / "i.sec", documents(300), encoder=None, store=store)  # type: ignore[arg-type]
    for first in range(300, 380, 10):  # small segments, which are merged
        built.add([document for document in documents(380) if first <= int(document.docno[1:]) < first + 10])
    built.delete([f"d{i:04}" for i in range(0, 380, 3)])
    built.check()
    for change in (lambda: None, built.compact):
        change()
        for segment in built.snapshot.segments:
            assert segment.summaries is not None
            rows = built.snapshot.store.decode(segment.rows[segment.offsets[:-1]])
            scale = built.snapshot.codebook.int8
            assert scale is not None
            expected = pack_summaries(scale.encode(rows))
            apart = np.abs(segment.summaries.astype(int) - expected.astype(int)).max()
            # int16 may round a value between two steps to the other one
            assert apart <= {"int8": 0, "int16": 1}.get(store, 12)


def test_a_document_without_a_summary_turns_them_off(tmp_path: Path) -> None:
    built = Index.build(tmp_path / "i.sec", documents(300), encoder=None)
    built.add([Document("plain", "", {}, text(np.random.default_rng(0), 4, None))])
    assert [segment.summaries is None for segment in built.snapshot.segments] == [False, True]
    query = text(np.random.default_rng(1), 4, about(1, np.random.default_rng(1)))
    exact = [hit.docno for hit in built.search(query, effort="exact")]
    assert [hit.docno for hit in built.search(query, gather="cells", nprobe=2000, candidates=301)] == exact
    built.compact()
    assert [segment.summaries is None for segment in built.snapshot.segments] == [True]
    built.check()


def test_a_marker_that_is_no_summary_is_treated_as_in_the_paper(tmp_path: Path) -> None:
    """An encoder whose marker tells nothing labels it as a marker: it gathers last, and no document has a summary."""

    def with_marker(encoded: EncodedText) -> EncodedText:
        kinds = np.where(encoded.token_kinds == TokenKind.SUMMARY, TokenKind.MARKER, encoded.token_kinds)
        return EncodedText(encoded.embeddings, encoded.token_ids, kinds)

    plain = [replace(document, encoded=with_marker(document.encoded)) for document in documents(600, useful=False)]  # type: ignore[arg-type]
    built = Index.build(tmp_path / "i.sec", plain, encoder=None)
    assert built.snapshot.segments[0].summaries is None
    for seed in range(5):
        rng = np.random.default_rng(seed)
        query = with_marker(text(rng, 6, about(0, rng), masks=4))
        by_rarity, by_icf = (built.search(query, p=4, order=order) for order in ("rarity", "icf"))  # type: ignore[arg-type]
        assert by_rarity.kept == by_icf.kept
        assert 0 not in by_rarity.kept
        assert [hit.docno for hit in by_rarity] == [hit.docno for hit in by_icf]


def test_a_second_summary_of_a_query_gathers_by_its_cells(index: Index) -> None:
    rng = np.random.default_rng(3)
    query = text(rng, 3, about(4, rng))
    doubled = EncodedText(
        np.vstack([query.embeddings[:1], about(9, rng)[None], query.embeddings[1:]]),
        np.concatenate([[SUMMARY_ID, SUMMARY_ID], query.token_ids[1:]]),
        np.concatenate([[TokenKind.SUMMARY, TokenKind.SUMMARY], query.token_kinds[1:]]),
    )
    plan = SearchPlan(1, None, "rarity", "cells", 1, 8, 50)
    cells = gatherer(index.snapshot, "cells")
    alone, both = (cells.gather(doubled, np.array(kept), plan)[0] for kept in ([0, 2], [0, 1, 2]))
    assert (both % DIM == 9).sum() > (alone % DIM == 9).sum()


def test_loading_an_index_with_summaries_calls_the_kernel_for_them(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call compiles it, which no search's time should include."""
    called = []
    monkeypatch.setattr("secateurs.gather.cells.add_summary_points", lambda *given: called.append(given))
    monkeypatch.setattr("secateurs.compiling._compiled", set())
    index.load()
    assert called
