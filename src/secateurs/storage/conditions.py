"""What a filter is made of: comparisons, combined with and, or and not.

Each comparison asks SQLite with its key and values as parameters, and their answers are combined as arrays of one byte
per document. Equal comparisons are evaluated once. An evaluation stops between two comparisons if its search was
cancelled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from .documents import Documents, Kind, Stored, kind_of, stored
from .patterns import Pattern

Mask = NDArray[np.bool_]


class Condition(ABC):
    @abstractmethod
    def evaluate(self, evaluation: Evaluation) -> Mask:
        """For each document whether it matches: a new array, which the caller may change."""

    @abstractmethod
    def comparisons(self) -> Iterator[Comparison]: ...


class Evaluation:
    """A condition applied to the documents of one segment, `count` of them."""

    def __init__(self, condition: Condition, documents: Documents, count: int) -> None:
        self.documents, self.count = documents, count
        uses = Counter(condition.comparisons())
        self._repeated = {comparison for comparison in uses if uses[comparison] > 1}
        self._masks: dict[Comparison, Mask] = {}

    def mask(self, comparison: Comparison) -> Mask:
        stop_if_cancelled()
        if comparison in self._masks:
            return self._masks[comparison].copy()
        mask = np.zeros(self.count, dtype=bool)
        mask[np.asarray(comparison.numbers(self.documents), dtype=np.int64)] = True
        if comparison in self._repeated:  # only these are kept: a mask has a byte for each document
            self._masks[comparison] = mask.copy()
        return mask


@dataclass(frozen=True)
class _Several(Condition):
    parts: Sequence[Condition]

    def comparisons(self) -> Iterator[Comparison]:
        for part in self.parts:
            yield from part.comparisons()


class Both(_Several):
    def evaluate(self, evaluation: Evaluation) -> Mask:
        mask = self.parts[0].evaluate(evaluation)
        for part in self.parts[1:]:
            mask &= part.evaluate(evaluation)
        return mask


class Either(_Several):
    def evaluate(self, evaluation: Evaluation) -> Mask:
        mask = self.parts[0].evaluate(evaluation)
        for part in self.parts[1:]:
            mask |= part.evaluate(evaluation)
        return mask


@dataclass(frozen=True)
class Not(Condition):
    part: Condition

    def evaluate(self, evaluation: Evaluation) -> Mask:
        return ~self.part.evaluate(evaluation)

    def comparisons(self) -> Iterator[Comparison]:
        return self.part.comparisons()


@dataclass(frozen=True)
class Comparison(Condition):
    """A condition on the values of one key. Two are equal if the same documents match."""

    key: str

    @property
    @abstractmethod
    def kinds(self) -> Collection[Kind | None]:
        """The kinds of values that the key is compared with; None: with null."""

    @abstractmethod
    def numbers(self, documents: Documents) -> Sequence[int] | NDArray[np.int64]:
        """The documents that match; a document may be there several times."""

    def evaluate(self, evaluation: Evaluation) -> Mask:
        return evaluation.mask(self)

    def comparisons(self) -> Iterator[Comparison]:
        yield self


@dataclass(frozen=True)
class Has(Comparison):
    """The key has a value."""

    kinds = (None,)

    def numbers(self, documents: Documents) -> NDArray[np.int64]:
        return documents.numbers_where("1", (self.key,))


@dataclass(frozen=True)
class Equals(Comparison):
    """The key has one of these values."""

    values: tuple[Stored, ...]  # as they are stored, because True and 1 are equal in Python

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(map(kind_of, self.values))

    def numbers(self, documents: Documents) -> NDArray[np.int64]:
        return documents.numbers_with(self.key, self.values)


@dataclass(frozen=True)
class Compare(Comparison):
    sign: str  # < <= > >=
    value: str | int | float

    @property
    def kinds(self) -> tuple[Kind]:
        return (kind_of(self.value),)

    def numbers(self, documents: Documents) -> NDArray[np.int64]:
        condition = f"value {self.sign} ?"
        # SQLite puts every number before every text, and every text before true and false.
        if self.sign in (">", ">="):
            condition += " AND value < x''" if isinstance(self.value, str) else " AND value < ''"
        elif isinstance(self.value, str):
            condition += " AND value >= ''"
        return documents.numbers_where(condition, (self.key, stored(self.value)))


@dataclass(frozen=True)
class Between(Comparison):
    """The key has a value from the one to the other. Of a list, one entry must be between both."""

    least: str | int | float
    most: str | int | float  # of the same kind

    @property
    def kinds(self) -> tuple[Kind]:
        return (kind_of(self.least),)

    def numbers(self, documents: Documents) -> NDArray[np.int64]:
        values = self.key, stored(self.least), stored(self.most)
        return documents.numbers_where("value >= ? AND value <= ?", values)


@dataclass(frozen=True)
class Like(Comparison):
    """The key has a text that matches the pattern."""

    pattern: Pattern

    @property
    def kinds(self) -> tuple[Kind]:
        return (kind_of(self.pattern.prefix),)

    def numbers(self, documents: Documents) -> NDArray[np.int64]:
        return documents.numbers_where(self.pattern.condition("value"), (self.key, *self.pattern.values))


@dataclass(frozen=True)
class NamedLike(Comparison):
    """The docno matches the pattern."""

    pattern: Pattern
    kinds = ()  # as those of Named

    def numbers(self, documents: Documents) -> NDArray[np.int64]:
        return documents.numbers_named(self.pattern.condition("docno"), self.pattern.values)


@dataclass(frozen=True)
class Named(Comparison):
    """The docno is one of these."""

    docnos: tuple[str, ...]
    kinds = ()  # a docno is not metadata: there is nothing to check

    def numbers(self, documents: Documents) -> list[int]:
        documents.check()
        return list(documents.numbers(self.docnos).values())
