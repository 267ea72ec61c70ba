"""One shard at work: an index that takes its part in a search which somebody else decides. On a thread, or as an actor.

Every call says which commit the caller knows of. A shard that has not seen it yet looks for it first: whoever has
written, on whichever replica, finds on every other one what he wrote.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DamagedIndexError, SecateursError
from ...explain import Evidence, Standing, find_evidence, find_standing
from ...frequencies import Frequencies
from ...index import Index
from ...pruning import keep
from ...records import Document, EncodedText, GatherName, Positions, SearchPlan, SearchSettings
from ...refresh import ThrottledRefresh
from ...search import Decision, Found, OneIndex, Stopwatch, find, gather
from ...storage.check import check_snapshot
from ...storage.compaction import live_documents
from ...storage.snapshot import Snapshot
from ..layout import shard_of

_SECONDS_TO_WAIT = 1.0  # for a commit that another replica has written
_PAUSE = 0.02

_LOG = logging.getLogger("secateurs.cluster")


@dataclass(frozen=True, slots=True)
class State:
    """What those who search over all shards must know of each."""

    commit: int
    documents: int
    dim: int
    encoder: Mapping[str, Any]
    gatherers: tuple[GatherName, ...]
    frequencies: Frequencies
    problem: str | None = None  # what was written since, and cannot be read


@dataclass(frozen=True, slots=True)
class Asked:
    """A query with everything that is decided for all shards alike."""

    query: EncodedText
    plan: SearchPlan
    ordered: Positions  # by the frequencies of the whole collection


@dataclass(frozen=True, slots=True)
class Answer:
    found: Found
    milliseconds: Mapping[str, float]
    commit: int


class Shard:
    def __init__(self, path: str) -> None:
        self._index = Index(Path(path))
        self._newest = ThrottledRefresh(path, self._index.refresh, _LOG)
        self._index.load()

    def state(self, commit: int, known: int | None = None, look: bool = False) -> State | None:
        """None if it is still the known one. `look` for what others have written a moment ago."""
        snapshot = self._at(commit, look)
        manifest = snapshot.manifest
        if manifest.commit == known and self._newest.problem is None:
            return None
        return State(
            manifest.commit,
            len(snapshot),
            manifest.dim,
            dict(manifest.encoder),
            snapshot.gatherers,
            snapshot.frequencies,
            self._newest.problem,
        )

    def matching(self, commit: int, where: str, with_frequencies: bool) -> tuple[int, Frequencies | None]:
        """How many documents a filter lets through, and their token frequencies."""
        filtered = self._at(commit).filtered(where)
        return filtered.count, filtered.frequencies if with_frequencies else None

    def search(self, commit: int, asked: Asked) -> Answer:
        watch = Stopwatch()
        snapshot = self._at(commit)
        decision = _decision(snapshot, asked)
        watch.lap("filter")
        found = find(snapshot, asked.query, decision, watch)
        return Answer(found, watch.laps, snapshot.manifest.commit)

    def candidates(self, commit: int, asked: Asked) -> list[str]:
        snapshot = self._at(commit)
        documents, _, _ = gather(snapshot, asked.query, _decision(snapshot, asked))
        return snapshot.docnos(documents)

    def score(self, commit: int, query: EncodedText, docnos: Sequence[str]) -> list[float]:
        self._at(commit)
        return self._index.score(query, docnos)

    def evidence(self, commit: int, asked: Asked, docno: str) -> Evidence:
        snapshot = self._at(commit)
        return find_evidence(snapshot, asked.query, _decision(snapshot, asked), docno)

    def standing(self, commit: int, asked: Asked, score: float, docno: str) -> Standing:
        snapshot = self._at(commit)
        return find_standing(snapshot, asked.query, _decision(snapshot, asked), score, docno)

    def documents(self, commit: int, skip: int, most: int) -> tuple[list[Document], int]:
        """At most so many documents with their embeddings, after the first `skip`; and the commit they are of."""
        snapshot = self._at(commit)
        documents = list(islice(live_documents(snapshot, skip=skip), most))
        return documents, snapshot.manifest.commit

    def similarities(
        self, commit: int, query: EncodedText, docno: str
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        similarities, token_ids = self._at(commit).similarities(query, docno)
        return similarities, np.array(token_ids)  # not a view of a mapped file

    def has(self, commit: int, docnos: Sequence[str]) -> list[str]:
        """Those that are here."""
        return list(self._at(commit).find_all(docnos))

    def get(self, commit: int, docno: str) -> Document:
        self._at(commit)
        return self._index.get(docno)

    def info(self, commit: int) -> dict[str, Any]:
        self._at(commit)
        return self._index.info()

    def check(self, commit: int, number: int, shards: int) -> None:
        """Every byte, and that each document belongs here."""
        snapshot = self._at(commit)
        check_snapshot(snapshot)
        live = np.arange(snapshot.firsts[-1]) if snapshot.live is None else np.flatnonzero(snapshot.live)
        for docno in snapshot.docnos(live):
            if shard_of(docno, shards) != number:
                raise DamagedIndexError(f"{self._index.path} has {docno!r}, which belongs to another shard")

    def update(self, commit: int, documents: Sequence[Document]) -> State | None:
        """Documents that are encoded already: only who asked has an encoder."""
        self._index.add_encoded(documents, replacing=True)
        return self.state(commit)

    def delete(self, commit: int, docnos: Sequence[str]) -> State | None:
        self._index.delete(docnos)
        return self.state(commit)

    def compact(self, commit: int) -> State | None:
        self._index.compact(progress=False)
        return self.state(commit)

    def _at(self, commit: int, look: bool = False) -> Snapshot:
        """A state that is not older than the commit, and what others had written a second ago."""
        if look or self._newest.is_due:
            self._newest.run()
        end = time.monotonic() + _SECONDS_TO_WAIT
        while self._index.manifest.commit < commit:  # some file systems show others' renames late
            self._newest.run()
            if self._index.manifest.commit < commit and time.monotonic() > end:
                raise SecateursError(
                    f"{self._index.path} is not up to date here: {self._newest.problem or 'try again'}"
                )
            time.sleep(_PAUSE)
        return self._index.snapshot


def _decision(snapshot: Snapshot, asked: Asked) -> Decision:
    """What was decided for all shards, with this shard's part of the filter."""
    plan = asked.plan
    matching = OneIndex(snapshot).filter(SearchSettings(where=plan.where))
    return Decision(plan, asked.ordered, keep(asked.ordered, plan.p), matching)
