"""Kept query embeddings to candidate documents. Three ways behind one protocol."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..records import SearchPlan

GATHERERS = ("cells", "faiss", "exhaustive")  # the first that an index has been prepared for is its default


class Gatherer(Protocol):
    def gather(
        self, embeddings: NDArray[np.float32], plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        """Numbers of the documents to score, each once, none without embeddings; and how many it chose them from.

        `allowed` tells for each document whether it may be found at all.
        """


def check_gatherer(name: str) -> None:
    if name not in GATHERERS:
        raise UsageError(f"gather is one of {', '.join(GATHERERS)}, not {name!r}")
