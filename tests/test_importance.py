"""Orders of query embeddings, on numbers worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import random_documents, random_text
from hypothesis import given
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Frequencies, Index, TokenKind
from secateurs.errors import UsageError
from secateurs.importance import ORDERS, focuses, log_share, match_rarity, order_positions, word_rarity, worths

CLS, Q, SEP, MASK = 101, 1, 102, 103
W, PUNCT = TokenKind.WORD, TokenKind.PUNCTUATION


def query(ids: list[int], kinds: list[int]) -> EncodedText:
    return EncodedText(np.zeros((len(ids), 4)), ids, kinds)


# [CLS] [Q] the(900) goldfish(3) the(900) grow(40) ?  [SEP] [MASK] [MASK]
GOLDFISH = query(
    [CLS, Q, 10, 11, 10, 12, 99, SEP, MASK, MASK],
    [TokenKind.CLS, TokenKind.MARKER, W, W, W, W, PUNCT, TokenKind.SEP, TokenKind.MASK, TokenKind.MASK],
)
COUNTS = Frequencies.from_counts({10: 900, 11: 3, 12: 40, CLS: 5, SEP: 5}, {10: 20, 11: 3, 12: 2, CLS: 5, SEP: 5})


def test_first_is_the_order_of_occurrence() -> None:
    assert order_positions("first", GOLDFISH, COUNTS).tolist() == list(range(10))


def test_icf_puts_rare_words_first_then_punctuation_cls_markers_and_masks() -> None:
    # rarest word, next, the twice-occurring common word by position, "?", CLS, [Q], [SEP], MASKs
    assert order_positions("icf", GOLDFISH, COUNTS).tolist() == [3, 5, 2, 4, 6, 0, 1, 7, 8, 9]


def test_idf_counts_documents_and_not_occurrences() -> None:
    assert order_positions("idf", GOLDFISH, COUNTS).tolist()[:4] == [5, 3, 2, 4]


def test_specials_with_a_collection_frequency_still_come_after_commoner_words() -> None:
    # An encoder that stores CLS in every document gives it frequency 5, far below the 900 of "the".
    order = order_positions("icf", GOLDFISH, COUNTS).tolist()
    assert order.index(2) < order.index(0)


def test_a_word_that_no_document_has_comes_after_the_words_that_documents_have() -> None:
    unseen = query([10, 77, 11], [W, W, W])
    assert order_positions("icf", unseen, COUNTS).tolist() == [2, 0, 1]
    assert order_positions("idf", unseen, COUNTS).tolist() == [2, 0, 1]


def test_ties_are_ordered_by_position() -> None:
    tied = query([11, 12, 11], [W, W, W])
    assert order_positions("icf", tied, Frequencies.from_counts({11: 7, 12: 7})).tolist() == [0, 1, 2]


def test_random_is_the_same_for_the_same_query_and_differs_between_queries() -> None:
    again = [order_positions("random", GOLDFISH, COUNTS).tolist() for _ in range(2)]
    assert again[0] == again[1]
    assert sorted(again[0]) == list(range(10))
    words = [W] * 10
    orders = {tuple(order_positions("random", query([n, *range(9)], words), COUNTS)) for n in range(20)}
    assert len(orders) > 15


def test_a_function_of_your_own_is_an_order() -> None:
    assert order_positions(lambda q, f: np.arange(len(q))[::-1], GOLDFISH, COUNTS).tolist() == list(range(9, -1, -1))


def test_an_order_without_a_position_is_an_error() -> None:
    with pytest.raises(UsageError, match="exactly once"):
        order_positions(lambda q, f: np.zeros(len(q), dtype=int), GOLDFISH, COUNTS)


@pytest.mark.parametrize(
    "order",
    [
        lambda query: [0],  # one argument
        lambda query, frequencies, p: [0],  # three arguments
        lambda query, frequencies: None,
        lambda query, frequencies: "icf",
        lambda query, frequencies: [0.5] * len(query),
        lambda query, frequencies: [[0, 1], [2]],
        lambda query, frequencies: np.arange(len(query)).reshape(2, -1),
    ],
)
def test_an_order_function_with_a_wrong_signature_or_result_says_what_is_expected(order: object) -> None:
    with pytest.raises(UsageError, match="an order function"):
        order_positions(order, GOLDFISH, COUNTS)  # type: ignore[arg-type]


def test_an_unknown_order_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="focus, rarity, icf, idf, first, random"):
        order_positions("tfidf", GOLDFISH, COUNTS)


tokens = st.lists(st.tuples(st.integers(0, 20), st.sampled_from(list(TokenKind))), max_size=40)
counts = st.dictionaries(st.integers(0, 20), st.integers(0, 1000))


@given(tokens, counts, st.sampled_from(sorted(ORDERS)))
def test_every_order_is_a_permutation(text: list[tuple[int, int]], frequency: dict[int, int], order: str) -> None:
    q = query([i for i, _ in text], [kind for _, kind in text])
    assert sorted(order_positions(order, q, Frequencies.from_counts(frequency))) == list(range(len(text)))


@given(tokens, counts, st.sampled_from(["icf", "idf"]))
def test_specials_come_last_whatever_the_frequencies(
    text: list[tuple[int, int]], frequency: dict[int, int], order: str
) -> None:
    q = query([i for i, _ in text], [kind for _, kind in text])
    group = {W: 0, PUNCT: 1, TokenKind.CLS: 2, TokenKind.MARKER: 3, TokenKind.SEP: 3, TokenKind.MASK: 4}
    group[TokenKind.SUMMARY] = 3
    groups = [group[TokenKind(q.token_kinds[i])] for i in order_positions(order, q, Frequencies.from_counts(frequency))]
    assert groups == sorted(groups)


def test_rarity_puts_words_that_are_common_in_general_text_behind() -> None:
    """In the collection, 1 ("how") is rarer than 2 ("archive"); in general text it is the other way round."""
    frequencies = Frequencies.from_counts({1: 3, 2: 40})
    general = Frequencies.from_counts({1: 90_000, 2: 60})
    q = query([1, 2], [W, W])
    assert order_positions("icf", q, frequencies.with_background(general)).tolist() == [0, 1]
    assert order_positions("rarity", q, frequencies.with_background(general)).tolist() == [1, 0]


COLLECTION = Frequencies.from_counts({1: 99, 2: 49_999, 3: 49_900})  # with 2: 100,000
GENERAL = Frequencies.from_counts({1: 499, 2: 9, 3: 9_490})  # with 2: 10,000


def test_a_words_share_is_that_in_a_mixture_of_the_collection_and_general_text() -> None:
    """By hand: in general 0.05 and 0.001; in the collection (100 + 50) / 101,000 and (50,000 + 1) / 101,000.

    Nine tenths of the former and a tenth of the latter.
    """
    found = log_share(np.array([1, 2], np.int32), COLLECTION.with_background(GENERAL))
    assert np.exp(found).tolist() == pytest.approx(
        [0.045 + 0.1 * 150 / 101_000, 0.0009 + 0.1 * 50_001 / 101_000], rel=1e-6
    )


def test_rarity_puts_words_behind_that_are_common_in_the_collection_although_they_are_rare_elsewhere() -> None:
    """The mean of the logarithms would call 2, half of the collection, rarer than 1."""
    q = query([2, 1], [W, W])
    assert order_positions("rarity", q, COLLECTION.with_background(GENERAL)).tolist() == [1, 0]


def test_in_a_tiny_collection_rarity_is_that_in_general_text() -> None:
    few = Frequencies.from_counts({1: 1, 2: 3}).with_background(Frequencies.from_counts({1: 9_000, 2: 2, 3: 90_000}))
    assert order_positions("rarity", query([1, 2], [W, W]), few).tolist() == [1, 0]


def test_rarity_puts_the_summary_after_the_words_and_before_other_specials() -> None:
    q = query([7, 8, 1, 2, 9, 9], [TokenKind.CLS, TokenKind.SUMMARY, W, W, TokenKind.SEP, TokenKind.MASK])
    frequencies = Frequencies.from_counts({1: 5, 2: 3, 7: 1, 8: 1, 9: 1})
    assert order_positions("rarity", q, frequencies).tolist() == [3, 2, 1, 0, 4, 5]
    without_words = query([7, 8, 9], [TokenKind.CLS, TokenKind.SUMMARY, TokenKind.SEP])
    assert order_positions("rarity", without_words, frequencies).tolist() == [1, 0, 2]
    assert order_positions("icf", q, frequencies).tolist() == [3, 2, 0, 1, 4, 5]


def test_rarity_puts_words_that_no_document_has_behind_those_that_documents_have() -> None:
    frequencies = Frequencies.from_counts({1: 500}).with_background(Frequencies.from_counts({1: 9_000, 2: 1}))
    assert order_positions("rarity", query([2, 1], [W, W]), frequencies).tolist() == [1, 0]


@given(tokens.filter(lambda text: all(kind != TokenKind.SUMMARY for _, kind in text)), counts)
def test_rarity_without_background_and_summary_is_icf(text: list[tuple[int, int]], frequency: dict[int, int]) -> None:
    q = query([i for i, _ in text], [kind for _, kind in text])
    frequencies = Frequencies.from_counts(frequency)
    assert np.array_equal(order_positions("rarity", q, frequencies), order_positions("icf", q, frequencies))


# Three words in two dimensions: the first two point the same way, and the third to the mean of all documents.
TWO_AND_THE_MEAN = np.array([[0.6, 0.8], [0.6, 0.8], [1.0, 0.0]])
MEAN = np.array([0.9, 0.0], dtype=np.float32)


def with_mean(counts: dict[int, int]) -> Frequencies:
    return replace(Frequencies.from_counts(counts), centre=MEAN)


def test_focus_is_three_quarters_of_the_mean_product_with_other_words_less_that_with_the_mean() -> None:
    """Words 0 and 1: 3/4 (1 + 0.6) / 2 - 0.54 = 0.06. Word 2: 3/4 (0.6 + 0.6) / 2 - 0.9 = -0.45. Specials: 0."""
    rows = np.vstack([np.ones((1, 2)), TWO_AND_THE_MEAN])
    q = EncodedText(rows, [9, 1, 2, 3], [TokenKind.CLS, W, W, W])
    assert focuses(q, MEAN, 0.75).tolist() == pytest.approx([0, 0.06, 0.06, -0.45])
    alone = EncodedText(rows[:2], [9, 1], [TokenKind.CLS, W])
    assert focuses(alone, MEAN, 0.75).tolist() == pytest.approx([0, -0.54])


def test_focus_puts_words_first_that_are_like_the_others_and_unlike_the_mean_whatever_their_frequency() -> None:
    kinds = [TokenKind.CLS, W, TokenKind.SUMMARY, W, W, TokenKind.MASK]
    rows = np.vstack([MEAN, TWO_AND_THE_MEAN[2], MEAN, TWO_AND_THE_MEAN[:2], MEAN])
    q = EncodedText(rows, [9, 3, 8, 1, 2, 7], kinds)
    assert order_positions("focus", q, with_mean({1: 100, 2: 100, 3: 1, 7: 5, 8: 5, 9: 5})).tolist() == [
        3,
        4,
        1,
        2,
        0,
        5,
    ]


def test_focus_puts_words_that_no_document_has_behind_those_that_documents_have() -> None:
    q = EncodedText(TWO_AND_THE_MEAN, [1, 2, 3], [W, W, W])
    assert order_positions("focus", q, with_mean({2: 5, 3: 5})).tolist() == [1, 2, 0]


@given(tokens, counts)
def test_focus_without_the_mean_of_the_documents_is_rarity(
    text: list[tuple[int, int]], frequency: dict[int, int]
) -> None:
    q = query([i for i, _ in text], [kind for _, kind in text])
    frequencies = Frequencies.from_counts(frequency)
    assert np.array_equal(order_positions("focus", q, frequencies), order_positions("rarity", q, frequencies))


def test_a_word_is_worth_its_focus_above_that_of_the_least_focused_word_and_a_tenth() -> None:
    """The words have the focus 0.06, 0.06 and -0.45, and no document has the second."""
    rows = np.vstack([np.ones((1, 2)), TWO_AND_THE_MEAN])
    q = EncodedText(rows, [9, 1, 2, 3], [TokenKind.CLS, W, W, W])
    assert worths(q, with_mean({1: 4, 3: 4})).tolist() == pytest.approx([0, 0.61, 0.1, 0.1])


def test_without_the_mean_of_the_documents_a_word_is_worth_more_the_rarer_it_is() -> None:
    """Shares of all tokens, each count with 1 added: 1/2 and 1/16 of 14 + 2."""
    q = query([1, 2, 9], [W, W, TokenKind.CLS])
    assert worths(q, Frequencies.from_counts({1: 7, 3: 7})).tolist() == pytest.approx([np.log(2), np.log(16), 0])


def test_focus_under_a_filter_has_the_mean_of_the_whole_collection(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", random_documents(300), encoder=None)
    q = random_text(np.random.default_rng(0), 8)
    whole, matching = (
        index.decide(q, where="i > 20", order="focus", frequencies=name).ordered.tolist()  # type: ignore[arg-type]
        for name in ("collection", "matching")
    )
    assert whole == matching
    assert whole != index.decide(q, order="icf").ordered.tolist()


def test_the_rarest_word_has_rarity_1_the_most_common_0_and_specials_0() -> None:
    """log(1 + 7) = 2.0794, log(1 + 63) = 4.1589, log(1 + 511) = 6.2383: one, two and three times 2.0794."""
    frequencies = Frequencies.from_counts({1: 7, 2: 63, 3: 511, CLS: 9})
    q = query([CLS, 1, 2, 3, 99, MASK], [TokenKind.CLS, W, W, W, PUNCT, TokenKind.MASK])
    assert word_rarity(q, frequencies).tolist() == pytest.approx([0, 1, 0.5, 0, 0, 0])
    # compared with the commonest word of the collection, not with that of the query
    assert word_rarity(query([1, 2], [W, W]), frequencies).tolist() == pytest.approx([1, 0.5])


def test_words_that_no_document_has_have_rarity_1_and_do_not_change_that_of_others() -> None:
    frequencies = Frequencies.from_counts({1: 7, 2: 63, 3: 511})
    assert word_rarity(query([1, 2, 77], [W, W, W]), frequencies).tolist() == pytest.approx([1, 0.5, 1])
    assert word_rarity(query([77], [W]), frequencies).tolist() == [1]
    assert word_rarity(query([77], [W]), Frequencies.none()).tolist() == [1]
    assert word_rarity(query([3], [W]), frequencies).tolist() == [1]  # the rarest there is in this query


def test_other_tokens_have_a_rarity_on_the_scale_of_the_query() -> None:
    """The query's rarest word has 2 log 8, the most common token 3 log 8; these have 0, 1, 2, 2.5 and 3 log 8."""
    frequencies = Frequencies.from_counts({1: 7, 2: 63, 3: 511, 4: 180})
    found = match_rarity(np.array([77, 1, 2, 4, 3], dtype=np.int32), query([2], [W]), frequencies)
    assert found.tolist() == pytest.approx([1, 1, 1, 0.5, 0], abs=1e-3)


def test_the_rarity_of_a_word_is_linear_in_the_logarithm_of_its_share() -> None:
    """Without a background: 8, 64 and 512, the most frequent of all, are equally far apart in logarithms."""
    frequencies = Frequencies.from_counts({1: 7, 2: 63, 3: 511})
    assert word_rarity(query([1, 2, 3], [W, W, W]), frequencies).tolist() == pytest.approx([1, 0.5, 0])


@given(tokens, counts, counts)
def test_rarity_is_between_0_and_1(
    text: list[tuple[int, int]], frequency: dict[int, int], general: dict[int, int]
) -> None:
    q = query([i for i, _ in text], [kind for _, kind in text])
    frequencies = Frequencies.from_counts(frequency)
    for counted in (frequencies, frequencies.with_background(Frequencies.from_counts(general))):
        found = word_rarity(q, counted)
        assert ((found >= 0) & (found <= 1)).all()
        assert not found[q.token_kinds != W].any()


def test_without_token_ids_the_embedding_least_like_the_mean_comes_first() -> None:
    """All documents have one token id. Products with the mean (1, 0, 0, 0): 0.9, 0.1 and 0.5."""
    rows = np.array([[0.9, 0.4, 0, 0], [0.1, 0, 1, 0], [0.5, 0, 0, 0.8]])
    frequencies = Frequencies(np.array([0], np.int32), np.array([50]), np.array([9]), centre=np.eye(4, dtype="f4")[0])
    q = EncodedText(rows, [0, 0, 0], [W, W, W])
    for order in ("focus", "rarity", "icf", "idf"):
        assert order_positions(order, q, frequencies).tolist() == [1, 2, 0]
    assert order_positions("first", q, frequencies).tolist() == [0, 1, 2]
    with_ids = Frequencies(np.array([0, 7], np.int32), np.array([50, 2]), np.array([9, 2]), centre=frequencies.centre)
    assert order_positions("icf", q, with_ids).tolist() == [0, 1, 2]
    assert worths(q, frequencies).tolist() == [1, 1, 1]  # effort keeps most of them


def test_an_index_without_token_ids_knows_the_mean_of_its_embeddings(tmp_path: Path) -> None:
    documents = [
        replace(document, encoded=replace(document.encoded, token_ids=np.zeros(len(document.encoded))))  # type: ignore[arg-type, type-var]
        for document in random_documents(300)
    ]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    mean = index.frequencies.mean_without_token_ids()
    every_row = np.vstack([document.encoded.embeddings for document in documents])  # type: ignore[union-attr]
    assert mean == pytest.approx(every_row.mean(axis=0), abs=1e-3)
    q = random_text(np.random.default_rng(0), 8)
    kept = index.search(q, p=3, gather="cells").kept
    assert list(kept) == np.argsort(q.embeddings @ mean)[:3].tolist()
    assert index.search(q, p=3, gather="cells", where="i > 20", frequencies="matching").kept == kept


def test_a_filter_that_leaves_one_token_type_is_ordered_by_frequency(tmp_path: Path) -> None:
    alone = Document("alone", "", {"i": 999}, EncodedText(np.eye(16)[:1], [5], [W]))
    index = Index.build(tmp_path / "i.sec", [*random_documents(300), alone], encoder=None)
    q = EncodedText(np.eye(16)[:2], [7, 5], [W, W])
    assert index.decide(q, where="i = 999", frequencies="matching", order="icf").ordered.tolist() == [1, 0]
