"""Weights in the score, on numbers worked out by hand; and that every way to a score uses the same ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import QUERIES, random_documents, random_text
from hypothesis import given
from hypothesis import strategies as st
from test_sharded import hits_of, make_shards, without_times

from secateurs import Document, EncodedText, Frequencies, Index, SearchSettings, ShardedIndex, TokenKind
from secateurs.errors import UsageError
from secateurs.weights import idf_weights, weigh

W, CLS, MASK, PUNCT = TokenKind.WORD, TokenKind.CLS, TokenKind.MASK, TokenKind.PUNCTUATION
# 99 documents: all have the CLS 7, 49 have the word 1, nine the word 3, and none the word 2
COUNTS = Frequencies.from_counts({7: 99, 1: 60, 3: 30}, {7: 99, 1: 49, 3: 9})


def query(ids: list[int], kinds: list[int], weights: list[float] | None = None) -> EncodedText:
    rows = np.eye(len(ids), 8, dtype=np.float32)
    return EncodedText(rows, ids, kinds, weights=None if weights is None else np.array(weights))


def test_weights_by_hand() -> None:
    """idf = log(100 / 49.5) = 0.7032, log(100 / 9.5) = 2.3539, log(100 / 0.5) = 5.2983; their mean is 2.7851."""
    weights = idf_weights(query([7, 1, 3, 2, 9], [CLS, W, W, W, MASK]), COUNTS)
    expected = [1, 1 + 0.6 * (0.7032 / 2.7851 - 1), 1 + 0.6 * (2.3539 / 2.7851 - 1), 1 + 0.6 * (5.2983 / 2.7851 - 1), 1]
    assert expected[1:4] == pytest.approx([0.5515, 0.9071, 1.5414], abs=1e-4)
    assert weights.tolist() == pytest.approx(expected, abs=1e-4)
    assert weights.dtype == np.float32


def test_a_word_and_its_repetition_weigh_the_same_and_a_single_word_weighs_1() -> None:
    """The mean idf of 3, 1, 3 is (2.3539 + 0.7032 + 2.3539) / 3 = 1.8037."""
    assert idf_weights(query([3, 1, 3], [W, W, W]), COUNTS).tolist()[0::2] == pytest.approx([1.1830] * 2, abs=1e-4)
    assert idf_weights(query([7, 3], [CLS, W]), COUNTS).tolist() == [1, 1]


def test_only_words_are_weighed() -> None:
    """Punctuation has no frequency, and that of a special token says nothing about the query."""
    weights = idf_weights(query([7, 8, 1, 3, 9], [CLS, PUNCT, W, W, MASK]), COUNTS)
    assert weights[[0, 1, 4]].tolist() == [1, 1, 1]
    assert idf_weights(query([7, 9], [CLS, MASK]), COUNTS).tolist() == [1, 1]


def test_where_no_document_is_counted_all_weights_are_1() -> None:
    assert idf_weights(query([1, 2], [W, W]), Frequencies.none()).tolist() == [1, 1]


def test_weights_are_cut_at_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 + 2 (0.7032 / 2.7851 - 1) is -0.495."""
    monkeypatch.setattr("secateurs.weights.STRENGTH", 2)
    assert idf_weights(query([1, 3, 2], [W, W, W]), COUNTS)[0] == 0


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(list(TokenKind))), max_size=30),
    st.dictionaries(st.integers(0, 20), st.integers(0, 10**9)),
)
def test_weights_are_finite_not_negative_and_those_of_words_have_the_mean_1(
    text: list[tuple[int, int]], counts: dict[int, int]
) -> None:
    encoded = EncodedText(np.zeros((len(text), 4)), [i for i, _ in text], [kind for _, kind in text])
    weights = idf_weights(encoded, Frequencies.from_counts(counts))
    assert np.isfinite(weights).all()
    assert (weights >= 0).all()
    word = encoded.token_kinds == W
    assert weights[~word].tolist() == [1] * int((~word).sum())
    if word.any():
        assert weights[word].mean() == pytest.approx(1, abs=1e-5)


def test_weights_of_the_encoder_are_multiplied() -> None:
    plain = query([7, 1, 3], [CLS, W, W])
    given_weights = query([7, 1, 3], [CLS, W, W], [2, 0, 0.5])
    expected = np.array([2, 0, 0.5]) * idf_weights(plain, COUNTS)
    assert weigh(given_weights, COUNTS).all_weights.tolist() == pytest.approx(expected.tolist())


# In an index. The rows of the queries are axes of the space, so that a similarity is a coordinate.


@pytest.fixture
def axes(tmp_path: Path) -> Index:
    """Four documents. Word 1 is in all, 2 in two of them, 3 in one; each embedding is its word's axis, times 0.8."""
    rows = 0.8 * np.eye(4, dtype=np.float32)
    words = {"a": [1], "b": [1, 2], "c": [1, 2, 3], "d": [1]}
    documents = [
        Document(docno, "text", {"short": len(ids) == 1}, EncodedText(rows[ids], ids, [0] * len(ids)))
        for docno, ids in words.items()
    ]
    return Index.build(tmp_path / "axes.sec", documents, encoder=None, store="float16")


BOTH = EncodedText(np.eye(4, dtype=np.float32)[[1, 3]], [1, 3], [0, 0])


def test_the_score_is_the_sum_of_weight_times_similarity(axes: Index) -> None:
    """idf = log(5 / 4.5) = 0.10536 and log(5 / 1.5) = 1.20397, mean 0.65467: weights 0.49656 and 1.50344."""
    scores = {hit.docno: hit.score for hit in axes.search(BOTH, weights="idf")}
    assert scores["a"] == pytest.approx(0.8 * 0.49656, abs=1e-3)
    assert scores["c"] == pytest.approx(0.8 * 0.49656 + 0.8 * 1.50344, abs=1e-3)
    plain = {hit.docno: hit.score for hit in axes.search(BOTH)}
    assert (plain["a"], plain["c"]) == pytest.approx((0.8, 1.6), abs=1e-3)


def test_weights_of_a_query_count_in_every_verb(axes: Index) -> None:
    heavy = replace(BOTH, weights=np.array([3.0, 0.5]))
    expected = pytest.approx(0.8 * 3 + 0.8 * 0.5, abs=1e-3)
    assert axes.search(heavy)[0].score == expected
    assert axes.score(heavy, ["c"])[0] == expected
    assert axes.explain(heavy, "c").score == expected
    similarities, _ = axes.similarities(heavy, "c")
    assert similarities.max() == pytest.approx(0.8, abs=1e-3)  # without the weights


def test_a_query_whose_weights_are_0_scores_0(axes: Index) -> None:
    assert axes.score(replace(BOTH, weights=np.zeros(2)), ["a", "c"]) == pytest.approx([0, 0], abs=1e-6)


def test_under_a_filter_the_weights_go_by_the_frequencies_that_the_setting_names(axes: Index) -> None:
    """Both short documents have word 1, none has 3: idf = log(3 / 2.5) = 0.1823 and log(3 / 0.5) = 1.7918."""
    matching = axes.decide(BOTH, weights="idf", where="short = true", frequencies="matching").query
    assert matching.all_weights.tolist() == pytest.approx([0.5108, 1.4892], abs=1e-3)
    collection = axes.decide(BOTH, weights="idf", where="short = true").query
    assert collection.all_weights.tolist() == pytest.approx([0.49656, 1.50344], abs=1e-3)


def test_without_weights_a_search_is_bit_for_bit_eq_1(index: Index) -> None:
    for text in QUERIES[:4]:
        encoded = index.encode_query(text)
        expected = index.search(text, p=3)
        assert expected.plan.weights is None
        assert expected.query.weights is None
        ones = replace(encoded, weights=np.ones(len(encoded)))
        for given_query in (encoded, ones):
            assert index.search(given_query, p=3, weights=None).hits == expected.hits


@pytest.mark.parametrize("gather", ["cells", "exhaustive"])
def test_ranking_says_which_weights_it_used_and_they_explain_the_scores(index: Index, gather: Any) -> None:
    ranking = index.search(QUERIES[0], weights="idf", gather=gather, k=5)
    assert ranking.plan.weights == "idf"
    expected = weigh(index.encode_query(QUERIES[0]), index.frequencies)
    assert np.array_equal(ranking.query.all_weights, expected.all_weights)
    assert [hit.score for hit in ranking] == index.score(ranking.query, [hit.docno for hit in ranking])
    assert hits_of(ranking) != hits_of(index.search(QUERIES[0], gather=gather, k=5))


def test_weight_times_similarity_of_an_explanation_adds_up_to_the_score(index: Index) -> None:
    for rank, hit in enumerate(index.search(QUERIES[0], weights="idf", p=3, k=4), start=1):
        explanation = index.explain(QUERIES[0], hit.docno, weights="idf", p=3)
        assert (explanation.rank, explanation.score) == (rank, hit.score)
        total = sum(token.weight * token.similarity for token in explanation.tokens)
        assert total == pytest.approx(hit.score, abs=1e-4)  # the products are of int8, with another step
        plain = index.explain(QUERIES[0], hit.docno, p=3)
        assert {token.weight for token in plain.tokens} == {1.0}
        assert [t.similarity for t in plain.tokens] == [t.similarity for t in explanation.tokens]
        assert {token.weight for token in explanation.tokens if token.kind != "word"} == {1.0}


@pytest.mark.parametrize("settings", [{}, {"where": "i >= 10", "frequencies": "matching"}, {"where": "i < 50", "p": 2}])
def test_weights_over_shards_are_those_of_one_index(tmp_path: Path, settings: dict[str, Any]) -> None:
    documents = random_documents(60)
    whole = Index.build(tmp_path / "whole.sec", documents, encoder=None, store="float16")
    path = make_shards(tmp_path / "many.sec", documents, 3, store="float16")
    given_query = replace(random_text(np.random.default_rng(4), 6), weights=np.linspace(0.5, 1.5, 6))
    how = {"gather": "exhaustive", "weights": "idf", **settings}
    with ShardedIndex(path) as many:
        ours, theirs = many.search(given_query, **how), whole.search(given_query, **how)
        assert without_times(ours) == without_times(theirs)
        assert ours.plan.weights == "idf"
        assert np.array_equal(ours.query.all_weights, theirs.query.all_weights)
        docno = theirs[3].docno
        assert many.explain(given_query, docno, **how) == whole.explain(given_query, docno, **how)
        assert many.score(theirs.query, [docno]) == whole.score(theirs.query, [docno])


def test_cells_gather_with_the_weights(tmp_path: Path) -> None:
    """Two kept embeddings, a single candidate: it is the best of the embedding that weighs more."""
    rng = np.random.default_rng(0)
    documents = random_documents(300)
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    halves = random_text(rng, 2)
    settings: dict[str, Any] = {"gather": "cells", "k": 1, "candidates": 1, "p": None, "nprobe": 4}
    for weights, position in (([1, 0], 0), ([0, 1], 1)):
        alone = EncodedText(halves.embeddings[[position]], halves.token_ids[[position]], [0])
        found = index.candidates(replace(halves, weights=np.array(weights)), **settings)
        assert found == index.candidates(alone, **settings)


# What is refused


@pytest.mark.parametrize("weights", ["icf", "none", 1, [1.0], True])
def test_unknown_weights_are_a_clear_error(index: Index, weights: Any) -> None:
    with pytest.raises(UsageError, match="weights is idf, or None for equal weights, not"):
        SearchSettings(weights=weights)
    with pytest.raises(UsageError, match="weights is idf, or None for equal weights, not"):
        index.search("a", weights=weights)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.1], [1.0, np.nan], [[1.0, 2.0]], [1.0, np.inf]])
def test_weights_that_are_no_weights_of_the_embeddings_are_refused(weights: Any) -> None:
    with pytest.raises(UsageError, match="weights must be a number from 0 to 1,000 for each embedding"):
        replace(BOTH, weights=weights)
    with pytest.raises(UsageError, match="weights must be numbers"):
        replace(BOTH, weights=["a", "b"])  # type: ignore[arg-type]


def test_a_document_with_weights_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    documents = random_documents(12)
    wrong = [replace(d, docno=f"new {d.docno}", encoded=_weighted(d)) for d in documents]
    message = "has weights: they are for queries, documents have none"
    with pytest.raises(UsageError, match=f"'new d000' {message}"):
        Index.build(tmp_path / "none.sec", wrong, encoder=None)
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    with pytest.raises(UsageError, match=message):
        index.add(wrong[:1])
    assert len(index) == 12
    good = [replace(document, docno=f"other {document.docno}") for document in documents]
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 3)) as many:
        with pytest.raises(UsageError, match=f"'new d003' {message}"):
            many.add([*good, wrong[3]])
        assert len(many) == 12


def test_weights_by_frequency_stay_below_the_largest_weight() -> None:
    heaviest = replace(BOTH, weights=[1000.0, 1000.0])  # type: ignore[arg-type]
    assert idf_weights(heaviest, COUNTS).max() > 1
    assert weigh(heaviest, COUNTS).all_weights.max() == 1000


def _weighted(document: Document) -> EncodedText:
    assert document.encoded is not None
    return replace(document.encoded, weights=np.ones(len(document.encoded)))
