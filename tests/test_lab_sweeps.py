"""Words to settings."""

import pytest

from secateurs import SearchSettings, SecateursError
from secateurs.lab import parse_settings, sweep
from secateurs.lab.sweeps import add_rows, named, plain


def values(name: str, *texts: str, **options: int) -> list[object]:
    return [getattr(given, name) for given in sweep(*texts, **options).values()]


def test_every_combination_is_a_setting() -> None:
    settings = sweep("p=1:3,8,all", "order=first,icf", "gather=faiss").values()
    assert [(given.p, given.order) for given in settings] == [
        (p, order) for p in (1, 2, 3, 8, None) for order in ("first", "icf")
    ]
    assert {given.gather for given in settings} == {"faiss"}
    assert {given.k for given in settings} == {1000}


def test_a_range_may_have_a_step_and_words_may_be_spaced() -> None:
    assert values("p", " p = 2:8:3 , auto") == [2, 5, 8, "auto"]
    assert values("nprobe", "nprobe=10,auto") == [10, None]
    assert values("k_prime", "k-prime=5") == [5]
    assert values("k", "k=10", k=1000) == [10]
    assert values("effort", "effort=fast,exact") == ["fast", "exact"]
    assert values("weights", "weights=none,idf") == [None, "idf"]


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["p=3"], ["p=3"]),
        (["order=icf"], ["order=icf"]),
        (["p=1,all", "gather=faiss"], ["p=1 gather=faiss", "p=all gather=faiss"]),
        (["nprobe=auto,7"], ["nprobe=auto", "nprobe=7"]),
        (["where=year >= 2020"], ["where=year >= 2020"]),
        (["weights=none,idf"], ["weights=none", "weights=idf"]),
        ([], ["default"]),
    ],
)
def test_a_row_is_named_by_all_that_was_swept(texts: list[str], names: list[str]) -> None:
    assert list(sweep(*texts)) == names


def test_one_more_row_is_named_by_what_it_names() -> None:
    rows = add_rows(sweep("p=1", k=10), ["gather=exhaustive  p=all", "p=3 where=a > 1"], k=10)
    assert list(rows) == ["p=1", "gather=exhaustive p=all", "p=3 where=a > 1"]
    assert rows["gather=exhaustive p=all"] == SearchSettings(k=10, gather="exhaustive", p=None)
    with pytest.raises(SecateursError, match="two settings are the same: p=1"):
        add_rows(rows, ["p=1"])


def test_settings_without_names_are_named_by_what_is_not_the_default() -> None:
    assert list(named([SearchSettings(p=1, gather="faiss"), SearchSettings(p=None)])) == [
        "p=1 gather=faiss",
        "p=all gather=auto",
    ]
    assert list(named([SearchSettings(k=1000, gather="exhaustive")])) == ["gather=exhaustive"]
    assert list(named([SearchSettings(), SearchSettings(k=100)])) == ["k=10", "k=100"]
    assert list(named([SearchSettings()])) == ["default"]
    assert named([]) == {}
    assert list(named([SearchSettings(), SearchSettings(weights="idf")])) == ["weights=none", "weights=idf"]


def test_equal_weights_are_the_word_none_in_a_table() -> None:
    assert plain(SearchSettings())["weights"] == "none"
    assert plain(SearchSettings(weights="idf"))["weights"] == "idf"
    assert plain(SearchSettings())["nprobe"] is None  # that is decided by the effort


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
        ("weights=wild", "weights is idf, or None for equal weights, not 'wild'"),
        ("p=1:99999999", "upwards, not"),
    ],
)
def test_wrong_sweeps_are_refused_with_a_message(text: str, message: str) -> None:
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
        named([SearchSettings(p=1), SearchSettings(p=2), SearchSettings(p=1)])
    with pytest.raises(SecateursError, match="two settings are the same: p=1 and mine"):
        named({**sweep("p=1"), "mine": SearchSettings(k=1000, p=1)})


def test_settings_of_one_row() -> None:
    assert parse_settings("gather=exhaustive p=all") == {"gather": "exhaustive", "p": None}
    assert parse_settings("p=3 where=year >= 2020") == {"p": 3, "where": "year >= 2020"}


def test_a_condition_is_a_single_value_with_commas_and_colons_too() -> None:
    assert values("where", "where=a in (1, 2:3)") == ["a in (1, 2:3)"]
