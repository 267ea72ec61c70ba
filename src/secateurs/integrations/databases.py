"""What the searches of databases share: which query embeddings gather, and the exact MaxSim of what they gathered.

The vectors live in another database. The p most important query embeddings go to its own search, and all of them score
the documents that come back. Nothing is written to the database.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numkong
import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..frequencies import Frequencies
from ..kernels.maxsim import FloatQuery, score
from ..pruning import prune
from ..records import EncodedText, Positions
from ..settings import Order, SearchSettings, check_whole_number


class ScoredDocument(NamedTuple):
    docno: str
    score: float  # Eq. 1 with all query embeddings


def gathering_positions(
    query: EncodedText,
    frequencies: Frequencies,
    p: int | Literal["all"] | None,
    order: Order,
    dim: int,
    **numbers: int,
) -> Positions:
    """The positions to gather with, after a check of everything that a search was given; `numbers` as k=10."""
    if not isinstance(query, EncodedText):
        raise UsageError(f"the query is an EncodedText, as encoder.encode_query(text) gives it, not {query!r:.100}")
    if len(query) == 0:
        raise UsageError("the query has no embeddings")
    if query.embeddings.shape[1] != dim:
        raise UsageError(
            f"the query has embeddings of {query.embeddings.shape[1]} dimensions and the database of {dim}: encode "
            "queries with the model of the documents"
        )
    SearchSettings.of({"order": order})
    for name, number in numbers.items():  # candidates=None is for an index, whose effort then decides
        check_whole_number(name, number)
    return prune(query, frequencies, p, order)


def best_documents(
    query: EncodedText, docnos: Sequence[str], rows: NDArray[np.float32], lengths: NDArray[np.int64], k: int
) -> list[ScoredDocument]:
    """The k best by Eq. 1, equal scores by docno. Document i has lengths[i] of the rows, which are end to end."""
    packed = FloatQuery(numkong.dots_pack(query.weighted), len(query))
    ends = np.cumsum(lengths, dtype=np.int64)
    scores = score(packed, np.ascontiguousarray(rows, dtype=np.float32), ends - lengths, ends).tolist()
    ranked = sorted(zip(docnos, scores, strict=True), key=lambda pair: (-pair[1], pair[0]))
    return [ScoredDocument(docno, value) for docno, value in ranked[:k]]
