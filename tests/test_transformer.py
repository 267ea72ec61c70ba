"""The BERT kernels against plain NumPy, and the built-in model by kernels against onnxruntime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from secateurs.encoders.bert import Bert, Input, read_layers, read_weights
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.networks import OnnxRuntime
from secateurs.encoders.onnx_file import OnnxFile
from secateurs.errors import SecateursError, UsageError
from secateurs.kernels.floats import everywhere, fused, load_floats, store_floats, two_to_the
from secateurs.kernels.products import (
    COLUMNS,
    ROW_KIND,
    TILE,
    TILE_SETTINGS,
    multiply,
    open_tiles,
    pack_weights,
    tiles_allowed,
)
from secateurs.kernels.self_attention import HEAD, attend, attention_room
from secateurs.kernels.simd import HAS_AVX2, compiled
from secateurs.kernels.transformer import (
    Product,
    Rounded,
    Weights,
    forward,
    gelu,
    make_room,
    normalise,
    round_row,
)

WAYS = [False, *([True] if tiles_allowed() else [])]  # of products: vectors, tiles
FOLD = np.log2(np.e) / np.sqrt(HEAD)


def erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    from math import erf

    return np.vectorize(erf)(x)


def plain_normalised(x: NDArray[np.float64], norm: NDArray[np.float32]) -> NDArray[np.float64]:
    away = x - x.mean(axis=-1, keepdims=True)
    return away / np.sqrt((away**2).mean(axis=-1, keepdims=True) + 1e-12) * norm[0] + norm[1]


def rounded_rows(x: NDArray[np.float32]) -> Rounded:
    result = Rounded(np.zeros(x.shape, dtype=ROW_KIND), *np.zeros((2, len(x)), dtype=np.float32))
    for i, row in enumerate(x):
        round_row(row, result, i)
    return result


@pytest.mark.parametrize("tiles", WAYS)
@given(rows=st.integers(1, 70), depth=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_products_are_exact(tiles: bool, rows: int, depth: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.integers(-128, 128, (64 * depth, COLUMNS * columns), dtype=np.int8)
    given_rows = rng.integers(0, 256, (rows + 2 * TILE, 64 * depth)).astype(ROW_KIND)
    products = np.zeros((rows + 2 * TILE, COLUMNS * columns), dtype=np.int32)
    first = int(rng.integers(0, rows))
    if tiles:
        open_tiles(TILE_SETTINGS)
    multiply(first, rows, given_rows, pack_weights(weights), products, tiles)
    expected = given_rows[first:rows].astype(np.int64) @ weights.astype(np.int64)
    np.testing.assert_array_equal(products[first:rows], expected)
    assert not products[:first].any()


@compiled
def _powers(x: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    store_floats(result, 0, two_to_the(load_floats(x, 0)))


@given(st.lists(st.floats(-126, 126, width=32), min_size=16, max_size=16))
@settings(deadline=None)
def test_powers_of_two_are_right_to_five_digits(given_numbers: list[float]) -> None:
    x, result = np.array(given_numbers, dtype=np.float32), np.empty(16, dtype=np.float32)
    _powers(x, result)
    np.testing.assert_allclose(result, np.exp2(x.astype(np.float64)), rtol=1e-5)


def test_whole_powers_of_two_are_exact() -> None:
    x, result = np.arange(-8, 8, dtype=np.float32), np.empty(16, dtype=np.float32)
    _powers(x, result)
    np.testing.assert_array_equal(result, np.exp2(x))


@compiled
def _arithmetic(x: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    lanes = load_floats(x, 0)
    store_floats(result, 0, fused(lanes - everywhere(2), lanes + everywhere(0.5), lanes * everywhere(3)))


def test_lanes_add_subtract_multiply_and_fuse() -> None:
    x, result = np.arange(1, 17, dtype=np.float32), np.empty(16, dtype=np.float32)
    _arithmetic(x, result)
    np.testing.assert_array_equal(result, (x - 2) * (x + 0.5) + x * 3)  # exact: small multiples of a half


@compiled
def _square_less_rounded(x: NDArray[np.float32], result: NDArray[np.float32]) -> None:
    lanes = load_floats(x, 0)
    store_floats(result, 0, fused(lanes, lanes, everywhere(0) - lanes * lanes))


def test_a_fused_product_is_rounded_once_and_others_twice() -> None:
    x, result = (1 + np.arange(16) / 4097).astype(np.float32), np.empty(16, dtype=np.float32)
    _square_less_rounded(x, result)
    exact = x.astype(np.float64) ** 2 - (x * x).astype(np.float64)
    np.testing.assert_array_equal(result, exact.astype(np.float32))
    assert result.any()


@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(1e-3, 1e3), middle=st.floats(-100, 100))
@settings(max_examples=50, deadline=None)
def test_a_rounded_row_is_within_half_a_step(seed: int, spread: float, middle: float) -> None:
    row = (np.random.default_rng(seed).standard_normal(64) * spread + middle).astype(np.float32)
    rounded = rounded_rows(row[None])
    back = rounded.rows[0] * rounded.steps[0].astype(np.float64) + rounded.least[0]
    assert np.abs(back - row).max() <= rounded.steps[0] * 0.51 + 1e-5 * np.abs(row).max()


def test_a_row_of_equal_numbers_is_rounded_to_itself() -> None:
    rounded = rounded_rows(np.full((1, 64), 3.5, dtype=np.float32))
    assert rounded.least[0] == 3.5
    assert not rounded.rows.any()


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_normalising_is_that_of_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    row, norm = rng.standard_normal(128).astype(np.float32), rng.standard_normal((2, 128)).astype(np.float32)
    result = np.empty(128, dtype=np.float32)
    normalise(row, norm, result)
    np.testing.assert_allclose(result, plain_normalised(row.astype(np.float64), norm), atol=2e-5)


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_gelu_is_right_to_a_rounding_step(seed: int, rows: int) -> None:
    rng = np.random.default_rng(seed)
    products = rng.integers(-(2**20), 2**20, (rows, 64), dtype=np.int32)
    scale, sums, bias = rng.uniform(1e-4, 2e-4, (3, 1, 64)).astype(np.float32)
    multiplied = Rounded(
        np.zeros((rows, 64), dtype=ROW_KIND), np.full(rows, 0.05, np.float32), np.full(rows, -3, np.float32)
    )
    result = Rounded(np.zeros((rows, 64), dtype=ROW_KIND), *np.zeros((2, rows), dtype=np.float32))
    gelu(0, rows, products, Product(np.zeros((1, 0), dtype=np.int8), scale, sums, bias), 0, multiplied, result)
    x = products * (0.05 * scale.astype(np.float64)) - 3 * sums.astype(np.float64) + bias
    expected = x * 0.5 * (1 + erf(x / np.sqrt(2)))
    back = result.rows * result.steps[:, None].astype(np.float64) + result.least[:, None]
    assert (np.abs(back - expected) <= result.steps[:, None] * 0.52 + 1e-4).all()


@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 80), min_size=1, max_size=3))
@settings(max_examples=25, deadline=None)
def test_attention_is_that_of_numpy(seed: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    width, total = 2 * HEAD, sum(lengths)
    starts = np.cumsum(lengths) - lengths
    attended = np.array([rng.integers(1, length + 1) for length in lengths])
    products = rng.integers(-1000, 1000, (total, 3 * width), dtype=np.int32)
    scale, sums, bias = rng.uniform(0.5e-3, 1.5e-3, (3, 3 * width)).astype(np.float32)
    steps, least = rng.uniform(0.5, 2, (2, total)).astype(np.float32)
    context = np.zeros((total, width), dtype=np.float32)
    multiplied = Rounded(np.zeros((total, width), dtype=ROW_KIND), steps, least)
    room = attention_room(max(lengths))
    attend(starts, np.array(lengths), attended, products, (scale, sums, bias), multiplied, context, room)
    x = products * (steps[:, None] * scale.astype(np.float64)) + least[:, None] * sums.astype(np.float64) + bias
    for start, length, seen in zip(starts, lengths, attended, strict=True):
        query, key, value = np.split(x[start : start + length], 3, axis=1)
        for head in range(0, width, HEAD):
            head_columns = slice(head, head + HEAD)
            logits = query[:, head_columns] @ key[:seen, head_columns].T
            weights = np.exp2(logits - logits.max(axis=1, keepdims=True))
            expected = weights / weights.sum(axis=1, keepdims=True) @ value[:seen, head_columns]
            np.testing.assert_allclose(context[start : start + length, head_columns], expected, atol=1e-4)


def tiny_weights(rng: np.random.Generator, layers: int = 2, width: int = 64, inner: int = 128) -> tuple[Weights, dict]:
    """Random weights, and the factors of their products as (depth, columns) float64."""
    factors: dict[str, list[NDArray[np.float64]]] = {}

    def product(name: str, depth: int, columns: int) -> Product:
        whole = rng.integers(-127, 128, (layers, depth, columns), dtype=np.int8)
        scale = (rng.uniform(0.5, 1.5, (layers, columns)) / (127 * np.sqrt(depth))).astype(np.float32)
        factors[name] = [w * s.astype(np.float64) for w, s in zip(whole, scale, strict=True)]
        sums = np.stack([factor.sum(axis=0) for factor in factors[name]]).astype(np.float32)
        bias = rng.standard_normal((layers, columns)).astype(np.float32) * np.float32(0.1)
        return Product(np.stack([pack_weights(w) for w in whole]), scale, sums, bias)

    def norm(*shape: int) -> NDArray[np.float32]:
        return rng.uniform(0.5, 1.5, (*shape, 2, width)).astype(np.float32)

    weights = Weights(
        words=rng.integers(0, 256, (50, width), dtype=np.uint8),
        word_scale=np.array([0.01, 128], dtype=np.float32),
        places=rng.standard_normal((128, width)).astype(np.float32),
        first_norm=norm(),
        attention=product("attention", width, 3 * width),
        mixing=product("mixing", width, width),
        mixing_norm=norm(layers),
        inner=product("inner", width, inner),
        outer=product("outer", inner, width),
        outer_norm=norm(layers),
    )
    return weights, factors


def plain_forward(token_ids: NDArray[np.int64], seen: int, weights: Weights, factors: dict) -> NDArray[np.float64]:
    """One text through the network without rounding."""
    words = (weights.words[token_ids].astype(np.float64) - weights.word_scale[1]) * weights.word_scale[0]
    x = plain_normalised(words + weights.places[: len(token_ids)], weights.first_norm)
    width = x.shape[1]
    for layer in range(len(weights.mixing_norm)):
        query, key, value = np.split(x @ factors["attention"][layer] + weights.attention.bias[layer], 3, axis=1)
        context = np.empty_like(x)
        for head in range(0, width, HEAD):
            head_columns = slice(head, head + HEAD)
            logits = query[:, head_columns] @ key[:seen, head_columns].T
            shares = np.exp2(logits - logits.max(axis=1, keepdims=True))
            context[:, head_columns] = shares / shares.sum(axis=1, keepdims=True) @ value[:seen, head_columns]
        mixed = context @ factors["mixing"][layer] + weights.mixing.bias[layer]
        x = plain_normalised(x + mixed, weights.mixing_norm[layer])
        deep = x @ factors["inner"][layer] + weights.inner.bias[layer]
        deep = deep * 0.5 * (1 + erf(deep / np.sqrt(2)))
        x = plain_normalised(x + deep @ factors["outer"][layer] + weights.outer.bias[layer], weights.outer_norm[layer])
    return x


def run_forward(texts: list[tuple[NDArray[np.int64], int]], weights: Weights, tiles: bool) -> list[NDArray[np.float32]]:
    lengths = np.array([len(ids) for ids, _ in texts])
    starts = np.cumsum(lengths) - lengths
    places = np.concatenate([np.arange(length) for length in lengths])
    room = make_room(weights, int(lengths.sum()))
    attended = np.array([seen for _, seen in texts])
    forward(np.concatenate([ids for ids, _ in texts]), places, starts, lengths, attended, weights, room, tiles)
    return [room.states[start : start + length].copy() for start, length in zip(starts, lengths, strict=True)]


@pytest.mark.parametrize("tiles", WAYS)
@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 100), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_states_are_near_those_of_a_network_without_rounding(tiles: bool, seed: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    weights, factors = tiny_weights(rng)
    texts = [(rng.integers(0, 50, length), int(rng.integers(1, length + 1))) for length in lengths]
    for (ids, seen), states in zip(texts, run_forward(texts, weights, tiles), strict=True):
        expected = plain_forward(ids, seen, weights, factors)
        cosines = (states * expected).sum(axis=1) / np.linalg.norm(states, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosines.min() > 0.995


@given(seed=st.integers(0, 2**32 - 1), lengths=st.lists(st.integers(1, 120), min_size=2, max_size=4))
@settings(max_examples=15, deadline=None)
def test_states_do_not_depend_on_the_other_texts_nor_on_the_way_of_the_products(seed: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    weights, _ = tiny_weights(rng)
    texts = [(rng.integers(0, 50, length), length) for length in lengths]
    for tiles in WAYS:
        together = run_forward(texts, weights, tiles)
        for text, states in zip(texts, together, strict=True):
            np.testing.assert_array_equal(states, run_forward([text], weights, False)[0])


TEXTS = [[101, 2, 2079, 2417, 7737, 4982, 102], [101, 2, 1037, 102, 103, 103, 103], [101, *range(2000, 2180), 102]]


@pytest.fixture(scope="module")
def bert() -> Bert:
    return Bert(wheel_folder() / "model.onnx")


def test_the_built_in_model_by_kernels_is_that_of_onnxruntime_but_for_rounding(bert: Bert) -> None:
    texts = [Input(np.array(ids), seen) for ids, seen in zip(TEXTS, (7, 4, 182), strict=True)]
    ours, theirs = bert.states(texts), OnnxRuntime(wheel_folder() / "model.onnx").states(texts)
    for mine, expected in zip(ours, theirs, strict=True):
        cosines = (mine * expected).sum(axis=1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(expected, axis=1)
        assert cosines.mean() > 0.98
        assert bert.width == mine.shape[1] == 384


def test_positions_that_nobody_attends_to_change_no_other_position(bert: Bert) -> None:
    with_masks, without = bert.states([Input(np.array(TEXTS[1]), 4), Input(np.array(TEXTS[1][:4]), 4)])
    np.testing.assert_array_equal(with_masks[:4], without)


def test_a_position_may_stand_anywhere_in_the_text(bert: Bert) -> None:
    whole = Input(np.array(TEXTS[1]), 4)
    part = Input(np.array(TEXTS[1])[[0, 1, 2, 3, 6]], 4, np.array([0, 1, 2, 3, 6]))
    for network in (bert, OnnxRuntime(wheel_folder() / "model.onnx")):
        (all_states,), (states,) = network.states([whole]), network.states([part])
        np.testing.assert_array_equal(states, all_states[[0, 1, 2, 3, 6]])


def digest_of_states(cache: Path, **environment: str) -> str:
    """Of a text's states, in a process of its own with that cache of compiled kernels."""
    code = (
        "import hashlib, numpy as np\n"
        "from secateurs.encoders.bert import Bert, Input\n"
        "from secateurs.encoders.model_folder import wheel_folder\n"
        "from secateurs.kernels.simd import HAS_VNNI\n"
        "bert = Bert(wheel_folder() / 'model.onnx')\n"
        "(states,) = bert.states([Input(np.arange(2000, 2076), 76)])\n"
        "print(hashlib.sha256(states.tobytes()).hexdigest(), HAS_VNNI)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_states_are_the_same_when_kernels_are_compiled_and_when_they_are_loaded(tmp_path: Path) -> None:
    printed = [digest_of_states(tmp_path) for _ in range(2)]
    assert any(tmp_path.rglob("*.nbi"))  # the second process loads them
    assert printed[0] == printed[1]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_AVX2, reason="the kernels of such a CPU cannot run here")
def test_states_are_the_same_on_a_cpu_without_the_dot_product_of_bytes(tmp_path: Path) -> None:
    features = "+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"
    older = digest_of_states(tmp_path, NUMBA_CPU_NAME="haswell", NUMBA_CPU_FEATURES=features)
    assert older.split()[1] == "False"
    assert older.split()[0] == digest_of_states(tmp_path).split()[0]


def test_what_the_tables_of_the_network_do_not_hold_is_refused(bert: Bert) -> None:
    with pytest.raises(UsageError, match="at most 512 positions"):
        bert.states([Input(np.full(513, 2000), 513)])
    with pytest.raises(UsageError, match="at most 512 positions"):
        bert.states([Input(np.array([101, 103]), 1, np.array([0, 512]))])
    with pytest.raises(UsageError, match="token ids below 30,522"):
        bert.states([Input(np.array([101, 30_522]), 2)])


def test_token_types_change_states(bert: Bert) -> None:
    text = Input(np.array(TEXTS[0]), len(TEXTS[0]))
    zeros, ones = np.zeros(len(TEXTS[0]), dtype=np.int64), np.ones(len(TEXTS[0]), dtype=np.int64)
    plain, first, second = bert.states([text])[0], bert.states([text], [zeros])[0], bert.states([text], [ones])[0]
    np.testing.assert_array_equal(plain, first)
    assert np.abs(plain - second).max() > 0.01


def test_a_file_of_layers_is_computed_instead_of_those_of_the_model(tmp_path: Path, bert: Bert) -> None:
    path = wheel_folder() / "model.onnx"
    layers = read_layers(OnnxFile(path))
    text = Input(np.array(TEXTS[0]), len(TEXTS[0]))
    np.savez(tmp_path / "same.npz", **layers)
    np.testing.assert_array_equal(Bert(path, tmp_path / "same.npz").states([text])[0], bert.states([text])[0])

    # Six layers, whose last neurons add nothing; and without these neurons.
    half = {name: array[::2] for name, array in layers.items()}
    half["outer.weight"] = np.where(np.arange(1536)[:, None] < 640, half["outer.weight"], 0)
    np.savez(tmp_path / "half.npz", **half)
    inner = {f"inner.{part}": half[f"inner.{part}"][..., :640] for part in ("weight", "scale", "bias")}
    np.savez(tmp_path / "small.npz", **half | inner | {"outer.weight": half["outer.weight"][:, :640]})
    of_half, of_small = (Bert(path, tmp_path / f"{name}.npz").states([text])[0] for name in ("half", "small"))
    cosines = (of_half * of_small).sum(axis=1) / np.linalg.norm(of_half, axis=1) / np.linalg.norm(of_small, axis=1)
    assert cosines.min() > 0.99  # neurons that add nothing widen the steps to which the others are rounded
    assert np.abs(of_small - bert.states([text])[0]).max() > 0.5


def test_a_file_that_is_no_int8_bert_is_named(tmp_path: Path) -> None:
    for content, message in ((b"\x3a\x7f", "cut short"), (b"", "not an int8 BERT")):
        (tmp_path / "model.onnx").write_bytes(content)
        with pytest.raises(SecateursError, match=message):
            read_weights(OnnxFile(tmp_path / "model.onnx"))
