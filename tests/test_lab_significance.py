"""Significance, against scipy, against numbers worked out by hand, and against the definitions of the corrections."""

import numpy as np
import pytest
from scipy import stats

from secateurs import SecateursError
from secateurs.lab import compare, correct

RNG = np.random.default_rng(3)
BASELINE = RNG.random(40)
OTHERS = [BASELINE + RNG.normal(shift, 0.1, 40) for shift in (-0.1, -0.03, 0.0, 0.02)]


def test_the_test_is_the_paired_t_test_of_scipy() -> None:
    found = compare(OTHERS, BASELINE, "none")
    for comparison, values in zip(found, OTHERS, strict=True):
        expected = stats.ttest_rel(values, BASELINE)
        low, high = expected.confidence_interval(0.95)
        assert comparison.p_value == pytest.approx(expected.pvalue)
        assert (comparison.low, comparison.high) == pytest.approx((low, high))
        assert comparison.difference == pytest.approx(values.mean() - BASELINE.mean())


def test_a_t_test_by_hand() -> None:
    # differences 1, 2, 3: mean 2, standard deviation 1, t = 2 * sqrt(3) = 3.4641 with 2 degrees of freedom; for two
    # degrees the two-sided p-value is 1 - t / sqrt(t^2 + 2) = 1 - 3.4641 / sqrt(14) = 0.07418
    (comparison,) = compare([np.array([1.0, 2.0, 3.0])], np.zeros(3), "none")
    assert comparison.p_value == pytest.approx(0.0741799)
    assert comparison.high - comparison.difference == pytest.approx(4.3026527 / np.sqrt(3))
    assert not comparison.significant


def test_bonferroni_multiplies_by_the_number_of_comparisons_and_stops_at_one() -> None:
    assert correct([0.01, 0.02, 0.5], "bonferroni") == pytest.approx([0.03, 0.06, 1.0])
    plain, corrected = compare(OTHERS, BASELINE, "none"), compare(OTHERS, BASELINE, "bonferroni")
    assert [comparison.p_value for comparison in corrected] == pytest.approx(
        [min(1, 4 * comparison.p_value) for comparison in plain]
    )


def test_holm_steps_down_and_never_lets_a_larger_p_value_overtake() -> None:
    # sorted 0.01, 0.02, 0.03 times 3, 2, 1 is 0.03, 0.04, 0.03: the last may not be smaller than the one before
    assert correct([0.03, 0.01, 0.02], "holm") == pytest.approx([0.04, 0.03, 0.04])
    assert correct([0.6, 0.01], "holm") == pytest.approx([0.6, 0.02])


def test_holm_finds_all_that_bonferroni_finds() -> None:
    p_values = RNG.random(30) ** 3
    bonferroni, holm = correct(p_values.tolist(), "bonferroni"), correct(p_values.tolist(), "holm")
    assert all(h <= b for h, b in zip(holm, bonferroni, strict=True))
    assert any(h < b for h, b in zip(holm, bonferroni, strict=True))


def test_queries_that_won_lost_and_tied_are_named() -> None:
    (comparison,) = compare([np.array([0.5, 0.2, 0.3, 0.9])], np.array([0.5, 0.4, 0.1, 0.9]))
    assert (comparison.won, comparison.lost, comparison.tied) == ((2,), (1,), (0, 3))


def test_the_same_values_are_never_significantly_different() -> None:
    values = np.array([0.4, 0.7, 0.1])
    (comparison,) = compare([values], values, "none")
    assert (comparison.p_value, comparison.significant, comparison.low, comparison.high) == (1.0, False, 0.0, 0.0)


@pytest.mark.parametrize("value", [0.4, 0.9])
def test_nothing_is_significant_with_one_query(value: float) -> None:
    (comparison,) = compare([np.array([value])], np.array([0.4]), "none")
    assert (comparison.p_value, comparison.significant, comparison.low, comparison.high) == (1.0, False, None, None)


@pytest.mark.parametrize(("queries", "significant"), [(2, False), (5, False), (6, True)])
def test_a_constant_difference_is_significant_from_six_queries_on(queries: int, significant: bool) -> None:
    # by chance alone all signs are the same in 2 of 2^n cases: 1/16 with five queries, 1/32 with six
    baseline = np.linspace(0.1, 0.6, queries)
    (comparison,) = compare([baseline + 0.1], baseline, "none")
    assert comparison.p_value == pytest.approx(2 / 2**queries)
    assert (comparison.significant, comparison.low) == (significant, None)


@pytest.mark.parametrize("values", [[0.1], [0.1, float("nan")], [[0.1, 0.2]], []])
def test_what_cannot_be_paired_is_refused(values: list[float]) -> None:
    with pytest.raises(SecateursError, match=r"one number for each query|not a number"):
        compare([np.array(values)], np.array([0.1, 0.2]))


def test_an_unknown_correction_is_refused() -> None:
    with pytest.raises(SecateursError, match="correction is one of bonferroni, holm, none"):
        correct([0.1], "sidak")
