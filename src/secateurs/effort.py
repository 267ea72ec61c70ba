"""Settings to a plan: every choice that the settings leave open is made here. docs/effort.md explains them.

`effort` promises how much of the ten best of exhaustive search is found. It sets how many query embeddings gather
(`p`), how many cells each probes (`nprobe`), and how many documents are scored exactly. These three grow together,
along a ladder. An index measures how far up an effort must go to keep its promise (calibration.py). An index
that is too small for that, or was not measured, has the places of PLACES:

    fast       85%   the positions that hold 50% of the query's worth, 4 at least     nprobe 16    patience  16
    balanced   95%   the positions that hold 80% of the query's worth, 4 at least     nprobe 32    patience  64
    thorough   99%   every position                                                   nprobe 96    patience 256
    exact            every document is scored

- The worth of a word is its focus above that of the query's least focused word (importance.py). The positions are taken
  in the order of importance: a query about one word keeps few positions, a query whose words matter equally most.
- The kept word that is worth most probes `nprobe` cells, and a word that is worth half of that a quarter. Special
  tokens probe `nprobe` cells. A given nprobe is the same for all.
- What was gathered is scored in the order of the approximate scores, until `patience` documents in a row are not among
  the k best (search.py). So an easy query scores few documents, and a search for the best hundred scores more than one
  for the best ten. At most 16 times the patience, or 16 k documents if that is more, are scored.
- Where candidates do not come best first (by text) or all of their scores are needed (`fuse`), and with a budget, a
  fixed number is scored, `candidates`: four times the patience, 4 k at least.
- Beyond 50,000 documents, patience grows with sqrt(documents / 50,000), and nprobe with the root of that factor.
- If the index has no more documents than four times the patience, or than 4 k, all are scored.
- A setting that is given is used as it is. gather="faiss" keeps the paper's settings at any effort.
- gather="text" follows the effort in `candidates` alone: no query embedding gathers. gather="cells+text" scores up to
  `candidates` documents of each, and is what "auto" becomes with `fuse`.
- Under a filter (`where`): if at most eight times as many documents match as the patience, or 8 k, all of them are
  scored, which is exact and about as fast. If more match, nprobe grows by sqrt(documents / matching), at most 8 times.
  If fewer than k matching documents are gathered, all matching documents are scored (search.py).
- nprobe is at most 1,024, unless it is given.
- With `budget_ms`, costs.py chooses p, nprobe and candidates instead of the effort.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .settings import GATHERERS, SearchPlan, SearchSettings

_FAISS_NPROBE = 10  # as in the paper
FEWEST_KEPT = 4
_MANY_DOCUMENTS = 50_000
_FIXED_TIMES = 4  # where the number of candidates is fixed: so many times the patience or k, whichever is larger
_MOST_TIMES = 16  # where scoring ends with patience: at most so many times the patience or k
_MATCHING_PER_CANDIDATE = 2  # matching documents that may all be scored instead
_MOST_TIMES_NPROBE = 8.0  # that a filter may multiply nprobe by
MOST_NPROBE = 1024  # that effort chooses, at any size and under any filter


class Level(NamedTuple):
    share: float  # of the query's worth that the kept positions hold
    nprobe: float
    patience: float


LADDER = np.array(  # a Level on each rung
    [
        (0.30, 4, 8),
        (0.40, 8, 12),
        (0.50, 16, 16),
        (0.65, 24, 32),
        (0.80, 32, 64),
        (0.90, 48, 96),
        (0.95, 64, 128),
        (1.00, 96, 256),
        (1.00, 192, 512),
        (1.00, 384, 1024),
    ]
)
PLACES = MappingProxyType({"fast": 2.0, "balanced": 4.0, "thorough": 7.0})  # on the ladder
PROMISES = MappingProxyType({"fast": 0.85, "balanced": 0.95, "thorough": 0.99})


def level(place: float) -> Level:
    """At a place on the ladder, which may lie between two rungs."""
    below = min(int(place), len(LADDER) - 2)
    return Level(*(LADDER[below] + (place - below) * (LADDER[below + 1] - LADDER[below])).tolist())


def make_plan(
    settings: SearchSettings,
    worths: NDArray[np.float64],
    gatherers: Collection[str],
    documents: int,
    matching: int | None = None,
    shards: int = 1,
    places: Mapping[str, float] = PLACES,
) -> SearchPlan:
    """Settings with nothing left open, for a query and an index of `documents` documents built for `gatherers`.

    worths   (positions,) of the query's positions, most important first: see importance.worths
    matching   how many of the documents the filter lets through; None: all
    shards     how many shards hold the documents. `k_prime`, `nprobe`, `patience` and `candidates` of the plan are
               those of a shard
    places     of the efforts on the ladder; a budget is spent from the place of "balanced" in PLACES
    """
    matching = documents if matching is None else matching
    exact = settings.effort == "exact"
    at = level((places if settings.budget_ms is None else PLACES)["balanced" if exact else settings.effort])
    patience = round(at.patience * _growth(documents))
    patience_or_k = max(patience, settings.depth)
    candidates = max(settings.candidates or _FIXED_TIMES * patience_or_k, settings.depth)
    gather: str = settings.gather
    if exact and gather not in ("auto", "exhaustive"):
        raise UsageError(f'effort="exact" scores every document: gather is "exhaustive" then, not {gather!r}')
    if gather == "auto":
        gather = next(name for name in GATHERERS if name in gatherers)
        few = candidates if settings.where is None else _MATCHING_PER_CANDIDATE * candidates
        if exact or (gather == "cells" and matching <= few):
            gather = "exhaustive"
        elif gather == "cells" and settings.fuse is not None:
            gather = "cells+text"
    has_cells = gather in ("cells", "cells+text")
    if settings.budget_ms is not None and gather == "faiss":
        raise UsageError('budget_ms is for gather="cells", which this index was not built for')
    p = settings.p
    if p == "auto":
        p = max(enough(worths, at.share), FEWEST_KEPT) if has_cells and not exact else None
    assert not isinstance(p, str)  # SearchSettings turns "all" into None
    nprobe_each = None
    if settings.nprobe is not None:
        nprobe = settings.nprobe
    elif gather == "faiss":
        nprobe = _FAISS_NPROBE
    else:
        farther = min((documents / max(matching, 1)) ** 0.5, _MOST_TIMES_NPROBE)
        nprobe = min(round(at.nprobe * _growth(documents // shards) ** 0.5 * farther), MOST_NPROBE)
        nprobe_each = depths(worths[:p], nprobe) if has_cells else None
    until_settled = gather == "cells" and not (settings.candidates or settings.budget_ms or settings.fuse)
    if until_settled:
        candidates = _MOST_TIMES * patience_or_k
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
        patience=share(patience, shards) if until_settled else None,
        nprobe_each=nprobe_each,
        budget_ms=settings.budget_ms if gather == "cells" else None,
        min_score=settings.min_score,
        min_relevance=settings.min_relevance,
        fuse=settings.fuse,
        offset=settings.offset,
    )


def enough(worths: NDArray[np.float64], share: float) -> int:
    """The fewest positions from the front that hold this share of the query's worth."""
    held = np.cumsum(worths)
    if len(held) == 0 or held[-1] == 0:
        return 0
    return int(np.searchsorted(held, share * held[-1] * (1 - 1e-9))) + 1


def depths(worths: NDArray[np.float64], nprobe: int) -> tuple[int, ...]:
    """How many cells each kept position probes: nprobe for the word that is worth most, and for what is no word."""
    most = worths.max(initial=0.0)
    relative = np.where(worths > 0, worths / max(most, 1e-9), 1.0)
    return tuple(np.maximum(np.rint(nprobe * relative**2), 1).astype(int).tolist())


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
