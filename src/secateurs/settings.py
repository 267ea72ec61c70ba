"""How to search: the settings that every surface takes, the words that they take, and the plan that they become."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from .errors import UsageError
from .frequencies import Frequencies
from .records import EncodedText, Positions

OrderFunction: TypeAlias = Callable[[EncodedText, Frequencies], Positions]

# The words that settings take, as types, so that editors complete them; and as tuples.
OrderName = Literal["focus", "rarity", "icf", "idf", "first", "random"]
GatherName = Literal["cells", "faiss", "exhaustive", "text"]
GatherSetting = Literal["auto", "cells", "faiss", "exhaustive", "text", "cells+text"]
EffortName = Literal["fast", "balanced", "thorough", "exact"]
FrequenciesName = Literal["collection", "matching"]
WeightsName = Literal["idf"]
FuseName = Literal["rrf"]
StoreName = Literal["int8", "int16", "float16", "residual4"]
Order: TypeAlias = OrderName | OrderFunction
Merge: TypeAlias = float | Literal["auto"] | None  # which embeddings of a document become one: see storage/merging.py
ORDER_NAMES: tuple[OrderName, ...] = get_args(OrderName)
GATHERERS: tuple[GatherName, ...] = get_args(GatherName)  # the first that an index was built for is its default
GATHER_SETTINGS: tuple[GatherSetting, ...] = get_args(GatherSetting)
EFFORTS: tuple[EffortName, ...] = get_args(EffortName)
FREQUENCIES: tuple[FrequenciesName, ...] = get_args(FrequenciesName)
WEIGHTS: tuple[WeightsName, ...] = get_args(WeightsName)  # besides None: equal weights, Eq. 1
FUSES: tuple[FuseName, ...] = get_args(FuseName)  # besides None: the order of the exact score
STORES: tuple[StoreName, ...] = get_args(StoreName)
DEFAULT_STORE: StoreName = "int8"


def ways(gather: str) -> set[str]:
    """What an index must be built for to gather like this."""
    return set(gather.split("+"))


def check_choice(setting: str, value: object, choices: Collection[str]) -> None:
    """Raise unless the value is one of the words that the setting takes."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{setting} is one of {', '.join(choices)}, not {value!r}")


@dataclass(frozen=True)  # no slots: the defaults below are read off the class
class SearchSettings:
    """How to search. Every surface has the same names and defaults; effort.py decides what is left open."""

    k: int = 10  # hits wanted
    offset: int = 0  # hits to leave out before them: the ranking is the slice [offset : offset + k] of a longer one
    p: int | Literal["auto", "all"] | None = "auto"  # query embeddings to gather with; None, or "all": all of them
    order: Order = "focus"  # which query embeddings matter most: see importance.py
    gather: GatherSetting = "auto"  # how candidates are found: see gather/
    k_prime: int = 1000  # faiss: nearest document embeddings per kept query embedding, Eq. 2
    nprobe: int | None = None  # cells, or partitions of faiss, that a kept query embedding looks into
    candidates: int | None = None  # cells, text: documents that are scored exactly; cells+text: so many of each
    effort: EffortName = "balanced"  # what p, gather, nprobe and candidates follow where they are left open
    budget_ms: float | None = None  # cells: milliseconds that a search may take after encoding, instead of an effort
    where: str | None = None  # which documents may be found: see storage/filters.py
    frequencies: FrequenciesName = "collection"  # whose token frequencies decide the order, and the weights
    weights: WeightsName | None = None  # what each query embedding counts for in the score: weights.py; None: Eq. 1
    fuse: FuseName | None = None  # order hits by BM25 too: see fusion.py; None: by the exact score
    min_score: float | None = None  # leave out hits with a lower score
    min_relevance: float | None = None  # leave out hits with a lower relevance, from 0 to 1: see relevance.py
    facets: Sequence[str] = ()  # keys of the metadata whose values are counted: see storage/facets.py
    partial: bool = False  # over shards: leave out shards that cannot be reached, instead of raising

    def __post_init__(self) -> None:
        if isinstance(self.p, str) and self.p == "all":
            object.__setattr__(self, "p", None)  # the same in one form
        if not isinstance(self.p, str) or self.p != "auto":
            check_p(self.p)
        for name in ("k", "k_prime"):
            check_whole_number(name, getattr(self, name))
        check_whole_number("offset", self.offset, least=0)
        for name in ("nprobe", "candidates"):
            if getattr(self, name) is not None:
                check_whole_number(name, getattr(self, name), ", or None to let the effort decide")
        for name in ("k", "offset", "p", "k_prime", "nprobe", "candidates"):
            if isinstance(getattr(self, name), np.integer):  # four times a uint8 of 100 would be 144
                object.__setattr__(self, name, int(getattr(self, name)))
        if not callable(self.order):
            check_choice("order", self.order, ORDER_NAMES)
        check_choice("gather", self.gather, GATHER_SETTINGS)
        check_choice("effort", self.effort, EFFORTS)
        check_choice("frequencies", self.frequencies, FREQUENCIES)
        if self.weights is not None and (not isinstance(self.weights, str) or self.weights not in WEIGHTS):
            raise UsageError(f"weights is {', '.join(WEIGHTS)}, or None for equal weights, not {self.weights!r}")
        if self.fuse is not None:
            self._check_fuse()
        if self.budget_ms is not None:
            self._check_budget()
        _check_threshold("min_score", self.min_score, float("-inf"), float("inf"), "a number")
        _check_threshold("min_relevance", self.min_relevance, 0, 1, "a number from 0 to 1")
        if self.where is not None and not isinstance(self.where, str):
            raise UsageError(f"where is a text such as \"year >= 2020 and lang = 'en'\", not {self.where!r}")
        object.__setattr__(self, "facets", _to_keys(self.facets))
        if not isinstance(self.partial, bool):
            raise UsageError(f"partial is True or False, not {self.partial!r}")

    @property
    def depth(self) -> int:
        """How many of the best documents are needed."""
        return self.k + self.offset

    def _check_fuse(self) -> None:
        if not isinstance(self.fuse, str) or self.fuse not in FUSES:
            raise UsageError(f"fuse is {', '.join(FUSES)}, or None for the order of the exact score, not {self.fuse!r}")
        if self.min_score is not None:
            raise UsageError("with fuse, the score of a hit comes from ranks: use min_relevance instead of min_score")

    def _check_budget(self) -> None:
        budget = self.budget_ms
        if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
            raise UsageError(f"budget_ms is a number of milliseconds above 0, or None, not {budget!r}")
        decided = ("p", "nprobe", "candidates", "effort", "fuse")
        given = [name for name in decided if getattr(self, name) != _DEFAULTS[name]]
        if given:
            raise UsageError(f"budget_ms chooses p, nprobe and candidates: leave out {' and '.join(given)}")
        if self.gather not in ("auto", "cells"):
            raise UsageError(f'budget_ms is for gather="cells", not {self.gather!r}')

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SearchSettings:
        """From settings by name; one that does not exist is an error that names those that do."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(f"there is no search setting {name!r}: there are {', '.join(known)}")
        return cls(**given)


MOST_FACETS = 16
_DEFAULTS = {field.name: field.default for field in fields(SearchSettings)}


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The words of a query as BM25 weighs them in the whole collection: see gather/bm25.py."""

    words: tuple[str, ...]  # each once
    weights: tuple[float, ...]  # of each: its inverse document frequency, times how often the query has it
    mean_length: float  # words per document


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Settings with nothing left open: what one search did.

    Over shards, `k_prime`, `nprobe`, `candidates` and `patience` are those of each shard.
    """

    k: int
    p: int | None  # None: all query embeddings
    order: Order
    gather: str  # over shards that gathered in different ways: the ways, joined by "+"
    k_prime: int
    nprobe: int
    candidates: int  # documents that are scored; with patience, at most
    where: str | None = None
    frequencies: FrequenciesName = "collection"
    weights: WeightsName | None = None
    patience: int | None = None  # so many documents in a row that are not among the best end the scoring; None: none do
    nprobe_each: tuple[int, ...] | None = None  # cells: of each kept embedding, at most `nprobe`; None: it for each
    budget_ms: float | None = None  # what p, nprobe and candidates were chosen for
    min_score: float | None = None
    min_relevance: float | None = None
    fuse: FuseName | None = None
    words: QueryWords | None = None  # text: what is looked for
    offset: int = 0

    @property
    def depth(self) -> int:
        """How many of the best documents are needed."""
        return self.k + self.offset


def check_p(p: object) -> None:
    if p is not None:
        check_whole_number("p", p, ', or None (or "all") to prune nothing')


def check_whole_number(name: str, value: object, otherwise: str = "", least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}{otherwise}, not {value!r}")


def _to_keys(facets: object) -> tuple[str, ...]:
    if isinstance(facets, Sequence) and not isinstance(facets, str) and len(facets) <= MOST_FACETS:
        with suppress(TypeError, UnicodeEncodeError):
            "".join(facets).encode()  # they are texts, and SQLite can look for them
            return tuple(dict.fromkeys(facets))
    raise UsageError(f"facets is a list of up to {MOST_FACETS} keys of the metadata, not {facets!r:.200}")


def _check_threshold(name: str, value: object, least: float, most: float, what: str) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (is_number and least <= cast(float, value) <= most):  # nan is not between any two numbers
        raise UsageError(f"{name} is {what}, or None to leave out no hit, not {value!r}")
