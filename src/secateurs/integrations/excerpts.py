"""The part of a long text that tells most about why it was found, for readers that cannot take the whole text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Highlighted(Protocol):
    """A piece of a text that matched the query."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def contribution(self) -> float: ...

    @property
    def rarity(self) -> float: ...


def excerpt_start(text: str, characters: int, highlights: Iterable[Highlighted] | None) -> int:
    """Where the excerpt of that many characters begins: at 0, unless a later part has more of what matched.

    A match counts for its contribution to the score times its rarity: common words are everywhere.
    """
    if len(text) <= characters or not highlights:
        return 0
    counting = [(match.start, match.end, max(match.contribution, 0.0) * match.rarity) for match in highlights]

    def value(start: int) -> float:
        return sum(worth for begin, end, worth in counting if start <= begin and end <= start + characters)

    # The best window can be moved so that a match is at its beginning. A quarter before it shows what it stands in.
    starts = [0, *(min(max(begin - characters // 4, 0), len(text) - characters) for begin, _, _ in counting)]
    best = max(starts, key=lambda start: (value(start), -start))
    if best == 0 or best == len(text) - characters:
        return best
    space = text.rfind(" ", best - characters // 8 if best > characters // 8 else 0, best)
    return best if space < 0 else space + 1  # at the beginning of a word
