"""Codes of four bits against plain NumPy, with the CPU's byte shuffle and without."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secateurs.kernels import decoding, maxsim
from secateurs.kernels.decoding import CodedRows, encode_rows

Decode = Callable[..., None]


def unpacked(codes: np.ndarray) -> np.ndarray:
    """(rows, width): the code of each dimension."""
    groups = []
    for first in range(0, codes.shape[1], 16):
        group = codes[:, first : first + 16]
        groups += [group & 15, group >> 4]
    return np.concatenate(groups, axis=1).astype(np.int64)


def plainly_decoded(codes: np.ndarray, numbers: np.ndarray, table: np.ndarray) -> np.ndarray:
    width = 2 * codes.shape[1]
    lines = table[numbers].astype(np.int64)
    offsets = np.take_along_axis(lines[:, width:], unpacked(codes), axis=1)
    return np.clip(lines[:, :width] + offsets, -128, 127)


def plainly_encoded(rows: np.ndarray, number: int, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, width): the code of each dimension, on one line of the table; and the squared distance of each row."""
    line = table[number].astype(np.int64)
    wanted = rows.astype(np.int64) - line[: rows.shape[1]]
    apart = np.abs(wanted[:, :, None] - line[rows.shape[1] :])
    return apart.argmin(axis=2), (apart.min(axis=2) ** 2).sum(axis=1)


@st.composite
def coded(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    width = 4 * draw(st.integers(1, 40))
    count, lines = draw(st.integers(1, 20)), draw(st.integers(1, 5))
    steps = rng.integers(1, draw(st.sampled_from([2, 4, 16])), (lines, 16))  # offsets that differ: each has a code
    offsets = np.cumsum(steps, axis=1) - 128
    table = np.concatenate([rng.integers(-127, 128, (lines, width)), offsets], axis=1).astype(np.int8)
    codes = rng.integers(0, 256, (count, width // 2)).astype(np.uint8)
    return codes, rng.integers(0, lines, count).astype(np.uint16), table


@pytest.fixture(scope="module", params=["the CPU's byte shuffle", "one offset after the other"])
def decode(request: pytest.FixtureRequest) -> Decode:
    if request.param.startswith("the"):
        return decoding.decode_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "HAS_BYTE_SHUFFLE", False)
        compiled: Any = numba.njit(decoding.decode_rows.py_func)  # type: ignore[attr-defined]
        nothing = np.zeros((0, 48), np.uint8)
        compiled(nothing, np.zeros(0, np.uint16), np.zeros((1, 112), np.int8), 0, 0, np.zeros((0, 96), np.uint8))
        assert "vpshufb" not in next(iter(compiled.inspect_asm().values()))
    decode: Decode = compiled
    return decode


@given(parts=coded(), skipped=st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_codes_mean_a_centroid_and_an_offset(
    decode: Decode, parts: tuple[np.ndarray, np.ndarray, np.ndarray], skipped: int
) -> None:
    codes = parts[0]
    begin = min(skipped, len(codes) - 1)
    decoded = np.empty((len(codes) - begin, 2 * codes.shape[1]), dtype=np.uint8)
    decode(*parts, begin, len(codes), decoded)
    assert decoded.tolist() == (plainly_decoded(*parts)[begin:] + 128).tolist()


@given(parts=coded(), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None)
def test_a_row_takes_the_nearer_of_two_lines_and_of_each_the_nearest_offsets(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray], seed: int
) -> None:
    codes, numbers, table = parts
    rows = np.random.default_rng(seed).integers(-127, 128, (len(codes), 2 * codes.shape[1])).astype(np.int8)
    numbers[:] = 0
    table = np.concatenate([table, table[::-1]])
    encode_rows(rows, table, numbers, codes)
    (first, near), (second, nearer) = plainly_encoded(rows, 0, table), plainly_encoded(rows, 1, table)
    assert numbers.tolist() == (nearer < near).tolist()
    assert unpacked(codes).tolist() == np.where((nearer < near)[:, None], second, first).tolist()


@given(parts=coded(), cut=st.integers(0, 3), count=st.sampled_from([1, 16, 32, 37, 64]))
@settings(max_examples=60, deadline=None)
def test_coded_rows_score_as_the_rows_that_they_decode_to(
    parts: tuple[np.ndarray, np.ndarray, np.ndarray], cut: int, count: int
) -> None:
    dim = 2 * parts[0].shape[1] - cut
    rows = CodedRows(*parts, dim)
    rng = np.random.default_rng(count)
    bounds = np.unique(rng.integers(0, len(parts[0]) + 1, 4))
    starts, ends = bounds[:-1], bounds[1:]
    query = maxsim.prepare_int8(rng.normal(size=(count, dim)).astype(np.float32), np.zeros(dim, np.float32), 0.01)
    plain = plainly_decoded(*parts)[:, :dim].astype(np.int8)
    assert rows[:].tolist() == plain.tolist()
    assert maxsim.score(query, rows, starts, ends).tolist() == maxsim.score(query, plain, starts, ends).tolist()


def test_documents_dropped_early_are_those_that_int8_rows_would_drop() -> None:
    rng = np.random.default_rng(1)
    table = np.concatenate([rng.integers(-60, 60, (9, 96)), np.arange(-16, 16, 2)[None].repeat(9, 0)], axis=1)
    codes = rng.integers(0, 256, (9000, 48)).astype(np.uint8)
    rows = CodedRows(codes, rng.integers(0, 9, 9000).astype(np.uint16), table.astype(np.int8), 96)
    bounds = np.arange(0, 9001, 3)
    embeddings = rng.normal(size=(40, 96)).astype(np.float32)
    query = maxsim.prepare_int8(embeddings, np.zeros(96, np.float32), 0.01, reach=(20.0, 20.0))
    scores = maxsim.score(query, rows, bounds[:-1], bounds[1:], k=10)
    assert scores.tolist() == maxsim.score(query, rows[:], bounds[:-1], bounds[1:], k=10).tolist()
