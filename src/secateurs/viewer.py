"""What the HTML views of rankings, hits and explanations show beside them: token texts, marked words, similarities.

It is looked up when a view is made, in the index as it is then. What is gone by then, because a document was deleted or
the index was closed, is not shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .errors import SecateursError
from .frequencies import Frequencies
from .html_views import Chip, Mark
from .matches import Matched, find_matches
from .records import Document, EncodedText, TokenKind

WORDS = (TokenKind.WORD, TokenKind.PUNCTUATION)


class Viewable(Matched, Protocol):
    @property
    def frequencies(self) -> Frequencies: ...

    def token_text(self, token_id: int) -> str: ...

    def get(self, docno: str) -> Document: ...


@dataclass(frozen=True, slots=True, eq=False)
class IndexViewer:
    index: Viewable
    query: EncodedText

    def chips(self, kept: Sequence[int]) -> list[Chip]:
        """The embeddings that gather, most important first, and then the others in the order of the query."""
        chips: list[Chip] = []
        with suppress(SecateursError):
            often = self.index.frequencies.collection_frequency(self.query.token_ids)  # (positions,)
            for position in (*kept, *(i for i in range(len(self.query)) if i not in set(kept))):
                kind = TokenKind(self.query.token_kinds[position])
                text = self.index.token_text(int(self.query.token_ids[position]))
                name = "whole query" if kind is TokenKind.SUMMARY else text  # the token of a summary says nothing
                chip = Chip(name, position in kept, int(often[position]) if kind in WORDS else None)
                if chips and chip.frequency is None and chips[-1]._replace(times=1) == chip:
                    chips[-1] = chip._replace(times=chips[-1].times + 1)
                else:
                    chips.append(chip)
        return chips

    def marks(self, docno: str, text: str) -> list[Mark]:
        with suppress(SecateursError):
            found = find_matches(self.index, self.query, self.index.frequencies, docno, text) or ()
            return [Mark(match.start, match.end, match.strength, match.contribution(self.query)) for match in found]
        return []

    def text(self, docno: str) -> str:
        with suppress(SecateursError):
            return self.index.get(docno).text
        return ""

    def document_tokens(self, docno: str) -> list[tuple[str, list[float]]]:
        with suppress(SecateursError):
            similarities, token_ids = self.index.similarities(self.query, docno)  # (document tokens, query embeddings)
            texts = {int(token_id): self.index.token_text(int(token_id)) for token_id in np.unique(token_ids)}
            return [(texts[int(token_id)], row.tolist()) for token_id, row in zip(token_ids, similarities, strict=True)]
        return []
