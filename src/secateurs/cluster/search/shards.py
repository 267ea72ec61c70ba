"""The shards of a collection together: how each is asked, and what is known of it.

Of every shard its last known commit, size and token frequencies are kept here. An answer that comes from a newer commit
shows that somebody else has written; then that shard is asked for its state before the next search.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import Any

from ...errors import EncoderMismatchError, PartlyWrittenError, SecateursError, ShardsMissingError, UsageError
from ...frequencies import Frequencies
from ...records import GATHERERS, GatherName
from ..layout import Layout, shard_of
from .local_shards import Arguments, Commits, Fleet, LocalFleet
from .shard import State


class Shards:
    def __init__(self, path: Path, ray: str | None, replicas: int, seconds: float) -> None:
        self._path = path
        self._folder = folder = path.absolute()
        self.layout = Layout.read(path)
        if replicas < 1:
            raise UsageError(f"there must be at least one replica, not {replicas}")
        if ray is None and replicas > 1:
            raise UsageError("replicas are for a cluster: give its address too, with  ray=...  (--ray)")
        self._fleet: Fleet
        if ray is None:
            self._fleet = LocalFleet(folder, self.layout)
        else:
            from .ray_shards import RayFleet

            self._fleet = RayFleet(folder, self.layout, ray, replicas, seconds)
        self._states: list[State | None] = [None] * len(self.layout.shards)
        self._sum: tuple[int, Frequencies] | None = None  # until a shard has changed
        self._changing = Lock()  # of all of these
        self._stale = set(range(len(self)))
        self._closed = False
        try:
            self.renew()
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
        self._fleet.close()

    @property
    def known(self) -> list[State]:
        return [state for state in self._states if state is not None]

    @property
    def gatherers(self) -> tuple[GatherName, ...]:
        """The ways of gathering that every shard was built for, the default first."""
        return tuple(name for name in GATHERERS if all(name in state.gatherers for state in self.known))

    def home(self, docno: str) -> int:
        if not isinstance(docno, str):
            raise UsageError(f"a docno is a text, not {docno!r}")
        return shard_of(docno, len(self))

    def to_all(self, *arguments: Any) -> Arguments:
        return dict.fromkeys(range(len(self)), arguments)

    def ask(self, method: str, arguments: Arguments, partial: bool = False) -> dict[int, Any]:
        return self._fleet.ask(method, self._commits(), arguments, partial)

    def _commits(self) -> Commits:
        if self._closed:
            raise SecateursError(f"{self._path} is closed: open it again")
        return {number: _commit(state) for number, state in enumerate(self._states)}

    def note(self, commits: dict[int, int]) -> None:
        """The commits that answers came from."""
        with self._changing:
            self._stale |= {number for number, commit in commits.items() if commit != _commit(self._states[number])}

    def renew(self, partial: bool = True) -> None:
        """Ask the shards that have changed for their state. One that cannot be reached keeps the one it had; a search
        over all shards needs to know of all."""
        with self._changing:
            stale, self._stale = self._stale, set()
        if stale:
            self._ask_for_states(stale)
        unknown = [number for number, state in enumerate(self._states) if state is None]
        if unknown and not partial:
            self._ask_for_states(unknown, partial=False)

    def look(self) -> bool:
        """See what others have written; say whether they had."""
        before = [_commit(state) for state in self._states]
        self._ask_for_states(range(len(before)), look=True)
        for state in self.known:
            if state.problem is not None:
                raise SecateursError(state.problem)
        return before != [_commit(state) for state in self._states]

    def _ask_for_states(self, numbers: Iterable[int], look: bool = False, partial: bool = True) -> None:
        known = {number: self._states[number] for number in numbers}
        arguments = {number: (state.commit if state else None, look) for number, state in known.items()}
        answers = self.ask("state", arguments, partial)
        with self._changing:
            self._stale |= {number for number, state in known.items() if state is None and number not in answers}
            for number, state in answers.items():
                self._learn(number, state)

    def _learn(self, number: int, state: State | None) -> None:
        """None is the state that was known."""
        known = self._states[number]
        if state is None and known is not None and known.problem is not None:
            self._states[number] = replace(known, problem=None)
        if state is not None and state.commit >= _commit(known):
            self._states[number] = state
            self._sum = None

    def totals(self) -> tuple[int, Frequencies]:
        """Documents and frequencies of all shards; added up when a shard has changed."""
        with self._changing:
            if self._sum is None:
                known = self.known
                self._sum = (
                    sum(state.documents for state in known),
                    reduce(Frequencies.__add__, (state.frequencies for state in known), Frequencies.none()),
                )
            return self._sum

    def check_layout(self) -> None:
        """Whoever builds the collection anew makes new shards. What is written to the old ones would be lost."""
        if Layout.read(self._folder) != self.layout:
            raise SecateursError(f"{self._path} was built anew since it was opened: open it again")

    def change(self, method: str, arguments: Arguments) -> None:
        """A write on several shards at once. If some fail, say which: each is changed whole or not at all."""
        done, failed = self.work(method, arguments)
        with self._changing:
            for number, state in done.items():
                self._learn(number, state)
        if failed and done:
            names = ", ".join(self.layout.shards[number].name for number in failed)
            first = next(iter(failed.values()))
            raise PartlyWrittenError(
                f"{len(done)} of {len(arguments)} shards were changed, but not {names} ({first}): do the same again, "
                "an addition as an update"
            ) from first
        for error in failed.values():
            raise error

    def work(self, method: str, arguments: Arguments) -> tuple[dict[int, Any], dict[int, Exception]]:
        """What takes as long as it takes, on several shards at once: results, and what went wrong."""
        done: dict[int, Any] = {}
        failed: dict[int, Exception] = {}
        with ThreadPoolExecutor(max(min(len(arguments), 32), 1), thread_name_prefix="secateurs-shards") as pool:
            commits = self._commits()
            running = {
                number: pool.submit(self._fleet.work, method, number, commits[number], given)
                for number, given in arguments.items()
            }
            for number, future in running.items():
                try:
                    done[number] = future.result()
                except Exception as error:
                    failed[number] = error
        return done, failed


def _commit(state: State | None) -> int:
    return 0 if state is None else state.commit
