"""Which positions gather."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateurs import EncodedText, Frequencies, prune
from secateurs.errors import UsageError

QUERY = EncodedText(np.zeros((4, 2)), [7, 8, 9, 8], [0, 0, 0, 0])
COUNTS = Frequencies.from_counts({7: 100, 8: 10, 9: 1})


def test_p_keeps_the_most_important_positions_in_order() -> None:
    assert prune(QUERY, COUNTS, p=1).tolist() == [2]
    assert prune(QUERY, COUNTS, p=3).tolist() == [2, 1, 3]


@pytest.mark.parametrize("p", [99, None, "all"])
def test_p_beyond_the_query_none_and_all_keep_everything(p: Any) -> None:
    assert prune(QUERY, COUNTS, p=p).tolist() == [2, 1, 3, 0]


@pytest.mark.parametrize("p", [0, -1, 2.5, True, "3"])
def test_a_p_that_makes_no_sense_is_a_clear_error(p: object) -> None:
    with pytest.raises(UsageError, match="p must be a whole number of at least 1"):
        prune(QUERY, COUNTS, p=p)  # type: ignore[arg-type]


def test_an_empty_query_keeps_nothing() -> None:
    assert prune(EncodedText(np.zeros((0, 2)), [], []), COUNTS, p=3).tolist() == []


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 50), st.sampled_from(["icf", "idf", "first", "random"]))
def test_a_larger_p_only_adds_positions(ids: list[int], p: int, order: str) -> None:
    query = EncodedText(np.zeros((len(ids), 2)), ids, np.zeros(len(ids)))
    fewer, more = prune(query, COUNTS, p, order).tolist(), prune(query, COUNTS, p + 1, order).tolist()
    assert more[: len(fewer)] == fewer
    assert len(fewer) == min(p, len(ids))


def test_a_query_that_is_a_text_is_refused() -> None:
    with pytest.raises(UsageError, match="a query is what an encoder gives, an EncodedText, not 'goldfish'"):
        prune("goldfish", COUNTS)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", [2**40, "goldfish"])
def test_counts_are_of_token_ids(token: Any) -> None:
    with pytest.raises(UsageError, match="token ids are whole numbers"):
        Frequencies.from_counts({token: 1})
