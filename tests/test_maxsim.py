"""Eq. 1: the fast kernel against its plain twin, and both against numbers worked out by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secateurs.kernels import maxsim as module
from secateurs.kernels.maxsim import bounds_of_the_rest, maxsim, score
from secateurs.storage.rounding import Float16Store, Int8Store, Store, reach_of


def bounds(lengths: list[int]) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *lengths])
    return offsets[:-1], offsets[1:]


def test_maxsim_of_two_documents_by_hand() -> None:
    query = np.array([[1, 0], [0, 1]], dtype=np.float32)
    rows = np.array([[0.5, 0.1], [0.2, 0.9], [-0.3, -0.4]], dtype=np.float32)
    # document 1: max(0.5, 0.2) + max(0.1, 0.9); document 2: its only token, both similarities negative
    assert maxsim(query, rows, *bounds([2, 1])) == pytest.approx([1.4, -0.7])


@pytest.mark.parametrize("store", [Float16Store(), Int8Store(np.zeros(2, dtype=np.float32), 0.01)])
def test_all_negative_similarities_are_not_floored_at_zero(store: Store) -> None:
    query = np.array([[1, 0], [0, 1]], dtype=np.float32)
    rows = store.encode(np.array([[-0.5, -0.25], [-0.75, -0.5]], dtype=np.float32))
    assert score(store.prepare(query), rows, *bounds([2])) == pytest.approx([-0.75], abs=0.01)


def test_a_document_without_embeddings_scores_minus_infinity_and_leaves_its_neighbours_as_they_are() -> None:
    store = Float16Store()
    rows = store.encode(np.array([[1, 0], [0, 1]], dtype=np.float32))
    scores = score(store.prepare(np.array([[1, 0]], dtype=np.float32)), rows, *bounds([0, 1, 0, 1, 0]))
    assert scores.tolist() == [-np.inf, 1, -np.inf, 0, -np.inf]


def test_an_empty_query_gives_every_document_the_empty_sum() -> None:
    store = Float16Store()
    rows = store.encode(np.eye(3, dtype=np.float32))
    assert score(store.prepare(np.zeros((0, 3), dtype=np.float32)), rows, *bounds([1, 2])).tolist() == [0, 0]


@pytest.mark.parametrize("store", [Float16Store(), Int8Store(np.zeros(3, dtype=np.float32), 1.0)])
def test_whole_numbers_are_scored_without_any_rounding(store: Store) -> None:
    rng = np.random.default_rng(0)
    query = rng.integers(-127, 128, (5, 3)).astype(np.float32)
    query[:, 0] = 127  # int8: each embedding's scale becomes 1
    rows = rng.integers(-10, 11, (40, 3)).astype(np.float32)
    starts, ends = bounds([1, 7, 12, 20])
    assert score(store.prepare(query), store.encode(rows), starts, ends) == pytest.approx(
        maxsim(query, rows, starts, ends), abs=1e-9
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[int]]:
    dim = draw(st.integers(1, 40))
    lengths = draw(st.lists(st.integers(0, 7), min_size=1, max_size=12))
    numbers = st.floats(-1, 1, width=32)
    query = draw(arrays(np.float32, (draw(st.integers(0, 9)), dim), elements=numbers))
    rows = draw(arrays(np.float32, (sum(lengths), dim), elements=numbers))
    return query, rows, lengths


@given(problems(), st.sampled_from(["int8", "float16"]), st.integers(1, 5), st.randoms())
@settings(max_examples=150, deadline=None)
def test_kernel_equals_twin_on_any_shape(
    problem: tuple[np.ndarray, np.ndarray, list[int]], name: str, block: int, random: object
) -> None:
    query, embeddings, lengths = problem
    store: Any = Float16Store()
    if name == "int8":
        centre = embeddings.mean(axis=0) if len(embeddings) else np.zeros(embeddings.shape[1])
        store = Int8Store.fit(centre.astype(np.float32), embeddings)
    rows = store.encode(embeddings)
    starts, ends = bounds(lengths)
    shuffled = np.arange(len(starts))
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    expected = maxsim(query, store.decode(rows), starts, ends)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS_PER_BLOCK", block)
        got = score(store.prepare(query), rows, starts[shuffled], ends[shuffled])
    # only the query's rounding is left: half a step in each dimension, times the largest row there can be
    half_step = np.abs(query).max(axis=1, initial=0) / 254 if name == "int8" else np.full(len(query), 2**-11)
    reach = np.abs(store.decode(rows)).max(initial=0) + (np.abs(store.centre).max() if name == "int8" else 0)
    tolerance = 1e-5 + half_step.sum() * query.shape[1] * reach
    np.testing.assert_allclose(got, expected[shuffled], atol=tolerance, rtol=0)


def like_a_query(rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Unit vectors of which the later ones lie near the first sixteen, as expansion tokens do."""
    first = rng.normal(size=(count, dim))
    rest = first[rng.integers(0, min(16, count), count)] + 0.6 * rng.normal(size=(count, dim))
    rest[::3] *= -1  # and some face away
    query = np.where(np.arange(count)[:, None] < 16, first, rest)
    return (query / np.linalg.norm(query, axis=1, keepdims=True)).astype(np.float32)


@given(st.integers(0, 2**32 - 1), st.integers(17, 70), st.integers(1, 12), st.sampled_from([0.0, 0.4, 3.0]))
@settings(max_examples=60, deadline=None)
def test_dropping_documents_early_never_changes_the_k_best(seed: int, count: int, k: int, shift: float) -> None:
    rng = np.random.default_rng(seed)
    query = like_a_query(rng, count, 24)
    embeddings = rng.normal(size=(400, 24)) + shift * rng.normal(size=24)
    embeddings[:60] = query[rng.integers(0, count, 60)] + 0.2 * rng.normal(size=(60, 24))  # some real matches
    embeddings = (embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).astype(np.float32)
    plain = Int8Store.fit(embeddings.mean(axis=0), embeddings)
    rows = plain.encode(embeddings)
    store = Int8Store(plain.centre, plain.step, reach_of(plain, rows))
    starts, ends = bounds([10] * 40)
    order = rng.permutation(40)
    expected = score(plain.prepare(query), rows, starts[order], ends[order])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MANY", 1)
        got = score(store.prepare(query, rng.permutation(count)), rows, starts[order], ends[order], k)
    best = np.sort(expected)[-k]
    assert got[expected >= best].tolist() == expected[expected >= best].tolist()
    assert set(got[expected < best].tolist()) <= {-np.inf, *expected.tolist()}


def test_query_embeddings_that_face_away_from_the_first_sixteen_are_scored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best documents match only the later ones, and have negative similarities with all the first."""
    monkeypatch.setattr(module, "_MANY", 1)
    rng = np.random.default_rng(0)
    towards = np.eye(1, 24)[0]
    query = np.concatenate([np.tile(towards, (16, 1)), np.tile(-towards, (48, 1))]) + 0.05 * rng.normal(size=(64, 24))
    query = (query / np.linalg.norm(query, axis=1, keepdims=True)).astype(np.float32)
    embeddings = rng.normal(size=(500, 24))
    embeddings[450:] = -towards + 0.1 * rng.normal(size=(50, 24))
    embeddings = (embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)).astype(np.float32)
    plain = Int8Store.fit(embeddings.mean(axis=0), embeddings)
    rows = plain.encode(embeddings)
    store = Int8Store(plain.centre, plain.step, reach_of(plain, rows))
    starts, ends = bounds([1] * 500)
    expected, got = score(plain.prepare(query), rows, starts, ends), score(store.prepare(query), rows, starts, ends, 10)
    best = np.argsort(-expected)[:10]
    assert got[best].tolist() == expected[best].tolist()


def test_documents_that_cannot_be_among_the_k_best_are_dropped_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MANY", 1)
    rng = np.random.default_rng(0)
    query = np.tile(like_a_query(rng, 16, 96), (2, 1))
    embeddings = rng.normal(size=(3000, 96)).astype(np.float32)
    embeddings[:32] = query  # the first document has every query embedding itself, the others nothing of them
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    plain = Int8Store.fit(embeddings.mean(axis=0), embeddings)
    rows = plain.encode(embeddings)
    store = Int8Store(plain.centre, plain.step, reach_of(plain, rows))
    starts, ends = bounds([40] * 75)
    assert np.isinf(score(store.prepare(query), rows, starts, ends, k=1)).tolist() == [False, *[True] * 74]
    assert np.isfinite(score(store.prepare(query), rows, starts, ends)).all()
    assert np.isfinite(score(plain.prepare(query), rows, starts, ends, k=1)).all()  # without a reach none is dropped


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None)
def test_no_embedding_beats_the_bound_of_the_rest(seed: int) -> None:
    """The bound against the embeddings that come nearest to it: those between the query embedding and its neighbour."""
    rng = np.random.default_rng(seed)
    query = like_a_query(rng, 24, 5).astype(np.float64) * rng.uniform(0.5, 2, (24, 1))
    longest = 1.3
    table = bounds_of_the_rest(query, np.zeros(24), longest)
    mixed = query[16:] * rng.random((8, 1)) + query[table["nearest"]] * rng.normal(size=(8, 1))
    embeddings = longest * mixed / np.linalg.norm(mixed, axis=1, keepdims=True)
    for m, embedding in enumerate(embeddings):
        bound = table[m]
        y = min(query[bound["nearest"]] @ embedding, bound["turning_point"])
        remainder = max(bound["longest"] ** 2 - (y * bound["inverse_length"]) ** 2, 0)
        largest = bound["along"] * y + bound["across"] * np.sqrt(remainder) + bound["hidden"]
        assert query[16 + m] @ embedding <= largest


@given(problems(), st.randoms())
@settings(max_examples=50, deadline=None)
def test_the_order_of_a_documents_tokens_does_not_matter(
    problem: tuple[np.ndarray, np.ndarray, list[int]], random: object
) -> None:
    query, embeddings, _ = problem
    store = Float16Store()
    rows = store.encode(embeddings)
    shuffled = np.arange(len(rows))
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    whole = bounds([len(rows)])
    assert score(store.prepare(query), rows, *whole) == score(store.prepare(query), rows[shuffled], *whole)


@pytest.mark.parametrize("store", [Float16Store(), Int8Store(np.zeros(96, dtype=np.float32), 0.03)])
def test_a_score_does_not_depend_on_what_else_is_scored(store: Store) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 30, 200).tolist()
    rows = store.encode(rng.normal(size=(sum(lengths), 96)).astype(np.float32))
    query = store.prepare(rng.normal(size=(32, 96)).astype(np.float32))
    starts, ends = bounds(lengths)
    together = score(query, rows, starts, ends)
    alone = [score(query, rows, starts[[i]], ends[[i]])[0] for i in range(200)]
    assert together.tolist() == alone
