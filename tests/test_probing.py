"""The nearest cells: among all cells, or among the members of the best groups."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import random_text
from hypothesis import given, settings
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Index
from secateurs.kernels import probing
from secateurs.kernels.clustering import assign
from secateurs.kernels.probing import Centroids, group_cells
from secateurs.kernels.simd import round_query

CELLS, WIDTH, PROBED, NEAR = 12_000, 16, 60, 24


@pytest.fixture(scope="module", autouse=True)
def groups_for_few() -> Iterator[None]:
    """Groups of cells from 1,000 cells on, so that the tests need few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "MANY_CELLS", 1000)
        patch.setattr(probing, "_CELLS_PER_GROUP", 16)
        patch.setattr(probing, "_GROUPS_PROBED", PROBED)
        patch.setattr(probing, "_GROUPS_NEAR", NEAR)
        yield


@pytest.fixture(scope="module")
def centroids() -> np.ndarray:
    """Around 300 centres, as cells are around words."""
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 30, (300, WIDTH))
    return np.clip(centres[rng.integers(0, 300, CELLS)] + rng.normal(0, 12, (CELLS, WIDTH)), -127, 127).astype(np.int8)


@pytest.fixture(scope="module")
def groups(centroids: np.ndarray) -> np.ndarray:
    groups = group_cells(centroids)
    assert groups is not None
    return groups


@pytest.fixture(scope="module")
def grouped(centroids: np.ndarray, groups: np.ndarray) -> Centroids:
    return Centroids(centroids, groups)


@pytest.fixture(scope="module")
def outlines(centroids: np.ndarray, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each group's centre, and the root of the mean squared distance of its members from it."""
    members = [centroids[groups == group].astype(np.int64) for group in range(groups.max() + 1)]
    centres = np.array([np.rint(some.mean(axis=0)) for some in members])
    return centres, np.array([np.sqrt(((some - some.mean(axis=0)) ** 2).sum(axis=1).mean()) for some in members])


def queries(seed: int, count: int) -> np.ndarray:
    return round_query(random_text(np.random.default_rng(seed), count, WIDTH).embeddings)[0]


def test_every_cell_is_in_a_group_and_no_group_is_empty(groups: np.ndarray) -> None:
    sizes = np.bincount(groups)
    assert len(groups) == CELLS
    assert sizes.min() >= 1
    assert 500 <= len(sizes) <= CELLS // 16


def test_a_few_cells_are_not_grouped(centroids: np.ndarray) -> None:
    assert group_cells(centroids[:999]) is None
    assert group_cells(centroids[:1000]) is not None


def test_the_same_cells_are_in_the_same_groups(centroids: np.ndarray, groups: np.ndarray) -> None:
    again = group_cells(centroids.copy())
    assert again is not None
    assert again.tobytes() == groups.tobytes()


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 70))
@settings(max_examples=40, deadline=None)
def test_without_groups_the_nearest_of_all_cells_are_found(
    centroids: np.ndarray, seed: int, kept: int, wanted: int
) -> None:
    rounded = queries(seed, kept)
    cells, products = Centroids(centroids).nearest(rounded, wanted)
    for i in range(kept):
        similar = centroids.astype(np.int64) @ rounded[i]
        expected = np.argsort(-similar, kind="stable")[:wanted]
        assert cells[i].tolist() == expected.tolist()
        assert products[i].tolist() == similar[expected].tolist()


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 120))
@settings(max_examples=40, deadline=None)
def test_with_groups_the_nearest_cells_of_the_best_groups_are_found(
    centroids: np.ndarray,
    groups: np.ndarray,
    grouped: Centroids,
    outlines: tuple[np.ndarray, np.ndarray],
    seed: int,
    kept: int,
    wanted: int,
) -> None:
    rounded = queries(seed, kept)
    cells, products = grouped.nearest(rounded, wanted)
    centres, spread = outlines
    for i in range(kept):
        best = np.argsort(-(centres @ rounded[i] + np.floor(65 * spread)), kind="stable")[: max(PROBED, wanted)]
        similar = centroids.astype(np.int64) @ rounded[i]
        there = np.sort(similar[np.isin(groups, best)])[::-1]
        assert products[i].tolist() == there[:wanted].tolist()
        assert similar[cells[i]].tolist() == products[i].tolist()
        assert len(set(cells[i].tolist())) == wanted


def test_groups_find_nearly_all_of_the_nearest_cells(centroids: np.ndarray, grouped: Centroids) -> None:
    rounded = queries(1, 200)
    all_met, _ = Centroids(centroids).nearest(rounded, 33)
    some_met, _ = grouped.nearest(rounded, 33)
    shared = [len({*a} & {*b}) for a, b in zip(all_met.tolist(), some_met.tolist(), strict=True)]
    assert 0.95 * 33 < np.mean(shared) < 33


def test_with_groups_a_large_nprobe_finds_exactly_the_nearest_cells(centroids: np.ndarray, grouped: Centroids) -> None:
    rounded = queries(2, 3)
    for wanted in (200, CELLS):
        assert np.array_equal(grouped.nearest(rounded, wanted)[1], Centroids(centroids).nearest(rounded, wanted)[1])


def added_rows(centroids: np.ndarray, seed: int, count: int) -> np.ndarray:
    """Near centroids, as embeddings that are added are."""
    rng = np.random.default_rng(seed)
    rows = centroids[rng.integers(0, len(centroids), count)] + rng.normal(0, 8, (count, WIDTH))
    return np.clip(np.rint(rows), -127, 127).astype(np.int8)


@given(st.integers(0, 10_000), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_a_row_is_assigned_to_the_nearest_cell_of_the_groups_with_the_nearest_centres(
    centroids: np.ndarray,
    groups: np.ndarray,
    grouped: Centroids,
    outlines: tuple[np.ndarray, np.ndarray],
    seed: int,
    count: int,
) -> None:
    rows = added_rows(centroids, seed, count)
    centres, _ = outlines
    for row, cell in zip(rows.astype(np.int64), grouped.assign(rows).tolist(), strict=True):
        nearness = [both @ row - (both * both).sum(axis=1) // 2 for both in (centres, centroids.astype(np.int64))]
        best = np.argsort(-nearness[0], kind="stable")[:NEAR]
        assert nearness[1][cell] == nearness[1][np.isin(groups, best)].max()


def test_groups_assign_nearly_all_rows_to_the_nearest_cell(centroids: np.ndarray, grouped: Centroids) -> None:
    rows = added_rows(centroids, 3, 2000)
    nearest = assign(rows.__getitem__, np.arange(len(rows)), centroids, None)
    assert 0.97 < (grouped.assign(rows) == nearest).mean() < 1


def documents(count: int, seed: int = 0) -> list[Document]:
    """Every embedding near one of 200 words."""
    rng = np.random.default_rng(seed)
    words = random_text(np.random.default_rng(9), 200, types=1).embeddings
    made = []
    for i in range(count):
        ids = rng.integers(0, 200, 12)
        rows = words[ids] + 0.1 * rng.normal(size=(12, 16))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        made.append(Document(f"{seed}-{i}", f"text {i}", {}, EncodedText(rows.astype(np.float32), ids, np.zeros(12))))
    return made


def files(index: Index) -> set[str]:
    return {path.name for path in index.snapshot.codebook.folder.iterdir()}


def test_an_index_with_many_cells_finds_with_groups_what_it_finds_without(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "MANY_CELLS", 10**6)
        flat = Index.build(tmp_path / "flat.sec", documents(3000), encoder=None)
    index = Index.build(tmp_path / "i.sec", documents(3000), encoder=None)
    assert "cell_groups.npy" not in files(flat)
    assert "cell_groups.npy" in files(index)
    assert np.load(index.snapshot.codebook.folder / "cell_groups.npy").max() > 4 * PROBED  # groups save comparisons
    assert index.snapshot.codebook.centroids.tobytes() == flat.snapshot.codebook.centroids.tobytes()
    reopened = Index(index.path)
    shared = 0
    for seed in range(30):
        query = random_text(np.random.default_rng(seed), 6)
        found = index.search(query)
        assert reopened.search(query).hits == found.hits
        assert index.score(query, [hit.docno for hit in found]) == [hit.score for hit in found]
        shared += len({hit.docno for hit in found} & {hit.docno for hit in flat.search(query)})
    assert shared >= 0.98 * 10 * 30


def test_documents_that_are_added_by_groups_are_found_as_by_all_centroids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "MANY_CELLS", 10**6)
        flat = Index.build(tmp_path / "flat.sec", documents(3000), encoder=None)
    index = Index.build(tmp_path / "i.sec", documents(3000), encoder=None)
    assigned: list[int] = []
    by_groups = Centroids.assign

    def counted(self: Centroids, rows: np.ndarray) -> np.ndarray:
        assigned.append(len(rows))
        return by_groups(self, rows)

    monkeypatch.setattr(Centroids, "assign", counted)
    flat.add(documents(1000, seed=1))
    assert assigned == []
    index.add(documents(1000, seed=1))
    assert sum(assigned) == 12_000
    assert len(assigned) > 1  # a part for each thread
    spreads = [each.manifest.segments[-1].spread for each in (flat, index)]
    assert spreads[0] <= spreads[1] < 1.02 * spreads[0]
    recall = [0, 0]
    for document in documents(60, seed=2):
        assert document.encoded is not None
        exact = {hit.docno for hit in index.search(document.encoded, gather="exhaustive")}
        for number, each in enumerate((flat, index)):
            recall[number] += len(exact & {hit.docno for hit in each.search(document.encoded)})
    assert recall[1] >= recall[0] - 6  # of 600
    assert recall[1] > 500


def test_groups_follow_the_cells_through_the_life_of_an_index(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", documents(3000), encoder=None)
    before = (index.snapshot.codebook.folder / "cell_groups.npy").read_bytes()
    index.add(documents(20, seed=1))
    index.delete(["0-7"])
    assert (index.snapshot.codebook.folder / "cell_groups.npy").read_bytes() == before
    index.compact()
    assert "cell_groups.npy" in files(index)
    index.check()
    for document in documents(20, seed=1):
        assert document.encoded is not None
        assert index.search(document.encoded)[0].docno == document.docno
