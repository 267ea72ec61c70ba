"""Relevance, on numbers worked out by hand; and thresholds, which every surface applies alike."""

import json
from collections.abc import Iterator
from dataclasses import replace
from math import exp, inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import QUERIES, random_documents, random_text
from hypothesis import given
from hypothesis import strategies as st
from test_sharded import make_shards
from typer.testing import CliRunner

from secateurs import Document, EncodedText, Index, SearchSettings, ShardedIndex
from secateurs.cli.app import app
from secateurs.encoders.built_in import LAYERS
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_settings import OnnxSettings
from secateurs.errors import UsageError
from secateurs.lab.sweeps import plain, sweep
from secateurs.relevance import Curve, relevances

CURVE = Curve(0.9, 100.0)
# Embeddings of the lengths 1 and 2: the most that a document with embeddings of length 1 can score is 3.
TWO = EncodedText(np.array([[1, 0], [0, 2]]), [1, 2], [0, 0])


def test_without_a_curve_relevance_is_the_share_of_the_most_that_can_be_scored() -> None:
    assert relevances(TWO, [3.0, 1.5, 0.0], None) == pytest.approx([1, 0.5, 0])


def test_a_curve_by_hand() -> None:
    """The share 0.9 is the middle; 0.92 is 0.02 above it, and 100 * 0.02 = 2."""
    expected = [0.5, 1 / (1 + exp(-2)), 1 / (1 + exp(2))]
    assert relevances(TWO, [2.7, 2.76, 2.64], CURVE) == pytest.approx(expected)


def test_weights_count_in_the_most() -> None:
    """3 * 1 + 0.5 * 2 = 4."""
    assert relevances(replace(TWO, weights=[3, 0.5]), [4.0, 1.0], None) == pytest.approx([1, 0.25])


@pytest.mark.parametrize("curve", [None, CURVE])
def test_where_nothing_can_match_nothing_is_relevant(curve: Curve | None) -> None:
    assert relevances(TWO, [-inf], curve) == pytest.approx([0], abs=1e-100)  # a document without embeddings
    assert relevances(replace(TWO, weights=[0, 0]), [0.0], curve) == pytest.approx([0], abs=1e-100)
    assert relevances(TWO, [], curve) == []


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    st.lists(st.floats(0, 1000, width=32), min_size=2, max_size=2),
    st.none() | st.builds(Curve, st.floats(-1, 1), st.floats(1e-3, 1e4)),
)
def test_relevance_is_between_0_and_1_and_never_falls_when_the_score_rises(
    scores: list[float], weights: list[float], curve: Curve | None
) -> None:
    found = relevances(replace(TWO, weights=weights), sorted(scores), curve)
    assert all(0 <= relevance <= 1 for relevance in found)
    assert found == sorted(found)


def test_a_query_of_twice_the_length_has_twice_the_score_and_the_same_relevance() -> None:
    twice = EncodedText(np.tile(TWO.embeddings, (2, 1)), [1, 2, 1, 2], [0] * 4)
    assert relevances(twice, [2 * 2.76], CURVE) == pytest.approx(relevances(TWO, [2.76], CURVE))


# The curve is a property of the encoder


def test_the_built_in_encoder_brings_its_curve_and_the_index_keeps_it(encoder: OnnxEncoder, index: Index) -> None:
    fitted = LAYERS["colbert-small"].relevance
    assert encoder.spec["relevance"] == list(fitted) == index.encoder_spec["relevance"]
    ranking = index.search(QUERIES[0])
    expected = relevances(ranking.query, [hit.score for hit in ranking], Curve(*fitted))
    assert [hit.relevance for hit in ranking] == expected
    assert index.explain(QUERIES[0], ranking[0].docno).relevance == pytest.approx(expected[0], abs=1e-6)


def test_the_curve_is_not_part_of_the_fingerprint(encoder: OnnxEncoder) -> None:
    other = OnnxEncoder.load(settings=replace(encoder.settings, relevance=(0.8, 50)))
    assert other.spec["fingerprint"] == encoder.spec["fingerprint"]
    assert other.spec["relevance"] == [0.8, 50]
    assert "relevance" not in OnnxEncoder.load(settings=replace(encoder.settings, relevance=None)).spec


@pytest.mark.parametrize("wrong", [0.9, [0.9], [0.9, 0], [0.9, -1], ["a", 1], [0.9, nan], [True, 1], {"middle": 1}])
def test_a_curve_that_is_none_is_a_clear_error(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"relevance is \[middle, steepness\]"):
        OnnxSettings(relevance=wrong)


# Thresholds. The documents are at 1, 0.9, ... 0.1 of the only axis that the query has.

QUERY = EncodedText(np.array([[1.0, 0]]), [1], [0])
TENTHS = [
    Document(f"d{n:02}", "text", {"even": n % 2 == 0}, EncodedText(np.array([[n / 10, 0]]), [1], [0]))
    for n in range(1, 11)
]


@pytest.fixture(params=["one index", "shards"])
def tenths(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Index | ShardedIndex]:
    options: dict[str, Any] = {"store": "float16"}
    with (
        Index.build(tmp_path / "one.sec", TENTHS, encoder=None, **options)
        if request.param == "one index"
        else ShardedIndex(make_shards(tmp_path / "many.sec", TENTHS, 3, **options))
    ) as opened:
        yield opened


def found(index: Index | ShardedIndex, **settings: Any) -> list[str]:
    return [hit.docno for hit in index.search(QUERY, **settings)]


def test_hits_below_a_threshold_are_left_out(tenths: Index | ShardedIndex) -> None:
    assert found(tenths, min_relevance=0.75) == ["d10", "d09", "d08"]
    assert found(tenths, min_score=0.75) == ["d10", "d09", "d08"]
    assert found(tenths, min_score=0.75, min_relevance=0.85) == ["d10", "d09"]
    assert found(tenths, min_score=0.75, k=2) == ["d10", "d09"]
    assert found(tenths, min_score=2) == []
    assert found(tenths, min_relevance=0, min_score=-5) == found(tenths) == [f"d{n:02}" for n in range(10, 0, -1)]


def test_a_hit_at_the_threshold_stays(tenths: Index | ShardedIndex) -> None:
    hit = tenths.search(QUERY)[4]
    assert found(tenths, min_score=hit.score)[-1] == found(tenths, min_relevance=hit.relevance)[-1] == hit.docno
    assert found(tenths, min_relevance=1) == ["d10"]


def test_a_threshold_changes_nothing_else(tenths: Index | ShardedIndex) -> None:
    """Not the work, and not the fallback of a filter to exhaustive search, which fewer than k hits would cause."""
    for where in (None, "even = true"):
        settings: dict[str, Any] = {"k": 4, "gather": "cells", "candidates": 4, "where": where}
        every, few = tenths.search(QUERY, **settings), tenths.search(QUERY, min_relevance=0.95, **settings)
        assert few.hits == every.hits[:1]
        assert few.stats.documents_scored == every.stats.documents_scored
        assert few.plan == replace(every.plan, min_relevance=0.95)


def test_shards_give_the_relevance_of_one_index(tmp_path: Path) -> None:
    documents = random_documents(60)
    one = Index.build(tmp_path / "one.sec", documents, encoder=None, store="float16")
    rng = np.random.default_rng(3)
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 3, store="float16")) as many:
        for _ in range(5):
            query = random_text(rng, 6)
            for weights in (None, "idf"):
                expected = one.search(query, k=20, gather="exhaustive", weights=weights)
                assert many.search(query, k=20, gather="exhaustive", weights=weights).hits == expected.hits
                least = expected[7].relevance
                again = many.search(query, k=20, gather="exhaustive", weights=weights, min_relevance=least)
                assert again.hits == expected.hits[:8]


def test_every_store_gives_about_the_same_relevance_also_without_cells(tmp_path: Path) -> None:
    documents = random_documents(60)
    query = random_text(np.random.default_rng(3), 6)
    exact = Index.build(tmp_path / "exact.sec", documents, encoder=None, store="float16", gather=())
    expected = {hit.docno: hit.relevance for hit in exact.search(query, k=60)}
    assert len({relevance for relevance in expected.values() if 0 < relevance < 1}) > 40
    for store, apart in (("float16", 0), ("int8", 0.01), ("residual4", 0.1)):
        stored = Index.build(tmp_path / f"{store}.sec", documents, encoder=None, store=store)  # type: ignore[arg-type]
        for hit in stored.search(query, k=60, gather="exhaustive"):
            assert hit.relevance == pytest.approx(expected[hit.docno], abs=apart or 1e-9)


@pytest.mark.parametrize("name", ["min_score", "min_relevance"])
@pytest.mark.parametrize("wrong", ["0.5", True, nan, [0.5]])
def test_a_threshold_that_is_no_number_is_a_clear_error(name: str, wrong: Any) -> None:
    with pytest.raises(UsageError, match=f"{name} is a number.*, or None to leave out no hit, not"):
        SearchSettings(**{name: wrong})


@pytest.mark.parametrize("wrong", [-0.1, 1.1, 50])
def test_a_relevance_is_from_0_to_1(wrong: float) -> None:
    with pytest.raises(UsageError, match="min_relevance is a number from 0 to 1, or None to leave out no hit"):
        SearchSettings(min_relevance=wrong)


# The command line and the lab. The service's and PyTerrier's are among their tests.


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_line_shows_relevance_and_takes_thresholds(index: Index) -> None:
    ranking = index.search(QUERIES[0])
    printed = run("search", index.path, QUERIES[0])
    assert "relevance" in printed
    assert f"{ranking[0].score:.3f}" in printed
    assert f" {ranking[0].relevance:.2f} " in printed
    shown = json.loads(run("search", index.path, QUERIES[0], "--json", "--min-score", ranking[2].score))
    assert [(hit["docno"], hit["relevance"]) for hit in shown["hits"]] == [
        (hit.docno, hit.relevance) for hit in ranking[:3]
    ]
    nothing = run("search", index.path, QUERIES[0], "--min-relevance", 1, "--min-score", 99)
    assert "nothing found: no hit reaches min_score 99 and min_relevance 1" in nothing
    explained = run("explain", index.path, QUERIES[0], ranking[0].docno)
    assert f"score {ranking[0].score:.3f}, relevance {ranking[0].relevance:.2f}, rank 1" in explained


@pytest.mark.parametrize("given_value", ["2", "much"])
def test_the_command_line_refuses_a_wrong_threshold_as_the_library_does(index: Index, given_value: str) -> None:
    done = CliRunner().invoke(app, ["search", str(index.path), "a", "--min-relevance", given_value])
    assert done.exit_code != 0
    assert "min_relevance is a number from 0 to 1" in str(done.exception)


def test_thresholds_can_be_swept() -> None:
    swept = sweep("min_relevance=none,0.25,0.5", "min_score=12")
    assert [settings.min_relevance for settings in swept.values()] == [None, 0.25, 0.5]
    assert {settings.min_score for settings in swept.values()} == {12.0}
    assert next(iter(swept)) == "min_relevance=none min_score=12.0"
    assert plain(next(iter(swept.values())))["min_relevance"] == "none"
    with pytest.raises(UsageError, match="min_score is a number, not 'high'"):
        sweep("min_score=high")
