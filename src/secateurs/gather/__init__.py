"""Kept query embeddings to candidate documents: one way per file, behind one protocol."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError
from ..records import EncodedText, Positions
from ..settings import GATHER_SETTINGS, SearchPlan, check_choice, ways
from ..storage.snapshot import Snapshot
from .cells import CellGatherer
from .exhaustive import Exhaustive
from .faiss_ivfpq import FaissGatherer
from .text import CellsAndText, TextGatherer


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


def check_built(path: Path, name: str, gatherers: Collection[str]) -> None:
    """Raise unless an index that was built for these can gather in this way."""
    check_choice("gather", name, GATHER_SETTINGS)
    if not ways(name) <= set(gatherers):
        options = " ".join(f"--gather {way}" for way in name.split("+"))
        raise SecateursError(f'{path} was built without gather="{name}": build it again with  {options}')


def check_text(path: Path, name: str, gatherers: Collection[str]) -> None:
    """The same for a search that needs the words of documents: to gather like this, or for `fuse`."""
    check_built(path, name if "text" in ways(name) else "text", gatherers)


def _open(snapshot: Snapshot, name: str) -> Gatherer:
    check_built(snapshot.path, name, snapshot.gatherers)
    if name == "exhaustive" or not snapshot.embedded:
        return Exhaustive.over(snapshot)
    if name == "text":
        return TextGatherer(snapshot)
    if name == "cells+text":
        return CellsAndText(CellGatherer.over(snapshot), TextGatherer(snapshot))
    return FaissGatherer.over(snapshot) if name == "faiss" else CellGatherer.over(snapshot)
