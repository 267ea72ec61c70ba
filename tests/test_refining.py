"""Refined scores: the kernel against its plain twin, and which documents are refined."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secateurs.kernels import maxsim, refining
from secateurs.kernels.maxsim import maxsim as exact_maxsim
from secateurs.kernels.refining import (
    RefinedQuery,
    RefinedRows,
    encode_refinements,
    prepare_refined,
    refined_similarities,
    refined_values,
    score_refined,
)
from secateurs.storage.rounding import Int8Store, reach_of


def unchecked(starts: np.ndarray, ends: np.ndarray) -> None:
    """In place of the checksums."""


def make(embeddings: np.ndarray, query: np.ndarray, fitted_to: np.ndarray | None = None) -> tuple[Any, ...]:
    """The scale, the refined rows, and the query for them."""
    fitted_to = embeddings if fitted_to is None else fitted_to
    store = Int8Store.fit(fitted_to.mean(axis=0), fitted_to)
    coarse = store.encode(embeddings)
    rows = RefinedRows(coarse, encode_refinements((embeddings - store.centre) / np.float32(store.step), coarse))
    return store, rows, prepare_refined(query, store.centre, store.step, None, reach_of(store, coarse))


def unit(rng: np.random.Generator, count: int, dim: int, shift: float = 0.5) -> np.ndarray:
    vectors = rng.normal(size=(count, dim)) + shift
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_values_of_codes_by_hand() -> None:
    values = np.array([[3.25, -3.25, 0.5, 126.5, -190.4, 300.0]], dtype=np.float32)
    rows = np.array([[3, -3, 0, 127, -127, 127]], dtype=np.int8)
    codes = encode_refinements(values, rows)
    # a quarter of 128 above and below the middle, 64; half above; then 0, sqrt(63.9 / 128) and 1 of 255
    assert codes.tolist() == [[96, 32, 128, 0, 180, 255]]
    # 126.5 * 128; 128 * (126.5 + 128 * (180 / 255)^2), rounded; 254.5 * 128
    assert refined_values(rows, codes).tolist() == [[416, -416, 64, 16192, -24356, 32576]]


def test_a_value_is_kept_to_half_of_a_128th_of_its_step() -> None:
    rng = np.random.default_rng(0)
    values = rng.uniform(-126.4, 126.4, (200, 7)).astype(np.float32)
    rows = np.rint(values).astype(np.int8)
    kept = RefinedRows(rows, encode_refinements(values, rows))[:]
    assert np.abs(kept - values).max() <= 0.5 / 128 + 1e-5


def test_what_int8_clips_is_kept_to_half_a_step_up_to_twice_the_scale() -> None:
    values = np.linspace(126.6, 254, 1000, dtype=np.float32)[:, None] * np.array([1, -1], dtype=np.float32)
    rows = np.clip(np.rint(values), -127, 127).astype(np.int8)
    kept = RefinedRows(rows, encode_refinements(values, rows))[:]
    assert np.abs(kept - values).max() <= 0.51


def twin(query: RefinedQuery, rows: np.ndarray, codes: np.ndarray, bounds: list[int]) -> list[float]:
    """Refined scores in plain Python and NumPy, from the definition in refining.py."""
    inner = rows.astype(np.int64) * 128 + codes - 64
    outer = np.sign(rows) * np.rint(128 * (126.5 + 128 * (codes / 255) ** 2)).astype(np.int64)
    values = np.where(np.abs(rows.astype(np.int64)) == 127, outer, inner)
    scores = []
    for start, end in pairwise(bounds):
        total = 0.0 if start < end else -np.inf
        for high, low, scale, bias in zip(query.high, query.low, query.scale, query.bias, strict=True):
            if start < end:
                finer = (values[start:end] @ low.astype(np.int64)) // 128
                total += float((values[start:end] @ high.astype(np.int64) + finer).max() * scale + bias)
        scores.append(total)
    return scores


@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 130),
    st.integers(0, 40),
    st.lists(st.integers(0, 11), min_size=1, max_size=12),
)
@settings(max_examples=80, deadline=None)
def test_kernel_equals_twin_on_any_shape_and_any_bytes(seed: int, dim: int, count: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.integers(-127, 128, (sum(lengths), dim)).astype(np.int8)
    codes = rng.integers(0, 256, rows.shape).astype(np.uint8)
    if seed % 3 == 0:  # as far from zero as there is: no sum may overflow
        rows[:], codes[:] = 127 * rng.choice([-1, 1], dim), 255
    vectors = np.sign(rows[:1]) if seed % 6 == 0 and len(rows) else rng.normal(size=(1, dim))
    query = np.repeat(vectors, count, axis=0).astype(np.float32) * rng.uniform(0.1, 2, (count, 1)).astype(np.float32)
    prepared = prepare_refined(query, rng.normal(size=dim).astype(np.float32), 0.01)
    bounds = np.cumsum([0, *lengths])
    got = score_refined(prepared, RefinedRows(rows, codes), bounds[:-1], bounds[1:], None, unchecked)
    assert got.tolist() == twin(prepared, rows, codes, bounds.tolist())


@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_a_score_is_the_sum_of_the_best_similarities_and_near_that_of_float32(seed: int, dim: int) -> None:
    rng = np.random.default_rng(seed)
    embeddings, query = unit(rng, 60, dim), unit(rng, 9, dim)
    store, rows, prepared = make(embeddings, query, fitted_to=embeddings[:40])
    starts, ends = np.array([0, 10, 30]), np.array([10, 30, 60])
    scores = score_refined(prepared, rows, starts, ends, None, unchecked)
    for score, start, end in zip(scores, starts, ends, strict=True):
        similar = refined_similarities(prepared, rows.rows[start:end], rows.codes[start:end])
        assert score == pytest.approx(similar.max(axis=0).sum(), abs=1e-12)
    decoded = store.decode(rows[:])
    assert scores == pytest.approx(exact_maxsim(query, decoded, starts, ends), abs=1e-3)


def test_a_refined_score_does_not_depend_on_what_else_is_scored() -> None:
    rng = np.random.default_rng(3)
    embeddings, query = unit(rng, 3000, 96), unit(rng, 33, 96)
    _, rows, prepared = make(embeddings, query)
    bounds = np.sort(np.concatenate([[0, 3000], rng.choice(np.arange(1, 3000), 199, replace=False)]))
    together = score_refined(prepared, rows, bounds[:-1], bounds[1:], None, unchecked)
    best = score_refined(prepared, rows, bounds[:-1], bounds[1:], 10, unchecked)
    for i in range(200):
        alone = score_refined(prepared, rows, bounds[[i]], bounds[[i + 1]], 1, unchecked)
        assert alone[0] == together[i]
        assert best[i] in (together[i], -np.inf)


@given(st.integers(0, 2**32 - 1), st.integers(17, 50), st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_the_k_best_are_refined_and_few_others(seed: int, count: int, k: int) -> None:
    """Also where documents are dropped early."""
    rng = np.random.default_rng(seed)
    query = unit(rng, count, 32)
    embeddings = unit(rng, 4000, 32)
    near = query[rng.integers(0, count, 600)] + 0.1 * rng.normal(size=(600, 32)).astype(np.float32)
    embeddings[:600] = near / np.linalg.norm(near, axis=1, keepdims=True)  # longer ones would be clipped, see the docs
    embeddings = embeddings[rng.permutation(4000)]
    _, rows, prepared = make(embeddings, query)
    starts, ends = np.arange(0, 4000, 10), np.arange(10, 4010, 10)
    every = score_refined(prepared, rows, starts, ends, None, unchecked)
    read: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maxsim, "_MANY", 1)
        best = score_refined(prepared, rows, starts, ends, k, lambda begin, _: read.append(len(begin)))
    top = np.argsort(-every)[:k]
    assert best[top].tolist() == every[top].tolist()
    assert k <= np.isfinite(best).sum() == read[0] < 200


def test_documents_that_come_later_are_refined_only_if_they_can_pass_those_before() -> None:
    rng = np.random.default_rng(1)
    embeddings, query = unit(rng, 4000, 32), unit(rng, 20, 32)
    _, rows, prepared = make(embeddings, query)
    starts, ends = np.arange(0, 4000, 10), np.arange(10, 4010, 10)
    every = score_refined(prepared, rows, starts, ends, None, unchecked)
    before, later = np.argsort(-every)[:10], np.argsort(-every)[10:60]
    reached = float(every[before].min())
    alone = score_refined(prepared, rows, starts[later], ends[later], 10, unchecked)
    after = score_refined(prepared, rows, starts[later], ends[later], 10, unchecked, reached)
    assert np.isfinite(after).sum() < np.isfinite(alone).sum()
    assert all(every[later][np.isinf(after)] < reached)
    lowest = np.argsort(-every)[-50:]
    assert np.isinf(score_refined(prepared, rows, starts[lowest], ends[lowest], 10, unchecked, reached)).all()


def test_documents_within_the_slack_are_not_dropped_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maxsim, "_MANY", 1)
    rng = np.random.default_rng(0)
    embeddings, query = unit(rng, 4000, 32), unit(rng, 40, 32)
    _, rows, prepared = make(embeddings, query)
    starts, ends = np.arange(0, 4000, 10), np.arange(10, 4010, 10)
    coarse = maxsim.score(prepared.coarse, rows.rows, starts, ends)
    with_k = maxsim.score(prepared.coarse, rows.rows, starts, ends, 5, prepared.slack)
    near = coarse >= np.sort(coarse)[-5] - prepared.slack
    assert with_k[near].tolist() == coarse[near].tolist()


def test_without_a_reach_every_document_is_refined() -> None:
    rng = np.random.default_rng(0)
    embeddings, query = unit(rng, 100, 8), unit(rng, 3, 8)
    store, rows, _ = make(embeddings, query)
    prepared = prepare_refined(query, store.centre, store.step)
    starts, ends = np.arange(0, 100, 5), np.arange(5, 105, 5)
    assert np.isfinite(score_refined(prepared, rows, starts, ends, 1, unchecked)).all()


def test_the_query_fits_whatever_its_dimension() -> None:
    for dim in (1, 2, 96, 4096):
        prepared = prepare_refined(np.ones((1, dim), np.float32), np.zeros(dim, np.float32), 1.0)
        products = np.abs(prepared.high.astype(np.int64)).sum() * refining._FARTHEST
        finer = np.abs(prepared.low.astype(np.int64)).sum() * refining._FARTHEST
        assert products + finer // 128 + 1 < 2**31
        assert finer < 2**31
