"""What effort chooses for settings that are left open."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from secateurs import SearchSettings
from secateurs.effort import make_plan
from secateurs.errors import UsageError

EVERYTHING = ("cells", "faiss", "exhaustive")


def query_of(words: int) -> NDArray[np.float64]:
    """Rarities of so many equally rare words, and of special tokens up to 32 positions."""
    return np.where(np.arange(max(words, 32)) < words, 1.0, 0.0)


def kept(worths: Sequence[float], **settings: object) -> int | None:
    return make_plan(SearchSettings(**settings), np.array(worths), EVERYTHING, 10_000).p  # type: ignore[arg-type]


def test_p_is_the_fewest_positions_that_hold_four_fifths_of_the_worth() -> None:
    assert kept([5, 5, 5, 5, 5]) == 4
    assert kept([4, 3, 2, 2, 2, 1, 1, 1, 0, 0]) == 5  # 13 of 16 are 81%, 11 would be 69%
    assert kept([1] * 100) == 80
    assert kept([1] * 100, effort="fast") == 50


def test_a_special_token_in_front_counts_as_a_position() -> None:
    assert kept([0, 4, 3, 2, 2, 2, 1, 1, 1]) == 6


def test_p_is_at_least_four() -> None:
    assert [kept(query_of(words)) for words in (0, 1, 4)] == [4, 4, 4]
    assert kept([9, 1, 1, 1, 1], effort="fast") == 4


def test_common_words_probe_fewer_cells() -> None:
    """With the square of how rare they are, by hand: 32 * (1, 1/4, 1/16); a special token probes all 32."""
    plan = make_plan(SearchSettings(p=4), np.array([0, 8, 4, 2, 1]), EVERYTHING, 10_000)
    assert plan.nprobe_each == (32, 32, 8, 2)
    assert make_plan(SearchSettings(p=4), np.zeros(5), EVERYTHING, 10_000).nprobe_each == (32,) * 4


def test_a_given_nprobe_is_the_same_for_all() -> None:
    assert make_plan(SearchSettings(p=4, nprobe=9), np.array([8, 4, 2, 1]), EVERYTHING, 10_000).nprobe_each is None


def test_a_given_setting_is_used_at_any_effort() -> None:
    for effort in ("fast", "balanced"):
        settings = SearchSettings(p=3, gather="cells", nprobe=5, candidates=77, effort=effort)
        made = make_plan(settings, query_of(8), EVERYTHING, 10_000)
        assert (made.p, made.gather, made.nprobe, made.candidates) == (3, "cells", 5, 77)


def test_p_none_prunes_nothing() -> None:
    assert kept([1] * 8, p=None) is None


def test_faiss_keeps_the_settings_of_the_paper() -> None:
    made = make_plan(SearchSettings(gather="faiss"), query_of(8), EVERYTHING, 10_000)
    assert (made.p, made.k_prime, made.nprobe) == (None, 1000, 10)


def test_auto_takes_the_first_way_of_gathering_that_the_index_was_built_for() -> None:
    for prepared in (EVERYTHING, EVERYTHING[1:], EVERYTHING[2:]):
        assert make_plan(SearchSettings(), query_of(8), prepared, 10_000).gather == prepared[0]
    assert make_plan(SearchSettings(effort="exact"), query_of(8), EVERYTHING, 10_000).gather == "exhaustive"


def test_nprobe_and_candidates_grow_with_the_collection() -> None:
    chosen = [make_plan(SearchSettings(), query_of(8), EVERYTHING, documents) for documents in (50_000, 800_000)]
    assert [(plan.nprobe, plan.patience, plan.candidates) for plan in chosen] == [(32, 64, 1024), (64, 256, 4096)]


def test_where_candidates_do_not_come_best_first_or_are_chosen_otherwise_all_of_them_are_scored() -> None:
    for given, candidates in (
        ({"candidates": 77}, 77),
        ({"budget_ms": 5.0}, 256),
        ({"gather": "text"}, 256),
        ({"fuse": "rrf"}, 256),
    ):
        plan = make_plan(SearchSettings(**given), query_of(8), (*EVERYTHING, "text"), 10_000)
        assert (plan.patience, plan.candidates) == (None, candidates)
    assert make_plan(SearchSettings(gather="faiss"), query_of(8), EVERYTHING, 10_000).patience is None
    assert make_plan(SearchSettings(effort="exact"), query_of(8), EVERYTHING, 10_000).patience is None


def test_each_shard_has_its_share_of_the_patience() -> None:
    """64 / 4 = 16, and three standard deviations more."""
    assert make_plan(SearchSettings(), query_of(8), EVERYTHING, 10_000, shards=4).patience == 16 + 3 * 4


@pytest.mark.parametrize("documents", [1_000, 100_000, 10_000_000, 10_000_000_000])
def test_what_effort_chooses_is_bounded_for_any_size_and_any_filter(documents: int) -> None:
    unfiltered = make_plan(SearchSettings(), query_of(8), EVERYTHING, documents)
    for matching in (0, 1, 600, documents // 2, documents):
        settings = SearchSettings(where="a = 1", gather="cells")
        plan = make_plan(settings, query_of(8), EVERYTHING, documents, matching)
        assert plan.nprobe <= 1024
        assert plan.nprobe <= 8 * (unfiltered.nprobe + 1)  # + 1: both are rounded


def test_there_are_always_enough_candidates_for_k() -> None:
    assert make_plan(SearchSettings(k=1000), query_of(8), EVERYTHING, 10_000).candidates == 16_000
    assert make_plan(SearchSettings(k=1000, budget_ms=9.0), query_of(8), EVERYTHING, 10_000).candidates == 4000
    assert make_plan(SearchSettings(k=100, candidates=5), query_of(8), EVERYTHING, 10_000).candidates == 100


def test_an_unknown_effort_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="fast, balanced, thorough, exact"):
        SearchSettings(effort="turbo")


def test_an_index_no_larger_than_the_candidates_is_scored_whole() -> None:
    for documents, gather in ((0, "exhaustive"), (256, "exhaustive"), (257, "cells")):
        assert make_plan(SearchSettings(), query_of(8), EVERYTHING, documents).gather == gather
    assert make_plan(SearchSettings(gather="cells"), query_of(8), EVERYTHING, 5).gather == "cells"


@pytest.mark.parametrize("gather", ["cells", "faiss"])
def test_effort_exact_with_approximate_gathering_is_an_error(gather: str) -> None:
    with pytest.raises(UsageError, match="scores every document"):
        make_plan(SearchSettings(effort="exact", gather=gather), query_of(8), EVERYTHING, 10_000)
