"""Words to settings."""

import pytest

from secateurs import SearchSettings, SecateursError
from secateurs.lab import parse_settings, sweep
from secateurs.lab.sweeps import labels, plain


def test_every_combination_is_a_setting() -> None:
    settings = sweep("p=1:3,8,all", "order=first,icf", "gather=faiss")
    assert [(one.p, one.order) for one in settings] == [
        (p, order) for p in (1, 2, 3, 8, None) for order in ("first", "icf")
    ]
    assert {one.gather for one in settings} == {"faiss"}
    assert {one.k for one in settings} == {1000}


def test_a_range_may_have_a_step_and_words_may_be_spaced() -> None:
    assert [one.p for one in sweep(" p = 2:8:3 , auto")] == [2, 5, 8, "auto"]
    assert [one.nprobe for one in sweep("nprobe=10,auto")] == [10, None]
    assert [one.k_prime for one in sweep("k-prime=5")] == [5]
    assert [one.k for one in sweep("k=10", k=1000)] == [10]
    assert [one.effort for one in sweep("effort=fast,exact")] == ["fast", "exact"]


def test_labels_say_what_differs_and_nothing_else() -> None:
    settings = [*sweep("p=1,all", "gather=faiss"), SearchSettings(k=1000, gather="exhaustive")]
    assert labels([plain(one) for one in settings]) == [
        "p=1 gather=faiss",
        "p=all gather=faiss",
        "p=auto gather=exhaustive",
    ]
    assert labels([plain(one) for one in sweep()]) == ["default"]


def test_a_function_as_an_order_is_called_by_its_name() -> None:
    def backwards(query: object, frequencies: object) -> None: ...

    assert plain(SearchSettings(order=backwards))["order"] == "backwards"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("p", "a sweep is NAME=VALUES"),
        ("p=", "a sweep is NAME=VALUES"),
        ("q=1", "there is no search setting 'q': there are k, p, order"),
        ("p=many", "p is a number, all or auto, not 'many'"),
        ("k=auto", "k is a number, not 'auto'"),
        ("nprobe=all", "nprobe is a number, not 'all'"),
        ("p=3:1", "upwards, not '3:1'"),
        ("p=1:x", "in whole numbers, not '1:x'"),
        ("p=1:9:0", "upwards, not '1:9:0'"),
        ("p=1,1", "names a value twice"),
        ("p=0", "p must be a whole number of at least 1"),
        ("effort=wild", "effort is one of"),
        ("p=1:99999999", "upwards, not"),
    ],
)
def test_wrong_sweeps_are_refused_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SecateursError, match=message):
        sweep(text)


def test_sweeping_too_much_or_twice_is_refused() -> None:
    with pytest.raises(SecateursError, match="p is swept twice"):
        sweep("p=1", "p=2")
    with pytest.raises(SecateursError, match="k is swept twice"):
        sweep("k=10", "k=20", k=1000)
    with pytest.raises(SecateursError, match="that would be 40,000 settings"):
        sweep("p=1:200", "nprobe=1:200")
    with pytest.raises(SecateursError, match="one value for each name"):
        parse_settings("p=1:2")
    with pytest.raises(SecateursError, match="two settings are the same: p=1"):
        labels([plain(one) for one in [*sweep("p=1,2"), *sweep("p=1")]])


def test_settings_of_one_row() -> None:
    assert parse_settings("gather=exhaustive p=all") == {"gather": "exhaustive", "p": None}
    assert parse_settings("p=3 where=year >= 2020") == {"p": 3, "where": "year >= 2020"}


def test_a_condition_is_one_value_whatever_is_in_it() -> None:
    assert [one.where for one in sweep("where=a in (1, 2:3)")] == ["a in (1, 2:3)"]
