"""Words to settings: `p=1:32` and `order=first,icf` become every combination of the two.

Every search setting can be swept: the fields of SearchSettings are the names, so that a setting added there is known
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import product
from typing import Any

from ..errors import UsageError
from ..records import SearchSettings

DEPTH = 1000  # hits per query, as in the paper: AP and R@1000 look that deep
_MOST_SETTINGS = 10_000
_FREE_TEXT = ("where",)  # a condition may have commas and colons in it
_NAMES = tuple(field.name for field in fields(SearchSettings) if field.name != "partial")  # what is measured is whole


def sweep(*texts: str, k: int = DEPTH) -> list[SearchSettings]:
    """Every combination of what the texts name: sweep("p=1:32", "order=first,icf")."""
    values: dict[str, list[Any]] = {}
    for text in texts:
        name, choices = parse_sweep(text)
        if name in values:
            raise UsageError(f"{name} is swept twice: write  {name}=A,B,C")
        values[name] = choices
    values = {"k": [k]} | values
    count = 1
    for choices in values.values():
        count *= len(choices)
    if count > _MOST_SETTINGS:
        raise UsageError(f"that would be {count:,} settings: sweep less at once")
    return [SearchSettings(**dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]


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
    """One value for each name: "gather=exhaustive p=all"."""
    given: dict[str, Any] = {}
    text, condition, where = text.partition("where=")  # a condition has spaces in it, so it comes last
    if condition:
        given["where"] = where.strip()
    for word in text.split():
        name, values = parse_sweep(word)
        if len(values) != 1 or name in given:
            raise UsageError(f"{text!r}: one value for each name here, such as  gather=exhaustive p=all")
        given[name] = values[0]
    if not given:
        raise UsageError("settings are NAME=VALUE, such as  gather=exhaustive p=all")
    return given


def parse_value(name: str, word: str) -> Any:
    """As on the command line: a number, a word, `all` for p, `auto` to leave it open."""
    word = word.strip()
    if name == "p" and word in ("all", "auto"):
        return None if word == "all" else "auto"
    if word == "auto" and name not in ("k", "k_prime"):  # which have no value that is left open
        return getattr(SearchSettings, name)
    try:
        value: Any = int(word)
    except ValueError:
        value = word
    if name in ("p", "k", "k_prime", "nprobe", "candidates") and isinstance(value, str):
        raise UsageError(f"{name} is a number{', all or auto' if name == 'p' else ''}, not {word!r}")
    return value


def plain(settings: SearchSettings) -> dict[str, str | int | None]:
    """The settings as a table holds them, in the words of the command line; None is left to the effort."""
    return {
        name: value if name != "p" and (value is None or isinstance(value, int)) else plain_word(name, value)
        for name, value in ((name, getattr(settings, name)) for name in _NAMES)
    }


def plain_word(name: str, value: Any) -> str:
    """A setting's value as one writes it."""
    if value is None:
        return "all" if name == "p" else "auto"
    return getattr(value, "__name__", None) or str(value)


def labels(settings: Sequence[Mapping[str, str | int | None]]) -> list[str]:
    """A name for each of the settings: what it does not share with all the others."""
    varied = [name for name in settings[0] if len({one[name] for one in settings}) > 1] if settings else []
    made = [" ".join(f"{name}={plain_word(name, one[name])}" for name in varied) or "default" for one in settings]
    for label in made:
        if made.count(label) > 1:
            raise UsageError(f"two settings are the same: {label}")
    return made


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
