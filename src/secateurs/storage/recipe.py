"""What all segments of an index have in common."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import require
from ..settings import GATHERERS, GatherName, StoreName, check_choice
from .codecs import Codec, codec
from .manifest import Manifest
from .merging import check_merge, check_pool


class Recipe(NamedTuple):
    store: StoreName
    gather: tuple[GatherName, ...]  # what is prepared for gathering
    merge: float | None = None  # cosine above which embeddings of a token become one, see merging.py; None: no merging
    pool: int = 1  # a document gets at most one embedding for so many positions

    @classmethod
    def of(cls, manifest: Manifest) -> Recipe:
        return cls(manifest.store, manifest.gather, manifest.merge, manifest.pool)

    def check(self) -> None:
        codec(self.store)
        for name in self.gather:
            check_choice("gather", name, GATHERERS)
        if "faiss" in self.gather:
            require("faiss", "faiss")  # before any document is encoded
        check_merge(self.merge)
        check_pool(self.pool)

    @property
    def codec(self) -> Codec:
        return codec(self.store)

    @property
    def has_cells(self) -> bool:
        return "cells" in self.gather

    @property
    def has_text(self) -> bool:
        return "text" in self.gather

    @property
    def has_int8(self) -> bool:
        return self.codec.needs_int8 or self.has_cells  # cells are made from int8 rows, whatever is stored
