"""What a search does where its settings leave it open. All such choices are made here; docs/effort.md explains them.

`effort` is the one knob most people touch. It sets how many query embeddings gather (`p`), how many cells each looks
into (`nprobe`), and how many documents are scored exactly (`candidates`):

    fast       half of what balanced keeps, 4 at least         nprobe 16    candidates  64
    balanced   all of the query's wordpieces, 4 at least;      nprobe 32    candidates 256
               of those beyond the 16th, half
    exact      every document is scored

A query with many wordpieces spreads its meaning over them, so it keeps more; a passage as a query keeps half of them,
because the sixteen rarest words of a passage say little of what it is about. In a larger collection more documents
look alike from afar: beyond 50,000 documents, candidates grow with the root of their number and nprobe with the root
of that. Four candidates are scored for each hit that is wanted, if that is more; an index with no more documents than
candidates is scored whole. What is asked for by name is done, and only the rest is chosen. gather="faiss" keeps the
paper's settings at any effort.

Under a filter (`where`), what matches is scored whole if that is at most twice the candidates: exact, and about
as fast. If more matches, the matching neighbours lie farther apart than all neighbours do, and nprobe grows with the
root of how much farther, up to eight times. If fewer than k matching documents are gathered in the end, all that match
are scored.
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
    """Settings with nothing left open, for this query and an index so large, built for these ways of gathering.

    matching   how many of the documents the filter lets through; None: all
    shards     over how many shards the documents are spread. `k_prime`, `nprobe` and `candidates` of the plan are then
               those of each shard
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
    )


def _growth(documents: int) -> float:
    """What candidates are multiplied by in a large collection; nprobe by its root."""
    return math.sqrt(max(documents / _MANY_DOCUMENTS, 1))


def share(wanted: int, shards: int) -> int:
    """How many of the `wanted` best of a collection one of its shards has to look at.

    Documents are spread over shards by a hash, so each holds a fair share of the best, give or take: three standard
    deviations more than the mean, and hardly ever one is left out.
    """
    mean = wanted / shards
    return min(wanted, math.ceil(mean + 3 * math.sqrt(mean)))
