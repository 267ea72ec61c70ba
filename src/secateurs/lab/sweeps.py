"""Words to settings: `p=1:32` and `order=first,icf` become every combination of the two.

Every search setting but `partial` can be swept: the names are the fields of SearchSettings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import product
from math import prod
from typing import Any

from ..errors import UsageError
from ..settings import SearchSettings

DEPTH = 1000  # hits per query, as in the paper: AP and R@1000 look that deep
_MOST_SETTINGS = 10_000
_THRESHOLDS = ("min_score", "min_relevance")
# What None means; of all other settings, that the effort decides.
_NONE = {"p": "all", **dict.fromkeys(("weights", "fuse", *_THRESHOLDS), "none")}
_FREE_TEXT = ("where",)  # a condition may have commas and colons in it
_NOT_SWEPT = ("partial", "offset", "facets")  # an experiment measures whole rankings
_NAMES = tuple(field.name for field in fields(SearchSettings) if field.name not in _NOT_SWEPT)


def sweep(*texts: str, k: int = DEPTH) -> dict[str, SearchSettings]:
    """Every combination of what the texts name, by its name: sweep("p=1:32", "order=first,icf").

    A name says all that was swept, also what has a single value; without any text there is one combination, "default".
    """
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, choices = parse_sweep(text)
        if name in values:
            raise UsageError(f"{name} is swept twice: write  {name}=A,B,C")
        values[name] = choices
    count = prod(len(choices) for choices in values.values())
    if count > _MOST_SETTINGS:
        raise UsageError(f"that would be {count:,} settings: sweep less at once")
    combinations = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]
    return {name_of(chosen): SearchSettings(**{"k": k, **chosen}) for chosen in combinations}


def add_rows(settings: Mapping[str, SearchSettings], texts: Iterable[str], k: int = DEPTH) -> dict[str, SearchSettings]:
    """The settings and one more for each text, such as "gather=exhaustive p=all", which is also its name."""
    rows = dict(settings)
    for text in texts:
        chosen = parse_settings(text)
        name = name_of(chosen)
        if name in rows:
            raise UsageError(f"two settings are the same: {name}")
        rows[name] = SearchSettings(**{"k": k, **chosen})
    return rows


def name_of(chosen: Mapping[str, Any]) -> str:
    """Settings as they are written on the command line."""
    return " ".join(f"{name}={plain_word(name, value)}" for name, value in chosen.items()) or "default"


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """The setting's name and its values: `1:4` is 1, 2, 3, 4 and `2:8:3` is 2, 5, 8; commas separate others."""
    name, equals, listed = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or not listed.strip():
        raise UsageError(f"a sweep is NAME=VALUES, such as p=1:32 or order=first,icf, not {text!r}")
    _check_name(name)
    values: list[Any] = []
    if name in _FREE_TEXT:
        return name, [listed.strip()]
    for word in listed.split(","):
        values += _range(name, word) if ":" in word else [parse_value(name, word)]
    if len(set(values)) < len(values):
        raise UsageError(f"{text!r} names a value twice")
    return name, values


def parse_settings(text: str) -> dict[str, Any]:
    """The settings that a text such as "gather=exhaustive p=all" names, one value for each name."""
    given: dict[str, Any] = {}
    words, condition, where = text.partition("where=")  # a condition has spaces in it, so it comes last
    for word in words.split():
        name, values = parse_sweep(word)
        if len(values) != 1 or name in given:
            raise UsageError(f"{text!r}: one value for each name here, such as  gather=exhaustive p=all")
        given[name] = values[0]
    if condition:
        given["where"] = where.strip()
    if not given:
        raise UsageError("settings are NAME=VALUE, such as  gather=exhaustive p=all")
    return given


def parse_value(name: str, word: str) -> Any:
    """As on the command line: a number, a word, `all` for p, `none` for what may be None, `auto` if left open."""
    word = word.strip()
    if _NONE.get(name) == word == "none":
        return None
    if name == "p" and word in ("all", "auto"):
        return None if word == "all" else "auto"
    if word == "auto" and name not in ("k", "k_prime"):  # which have no value that is left open
        return getattr(SearchSettings, name)
    try:
        value: Any = float(word) if name in ("budget_ms", *_THRESHOLDS) else int(word)
    except ValueError:
        value = word
    if name in ("p", "k", "k_prime", "nprobe", "candidates", "budget_ms", *_THRESHOLDS) and isinstance(value, str):
        raise UsageError(f"{name} is a number{', all or auto' if name == 'p' else ''}, not {word!r}")
    return value


def plain(settings: SearchSettings) -> dict[str, str | int | None]:
    """The settings as a table holds them, in the words of the command line; None is decided by the effort."""
    return {
        name: value if name not in _NONE and (value is None or isinstance(value, int)) else plain_word(name, value)
        for name, value in ((name, getattr(settings, name)) for name in _NAMES)
    }


def plain_word(name: str, value: Any) -> str:
    """A setting's value as it is written on the command line."""
    if value is None:
        return _NONE.get(name, "auto")
    return getattr(value, "__name__", None) or str(value)


def named(settings: Mapping[str, SearchSettings] | Sequence[SearchSettings]) -> dict[str, SearchSettings]:
    """Settings by their names. Settings without names are named by all in which one of them is not the default.

    The depth k is part of a name only where it differs from one of the settings to another.
    """
    if isinstance(settings, Mapping):
        rows = dict(settings)
    else:
        described = [plain(given) for given in settings]
        default = plain(SearchSettings(k=settings[0].k)) if settings else {}
        names = [name for name in default if any(given[name] != default[name] for given in described)]
        rows = {}
        for given, words in zip(settings, described, strict=True):
            name = name_of({name: words[name] for name in names})
            if name in rows:
                raise UsageError(f"two settings are the same: {name}")
            rows[name] = given
    first_name: dict[SearchSettings, str] = {}
    for name, given in rows.items():
        if first_name.setdefault(given, name) != name:
            raise UsageError(f"two settings are the same: {first_name[given]} and {name}")
    return rows


def _range(name: str, word: str) -> list[int]:
    try:
        first, last, *step = (int(bound) for bound in word.split(":"))
    except ValueError as error:
        raise UsageError(
            f"a range of {name} is FIRST:LAST or FIRST:LAST:STEP in whole numbers, not {word!r}"
        ) from error
    if len(step) > 1 or last < first or (step and step[0] < 1) or last - first > _MOST_SETTINGS:
        raise UsageError(f"a range of {name} is FIRST:LAST or FIRST:LAST:STEP, upwards, not {word!r}")
    return list(range(first, last + 1, *step))


def _check_name(name: str) -> None:
    if name not in _NAMES:
        raise UsageError(f"there is no search setting {name!r}: there are {', '.join(_NAMES)}")
