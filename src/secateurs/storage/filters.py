"""`where`: which documents may be found, by their metadata.

    year >= 2020 and lang = 'en'
    not (status in ('draft', 'spam') or score < 0.5)
    author.name = 'Ada' and tags = 'history' and reviewed = true and doi is not null
    docno in ('d1', 'd2') or docno like 'chapter-1/%'
    title like 'Gold%' and year between 2019 and 2021

A key is a name, with dots into objects; any other key goes in double quotes. A comparison is with a number, a text in
quotes, true or false, and holds only for values of that kind. A list matches if one of its entries does. A document
without the key matches no comparison, not even `!=`; only `is null` and `not` do.

A key that no document of the collection has is an error, and so is a comparison with a kind of value that the key never
has: both are more likely a mistake than a question. `check_keys` decides that for all segments and shards together.

The text of a filter never becomes SQL: it is parsed here into comparisons. conditions.py evaluates them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from ..errors import UsageError
from .conditions import (
    Between,
    Both,
    Compare,
    Condition,
    Either,
    Equals,
    Evaluation,
    Has,
    Like,
    Mask,
    Named,
    NamedLike,
    Not,
)
from .documents import NESTED, Documents, Kind, Value, kind_of, stored
from .patterns import Pattern

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
_MOST_COMPARISONS = 64
KEYS_NAMED = 12  # at most, by the message that a key does not exist


@dataclass(frozen=True)
class Filter:
    """A `where` that was parsed."""

    condition: Condition

    @staticmethod
    def parse(where: str) -> Filter:
        if not isinstance(where, str):
            raise UsageError(f'where is a text such as "year >= 2020", not {where!r}')
        return Filter(_Parser(where).parse())

    def mask(self, documents: Documents, count: int) -> Mask:
        """For each of the segment's documents, `count` of them, whether it matches."""
        return self.condition.evaluate(Evaluation(self.condition, documents, count))

    def compared(self) -> Iterator[tuple[str, Kind | None]]:
        """The keys that it names, each with the kinds of values that it is compared with; None: with null."""
        for comparison in self.condition.comparisons():
            for kind in comparison.kinds:
                yield comparison.key, kind


class KnownKeys(NamedTuple):
    """What segments or shards know of the keys in a filter."""

    documents: int  # live ones
    kinds: Mapping[str, frozenset[Kind]]  # of the filter's keys that are there, the kinds of values they have
    names: Sequence[str]  # some keys that are there, for the message

    @classmethod
    def of(cls, condition: Filter, databases: Iterable[Documents], documents: int) -> KnownKeys:
        """Of all segments of an index. Keys of deleted documents count until their segment is rewritten."""
        parts = [
            cls(
                documents,
                {
                    key: kinds
                    for key in {key for key, _ in condition.compared()}
                    if (kinds := database.kinds_of(key)) is not None
                },
                database.first_keys(KEYS_NAMED + 1),
            )
            for database in databases
        ]
        return cls.merged(parts)._replace(documents=documents)

    @classmethod
    def merged(cls, parts: Iterable[KnownKeys]) -> KnownKeys:
        documents, kinds, names = 0, dict[str, frozenset[Kind]](), set[str]()
        for part in parts:
            documents += part.documents
            kinds |= {key: kinds.get(key, frozenset()) | more for key, more in part.kinds.items()}
            names |= set(part.names)
        return cls(documents, kinds, sorted(names)[: KEYS_NAMED + 1])


def check_keys(condition: Filter, known: KnownKeys, setting: str = "where") -> None:
    """Raise if a key is not there, or never has the kind of value that it is compared with.

    A key whose values are all null, empty lists or empty objects has no kind, and may be compared with anything. So may
    every key of an index without documents, which a service may have for a while.
    """
    if known.documents == 0:
        return
    for key, kind in condition.compared():
        if key not in known.kinds:
            names = ", ".join(known.names[:KEYS_NAMED]) + (", ..." if len(known.names) > KEYS_NAMED else "")
            there = f"there are: {names}" if names else "no document has metadata"
            raise UsageError(f"{setting}: no document has the key {key!r}; {there}")
        kinds = known.kinds[key]
        if kind is not None and kinds and kind not in kinds:
            # The kinds of a list are those of its entries; that it is a list says nothing more.
            has = " or ".join(sorted(several for _, several in kinds - {NESTED} or kinds))
            raise UsageError(f"where: {key!r} is compared with {kind[0]}, but its values are {has}")


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
        self._comparisons = 0

    def parse(self) -> Condition:
        condition = self._either()
        if self._peek() != "end":
            self._fail("expected and, or, or the end")
        return condition

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Either(parts)

    def _both(self) -> Condition:
        parts = [self._condition()]
        while self._take("and"):
            parts.append(self._condition())
        return parts[0] if len(parts) == 1 else Both(parts)

    def _condition(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail(f"more than {_DEEPEST} conditions inside each other")
        if self._take("not"):
            condition: Condition = Not(self._condition())
        elif self._take("("):
            condition = self._either()
            if not self._take(")"):
                self._fail("expected )")
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        kind, text, at = self._tokens[self._next]
        if kind not in ("word", "quoted"):
            self._fail("expected a key, such as year")
        self._comparisons += 1
        if self._comparisons > _MOST_COMPARISONS:
            self._fail(f"more than {_MOST_COMPARISONS} comparisons (`year in (2020, 2021)` is one)")
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
        matching: Condition | None = None
        if self._take("in"):
            matching = self._any_of(key, self._list())
        elif self._take_word("like"):
            matching = self._like(key)
        elif self._take_word("between"):
            matching = self._between(key)
        if matching is not None:
            return self._negated(key, matching) if negated else matching
        if negated:
            self._fail("expected in, like or between")
        kind, sign, at = self._tokens[self._next]
        if kind != "sign" or sign in ("(", ")", ","):
            self._fail("expected =, !=, <, <=, >, >=, in, like, between or is")
        self._next += 1
        value = self._value()
        sign = {"==": "=", "<>": "!="}.get(sign, sign)
        if sign in ("=", "!="):
            matching = self._any_of(key, [value])
            return matching if sign == "=" else self._negated(key, matching)
        if key == DOCNO or isinstance(value, bool):
            self._no_order(key, at)
        return Compare(key, sign, value)

    def _negated(self, key: str, matching: Condition) -> Condition:
        """The key has a value, but none that matches."""
        return Not(matching) if key == DOCNO else Both([Has(key), Not(matching)])

    def _no_order(self, key: str, at: int) -> NoReturn:
        names, signs = ("docnos", "=, !=, in and like") if key == DOCNO else ("true and false", "= and !=")
        self._fail(f"{names} can be compared with {signs} only", at)

    def _like(self, key: str) -> Condition:
        at = self._tokens[self._next][2]
        pattern = self._value()
        if not isinstance(pattern, str) or "\0" in pattern:
            self._fail("like takes a text in quotes, such as 'Gold%'", at)
        return (NamedLike if key == DOCNO else Like)(key, Pattern.parse(pattern))

    def _between(self, key: str) -> Condition:
        at = self._tokens[self._next][2]
        least = self._value()
        if not self._take("and"):
            self._fail("expected and, as in  between 2019 and 2021")
        most = self._value()
        if key == DOCNO or isinstance(least, bool) or isinstance(most, bool):
            self._no_order(key, at)
        if kind_of(least) != kind_of(most):
            self._fail("between takes two numbers, or two texts", at)
        if least > most:  # type: ignore[operator]  # they are of one kind
            self._fail("between takes the smaller value first", at)
        return Between(key, least, most)

    def _any_of(self, key: str, values: Sequence[Value]) -> Condition:
        if key == DOCNO:
            if not all(isinstance(value, str) for value in values):
                self._fail("a docno is a text, in quotes", self._tokens[self._next - 1][2])
            return Named(key, tuple(str(value) for value in values))
        return Equals(key, tuple(map(stored, values)))

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
        expected = "expected a number, a text in quotes, true or false"
        return self._fail(f"{expected}; write '{text}' if it is a text" if kind == "word" else expected)

    def _peek(self) -> str:
        return self._tokens[self._next][0]

    def _take(self, wanted: str) -> bool:
        kind, text, _ = self._tokens[self._next]
        if wanted in (kind, text if kind == "sign" else None):
            self._next += 1
            return True
        return False

    def _take_word(self, wanted: str) -> bool:
        """A word that is one of the language in this place only: elsewhere it may be a key."""
        kind, text, _ = self._tokens[self._next]
        if kind == "word" and text.lower() == wanted:
            self._next += 1
            return True
        return False

    def _fail(self, problem: str, at: int | None = None) -> NoReturn:
        at = self._tokens[self._next][2] if at is None else at
        here = repr(self._where[at : at + 20]) if at < len(self._where) else "the end"
        raise UsageError(f"where: {problem}, at {here} (character {at + 1} of {self._where!r:.200})")


def _unquoted(text: str) -> str:
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)
