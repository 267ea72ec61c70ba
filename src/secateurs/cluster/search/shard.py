"""One shard: an index that does its part of a search or a write, on a thread or in an actor.

What a search does is decided once for all shards (search.py). Whether a document is added, replaced or refused is
decided here, by the shard's one writer under its lock, whichever process sent the write.

Every call carries the newest commit that its caller knows of. A shard that has not seen that commit looks for it first,
so that a caller finds what it has written on every replica.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...costs import Costs
from ...errors import DamagedIndexError, SecateursError
from ...explain import Evidence, Standing, find_evidence, find_standing
from ...frequencies import Frequencies
from ...fusion import Scores
from ...gather.bm25 import WordCounts
from ...gather.text import count_words
from ...index import Index
from ...pruning import keep
from ...rankings import Hit
from ...records import Changes, Document, EncodedText, Field, Positions
from ...refresh import ThrottledRefresh
from ...search import Decision, Matching, OneIndex, Stopwatch, costs_of, find, scored
from ...settings import GatherName, SearchPlan, SearchSettings
from ...storage.check import check_snapshot
from ...storage.compaction import live_documents
from ...storage.facets import Counts, count_facets, known_facets
from ...storage.fields import fields_of
from ...storage.filters import KnownKeys
from ...storage.indexing import Item
from ...storage.manifest import CalibrationRecord
from ...storage.origin import Origin
from ...storage.snapshot import Snapshot
from ..layout import shard_of

_SECONDS_TO_WAIT = 1.0  # for a commit that another replica has written
_SECONDS_FOR_SEVERAL = 0.2  # queries of one call: an actor that does not answer for a second counts as lost
_PAUSE = 0.02

_LOG = logging.getLogger("secateurs.cluster")
_values = attrgetter(*(field.name for field in fields(Hit)))


@dataclass(frozen=True, slots=True)
class State:
    """What a search over all shards must know of each."""

    commit: int
    documents: int
    dim: int
    encoder: Mapping[str, Any]
    gatherers: tuple[GatherName, ...]
    frequencies: Frequencies
    calibration: CalibrationRecord | None
    problem: str | None = None  # why what was written since cannot be read


@dataclass(frozen=True, slots=True)
class ShardQuery:
    """A query, and what was decided for all shards alike."""

    encoded: EncodedText
    plan: SearchPlan
    ordered: Positions  # by the frequencies of the whole collection


class ShardRanking(NamedTuple):
    """A shard's k best documents, and how they were found.

    Tuples, because reading a dataclass from another process takes fifteen times as long, and most hits of a shard are
    not among the best of all.
    """

    hits: tuple[tuple[Any, ...], ...]  # the values of each Hit
    gathered: int
    scored: int
    gather: str  # how it was done
    scores: Scores | None  # with fuse
    milliseconds: Mapping[str, float]
    commit: int


@dataclass(frozen=True, slots=True)
class ShardWrite:
    """What a shard's writer did."""

    state: State | None  # after the write
    changes: Changes
    problems: tuple[str, ...] = ()  # documents that were not added, because their docnos were there


class Shard:
    def __init__(self, path: str) -> None:
        self._index = Index(Path(path))
        self._newest = ThrottledRefresh(path, self._index.refresh, _LOG)
        self._index.load()

    def state(self, commit: int, known: int | None = None, look: bool = False) -> State | None:
        """None if it is still at the commit `known`. With `look`, what others have written up to now is included."""
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
            manifest.calibration,
            self._newest.problem,
        )

    def matching(self, commit: int, where: str, with_frequencies: bool) -> tuple[int, Frequencies | None, KnownKeys]:
        """How many documents match a filter, with `with_frequencies` their token frequencies, and the filter's keys.

        Without the background and the mean: the caller has those of the whole collection.
        """
        filtered = self._at(commit).filtered(where, strict=False)
        frequencies = None
        if with_frequencies:
            frequencies = replace(filtered.frequencies, background=None, centre=None)
        return filtered.count, frequencies, filtered.keys

    def count_words(self, commit: int, words: tuple[str, ...], where: str | None) -> WordCounts:
        """Of this shard's documents, or of those that match a filter."""
        snapshot = self._at(commit)
        counted = snapshot.live if where is None else snapshot.filtered(where, strict=False).allowed
        return count_words(snapshot, words, counted)

    def facets(self, commit: int, keys: Sequence[str], where: str | None) -> tuple[dict[str, Counts], KnownKeys]:
        """How many documents that match the filter have each value of the keys; and what is known of the keys."""
        snapshot = self._at(commit)
        allowed = snapshot.live if where is None else snapshot.filtered(where, strict=False).allowed
        return count_facets(snapshot, keys, allowed), known_facets(snapshot, keys)

    def search(self, commit: int, query: ShardQuery) -> ShardRanking:
        watch = Stopwatch()
        snapshot = self._at(commit)
        decision = _decision(snapshot, query)
        watch.lap("filter")
        found = find(snapshot, decision, watch)
        hits = tuple(map(_values, found.hits))
        how = found.plan.gather
        return ShardRanking(hits, found.gathered, found.scored, how, found.scores, watch.laps, snapshot.manifest.commit)

    def search_several(self, commit: int, queries: Sequence[ShardQuery]) -> list[ShardRanking]:
        """The rankings of the first queries, one at least, and as many as there is time for."""
        end = time.monotonic() + _SECONDS_FOR_SEVERAL
        rankings = [self.search(commit, queries[0])]
        for query in queries[1:]:
            if time.monotonic() > end:
                break
            rankings.append(self.search(commit, query))
        return rankings

    def costs(self, commit: int) -> Costs:
        return costs_of(self._at(commit))

    def candidates(self, commit: int, query: ShardQuery) -> list[str]:
        snapshot = self._at(commit)
        return snapshot.docnos(scored(snapshot, _decision(snapshot, query)))

    def score(self, commit: int, query: EncodedText, docnos: Sequence[str]) -> list[float]:
        self._at(commit)
        return self._index.score(query, docnos)

    def evidence(self, commit: int, query: ShardQuery, docno: str) -> Evidence:
        snapshot = self._at(commit)
        return find_evidence(snapshot, _decision(snapshot, query), docno)

    def standing(self, commit: int, query: ShardQuery, score: float, text_score: float | None, docno: str) -> Standing:
        snapshot = self._at(commit)
        return find_standing(snapshot, _decision(snapshot, query), score, text_score, docno)

    def documents(self, commit: int, skip: int, most: int, embeddings: bool) -> tuple[list[Document], int]:
        """Up to `most` documents after the first `skip`, with their embeddings if asked for; and their commit."""
        snapshot = self._at(commit)
        documents = list(islice(live_documents(snapshot, skip, embeddings), most))
        return documents, snapshot.manifest.commit

    def similarities(
        self, commit: int, query: EncodedText, docno: str
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        similarities, token_ids = self._at(commit).similarities(query, docno)
        return similarities, np.array(token_ids)  # not a view of a mapped file

    def has(self, commit: int, docnos: Sequence[str]) -> list[str]:
        """Those of the docnos that this shard holds."""
        return list(self._at(commit).find_all(docnos))

    def get(self, commit: int, docno: str) -> Document:
        self._at(commit)
        return self._index.get(docno)

    def fields(self, commit: int) -> dict[str, Field]:
        return fields_of(self._at(commit))

    def origin(self, commit: int) -> Origin:
        return Origin.of(self._at(commit))

    def info(self, commit: int) -> dict[str, Any]:
        self._at(commit)
        return self._index.info()

    def check(self, commit: int, number: int, shards: int) -> None:
        """Check every byte, and that each document belongs to this shard."""
        snapshot = self._at(commit)
        check_snapshot(snapshot)
        live = np.arange(snapshot.firsts[-1]) if snapshot.live is None else np.flatnonzero(snapshot.live)
        for docno in snapshot.docnos(live):
            if shard_of(docno, shards) != number:
                raise DamagedIndexError(f"{self._index.path} has {docno!r}, which belongs to another shard")

    def add(self, commit: int, items: Sequence[Item], skip_present: bool, write_id: str) -> ShardWrite:
        """Add encoded documents. If a docno is there already, raise and add none; or skip it with `skip_present`."""
        problems: list[str] = []
        on_bad = problems.append if skip_present else None
        changes = self._index.change(lambda writer: writer.add(items, None, on_bad, False, write_id))
        return ShardWrite(self.state(commit), changes, tuple(problems))

    def update(self, commit: int, items: Sequence[Item], write_id: str) -> ShardWrite:
        """Add encoded documents, each in place of the one that has its docno."""
        changes = self._index.change(lambda writer: writer.add(items, None, None, True, write_id))
        return ShardWrite(self.state(commit), changes)

    def delete(self, commit: int, docnos: Sequence[str], write_id: str) -> ShardWrite:
        changes = self._index.change(lambda writer: writer.delete(docnos, write_id))
        return ShardWrite(self.state(commit), changes)

    def delete_where(self, commit: int, where: str, write_id: str) -> ShardWrite:
        """Not strict: whether a key is known is decided for all shards together."""
        changes = self._index.change(lambda writer: writer.delete_where(where, write_id, strict=False))
        return ShardWrite(self.state(commit), changes)

    def update_metadata(self, commit: int, metadata: Mapping[str, Mapping[str, Any]], write_id: str) -> ShardWrite:
        changes = self._index.change(lambda writer: writer.update_metadata(metadata, write_id))
        return ShardWrite(self.state(commit), changes)

    def compact(self, commit: int) -> ShardWrite:
        self._index.compact(progress=False)
        return ShardWrite(self.state(commit), Changes())

    def calibrate(self, commit: int, queries: Sequence[EncodedText] | None) -> ShardWrite:
        if self._index.snapshot.embedded:
            self._index.calibrate(queries, progress=False)
        return ShardWrite(self.state(commit), Changes())

    def close(self) -> None:
        self._index.close()

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


def _decision(snapshot: Snapshot, query: ShardQuery) -> Decision:
    """What was decided for all shards, with this shard's part of the filter."""
    plan = query.plan
    if plan.where is None:
        matching = OneIndex(snapshot).filter(SearchSettings())
    else:
        # Not strict: whether a key is known is decided for all shards together.
        filtered = snapshot.filtered(plan.where, strict=False)
        matching = Matching(filtered.count, snapshot.frequencies, filtered.allowed)
    return Decision(query.encoded, plan, query.ordered, keep(query.ordered, plan.p), matching)
