"""What all segments of an index have in common."""

from __future__ import annotations

from typing import NamedTuple

from ..records import GATHERERS, GatherName, StoreName, check_choice
from .codecs import Codec, codec


class Recipe(NamedTuple):
    store: StoreName
    gather: tuple[GatherName, ...]  # what is prepared for gathering

    def check(self) -> None:
        codec(self.store)
        for name in self.gather:
            check_choice("gather", name, GATHERERS)

    @property
    def codec(self) -> Codec:
        return codec(self.store)

    @property
    def has_cells(self) -> bool:
        return self.codec.needs_cells or "cells" in self.gather

    @property
    def has_int8(self) -> bool:
        return self.codec.needs_int8 or self.has_cells  # cells are made from int8 rows, whatever is stored
