"""What each query embedding counts for in the score, if the setting `weights` asks for more than Eq. 1.

Eq. 1 adds the best similarity of every query embedding, so that "the" counts as much as "goldfish". With
`weights="idf"` the best similarity of embedding i is multiplied by

    w_i = 1 + s (idf_i / mean idf - 1)      for a word, where the mean is over the query's words
    w_i = 1                                 for everything else

    idf_i = log((N + 1) / (df_i + 1/2))

where df_i is the number of documents that have the token. The words' weights have the mean 1, so that words and special
tokens together keep the shares of the score that they have in Eq. 1.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .frequencies import Frequencies
from .records import LARGEST_WEIGHT, EncodedText, TokenKind

STRENGTH = 0.6  # s above: 0 is Eq. 1, 1 is in proportion to the idf


def idf_weights(query: EncodedText, frequencies: Frequencies) -> NDArray[np.float32]:
    """A weight for each position of the query, by the document frequency of its token."""
    weights = np.ones(len(query), dtype=np.float32)  # (positions,)
    # The number of documents. Special tokens are stored with every document, so that theirs is the largest document
    # frequency. Where an encoder stores none, that of the most common word is close enough.
    documents = int(frequencies.document.max(initial=0))
    word = query.token_kinds == TokenKind.WORD  # (positions,)
    if documents == 0 or not word.any():
        return weights
    # A word that no document has gets the idf of df = 0, the highest. It is positive for every word.
    idf = np.log((documents + 1) / (frequencies.document_frequency(query.token_ids[word]) + 0.5))  # (words,)
    weights[word] = np.maximum(1 + STRENGTH * (idf / idf.mean() - 1), 0)  # negative weights would reward mismatches
    return weights


def weigh(query: EncodedText, frequencies: Frequencies) -> EncodedText:
    """The query with these weights. It may have weights already: they are multiplied, up to the largest there is."""
    return replace(query, weights=np.minimum(query.all_weights * idf_weights(query, frequencies), LARGEST_WEIGHT))
