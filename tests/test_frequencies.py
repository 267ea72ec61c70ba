"""Token counts against a plain counter."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateurs import Frequencies, frequencies
from secateurs.errors import UsageError

documents = st.lists(st.lists(st.integers(-5, 12), max_size=8), max_size=12)


def count(docs: list[list[int]]) -> Frequencies:
    flat = np.array([token for doc in docs for token in doc], dtype=np.int32)
    return Frequencies.of(flat, np.cumsum([0, *map(len, docs)]))


@given(documents)
def test_counts_are_those_of_a_plain_counter(docs: list[list[int]]) -> None:
    counted = count(docs)
    collection = Counter(token for doc in docs for token in doc)
    document = Counter(token for doc in docs for token in set(doc))
    for token in range(-6, 14):
        assert counted.collection_frequency([token]).tolist() == [collection[token]]
        assert counted.document_frequency([token]).tolist() == [document[token]]


@given(documents, documents)
def test_counts_of_two_parts_add_up_to_the_whole(left: list[list[int]], right: list[list[int]]) -> None:
    total, whole = count(left) + count(right), count(left + right)
    assert total.token_ids.tolist() == whole.token_ids.tolist()
    assert total.collection.tolist() == whole.collection.tolist()
    assert total.document.tolist() == whole.document.tolist()


def test_block_by_block_is_the_same_as_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    docs = [[1, 2, 2], [], [2, 3], [3, 3, 3], [1]]
    whole = count(docs)
    monkeypatch.setattr(frequencies, "_DOCUMENTS_PER_BLOCK", 2)
    parts = count(docs)
    assert parts.collection.tolist() == whole.collection.tolist() == [2, 3, 4]
    assert parts.document.tolist() == whole.document.tolist() == [2, 2, 2]


def test_a_negative_frequency_is_refused() -> None:
    with pytest.raises(UsageError, match="negative"):
        Frequencies.from_counts({1: -1})
