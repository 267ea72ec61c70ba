"""Query embedding pruning: gather with the p most important query embeddings (Eq. 4), score with all of them.

`prune` works without an index: from a query's token ids and kinds and the token frequencies of a collection, it gives
the positions to search with, for any engine. `keep` is the pruning step of every search in search.py.
"""

from __future__ import annotations

from typing import Literal

from .errors import UsageError
from .frequencies import Frequencies
from .importance import order_positions
from .records import EncodedText, Positions
from .settings import Order, check_p


def prune(
    query: EncodedText, frequencies: Frequencies, p: int | Literal["all"] | None = 3, order: Order = "focus"
) -> Positions:
    """The positions to gather with, most important first. p="all", None, or p beyond the query's length keeps all.

    The query itself is not shortened: scoring needs all of its embeddings.
    """
    if not isinstance(query, EncodedText):
        raise UsageError(f"a query is what an encoder gives, an EncodedText, not {query!r:.100}")
    if not isinstance(frequencies, Frequencies):
        raise UsageError(f"frequencies are what Frequencies.count or Frequencies.load gives, not {frequencies!r:.100}")
    mean, dim = frequencies.centre, query.embeddings.shape[1]
    if mean is not None and len(mean) != dim:
        raise UsageError(f"the mean of all embeddings has {len(mean)} dimensions and the query {dim}")
    return keep(order_positions(order, query, frequencies), None if p == "all" else p)


def keep(ordered: Positions, p: int | None) -> Positions:
    """The first p of positions that are ordered by importance; None keeps all."""
    check_p(p)
    return ordered[:p]
