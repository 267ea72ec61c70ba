"""The lanes against plain integer arithmetic, with the CPU's own instruction and without."""

import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from secateurs.kernels import clustering, maxsim, probing, refining, simd


def test_sixteen_vectors_are_packed_four_dimensions_to_a_lane() -> None:
    vectors = np.arange(17 * 6, dtype=np.int8).reshape(17, 6)
    packed, start = simd.pack(vectors)
    lanes = packed.reshape(2, 2, 16, 4)  # 17 vectors fill two blocks, 6 dimensions two dwords
    assert lanes[0, 0, 3].tolist() == vectors[3, :4].tolist()
    assert lanes[0, 1, 3].tolist() == [*vectors[3, 4:].tolist(), 0, 0]
    assert lanes[1, 0, 0].tolist() == vectors[16, :4].tolist()
    assert not lanes[1, :, 1:].any()
    assert start.tolist() == [*(-128 * vectors.sum(axis=1, dtype=np.int64)).tolist(), *[0] * 15]


@pytest.fixture(scope="module", params=["the CPU's own instruction", "vector operations of any CPU"])
def nearest(request: pytest.FixtureRequest) -> object:
    if request.param.startswith("the"):
        return clustering._nearest
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simd, "HAS_VNNI", False)
        compiled = numba.njit(clustering._nearest.py_func)  # type: ignore[attr-defined]
        compiled(np.zeros((1, 4), np.int8), *simd.pack(np.zeros((1, 4), np.int8)), np.zeros(1, np.int32))
        assert "vpdpbusd" not in next(iter(compiled.inspect_asm().values()))
    return compiled


@st.composite
def two_matrices(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    width = 4 * draw(st.integers(1, 30))
    values = st.integers(-128, 127)
    return (
        draw(arrays(np.int8, (draw(st.integers(1, 9)), width), elements=values)),
        draw(arrays(np.int8, (draw(st.integers(1, 40)), width), elements=values)),
    )


@given(matrices=two_matrices())
@settings(max_examples=60, deadline=None)
def test_the_nearest_column_is_that_of_integer_arithmetic(
    nearest: object, matrices: tuple[np.ndarray, np.ndarray]
) -> None:
    vectors, columns = matrices
    packed, start = simd.pack(columns)
    start[len(columns) :] = -(2**30)
    found = np.empty(len(vectors), dtype=np.int32)
    nearest(vectors, packed, start, found)  # type: ignore[operator]
    expected = (vectors.astype(np.int64) @ columns.T.astype(np.int64)).argmax(axis=1)
    assert found.tolist() == expected.tolist()


def without_the_instruction(patch: pytest.MonkeyPatch, module: object, *names: str) -> None:
    """Compile kernels again, the innermost first, as a CPU without the instruction would."""
    patch.setattr(simd, "HAS_VNNI", False)
    for name in names:
        patch.setattr(module, name, numba.njit(getattr(module, name).py_func))


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 16, 32, 37])
def test_scores_are_the_same_without_the_cpus_own_instruction(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-127, 128, (300, 96)).astype(np.int8)
    bounds = np.array([0, 1, 9, 17, 120, 300])
    query = maxsim.prepare_int8(rng.normal(size=(count, 96)).astype(np.float32), np.zeros(96, np.float32), 0.01)
    expected = maxsim.score(query, rows, bounds[:-1], bounds[1:])
    kernels = ("sixteen_maxima", "thirty_two_maxima", "_score_document", "_score_int8")
    without_the_instruction(monkeypatch, maxsim, *kernels)
    assert maxsim.score(query, rows, bounds[:-1], bounds[1:]).tolist() == expected.tolist()
    for name in kernels:
        for code in getattr(maxsim, name).inspect_asm().values():
            assert "vpdpbusd" not in code


@pytest.mark.slow
@pytest.mark.parametrize("count", [5, 16, 37])
def test_refined_scores_are_the_same_without_the_cpus_own_instruction(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    rows = refining.RefinedRows(
        rng.integers(-127, 128, (300, 95)).astype(np.int8), rng.integers(0, 256, (300, 95)).astype(np.uint8)
    )
    bounds = np.array([0, 1, 9, 17, 120, 300])
    query = refining.prepare_refined(rng.normal(size=(count, 95)).astype(np.float32), np.zeros(95, np.float32), 0.01)

    def scores() -> list[float]:
        return refining.score_refined(query, rows, bounds[:-1], bounds[1:], None, lambda *_: None).tolist()

    expected = scores()
    kernels = ("_sixteen_refined_maxima", "_score_refined")
    without_the_instruction(monkeypatch, refining, *kernels)
    assert scores() == expected
    for name in kernels:
        for code in getattr(refining, name).inspect_asm().values():
            assert "vpdpwssd" not in code or "#APP" not in code  # LLVM may choose it by itself


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(1, 200), st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_the_best_cells_come_best_first_and_the_earlier_of_equals(
    seed: int, kept: int, count: int, nprobe: int
) -> None:
    rng = np.random.default_rng(seed)
    nprobe = min(nprobe, count)
    centroids = rng.integers(-3, 4, (count, 8)).astype(np.int8)  # small values: many ties
    queries = np.zeros((-(-kept // 4) * 4, 8), dtype=np.int8)
    queries[:kept] = rng.integers(-3, 4, (kept, 8))
    packed, start = simd.pack(centroids)
    start[count:] = probing._NEVER
    heaps = probing._empty_heaps(len(queries), nprobe)
    probing._probe(queries, kept, packed, start, heaps)
    found, products = probing._best_first(heaps)
    for i in range(kept):
        similar = centroids.astype(np.int64) @ queries[i]
        expected = np.argsort(-similar, kind="stable")[:nprobe]
        assert found[i].tolist() == expected.tolist()
        assert products[i].tolist() == similar[expected].tolist()


def run_python(folder: Path, code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.slow
def test_a_kernel_is_compiled_again_when_a_file_it_calls_into_changes(tmp_path: Path) -> None:
    header = "from secateurs.kernels.simd import compiled\n"
    (tmp_path / "inner.py").write_text(f"{header}@compiled\ndef addend():\n    return 1\n")
    outer = f"{header}from inner import addend\n@compiled\ndef total(x):\n    return x + addend()\n"
    (tmp_path / "outer.py").write_text(outer)
    code = "from outer import total; print(total(1), sum(total.stats.cache_hits.values()))"
    assert run_python(tmp_path, code) == "2 0"
    assert run_python(tmp_path, code) == "2 1"  # from the cache
    (tmp_path / "inner.py").write_text(f"{header}@compiled\ndef addend():\n    return 2\n")
    assert run_python(tmp_path, code) == "3 0"
