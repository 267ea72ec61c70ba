"""`where`: which documents may be found, by their metadata.

    year >= 2020 and lang = 'en'
    not (status in ('draft', 'spam') or score < 0.5)
    author.name = 'Ada' and tags = 'history' and reviewed = true and doi is not null
    docno in ('d1', 'd2')

A key is a name, with dots into objects; any other key goes in double quotes. A comparison is with a number, a text in
quotes, true or false, and holds only for values of that type. A list meets it if one of its entries does. A document
without the key meets no comparison, not even `!=`; only `is null` and `not` do.

The text of a filter never becomes SQL: it is parsed here into comparisons, each of which asks SQLite with its key and
values as parameters, and what these answer is combined as arrays of bits.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

if TYPE_CHECKING:
    from .documents import Documents, Value

Mask = NDArray[np.bool_]
DOCNO = "docno"  # the one key that is not metadata

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*')
      | (?P<quoted>"(?:[^"]|"")*")
      | (?P<word>[^\W\d]\w*(?:\.\w+)*)
      | (?P<sign><=|>=|!=|<>|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_WORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
_LONGEST = 10_000
_LONGEST_NUMBER = 400  # digits
_DEEPEST = 50


class Filter(ABC):
    """One condition; `mask` tells which of a segment's documents meet it."""

    @staticmethod
    def parse(where: str) -> Filter:
        if not isinstance(where, str):
            raise UsageError(f'where is a text such as "year >= 2020", not {where!r}')
        return _Parser(where).parse()

    @abstractmethod
    def mask(self, documents: Documents, count: int) -> Mask:
        """For each of the segment's documents, so many, whether it meets the condition."""


@dataclass(frozen=True)
class Both(Filter):
    parts: Sequence[Filter]

    def mask(self, documents: Documents, count: int) -> Mask:
        mask = self.parts[0].mask(documents, count)
        for part in self.parts[1:]:
            mask &= part.mask(documents, count)
        return mask


@dataclass(frozen=True)
class Either(Filter):
    parts: Sequence[Filter]

    def mask(self, documents: Documents, count: int) -> Mask:
        mask = self.parts[0].mask(documents, count)
        for part in self.parts[1:]:
            mask |= part.mask(documents, count)
        return mask


@dataclass(frozen=True)
class Not(Filter):
    part: Filter

    def mask(self, documents: Documents, count: int) -> Mask:
        return ~self.part.mask(documents, count)


@dataclass(frozen=True)
class Has(Filter):
    """The key has some value."""

    key: str

    def mask(self, documents: Documents, count: int) -> Mask:
        return _mask(documents.numbers_where("1", (self.key,)), count)


@dataclass(frozen=True)
class Compare(Filter):
    key: str
    sign: str  # = < <= > >=
    value: Value

    def mask(self, documents: Documents, count: int) -> Mask:
        from .documents import stored

        condition = f"value {self.sign} ?"
        # SQLite puts every number before every text, and every text before true and false.
        if self.sign in (">", ">="):
            condition += " AND value < x''" if isinstance(self.value, str) else " AND value < ''"
        elif self.sign != "=" and isinstance(self.value, str):
            condition += " AND value >= ''"
        return _mask(documents.numbers_where(condition, (self.key, stored(self.value))), count)


@dataclass(frozen=True)
class Named(Filter):
    """One of these docnos."""

    docnos: Sequence[str]

    def mask(self, documents: Documents, count: int) -> Mask:
        return _mask(list(documents.numbers(self.docnos).values()), count)


def _mask(numbers: Collection[int] | NDArray[np.int64], count: int) -> Mask:
    mask = np.zeros(count, dtype=bool)
    mask[np.asarray(numbers, dtype=np.int64)] = True
    return mask


class _Parser:
    """Recursive descent: or, and, not, comparison."""

    def __init__(self, where: str) -> None:
        self._where = where
        if len(where) > _LONGEST:
            raise UsageError(f"where has {len(where):,} characters; {_LONGEST:,} are allowed")
        try:
            where.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"where is not valid Unicode ({error.reason})") from error
        self._tokens: list[tuple[str, str, int]] = []  # kind, text, position
        at = 0
        while where[at:].strip():
            match = _TOKEN.match(where, at)
            if match is None:
                self._fail("this cannot be read", at + len(where[at:]) - len(where[at:].lstrip()))
            kind = str(match.lastgroup)
            text = match[kind]
            if kind == "word" and text.lower() in _WORDS:
                kind = text = text.lower()
            self._tokens.append((kind, text, match.start(kind if kind not in _WORDS else "word")))
            at = match.end()
        self._tokens.append(("end", "", len(where)))
        self._next = 0
        self._depth = 0

    def parse(self) -> Filter:
        made = self._either()
        if self._peek() != "end":
            self._fail("expected and, or, or the end")
        return made

    def _either(self) -> Filter:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(parts)

    def _both(self) -> Filter:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else Both(parts)

    def _one(self) -> Filter:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(f"more than {_DEEPEST} conditions inside each other")
        if self._take("not"):
            made: Filter = Not(self._one())
        elif self._take("("):
            made = self._either()
            if not self._take(")"):
                self._fail("expected )")
        else:
            made = self._comparison()
        self._depth -= 1
        return made

    def _comparison(self) -> Filter:
        kind, text, at = self._tokens[self._next]
        if kind not in ("word", "quoted"):
            self._fail("expected a key, such as year")
        self._next += 1
        key = _unquoted(text) if kind == "quoted" else text
        if self._take("is"):
            has = Has(key)
            if key == DOCNO:
                self._fail("every document has a docno", at)
            negated = self._take("not")
            if not self._take("null"):
                self._fail("expected null")
            return has if negated else Not(has)
        negated = self._take("not")
        if self._take("in"):
            matching = self._any_of(key, self._list())
            return (
                Both([Has(key), Not(matching)])
                if negated and key != DOCNO
                else (Not(matching) if negated else matching)
            )
        if negated:
            self._fail("expected in")
        kind, sign, at = self._tokens[self._next]
        if kind != "sign" or sign in ("(", ")", ","):
            self._fail("expected =, !=, <, <=, >, >=, in or is")
        self._next += 1
        value = self._value()
        sign = {"==": "=", "<>": "!="}.get(sign, sign)
        if sign in ("=", "!="):
            matching = self._any_of(key, [value])
            if sign == "=":
                return matching
            return Not(matching) if key == DOCNO else Both([Has(key), Not(matching)])
        if key == DOCNO or isinstance(value, bool):
            self._fail(f"{'docnos' if key == DOCNO else 'true and false'} can be compared with = and != only", at)
        return Compare(key, sign, value)

    def _any_of(self, key: str, values: Sequence[Value]) -> Filter:
        if key == DOCNO:
            if not all(isinstance(value, str) for value in values):
                self._fail("a docno is a text, in quotes", self._tokens[self._next - 1][2])
            return Named([str(value) for value in values])
        parts = [Compare(key, "=", value) for value in values]
        return parts[0] if len(parts) == 1 else Either(parts)

    def _list(self) -> list[Value]:
        if not self._take("("):
            self._fail("expected (")
        values = [self._value()]
        while self._take(","):
            values.append(self._value())
        if not self._take(")"):
            self._fail("expected , or )")
        return values

    def _value(self) -> Value:
        kind, text, _ = self._tokens[self._next]
        self._next += 1
        if kind == "number" and len(text) <= _LONGEST_NUMBER:
            return float(text) if any(c in text for c in ".eE") else int(text)
        if kind in ("text", "quoted"):
            return _unquoted(text)
        if kind in ("true", "false"):
            return kind == "true"
        self._next -= 1
        return self._fail("expected a number, a text in quotes, true or false")

    def _peek(self) -> str:
        return self._tokens[self._next][0]

    def _take(self, wanted: str) -> bool:
        kind, text, _ = self._tokens[self._next]
        if wanted in (kind, text if kind == "sign" else None):
            self._next += 1
            return True
        return False

    def _fail(self, problem: str, at: int | None = None) -> NoReturn:
        at = self._tokens[self._next][2] if at is None else at
        here = self._where[at : at + 20] or "the end"
        raise UsageError(f"where: {problem}, at {here!r} (character {at + 1} of {self._where!r:.200})")


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)
