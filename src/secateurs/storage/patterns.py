"""The patterns of `like`: % stands for any characters, also none, and _ for one character.

A backslash before %, _ or a backslash makes it that character. Capital letters differ from small ones, as in `=`. A
text that contains the character NUL matches no pattern, because SQLite's comparison ends there.
"""

from __future__ import annotations

from dataclasses import dataclass

_LAST = 0x10FFFF  # the last code point
_SURROGATES = range(0xD800, 0xE000)  # which no text has


@dataclass(frozen=True)
class Pattern:
    prefix: str  # what every text that matches begins with
    glob: str  # the pattern as GLOB takes it, which is LIKE with capital letters that differ

    @classmethod
    def parse(cls, like: str) -> Pattern:
        prefix, glob, is_prefix, at = "", "", True, 0
        while at < len(like):
            character = like[at]
            if character in "%_":
                glob += "*" if character == "%" else "?"
                is_prefix = False
            else:
                if character == "\\" and like[at + 1 : at + 2] in ("%", "_", "\\"):
                    at += 1
                    character = like[at]
                glob += f"[{character}]" if character in "*?[" else character
                prefix += character if is_prefix else ""
            at += 1
        return cls(prefix, glob)

    def condition(self, column: str) -> str:
        """In SQL, on a column; its parameters are `values`.

        SQLite looks up texts by their beginning, so that a pattern with a prefix reads only what begins with it.
        """
        below = "< ?" if _after(self.prefix) else "< x''"  # every text is below every blob, and no number is above ''
        return f"{column} >= ? AND {column} {below} AND {column} GLOB ? AND instr({column}, char(0)) = 0"

    @property
    def values(self) -> tuple[str, ...]:
        after = _after(self.prefix)
        return (self.prefix, after, self.glob) if after else (self.prefix, self.glob)


def _after(prefix: str) -> str:
    """The first text after all that begin with the prefix, by code points; empty if there is none."""
    shorter = prefix.rstrip(chr(_LAST))
    if not shorter:
        return ""
    following = ord(shorter[-1]) + 1
    return shorter[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
