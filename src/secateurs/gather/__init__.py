"""Kept query embeddings to candidate documents: one way per file, behind one protocol."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError
from ..records import GATHERERS, EncodedText, Positions, SearchPlan, check_choice
from ..storage.snapshot import Snapshot
from .cells import CellGatherer
from .exhaustive import Exhaustive
from .faiss_ivfpq import FaissGatherer


class Gatherer(Protocol):
    def gather(
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        """Numbers of the documents to score, each once, all with embeddings; and from how many they were chosen.

        kept      positions of the query to gather with, most important first
        allowed   (documents,): which documents may be gathered; None: all
        """


def gatherer(snapshot: Snapshot, name: str) -> Gatherer:
    """The snapshot's gatherer of that name, opened when it is first needed."""
    opened: Gatherer = snapshot.keep(f"gather {name}", lambda: _open(snapshot, name))
    return opened


def _open(snapshot: Snapshot, name: str) -> Gatherer:
    check_choice("gather", name, GATHERERS)
    if name not in snapshot.gatherers:
        raise SecateursError(f'{snapshot.path} was built without gather="{name}": build it again with  --gather {name}')
    if name == "exhaustive" or not snapshot.embedded:
        return Exhaustive.over(snapshot)
    return FaissGatherer.over(snapshot) if name == "faiss" else CellGatherer.over(snapshot)
