"""Every document is a candidate: the oracle that approximate gathering is measured against."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..records import EncodedText, Positions
from ..settings import SearchPlan
from ..storage.snapshot import Snapshot


class Exhaustive:
    def __init__(self, lengths: NDArray[np.int64]) -> None:
        """From the number of embeddings of each document."""
        self._embedded = lengths > 0
        self._documents = np.flatnonzero(self._embedded).astype(np.int64)

    @classmethod
    def over(cls, snapshot: Snapshot) -> Exhaustive:
        lengths = [np.diff(segment.offsets) for segment in snapshot.segments]
        return cls(np.concatenate([np.empty(0, dtype=np.int64), *lengths]))

    def gather(
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        documents = self._documents
        if allowed is not None:
            documents = np.flatnonzero(allowed & self._embedded).astype(np.int64)
        return documents, len(documents)
