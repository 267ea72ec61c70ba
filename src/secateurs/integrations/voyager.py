"""Voyager: pruned search of an HNSW graph that has every document embedding as an element, as PyLate's index has them.

The graph is walked once for each kept embedding. The documents of the elements that are found are scored with all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, UsageError, require
from ..frequencies import Frequencies
from ..records import EncodedText
from ..settings import Order
from .databases import ScoredDocument, best_documents, gathering_positions

require("voyager", "voyager")  # says which pip line is missing, where the imports below would only fail

from voyager import Index, RecallError  # noqa: E402


class PrunedSearch:
    """Searches a graph. `documents` has the ids of each document's elements: {"fish": [0, 1, 2], ...}."""

    def __init__(self, index: Index, documents: Mapping[str, Sequence[int]], frequencies: Frequencies) -> None:
        if not isinstance(index, Index):
            raise UsageError(f"index must be an Index of Voyager, not {index!r:.100}")
        if not isinstance(documents, Mapping):
            raise UsageError(f"documents are the ids of elements by docno, not {documents!r:.100}")
        self._index, self._frequencies = index, frequencies
        self._docnos = list(documents)
        elements = [_ids(docno, ids) for docno, ids in documents.items()]
        self._lengths = np.array([len(ids) for ids in elements], dtype=np.int64)  # (documents,)
        self._elements = np.concatenate([np.empty(0, dtype=np.uint64), *elements])
        self._starts = np.cumsum(self._lengths) - self._lengths  # (documents,) of each among the elements
        # Not a table by id: ids may be any numbers, and the largest may be far larger than the number of elements.
        order = np.argsort(self._elements, kind="stable")
        self._ascending = self._elements[order]  # (elements,)
        self._owner = np.repeat(np.arange(len(elements)), self._lengths)[order]  # (elements,) document of each
        if (self._ascending[1:] == self._ascending[:-1]).any():
            raise UsageError("an element belongs to two documents: give each id once")

    def search(
        self,
        query: EncodedText,
        k: int = 10,
        p: int | Literal["all"] | None = 3,
        order: Order = "focus",
        *,
        k_prime: int = 200,
        query_ef: int | None = None,
    ) -> list[ScoredDocument]:
        """The k best of the documents that have one of the `k_prime` elements nearest to a kept embedding.

        `query_ef` is Voyager's depth of the search, None: that of the index.
        """
        kept = gathering_positions(query, self._frequencies, p, order, self._index.num_dimensions, k=k, k_prime=k_prime)
        if len(self._index) == 0 or len(self._elements) == 0:
            return []
        nearest, depth = min(k_prime, len(self._index)), -1 if query_ef is None else query_ef
        if query_ef is not None and query_ef < nearest:
            raise UsageError(f"query_ef must be at least {nearest}, as many elements as are wanted, not {query_ef}")
        try:
            found, _ = self._index.query(query.embeddings[kept], k=nearest, query_ef=depth)  # (kept, nearest) ids
        except RecallError as error:
            raise SecateursError(f"{error}: give a larger query_ef or a smaller k_prime") from error
        ids = np.unique(found[found <= self._ascending[-1]])
        among = np.searchsorted(self._ascending, ids)
        owned = among[self._ascending[among] == ids]  # elements that no document has are left out
        numbers = np.unique(self._owner[owned])
        lengths = self._lengths[numbers]
        ends = np.cumsum(lengths)
        places = np.repeat(self._starts[numbers] - (ends - lengths), lengths) + np.arange(lengths.sum())
        try:
            rows = self._index.get_vectors(self._elements[places])
        except RuntimeError as error:
            raise UsageError(f"`documents` has an element that the index has not: {error}") from error
        return best_documents(query, [self._docnos[number] for number in numbers], rows, lengths, k)


def _ids(docno: str, given: Sequence[int]) -> NDArray[np.uint64]:
    ids = np.asarray(given)
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise UsageError(f"the elements of {docno!r} are whole numbers, as add_items gives them, not {given!r:.100}")
    if len(ids) and ids.min() < 0:
        raise UsageError("the ids of elements are not negative")
    return ids.astype(np.uint64)
