"""Which query embeddings matter most: orders of the query's positions, most important first.

`icf` is the paper's: ascending collection frequency of the embedding's token (Tonellotto & Macdonald, 2021, Sec. 3).
Tokens without a meaningful frequency are ordered by their kind, never by a count, because some encoders store CLS and
SEP in documents and so give them a frequency:

    wordpieces  <  unseen wordpieces  <  punctuation  <  CLS  <  markers and SEP  <  MASK

`rarity` and `focus` differ from it in the order of words. They also put the summary before the other special tokens, if
the encoder has one: a special token that stands for the whole text.

`rarity` orders words by two frequencies, that in the collection and that in general text (the background): words of
asking, such as "how", are rare in many collections and say nothing about what is asked. Without a background, and but
for the summary, it is `icf`.

`focus`, the default, orders words by their embeddings instead of by counts. A word comes first that is like the other
words of the query and unlike the mean of all document embeddings: with q_i the embedding of a word, c that mean, and
the other words j of the query,

    focus_i = 1/2 mean_j(q_i . q_j)  -  q_i . c

Both products tell what a count cannot. A word that the encoder has read as part of what is asked lies in the direction
of the other words; a word that says little, such as "how", lies near the mean. Without that mean, it is `rarity`.

Where all embeddings have the same token id, as those of page images, no frequency tells them apart. There every order
but `first` and `random` puts the query embedding first that is least like the mean of all document embeddings.

What the paper leaves open, and what we chose (docs/importance.md has the measurements):
- A wordpiece that no document has comes after the wordpieces that documents have. Its frequency, 0, would put it first.
- Punctuation comes after all words. Documents do not store it, so its frequency, 0, would put it first.
- Ties are ordered by position. A repeated token is ranked at both positions, and the pieces of a word one by one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .frequencies import Frequencies
from .records import EncodedText, Positions, TokenKind
from .settings import ORDER_NAMES, Order, OrderFunction, OrderName, check_choice

_RANK_OF_KIND = np.zeros(len(TokenKind), dtype=np.int64)
_RANK_OF_KIND[TokenKind.WORD] = 0
_RANK_OF_KIND[TokenKind.PUNCTUATION] = 1
_RANK_OF_KIND[TokenKind.CLS] = 2
_RANK_OF_KIND[TokenKind.MARKER] = 3
_RANK_OF_KIND[TokenKind.SEP] = 3
_RANK_OF_KIND[TokenKind.MASK] = 4
_RANK_OF_KIND[TokenKind.SUMMARY] = _RANK_OF_KIND[TokenKind.MARKER]  # for `icf`, it is a special like any other
_SUMMARY_BEFORE_SPECIALS = _RANK_OF_KIND.astype(np.float64)
_SUMMARY_BEFORE_SPECIALS[TokenKind.SUMMARY] = 0.5  # after the words
_OTHER_WORDS = 0.5  # what the other words count for in `focus`; docs/importance.md has how it was chosen
_LEAST_WORTH = 0.1  # of a word
_BACKGROUND_SHARE = 0.9  # of the background in `rarity`; docs/importance.md has how it was chosen
_GENERAL_TOKENS = 1000  # of the background count as the collection's: a few documents say little


def first(query: EncodedText, frequencies: Frequencies) -> Positions:
    """Order of occurrence: CLS, marker, the query's wordpieces, SEP, MASKs. The paper's baseline."""
    return np.arange(len(query), dtype=np.int64)


def icf(query: EncodedText, frequencies: Frequencies) -> Positions:
    """Rarest token first, by collection frequency."""
    if (centre := frequencies.mean_without_token_ids()) is not None:
        return _farthest_first(query, centre)
    frequency = frequencies.collection_frequency(query.token_ids)
    return _lowest_first(query, frequency, frequency == 0)


def idf(query: EncodedText, frequencies: Frequencies) -> Positions:
    """Rarest token first, by document frequency."""
    if (centre := frequencies.mean_without_token_ids()) is not None:
        return _farthest_first(query, centre)
    frequency = frequencies.document_frequency(query.token_ids)
    return _lowest_first(query, frequency, frequency == 0)


def rarity(query: EncodedText, frequencies: Frequencies) -> Positions:
    """Rarest word first, by collection and background frequency together."""
    if (centre := frequencies.mean_without_token_ids()) is not None:
        return _farthest_first(query, centre)
    unseen = frequencies.collection_frequency(query.token_ids) == 0
    return _lowest_first(query, log_share(query.token_ids, frequencies), unseen, _SUMMARY_BEFORE_SPECIALS)


def focus(query: EncodedText, frequencies: Frequencies) -> Positions:
    """The word first that is most like the other words of the query and least like the mean of all documents."""
    if frequencies.centre is None or frequencies.mean_without_token_ids() is not None:
        return rarity(query, frequencies)
    unseen = frequencies.collection_frequency(query.token_ids) == 0
    key = -focuses(query, frequencies.centre, _OTHER_WORDS)
    return _lowest_first(query, key, unseen, _SUMMARY_BEFORE_SPECIALS)


def focuses(query: EncodedText, centre: NDArray[np.float32], other_words: float) -> NDArray[np.float64]:
    """(positions,): of each word, `other_words` times its mean product with the others, less that with the mean."""
    is_word = query.token_kinds == TokenKind.WORD
    words = query.embeddings[is_word].astype(np.float64)  # (words, dim)
    with_others = words @ words.sum(axis=0) - np.square(words).sum(axis=1)
    worth = np.zeros(len(query))
    worth[is_word] = other_words * with_others / max(len(words) - 1, 1) - words @ centre
    return worth


def log_share(token_ids: NDArray[np.int32], frequencies: Frequencies) -> NDArray[np.float64]:
    """The logarithm of each token's share of all tokens, in a mixture of the collection and the background.

    In the mixture a word is common if it is common in either. The mean of the two logarithms would call a word rare
    that half the documents of a technical collection have, if it is rare elsewhere.
    """
    mixed: NDArray[np.float64] = np.log(_mixed(frequencies, lambda table: 1.0 + table.collection_frequency(token_ids)))
    return mixed


def worths(query: EncodedText, frequencies: Frequencies) -> NDArray[np.float64]:
    """(positions,): what each word is worth; 0 for what is not a word.

    Effort decides by this how many positions are enough, and how deep each looks. It is how far the word's focus is
    above that of the least focused word, plus 0.1; a word that no document has is worth the least. Where the mean of
    all embeddings is not known, it is -log of the word's share of all tokens, in the mixture of `log_share`. Without
    token ids every position is worth the same.
    """
    if frequencies.mean_without_token_ids() is not None:
        return np.ones(len(query))
    is_word = query.token_kinds == TokenKind.WORD
    if frequencies.centre is None:
        return np.where(is_word, np.maximum(-log_share(query.token_ids, frequencies), 0.0), 0.0)
    worth = focuses(query, frequencies.centre, _OTHER_WORDS)
    lowest = worth[is_word].min(initial=np.inf)
    unseen = frequencies.collection_frequency(query.token_ids) == 0
    return np.where(is_word, np.where(unseen, 0.0, worth - lowest) + _LEAST_WORTH, 0.0)


def _mixed(frequencies: Frequencies, count: Callable[[Frequencies], Any]) -> Any:
    """A count as a share of all tokens: that in the collection, or mixed with that in the background."""
    counted, background = count(frequencies), frequencies.background
    if background is None:
        return counted / (frequencies.embeddings + 2.0)
    in_general = count(background) / (background.embeddings + 2.0)
    in_collection = (counted + _GENERAL_TOKENS * in_general) / (frequencies.embeddings + 2.0 + _GENERAL_TOKENS)
    return (1 - _BACKGROUND_SHARE) * in_collection + _BACKGROUND_SHARE * in_general


def word_rarity(query: EncodedText, frequencies: Frequencies) -> NDArray[np.float64]:
    """Per position a number between 0 and 1, for showing which matches matter. No search uses it.

    It is linear in the logarithm of the token's share: 0 for the most common token of all, 1 for the rarest of the
    query's words that documents have, and for words that they do not have, unless they are common in general text.
    Everything that is not a word has 0.
    """
    word = query.token_kinds == TokenKind.WORD  # (positions,)
    return np.where(word, match_rarity(query.token_ids, query, frequencies), 0.0)


def match_rarity(token_ids: NDArray[np.int32], query: EncodedText, frequencies: Frequencies) -> NDArray[np.float64]:
    """The rarity of other tokens, such as those of a document, on the scale of the query's words."""
    seen = (query.token_kinds == TokenKind.WORD) & (frequencies.collection_frequency(query.token_ids) > 0)
    least = log_share(query.token_ids, frequencies)[seen].min(initial=np.inf)
    # What a token would have that is the most frequent both in the collection and in the background.
    most = np.log(_mixed(frequencies, lambda table: 1.0 + table.collection.max(initial=0)))
    if most <= least:  # nothing to compare with
        return np.ones(len(token_ids))
    rarity: NDArray[np.float64] = (most - log_share(token_ids, frequencies)) / (most - least)
    return rarity.clip(0, 1)


def random(query: EncodedText, frequencies: Frequencies, seed: int = 0) -> Positions:
    """A shuffle that is the same each time for the same query: the control that any order must beat."""
    entropy = [seed, *query.token_ids.astype(np.uint32).tolist()]
    return np.random.default_rng(entropy).permutation(len(query)).astype(np.int64)


def _lowest_first(
    query: EncodedText,
    key: NDArray[np.int64] | NDArray[np.float64],
    unseen: NDArray[np.bool_],
    rank_of_kind: NDArray[Any] = _RANK_OF_KIND,
) -> Positions:
    """Words by an ascending key, then words that no document has, then the other kinds of tokens."""
    word = query.token_kinds == TokenKind.WORD
    rank = rank_of_kind[query.token_kinds]
    unseen = word & unseen
    # The key of a special token says nothing about the query: specials of one kind are ordered by position.
    key = np.where(word, key, 0)
    position = np.arange(len(query), dtype=np.int64)
    return np.lexsort((position, key, unseen, rank)).astype(np.int64)


def _farthest_first(query: EncodedText, centre: NDArray[np.float32]) -> Positions:
    """Least like the mean of all document embeddings first. Kinds do not count: imported arrays may have none."""
    return np.argsort(query.embeddings @ centre, kind="stable").astype(np.int64)


ORDERS: dict[OrderName, OrderFunction] = {
    "focus": focus,
    "rarity": rarity,
    "icf": icf,
    "idf": idf,
    "first": first,
    "random": random,
}


def order_positions(order: Order, query: EncodedText, frequencies: Frequencies) -> Positions:
    """All positions of the query, most important first. `order` is a name, or a function of your own."""
    if not callable(order):
        check_choice("order", order, ORDER_NAMES)
        return ORDERS[order](query, frequencies)
    _check_signature(order)
    given = order(query, frequencies)
    try:
        positions = np.asarray(given)
    except ValueError:  # lists of unequal length
        positions = np.empty(0, dtype=np.int64)
    if positions.dtype.kind not in "iu" or not np.array_equal(np.sort(positions), np.arange(len(query))):
        raise UsageError(
            f"an order function must return each of the query's {len(query)} positions exactly once, "
            f"most important first, as whole numbers: this one returned {given!r:.200}"
        )
    return positions.astype(np.int64)


def _check_signature(order: OrderFunction) -> None:
    """Before the call, so that a TypeError inside the user's function is not mistaken for a wrong signature."""
    try:
        inspect.signature(order).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"an order function takes (query, frequencies) and returns the query's positions: {error}"
        ) from error
    except ValueError:  # a built-in function that has no signature
        pass
