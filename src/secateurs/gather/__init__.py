"""Kept query embeddings to candidate documents. Three ways behind one protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..records import SearchPlan

GATHERERS = ("cells", "faiss", "exhaustive")  # the first that an index has been prepared for is its default


class Gatherer(Protocol):
    def gather(self, embeddings: NDArray[np.float32], plan: SearchPlan) -> tuple[NDArray[np.int64], int]:
        """Numbers of the documents to score, each once, none without embeddings; and how many it chose them from."""


def check_gatherer(name: str) -> None:
    if name not in GATHERERS:
        raise UsageError(f"gather is one of {', '.join(GATHERERS)}, not {name!r}")


def open_gatherer(name: str, segment: Path, offsets: NDArray[np.int64]) -> Gatherer:
    check_gatherer(name)
    if name == "exhaustive" or offsets[-1] == 0:  # nothing to gather: any way will do
        from .exhaustive import Exhaustive

        return Exhaustive(offsets)
    if name == "faiss":
        from .faiss_ivfpq import FaissIVFPQ

        return FaissIVFPQ(segment)
    from .cells import Cells

    return Cells(segment, len(offsets) - 1)
