"""Clusters: every embedding in one, each cell of one token, the same on any number of threads."""

import numpy as np
import pytest

from secateurs.kernels import clustering
from secateurs.kernels.clustering import Clusters, cluster


def blobs(types: int, rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """int8 rows around a centre per token type, types of very different frequency, shuffled."""
    rng = np.random.default_rng(seed)
    token_ids = np.sort((types * rng.random(rows) ** 3).astype(np.int32))
    centres = rng.integers(-60, 61, (types, 8))
    vectors = np.clip(centres[token_ids] + rng.normal(0, 12, (rows, 8)), -127, 127).astype(np.int8)
    order = rng.permutation(rows)
    return vectors[order], token_ids[order]


def together(vectors: np.ndarray, token_ids: np.ndarray, **options: int) -> Clusters:
    parts = list(cluster(lambda some: vectors[some], token_ids, **options))
    return Clusters(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def test_every_row_is_in_exactly_one_cell_and_no_cell_is_empty() -> None:
    vectors, token_ids = blobs(50, 5000)
    found = together(vectors, token_ids)
    assert sorted(found.rows.tolist()) == list(range(5000))
    assert found.sizes.sum() == 5000
    assert found.sizes.min() >= 1
    assert len(found.sizes) == len(found.centroids)


def test_a_cell_has_embeddings_of_one_token_only() -> None:
    vectors, token_ids = blobs(50, 5000)
    found = together(vectors, token_ids)
    for rows in np.split(found.rows, np.cumsum(found.sizes)[:-1]):
        assert len(set(token_ids[rows].tolist())) == 1


def test_a_row_is_in_the_nearest_cell_of_its_token() -> None:
    vectors, token_ids = blobs(5, 2000)
    found = together(vectors, token_ids, cells=60)
    home = np.repeat(np.arange(len(found.sizes)), found.sizes)
    token_of_cell = token_ids[found.rows[np.cumsum(found.sizes) - 1]]
    for row, cell in list(zip(found.rows.tolist(), home.tolist(), strict=True))[::17]:
        distance = ((found.centroids.astype(np.int64) - vectors[row]) ** 2).sum(axis=1)
        own = token_of_cell == token_ids[row]
        assert distance[cell] <= distance[own].min() + 1  # half of an odd square is rounded


def test_the_cells_do_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "_BATCH", 300)
    vectors, token_ids = blobs(40, 6000)
    one, three = (together(vectors, token_ids, threads=threads) for threads in (1, 3))
    assert one.centroids.tolist() == three.centroids.tolist()
    assert one.rows.tolist() == three.rows.tolist()


def test_frequent_and_scattered_tokens_get_more_cells() -> None:
    rng = np.random.default_rng(0)
    tight, wide = rng.normal(0, 2, (1000, 8)), rng.normal(0, 20, (1000, 8))
    rare = rng.normal(0, 20, (50, 8))
    vectors = np.clip(np.concatenate([tight, wide, rare]), -127, 127).astype(np.int8)
    token_ids = np.repeat(np.arange(3, dtype=np.int32), [1000, 1000, 50])
    order, bounds = clustering._by_type(token_ids)
    budgets = clustering._budgets(lambda some: vectors[some], order, bounds, 200)
    assert budgets.sum() == pytest.approx(200, abs=3)
    assert budgets[1] > 5 * budgets[0] > 5 * budgets[2]


def test_without_token_ids_one_clustering_covers_everything_and_follows_the_shape_of_the_data() -> None:
    vectors, _ = blobs(300, 20_000)
    found = together(vectors, np.zeros(20_000, dtype=np.int32), cells=600)  # more than are made in one step
    assert sorted(found.rows.tolist()) == list(range(20_000))
    assert 400 <= len(found.sizes) <= 700
    home = np.repeat(np.arange(len(found.sizes)), found.sizes)
    inside = ((vectors[found.rows].astype(np.float64) - found.centroids[home]) ** 2).sum(axis=1).mean()
    assert inside < 0.15 * ((vectors - vectors.mean(axis=0)) ** 2).sum(axis=1).mean()


def test_rows_that_are_all_equal_share_one_cell() -> None:
    found = together(np.full((500, 8), 3, dtype=np.int8), np.zeros(500, dtype=np.int32), cells=20)
    assert found.sizes.tolist() == [500]
    assert found.centroids.tolist() == [[3] * 8]


def test_very_many_equal_rows_end_in_one_cell_and_the_rest_in_theirs() -> None:
    """Blank image patches: most rows are one and the same vector, and no token ids tell the others apart."""
    vectors, _ = blobs(300, 4000)
    vectors[:2400] = 7
    found = together(vectors, np.zeros(4000, dtype=np.int32), cells=700)
    assert sorted(found.rows.tolist()) == list(range(4000))
    assert len(found.sizes) > 100


def test_a_type_larger_than_a_batch_is_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "_BATCH", 500)
    vectors, _ = blobs(20, 8000)
    read_at_once: list[int] = []

    def read(some: np.ndarray) -> np.ndarray:
        read_at_once.append(len(some))
        return vectors[some]

    parts = list(cluster(read, np.zeros(8000, dtype=np.int32), cells=10, threads=1))
    assert sum(len(part.rows) for part in parts) == 8000
    assert max(read_at_once) <= 500
