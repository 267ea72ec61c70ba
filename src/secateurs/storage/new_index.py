"""Documents to a whole new index, at its place when it is finished and not before."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..corpus import OnBad
from ..encoders import Encoder
from ..version import __version__
from .codebooks import Learnt
from .manifest import SEGMENTS, Manifest
from .segment_writer import Item, Recipe, write_segment
from .target import build_folder

PRECOMPUTED = {"kind": "precomputed"}  # the spec of no encoder


def make_index(
    path: Path,
    items: Iterable[Item],
    encoder: Encoder | None,
    recipe: Recipe,
    *,
    spec: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    total: int | None = None,
    progress: bool | None = None,
    on_bad: OnBad | None = None,
    codebook: Learnt | None = None,
    unit: bool | None = None,
    dim: int | None = None,
) -> None:
    """One segment of everything. `spec` is that of the encoder which made the embeddings that documents bring.

    `codebook`, `unit` and `dim` as in write_segment: what is known already, because this index is a part of more.
    """

    def fill(folder: Path) -> Manifest:
        segment = folder / SEGMENTS / uuid.uuid4().hex[:12]  # a name no open reader can mistake for its own
        made = write_segment(
            segment,
            items,
            encoder,
            recipe,
            total=total,
            progress=progress,
            on_bad=on_bad,
            codebook=codebook,
            unit=unit,
            dim=dim,
        )
        return Manifest(
            dim=made.dim,
            store=recipe.store,
            gather=recipe.gather,
            encoder=dict(spec or (PRECOMPUTED if encoder is None else encoder.spec)),
            codebook=made.codebook.write(folder),
            segments=(made.record,),
            written_by=f"secateurs {__version__}",
        )

    build_folder(path, fill, overwrite)
