"""Token counts against a plain counter."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateurs import Frequencies, frequencies
from secateurs.errors import SecateursError, UsageError

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


@given(documents)
def test_counting_a_stream_of_documents_is_the_same(docs: list[list[int]]) -> None:
    streamed, whole = Frequencies.count(iter(docs), progress=False), count(docs)
    assert streamed.token_ids.tolist() == whole.token_ids.tolist()
    assert streamed.collection.tolist() == whole.collection.tolist()
    assert streamed.document.tolist() == whole.document.tolist()


def test_a_stream_of_many_blocks_is_counted_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frequencies, "_DOCUMENTS_PER_BLOCK", 2)
    counted = Frequencies.count(iter([[1, 2, 2], [], [2, 3], [3, 3, 3], [1]]))
    assert counted.collection.tolist() == [2, 3, 4]
    assert counted.document.tolist() == [2, 2, 2]


@pytest.mark.parametrize("wrong", ["goldfish", [0.5], [2**31], [[1, 2]], 7, [None]])
def test_what_is_no_list_of_token_ids_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="token ids of each document"):
        Frequencies.count([[1], wrong])  # type: ignore[list-item]


def test_saved_counts_come_back(tmp_path: Path) -> None:
    counted = count([[1, 2, 2], [-4, 2]])
    counted.save(tmp_path / "counts")
    loaded = Frequencies.load(tmp_path / "counts")
    assert loaded.token_ids.tolist() == [-4, 1, 2]
    assert loaded.collection.tolist() == [1, 1, 3]
    assert loaded.document.tolist() == [1, 1, 2]
    assert loaded.embeddings == 5


def test_a_file_that_is_not_there_or_has_no_counts_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file"):
        Frequencies.load(tmp_path / "nothing")
    path = tmp_path / "counts"
    count([[1, 2], [2]]).save(path)
    whole = path.read_bytes()
    ones = np.array([1, 1])
    contents = [b"", b"text", whole[: len(whole) // 2]]
    for token_ids, counts in (([2, 1], ones), ([1, 2, 3], ones), (7, ones), ([1, 2], [0.5, 0.5]), (["a", "b"], ones)):
        np.savez(tmp_path / "other.npz", token_ids=token_ids, collection=counts, document=ones)
        contents.append((tmp_path / "other.npz").read_bytes())
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(SecateursError, match="has no frequencies"):
            Frequencies.load(path)


def test_the_mean_of_all_embeddings_is_saved_with_the_counts(tmp_path: Path) -> None:
    mean = np.array([0.5, -0.25], dtype=np.float32)
    frequencies = Frequencies.count([[1, 2], [2]]).with_centre(mean)
    frequencies.save(tmp_path / "counts.npz")
    loaded = Frequencies.load(tmp_path / "counts.npz")
    assert loaded.centre is not None
    assert loaded.centre.tolist() == mean.tolist()
    assert loaded.collection_frequency([1, 2]).tolist() == [1, 2]
    Frequencies.count([[1]]).save(tmp_path / "without.npz")
    assert Frequencies.load(tmp_path / "without.npz").centre is None


@pytest.mark.parametrize("mean", [[[0.5, 0.5]], ["a"], [float("nan"), 1.0], 0.5])
def test_a_mean_that_is_no_vector_of_numbers_is_an_error(mean: object) -> None:
    with pytest.raises(UsageError, match="mean of all embeddings"):
        Frequencies.none().with_centre(mean)  # type: ignore[arg-type]
