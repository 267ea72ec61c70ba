"""The shards of a collection together: how they are called, and what is known of each.

Of every shard its last known commit, size and token frequencies are kept here. A ranking that comes from a newer commit
shows that another process has written to the shard; its state is fetched before the next search.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from itertools import chain
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any

from ...corpus import OnBad
from ...costs import Costs
from ...effort import PLACES
from ...errors import (
    DuplicateDocumentError,
    EncoderMismatchError,
    PartlyWrittenError,
    SecateursError,
    ShardsMissingError,
    UsageError,
)
from ...frequencies import Frequencies
from ...settings import GATHERERS, GatherName
from ...storage.manifest import CalibrationRecord
from ...threads import usable_cores
from ..layout import Layout, shard_of
from .backend import Arguments, Commits, ShardBackend
from .local_shards import LocalShards
from .shard import ShardWrite, State

_MOST_THREADS = 32  # that wait for the shards of one write
_MOST_NAMED = 10  # docnos in the message of an error; the error itself has all


class Shards:
    def __init__(self, path: Path, ray: str | None, replicas: int, seconds: float) -> None:
        self._path = path
        self._folder = folder = path.absolute()
        self.layout = Layout.read(path)
        if replicas < 1:
            raise UsageError(f"there must be at least one replica, not {replicas}")
        if ray is None and replicas > 1:
            raise UsageError("replicas are for a cluster: give its address too, with  ray=...  (--ray)")
        self.backend: ShardBackend
        if ray is None:
            self.backend = LocalShards(folder, self.layout)
        else:
            from .ray_shards import RayShards

            self.backend = RayShards(folder, self.layout, ray, replicas, seconds)
        self._states: list[State | None] = [None] * len(self.layout.shards)
        self._totals: tuple[int, Frequencies] | None = None  # None when a state has changed since they were added up
        self._stale = set(range(len(self)))  # shards whose state must be fetched
        self._states_lock = Lock()  # of these three
        self._costs: Costs | None = None
        self.on_cluster = ray is not None
        self._closed = False
        try:
            self.fetch_stale_states()
            known = self.known
            if not known:
                raise ShardsMissingError(f"none of the shards of {path} can be reached")
            for state in known:
                if state.encoder != known[0].encoder:
                    raise EncoderMismatchError(f"the shards of {path} were built with different encoders")
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self.layout.shards)

    def close(self) -> None:
        self._closed = True
        self.backend.close()

    def check_open(self) -> None:
        if self._closed:
            raise SecateursError(f"{self._path} is closed: open it again")

    @property
    def known(self) -> list[State]:
        """The states of the shards that have been reached."""
        self.check_open()
        return [state for state in self._states if state is not None]

    @property
    def gatherers(self) -> tuple[GatherName, ...]:
        """The ways of gathering that every shard was built for, the default first."""
        return tuple(name for name in GATHERERS if all(name in state.gatherers for state in self.known))

    @property
    def places(self) -> dict[str, float]:
        """Of each effort the highest that a shard needs: all shards search by one plan."""
        of_shards = [
            state.calibration.places if state.calibration else PLACES for state in self.known if state.documents
        ]
        return {effort: max((places[effort] for places in of_shards), default=PLACES[effort]) for effort in PLACES}

    @property
    def calibrations(self) -> list[CalibrationRecord]:
        """Of the shards that are large enough to be measured."""
        return [state.calibration for state in self.known if state.calibration is not None]

    def totals(self) -> tuple[int, Frequencies]:
        """Documents and frequencies of all shards."""
        with self._states_lock:
            known = self.known
            if self._totals is None:
                self._totals = (
                    sum(state.documents for state in known),
                    reduce(Frequencies.__add__, (state.frequencies for state in known), Frequencies.none()),
                )
            return self._totals

    def costs(self) -> Costs:
        """Of the shard that takes longest for the same work, measured once. In one process, shards share its cores."""
        if self._costs is None:
            parts = self.read("costs", self.for_all(), partial=True).values()
            if not parts:
                raise ShardsMissingError(f"none of the shards of {self._path} can be reached")
            slowest: Costs = max(parts, key=lambda costs: costs.of(8, 256, 256, 32))
            in_turns = 1.0 if self.on_cluster else max(len(self) / usable_cores(), 1.0)
            self._costs = slowest.times(in_turns)
        return self._costs

    def number_for(self, docno: str) -> int:
        """The number of the shard that a docno belongs to."""
        if not isinstance(docno, str):
            raise UsageError(f"a docno is a text, not {docno!r}")
        return shard_of(docno, len(self))

    def for_all(self, *arguments: Any) -> Arguments:
        return dict.fromkeys(range(len(self)), arguments)

    def read(self, method: str, arguments: Arguments, partial: bool = False) -> dict[int, Any]:
        return self.backend.read(method, self._commits(), arguments, partial)

    def read_one(self, method: str, docno: str, *arguments: Any) -> Any:
        """A method of the shard that a docno belongs to."""
        number = self.number_for(docno)
        return self.read(method, {number: arguments})[number]

    def _commits(self) -> Commits:
        self.check_open()
        return {number: _commit(state) for number, state in enumerate(self._states)}

    # States

    def compare_commits(self, commits: Mapping[int, int]) -> None:
        """Given the commits that rankings came from: the states of shards that have moved on are stale."""
        with self._states_lock:
            self._stale |= {number for number, commit in commits.items() if commit != _commit(self._states[number])}

    def fetch_stale_states(self, partial: bool = True) -> None:
        """A shard that cannot be reached keeps its last state. Without `partial`, every shard must have one."""
        with self._states_lock:
            stale, self._stale = self._stale, set()
        if stale:
            self._fetch_states(stale)
        unknown = [number for number, state in enumerate(self._states) if state is None]
        if unknown and not partial:
            self._fetch_states(unknown, partial=False)

    def refresh(self) -> bool:
        """Include what others have written up to now; whether there was anything."""
        before = [_commit(state) for state in self._states]
        self._fetch_states(range(len(before)), look=True)
        for state in self.known:
            if state.problem is not None:
                raise SecateursError(state.problem)
        return before != [_commit(state) for state in self._states]

    def _fetch_states(self, numbers: Iterable[int], look: bool = False, partial: bool = True) -> None:
        known = {number: self._states[number] for number in numbers}
        arguments = {number: (state.commit if state else None, look) for number, state in known.items()}
        fetched = self.read("state", arguments, partial)
        with self._states_lock:
            self._stale |= {number for number, state in known.items() if state is None and number not in fetched}
            for number, state in fetched.items():
                self._set_state(number, state)

    def _set_state(self, number: int, state: State | None) -> None:
        """None: the shard is still at the commit that was known."""
        known = self._states[number]
        if state is None and known is not None and known.problem is not None:
            self._states[number] = replace(known, problem=None)
        if state is not None and state.commit >= _commit(known):
            self._states[number] = state
            self._totals = self._costs = None

    # Writes

    def check_layout(self) -> None:
        """Raise if the collection was built anew: what is written to the replaced shards would be lost."""
        self.check_open()
        if Layout.read(self._folder) != self.layout:
            raise SecateursError(f"{self._path} was built anew since it was opened: open it again")

    def write(
        self,
        method: str,
        arguments: Arguments,
        docnos: Mapping[int, Sequence[str]] = MappingProxyType({}),
        on_bad: OnBad | None = None,
    ) -> list[ShardWrite]:
        """A write on several shards at the same time. Each shard is changed whole or not at all.

        If no shard was changed, the first shard's error is raised. If only some were, it is a PartlyWrittenError with
        the docnos of either. `on_bad` gets a message for each document that a shard has skipped.
        """
        done: dict[int, ShardWrite]
        done, failed = self.work(method, arguments)
        with self._states_lock:
            for number, write in done.items():
                self._set_state(number, write.state)
        for problem in (problem for write in done.values() for problem in write.problems):
            assert on_bad is not None
            on_bad(problem)
        if failed and done:
            raise self._partly_written(done, failed, docnos)
        for error in failed.values():
            raise error
        return list(done.values())

    def _partly_written(
        self, done: Collection[int], failed: Mapping[int, Exception], docnos: Mapping[int, Sequence[str]]
    ) -> PartlyWrittenError:
        written = tuple(chain.from_iterable(docnos.get(number, ()) for number in done))
        not_written = tuple(chain.from_iterable(docnos.get(number, ()) for number in failed))
        names = ", ".join(self.layout.shards[number].name for number in failed)
        first = next(iter(failed.values()))
        message = f"{len(done)} of {len(done) + len(failed)} shards were changed, but not {names} ({first})"
        if not_written:
            message += f". Written: {_listed(written)}. Not written: {_listed(not_written)}"
        if isinstance(first, DuplicateDocumentError):
            message += ". To go on, add those that were not written, without the docno that is there already"
        else:
            message += ". To go on, do the same again, an addition as an update"
        error = PartlyWrittenError(message, written, not_written)
        error.__cause__ = first
        return error

    def work(self, method: str, arguments: Arguments) -> tuple[dict[int, Any], dict[int, Exception]]:
        """A method without a time limit, on several shards at the same time: results, and what went wrong."""
        done: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        commits = self._commits()
        with ThreadPoolExecutor(max(min(len(arguments), _MOST_THREADS), 1)) as pool:
            running = {
                number: pool.submit(self.backend.work, method, number, commits[number], shard_arguments)
                for number, shard_arguments in arguments.items()
            }
            for number, future in running.items():
                try:
                    done[number] = future.result()
                except Exception as error:
                    failed[number] = error
        return done, failed


def _commit(state: State | None) -> int:
    return 0 if state is None else state.commit


def _listed(docnos: Sequence[str]) -> str:
    named = ", ".join(map(repr, docnos[:_MOST_NAMED]))
    return named if len(docnos) <= _MOST_NAMED else f"{named} and {len(docnos) - _MOST_NAMED:,} more"
