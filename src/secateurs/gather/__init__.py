"""Kept query embeddings to candidate documents. Two ways behind one protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..records import SearchSettings

GATHERERS = ("faiss", "exhaustive")


class Gatherer(Protocol):
    def gather(self, embeddings: NDArray[np.float32], settings: SearchSettings) -> NDArray[np.int64]:
        """Numbers of the candidate documents, ascending, each once; none that has no embedding."""


def open_gatherer(name: str, segment: Path, offsets: NDArray[np.int64]) -> Gatherer:
    if name not in GATHERERS:
        raise UsageError(f"gather is one of {', '.join(GATHERERS)}, not {name!r}")
    if name == "exhaustive" or offsets[-1] == 0:  # nothing to gather: any way will do
        from .exhaustive import Exhaustive

        return Exhaustive(offsets)
    from .faiss_ivfpq import FaissIVFPQ

    return FaissIVFPQ(segment)
