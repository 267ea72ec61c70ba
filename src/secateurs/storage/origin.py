"""What an export records beside the embeddings, so that an import gives the same scores and searches the same way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..background import Background
from .recipe import Recipe
from .rounding import Int8Store
from .snapshot import Snapshot


class Origin(NamedTuple):
    encoder: Mapping[str, Any]  # its spec
    recipe: Recipe
    unit: bool  # whether the embeddings had length 1 before they were rounded
    dim: int
    int8: Int8Store | None = None  # the scale: rows that are rounded to it again are the same bytes
    background: Background | None = None

    @classmethod
    def of(cls, snapshot: Snapshot) -> Origin:
        manifest, codebook = snapshot.manifest, snapshot.codebook
        unit = all(record.unit for record in manifest.segments)
        return cls(dict(manifest.encoder), Recipe.of(manifest), unit, manifest.dim, codebook.int8, codebook.background)
