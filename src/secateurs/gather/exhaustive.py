"""Every document is a candidate: the oracle that approximate gathering is measured against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..records import SearchPlan


class Exhaustive:
    def __init__(self, offsets: NDArray[np.int64]) -> None:
        self._documents = np.flatnonzero(np.diff(offsets) > 0).astype(np.int64)

    def gather(self, embeddings: NDArray[np.float32], plan: SearchPlan) -> tuple[NDArray[np.int64], int]:
        return self._documents, len(self._documents)
