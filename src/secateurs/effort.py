"""Settings to a plan: every choice that the settings leave open is made here. docs/effort.md explains them.

`effort` sets how many query embeddings gather (`p`), how many cells each probes (`nprobe`), and how many documents are
scored exactly (`candidates`):

    fast       half of what balanced keeps, 4 at least         nprobe 16    candidates  64
    balanced   all of the query's wordpieces, 4 at least;      nprobe 32    candidates 256
               of those beyond the 16th, half
    exact      every document is scored

- A query with more wordpieces keeps more of them. Of a very long query (a passage) half of the wordpieces beyond the
  sixteenth are kept: measured, its sixteen rarest wordpieces find too little.
- Beyond 50,000 documents, candidates grow with sqrt(documents / 50,000), and nprobe with the root of that factor.
- At least 4 k candidates are scored. If the index has no more documents than candidates, all are scored.
- A setting that is given is used as it is. gather="faiss" keeps the paper's settings at any effort.
- Under a filter (`where`): if at most twice as many documents match as there are candidates, all of them are scored,
  which is exact and about as fast. If more match, nprobe grows by sqrt(documents / matching), at most 8 times. If fewer
  than k matching documents are gathered, all matching documents are scored (search.py).
- nprobe is at most 1,024, unless it is given.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple

from .errors import UsageError
from .records import GATHERERS, EncodedText, SearchPlan, SearchSettings, TokenKind

_FAISS_NPROBE = 10  # as in the paper
_FEWEST_KEPT = 4
_LONG_QUERY = 16  # wordpieces
_MANY_DOCUMENTS = 50_000
_CANDIDATES_PER_HIT = 4
_MATCHING_PER_CANDIDATE = 2  # matching documents that may all be scored instead
_MOST_TIMES_NPROBE = 8.0  # that a filter may multiply nprobe by
_MOST_NPROBE = 1024  # that effort chooses, at any size and under any filter


class _Level(NamedTuple):
    share: float  # of what may be kept of the query's wordpieces
    nprobe: int
    candidates: int


_LEVELS = {"fast": _Level(0.5, 16, 64), "balanced": _Level(1.0, 32, 256)}


def make_plan(
    settings: SearchSettings,
    query: EncodedText,
    gatherers: Collection[str],
    documents: int,
    matching: int | None = None,
    shards: int = 1,
) -> SearchPlan:
    """Settings with nothing left open, for this query and an index of `documents` documents built for `gatherers`.

    matching   how many of the documents the filter lets through; None: all
    shards     how many shards hold the documents. `k_prime`, `nprobe` and `candidates` of the plan are those of a shard
    """
    matching = documents if matching is None else matching
    exact = settings.effort == "exact"
    level = _LEVELS["balanced" if exact else settings.effort]
    candidates = settings.candidates or max(
        round(level.candidates * _growth(documents)), _CANDIDATES_PER_HIT * settings.k
    )
    candidates = max(candidates, settings.k)
    gather: str = settings.gather
    if exact and gather not in ("auto", "exhaustive"):
        raise UsageError(f'effort="exact" scores every document: gather is "exhaustive" then, not {gather!r}')
    if gather == "auto":
        gather = next(name for name in GATHERERS if name in gatherers)
        few = candidates if settings.where is None else _MATCHING_PER_CANDIDATE * candidates
        if exact or (gather == "cells" and matching <= few):
            gather = "exhaustive"
    p = settings.p
    if p == "auto":
        words = int((query.token_kinds == TokenKind.WORD).sum())
        p = None
        if gather == "cells" and not exact:
            most = words - max(words - _LONG_QUERY, 0) // 2
            p = max(round(level.share * most), _FEWEST_KEPT)
    assert not isinstance(p, str)  # SearchSettings turns "all" into None
    if settings.nprobe is not None:
        nprobe = settings.nprobe
    elif gather == "faiss":
        nprobe = _FAISS_NPROBE
    else:
        farther = min((documents / max(matching, 1)) ** 0.5, _MOST_TIMES_NPROBE)
        nprobe = min(round(level.nprobe * _growth(documents // shards) ** 0.5 * farther), _MOST_NPROBE)
    return SearchPlan(
        k=settings.k,
        p=p,
        order=settings.order,
        gather=gather,
        k_prime=share(settings.k_prime, shards),
        nprobe=nprobe,
        candidates=share(candidates, shards),
        where=settings.where,
        frequencies=settings.frequencies,
        weights=settings.weights,
    )


def _growth(documents: int) -> float:
    """Factor for candidates in a large collection; its root is the factor for nprobe."""
    return math.sqrt(max(documents / _MANY_DOCUMENTS, 1))


def share(wanted: int, shards: int) -> int:
    """How many documents a shard must consider so that the shards together consider the `wanted` best of all.

    A hash spreads documents over shards, so the number of the best in a shard is about Poisson distributed: the mean
    plus three standard deviations rarely leaves a document out.
    """
    mean = wanted / shards
    return min(wanted, math.ceil(mean + 3 * math.sqrt(mean)))
