"""A budget in milliseconds, and the model of what a search costs."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import build_random, random_documents, random_text
from hypothesis import given
from hypothesis import strategies as st
from test_sharded import make_shards

from secateurs import Document, EncodedText, Index, SearchSettings, ShardedIndex
from secateurs import search as searching
from secateurs.cluster.layout import shard_of
from secateurs.costs import Costs, Shape, fit, spend
from secateurs.effort import make_plan
from secateurs.errors import UsageError

SHAPE = Shape(documents=20_000, cells=10_000, list_length=4.0, document_length=50.0)
TRUE = (0.2, 1e-5, 2e-5, 4e-6, 3e-7)


def milliseconds(kept: int, nprobe: int, candidates: int, query_embeddings: int) -> float:
    """By hand: 0.2 ms, 0.00001 a centroid, 0.00002 an entry of a list, 0.000004 a row, 0.0000003 a product."""
    read = candidates * 50
    return 0.2 + 1e-5 * kept * 10_000 + 2e-5 * kept * nprobe * 4 + 4e-6 * read + 3e-7 * read * query_embeddings


def test_the_model_finds_the_costs_it_was_timed_with() -> None:
    fitted = fit(SHAPE, milliseconds)
    assert fitted.milliseconds == pytest.approx(TRUE, rel=1e-6)
    for query_embeddings in (10, 32, 64):
        assert fitted.of(8, 256, 300, query_embeddings) == pytest.approx(milliseconds(8, 32, 300, query_embeddings))


@given(st.lists(st.floats(0.5, 2.0), min_size=50, max_size=50))
def test_no_cost_is_negative_however_noisy_the_times(noise: list[float]) -> None:
    errors = iter(noise)
    fitted = fit(SHAPE, lambda *timed: milliseconds(*timed) * next(errors))
    assert min(fitted.milliseconds) >= 0


@given(st.floats(0.01, 200.0), st.lists(st.floats(0.1, 12.0), min_size=1, max_size=20))
def test_the_plan_is_expected_to_stay_within_the_budget(budget: float, words: list[float]) -> None:
    worths = np.array(sorted(words, reverse=True))
    plan = make_plan(SearchSettings(budget_ms=budget), worths, ("cells", "exhaustive"), 20_000)
    costs = Costs(SHAPE, TRUE)
    chosen = spend(plan, worths, 32, costs)
    assert chosen.nprobe_each is not None
    assert len(chosen.nprobe_each) == chosen.p <= len(worths)
    cheapest = spend(make_plan(SearchSettings(budget_ms=1e-6), worths, ("cells",), 20_000), worths, 32, costs)
    assert cheapest.nprobe_each is not None
    least = costs.of(len(cheapest.nprobe_each), sum(cheapest.nprobe_each), cheapest.candidates, 32)
    expected = costs.of(len(chosen.nprobe_each), sum(chosen.nprobe_each), chosen.candidates, 32)
    assert expected <= max(budget, least)


def test_a_larger_budget_gathers_and_scores_more() -> None:
    worths = np.linspace(10, 1, 12)
    costs = Costs(SHAPE, TRUE)
    chosen = [
        spend(make_plan(SearchSettings(budget_ms=budget), worths, ("cells",), 20_000), worths, 32, costs)
        for budget in (0.5, 1, 2, 4, 8)
    ]
    for less, more in pairwise(chosen):
        assert (less.p, less.nprobe, less.candidates) <= (more.p, more.nprobe, more.candidates)
    assert chosen[0].candidates < chosen[-1].candidates


def test_a_search_with_a_budget_says_what_was_chosen(tmp_path: Path) -> None:
    index = build_random(tmp_path / "index.sec", 600)
    query = random_text(np.random.default_rng(0), 12)
    ranking = index.search(query, budget_ms=1000.0)
    assert ranking.plan.budget_ms == 1000.0
    assert ranking.plan.p == len(ranking.kept)
    assert [hit.docno for hit in ranking] == [hit.docno for hit in index.search(query, effort="exact")]
    assert index.search(query, budget_ms=0.001).plan.candidates < ranking.plan.candidates


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_budget_is_a_number_above_zero(wrong: object) -> None:
    with pytest.raises(UsageError, match="budget_ms is a number of milliseconds above 0"):
        SearchSettings(budget_ms=wrong)  # type: ignore[arg-type]


def test_a_budget_excludes_the_settings_that_it_chooses() -> None:
    with pytest.raises(UsageError, match="leave out p and nprobe"):
        SearchSettings(budget_ms=5, p=3, nprobe=4)
    with pytest.raises(UsageError, match="leave out effort"):
        SearchSettings(budget_ms=5, effort="fast")
    with pytest.raises(UsageError, match='for gather="cells"'):
        SearchSettings(budget_ms=5, gather="faiss")


def test_a_budget_on_an_index_without_embeddings_finds_nothing(tmp_path: Path) -> None:
    nothing = EncodedText(np.zeros((0, 16)), [], [])
    documents = [Document(f"d{i}", "", {}, nothing) for i in range(300)]
    index = Index.build(tmp_path / "index.sec", documents, encoder=None)
    assert len(index.search(random_text(np.random.default_rng(0), 4), budget_ms=5)) == 0


def test_a_budget_over_shards_of_which_one_is_empty(tmp_path: Path) -> None:
    documents = [document for document in random_documents(600) if shard_of(document.docno, 3) != 1]
    path = make_shards(tmp_path / "many.sec", documents, 3)
    query = random_text(np.random.default_rng(0), 8)
    with ShardedIndex(path) as many:
        ranking = many.search(query, budget_ms=1000)
        assert [hit.docno for hit in ranking] == [hit.docno for hit in many.search(query, effort="exact")]
        before = many.searched().costs().shape
        many.add([replace(document, docno=f"new-{document.docno}") for document in random_documents(300)])
        assert many.searched().costs().shape != before


def test_a_query_of_one_word_gathers_with_its_summary_too() -> None:
    worths = np.array([9.0, 0.0, 0.0, 0.0])
    for budget, kept in ((1e-6, 2), (1000.0, 4)):
        plan = make_plan(SearchSettings(budget_ms=budget), worths, ("cells",), 20_000)
        assert spend(plan, worths, 32, Costs(SHAPE, TRUE)).p == kept


def test_a_small_budget_still_finds_k_documents(tmp_path: Path) -> None:
    index = build_random(tmp_path / "index.sec", 900)
    query = random_text(np.random.default_rng(0), 12)
    assert len(index.search(query, k=100, budget_ms=0.001)) == 100


def test_a_budget_on_an_index_that_was_built_for_faiss_only_is_an_error(tmp_path: Path) -> None:
    index = build_random(tmp_path / "index.sec", 300, gather="faiss")
    with pytest.raises(UsageError, match='budget_ms is for gather="cells"'):
        index.search(random_text(np.random.default_rng(0), 4), budget_ms=5)


def test_costs_are_fitted_once_for_searches_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = build_random(tmp_path / "index.sec", 600)
    fits = []
    monkeypatch.setattr("secateurs.search.fit", lambda *given: fits.append(given) or Costs(SHAPE, TRUE))
    queries = [random_text(np.random.default_rng(seed), 6) for seed in range(8)]
    assert len(list(index.search_many(queries, threads=8, budget_ms=5.0))) == 8
    assert len(fits) == 1


def test_what_is_timed_scores_every_candidate_as_a_search_with_a_budget_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = build_random(tmp_path / "index.sec", 400)
    found, real = [], searching.find

    def find(snapshot: Any, decision: Any, watch: Any) -> Any:
        found.append((decision.plan.candidates, real(snapshot, decision, watch)))
        return found[-1][1]

    monkeypatch.setattr(searching, "find", find)
    index.search(random_text(np.random.default_rng(0), 4), budget_ms=5, gather="cells")
    assert max(candidates for candidates, _ in found) >= 1024
    assert all(result.scored == min(candidates, result.gathered) for candidates, result in found)
