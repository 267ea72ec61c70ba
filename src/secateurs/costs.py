"""What a search by cells costs on this machine, for `budget_ms`: a model that is fitted by timing a few searches.

    milliseconds  =  base  +  probe * (embeddings that gather * cells)
                           +  list  * (cells that are probed * documents that a cell lists on average)
                           +  read  * (candidates * embeddings of a document on average)
                           +  score * (candidates * embeddings of a document on average * query embeddings)

`spend` chooses the most thorough plan of the ladder (effort.py) that the model expects to take at most 85% of
the budget.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .effort import FEWEST_KEPT, LADDER, MOST_NPROBE, PLACES, depths, enough, level
from .settings import SearchPlan

SHORT, LONG = 12, 32  # embeddings of the queries that are timed: a question, and one with all MASKs
# (embeddings that gather, cells that each probes, candidates, embeddings of the query) of the searches that are timed
_TIMED = (
    (2, 8, 32, SHORT),
    (4, 64, 32, SHORT),
    (8, 16, 128, SHORT),
    (8, 32, 512, SHORT),
    (4, 16, 2048, SHORT),
    (16, 8, 32, LONG),
    (16, 64, 128, LONG),
    (4, 16, 512, LONG),
    (32, 32, 256, LONG),
    (8, 128, 1024, LONG),
)
_REPEATS = 5  # of each, of which the median counts

_AIM = 0.85  # of a budget: searches with the same plan differ by 15% from query to query
_STEPS = 8  # plans between two rungs
_BALANCED = PLACES["balanced"]
_FEWEST_KEPT_BELOW = 2  # embeddings that gather, below that place: the rarest word and the summary
_LISTED_PER_HIT = 4  # documents that the probed cells list, for each hit that is wanted


class Shape(NamedTuple):
    """What the cost of a search depends on, of an index or of a shard."""

    documents: int
    cells: int
    list_length: float  # documents that a cell lists, on average
    document_length: float  # embeddings of a document, on average


class Costs(NamedTuple):
    shape: Shape
    milliseconds: tuple[float, ...]  # base, probe, list, read and score of the model above

    def of(self, kept: int, probed: int, candidates: int, query_embeddings: int) -> float:
        """Expected milliseconds of a search; `probed` is the sum of nprobe over the kept embeddings."""
        return float(np.dot(self.milliseconds, _work(self.shape, kept, probed, candidates, query_embeddings)))

    def plus(self, milliseconds: float) -> Costs:
        """With so much more for every search."""
        base, *others = self.milliseconds
        return self._replace(milliseconds=(base + milliseconds, *others))

    def times(self, factor: float) -> Costs:
        return self._replace(milliseconds=tuple(cost * factor for cost in self.milliseconds))


def _work(shape: Shape, kept: int, probed: int, candidates: int, query_embeddings: int) -> NDArray[np.float64]:
    """(5,): what the coefficients of the model are multiplied with; no more than the index has."""
    read = min(candidates, shape.documents) * shape.document_length
    listed = min(probed, kept * shape.cells) * shape.list_length
    return np.array([1.0, kept * shape.cells, listed, read, read * query_embeddings])


def fit(shape: Shape, time_search: Callable[[int, int, int, int], float]) -> Costs:
    """From `time_search(kept, nprobe, candidates, query embeddings)`, which gives the milliseconds of a search."""
    work = np.array([_work(shape, kept, kept * nprobe, wanted, length) for kept, nprobe, wanted, length in _TIMED])
    times = np.array([np.median([time_search(*timed) for _ in range(_REPEATS)]) for timed in _TIMED])
    # Relative errors count: a millisecond too many matters less in a search of ten. No coefficient may be negative:
    # the most negative is set to 0 until none is.
    used = np.ones(work.shape[1], dtype=bool)
    scale = np.maximum(work.max(axis=0), 1e-9)  # so that the columns are comparable
    while True:
        solved, *_ = np.linalg.lstsq((work / scale)[:, used] / times[:, None], np.ones(len(times)), rcond=None)
        if (solved >= 0).all():
            break
        used[np.flatnonzero(used)[solved.argmin()]] = False
    coefficients = np.zeros(work.shape[1])
    coefficients[used] = solved
    return Costs(shape, tuple((coefficients / scale).tolist()))


def spend(plan: SearchPlan, worths: NDArray[np.float64], query_embeddings: int, costs: Costs) -> SearchPlan:
    """The most thorough plan of the ladder within 85% of plan.budget_ms; the least thorough if none is.

    plan       of the effort "balanced" at its place of PLACES, which knows the size of the collection, the filter and k
    worths   (positions,) of the query's positions, most important first
    """
    assert plan.budget_ms is not None
    low, high = 0, (len(LADDER) - 1) * _STEPS
    while low < high:  # cost grows along the ladder
        middle = (low + high + 1) // 2
        tried = _on_ladder(plan, worths, middle / _STEPS, costs.shape)
        probed = sum(tried.nprobe_each or ())
        cost = costs.of(len(tried.nprobe_each or ()), probed, tried.candidates, query_embeddings)
        low, high = (middle, high) if cost <= _AIM * plan.budget_ms else (low, middle - 1)
    return _on_ladder(plan, worths, low / _STEPS, costs.shape)


def _on_ladder(plan: SearchPlan, worths: NDArray[np.float64], place: float, shape: Shape) -> SearchPlan:
    here, balanced = level(place), level(_BALANCED)
    fewest = FEWEST_KEPT if place >= _BALANCED else _FEWEST_KEPT_BELOW
    p = min(max(enough(worths, here.share), fewest), len(worths))
    nprobe = max(round(plan.nprobe * here.nprobe / balanced.nprobe), 1)
    each = depths(worths[:p], nprobe)
    listed = sum(each) * shape.list_length
    if listed < _LISTED_PER_HIT * plan.depth:  # else there would be fewer than k hits
        nprobe = math.ceil(nprobe * _LISTED_PER_HIT * plan.depth / max(listed, 1.0))
    nprobe = min(nprobe, MOST_NPROBE)
    candidates = max(round(plan.candidates * here.patience / balanced.patience), plan.depth)
    return replace(plan, p=p, nprobe=nprobe, nprobe_each=depths(worths[:p], nprobe), candidates=candidates)
