"""`ShardedIndex`: a collection in shards, searched and changed as if it were one index.

The query is encoded once, and its embeddings are ordered by the frequencies of the whole collection, once. Each shard
gathers with those that are kept and scores exactly with all. What comes back is merged by score, and where scores are
equal by docno, as within one index.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus import BadDocumentError, OnBad, to_document
from ..effort import plan as make_plan
from ..effort import share
from ..encoders import Encoder
from ..errors import DuplicateDocumentError, EncoderMismatchError, SecateursError, ShardsMissingError, UsageError
from ..explain import Explanation, assemble
from ..frequencies import Frequencies
from ..gather import GATHERERS
from ..importance import Positions, order_positions
from ..index.encoding import EncodesQueries
from ..index.index import with_places
from ..index.writing import Changes
from ..records import Document, EncodedText, Ranking, SearchPlan, SearchSettings, SearchStats
from ..search import Stopwatch
from ..threads import in_order
from .fleet import Arguments, Fleet, LocalFleet
from .layout import Layout, shard_of
from .shard import Answer, Asked, State, total


class ShardedIndex(EncodesQueries):
    """A collection in shards, open for searching. Safe to use from several threads.

    >>> with ShardedIndex("big.sec", ray="auto", replicas=2) as index:
    ...     ranking = index.search("do goldfish grow", k=10, p=3)
    """

    def __init__(
        self,
        path: str | Path,
        encoder: Encoder | None = None,
        *,
        ray: str | None = None,
        replicas: int = 1,
        seconds: float = 10.0,
    ) -> None:
        """Open a collection that `secateurs shard build` made.

        ray        the address of a Ray cluster that is to hold the shards: "auto" finds one on this machine, "local"
                   starts one; None opens all shards in this process
        replicas   actors for each shard, on different nodes if there are any
        seconds    how long a search waits for a shard that does not answer, before it is missing
        """
        folder = Path(path).absolute()
        self.layout = Layout.read(folder)
        if replicas < 1:
            raise UsageError(f"there must be at least one replica, not {replicas}")
        self._fleet: Fleet
        if ray is None:
            self._fleet = LocalFleet(folder, self.layout)
        else:
            from .replicas import RayFleet

            self._fleet = RayFleet(folder, self.layout, ray, replicas, seconds)
        self._states: list[State | None] = [None] * len(self.layout.shards)
        self._changing = Lock()  # of the states
        self._writing = Lock()
        self._stale = set(range(len(self._states)))
        try:
            self._renew()
            known = [state for state in self._states if state is not None]
            if not known:
                raise ShardsMissingError(f"none of the shards of {folder} can be reached")
            for state in known:
                if state.encoder != known[0].encoder:
                    raise EncoderMismatchError(f"the shards of {folder} were built with different encoders")
            self._first = known[0]
            super().__init__(Path(path), encoder)
        except BaseException:
            self._fleet.close()
            raise

    def close(self) -> None:
        """Let go of the shards. Actors on Ray end."""
        self._fleet.close()

    def __enter__(self) -> ShardedIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def encoder_spec(self) -> Mapping[str, Any]:
        return self._first.encoder

    @property
    def dim(self) -> int:
        return max((state.dim for state in self._states if state is not None), default=0)

    @property
    def prepared(self) -> tuple[str, ...]:
        """The ways of gathering that every shard can do, the default first."""
        known = [state.prepared for state in self._states if state is not None]
        return tuple(name for name in GATHERERS if all(name in prepared for prepared in known))

    @property
    def frequencies(self) -> Frequencies:
        """Token frequencies of the whole collection."""
        return self._totals()[1]

    def __len__(self) -> int:
        return self._totals()[0]

    def __contains__(self, docno: object) -> bool:
        if not isinstance(docno, str):
            return False
        home = self._home(docno)
        return bool(self._ask("has", {home: ([docno],)})[home])

    def search(self, query: str | EncodedText, k: int = SearchSettings.k, **settings: Any) -> Ranking:
        """The k best documents of all shards. Settings as in `Index.search`.

        A shard that cannot be reached is an error, ShardsMissingError; with `partial=True` it is left out, and
        `ranking.stats.shards_missing` says how many were.
        """
        return self._search(query, SearchSettings.of({"k": k, **settings}))

    def search_many(
        self, queries: Iterable[str | EncodedText], threads: int | None = None, **settings: Any
    ) -> Iterator[Ranking]:
        """A ranking for each query, in their order, several at a time."""
        wanted = SearchSettings.of(settings)
        return in_order(self._search, ((query, wanted) for query in queries), threads)

    def _search(self, query: str | EncodedText, settings: SearchSettings) -> Ranking:
        watch = Stopwatch()
        encoded = self.encode_query(query)
        watch.lap("encode")
        decided = self._decide(encoded, settings)
        watch.lap("prune")
        answers: dict[int, Answer] = self._ask("search", self._to_all(decided.asked), settings.partial)
        watch.lap("cluster")
        with self._changing:
            self._stale |= {
                number for number, answer in answers.items() if answer.commit != _commit(self._states[number])
            }
        best = heapq.merge(*(answer.hits for answer in answers.values()), key=lambda hit: (-hit.score, hit.docno))
        hits = tuple(hit for hit, _ in zip(best, range(settings.k), strict=False))
        slowest = max((answer.milliseconds for answer in answers.values()), key=_sum, default={})
        times = {**watch.laps, **slowest, "cluster": max(watch.laps["cluster"] - _sum(slowest), 0.0)}
        return Ranking(
            hits=hits,
            query=encoded,
            kept=tuple(decided.kept.tolist()),
            plan=decided.plan,
            stats=SearchStats(
                query_embeddings=len(encoded),
                embeddings_kept=len(decided.kept),
                documents_gathered=sum(answer.documents_gathered for answer in answers.values()),
                documents_scored=sum(answer.documents_scored for answer in answers.values()),
                documents_in_index=decided.documents,
                documents_matching=decided.matching,
                milliseconds=times,
                shards_missing=len(self._states) - len(answers),
            ),
        )

    def importance(self, query: EncodedText, **settings: Any) -> tuple[Positions, Frequencies]:
        """All positions of a query, most important first, and the frequencies that decided it."""
        decided = self._decide(query, SearchSettings.of(settings))
        return decided.asked.ordered, decided.frequencies

    def explain(self, query: str | EncodedText, docno: str, **settings: Any) -> Explanation:
        """Token by token, why a document has its score, and which query embeddings gather it: as `search` would."""
        wanted = SearchSettings.of(settings)
        encoded = self.encode_query(query)
        decided = self._decide(encoded, wanted)
        home = self._home(docno)
        evidence = self._ask("evidence", {home: (decided.asked, docno)})[home]
        standings = self._ask("standing", self._to_all(decided.asked, evidence.score, docno), wanted.partial)
        ordered, p = decided.asked.ordered, decided.plan.p
        return assemble(docno, encoded, ordered, p, decided.frequencies, evidence, list(standings.values()), self)

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """What MaxSim takes the maxima of, (document tokens, query embeddings); and those tokens' ids."""
        home = self._home(docno)
        found: tuple[NDArray[np.float64], NDArray[np.int32]] = self._ask("similarities", {home: (query, docno)})[home]
        return found

    def get(self, docno: str) -> Document:
        """The stored document of that docno."""
        home = self._home(docno)
        document: Document = self._ask("get", {home: (docno,)})[home]
        return document

    def add(
        self,
        documents: str | Path | Iterable[Document | Mapping[str, Any]],
        *,
        progress: bool | None = None,
        on_bad: OnBad | None = None,
    ) -> Changes:
        """Add documents, each to the shard that its docno says. They are searchable, and safe, when this returns.

        A docno that is there already is an error, and then nothing is added; with `on_bad` that document is skipped.
        All of the documents are held in memory: for very many, build.
        """
        with self._writing:
            batches = self._batches(documents, on_bad, new=True)
            return self._write("add", "update", batches)

    def update(
        self,
        documents: str | Path | Iterable[Document | Mapping[str, Any]],
        *,
        progress: bool | None = None,
        on_bad: OnBad | None = None,
    ) -> Changes:
        """Add documents, each in place of the one that has its docno, if there is one. One step in each shard."""
        with self._writing:
            return self._write("update", "update", self._batches(documents, on_bad, new=False))

    def delete(self, docnos: str | Iterable[str]) -> Changes:
        """Delete documents. Docnos that are not there come back as `missing`."""
        wanted = [docnos] if isinstance(docnos, str) else list(dict.fromkeys(docnos))
        batches: dict[int, list[str]] = {}
        for docno in wanted:
            batches.setdefault(self._home(docno), []).append(docno)
        with self._writing:
            changes = self._write("delete", "delete", batches)
        missing = set(changes.missing)
        return replace(changes, missing=tuple(docno for docno in wanted if docno in missing))

    def compact(self, *, progress: bool | None = None) -> None:
        """Each shard as one segment, with cells learnt anew."""
        with self._writing:
            self._each(lambda number: self._change("compact", "compact", number, ()), range(len(self._states)))

    def refresh(self) -> bool:
        """See what others have written; say whether they had."""
        before = list(self._states)
        with self._changing:
            self._stale |= set(range(len(before)))
        self._renew(look=True)
        return any(old is not new for old, new in zip(before, self._states, strict=True))

    def info(self) -> dict[str, Any]:
        """What the collection is and holds, in plain values; and each shard of it that can be reached."""
        parts = self._ask("info", self._to_all(), partial=True)
        first = next(iter(parts.values()))
        sums = ("documents", "embeddings", "cut_documents", "bytes", "segments", "deleted_documents")
        return {
            "path": str(self.path),
            **{name: sum(part[name] for part in parts.values()) for name in sums},
            "token_types": len(self.frequencies.token_ids),
            "dim": self.dim,
            "store": first["store"],
            "gather": list(self.prepared),
            "encoder": dict(self.encoder_spec),
            "shards": [
                {"name": record.name, "node": record.node, "missing": number not in parts}
                | {name: parts[number][name] for name in (*sums, "commit") if number in parts}
                for number, record in enumerate(self.layout.shards)
            ],
            "format_version": self.layout.format_version,
            "written_by": self.layout.written_by,
        }

    def check(self) -> None:
        """Read every byte of every shard, and see that each document is in the shard that its docno says."""
        shards = len(self._states)
        self._ask("check", {number: (number, shards) for number in range(shards)})

    def _decide(self, query: EncodedText, settings: SearchSettings) -> _Decided:
        """What holds for all shards: which embeddings gather, and how much each shard looks at."""
        self._renew()
        documents, frequencies = self._totals()
        matching = documents
        if settings.where is not None:
            with_frequencies = settings.frequencies == "matching"
            parts = self._ask("matching", self._to_all(settings.where, with_frequencies), settings.partial).values()
            matching = sum(count for count, _ in parts)
            if with_frequencies:
                frequencies = reduce(Frequencies.__add__, (part for _, part in parts), Frequencies.none())
        plan = make_plan(settings, query, self.prepared, documents, matching)
        ordered = order_positions(plan.order, query, frequencies)
        for_shards = replace(
            settings,
            p=plan.p,
            order="first",  # it is decided; one's own function might not travel
            gather=plan.gather,
            k_prime=share(plan.k_prime, len(self._states)),
            candidates=share(plan.candidates, len(self._states)),
        )
        return _Decided(Asked(query, ordered, for_shards), plan, frequencies, documents, matching)

    def _home(self, docno: str) -> int:
        if not isinstance(docno, str):
            raise UsageError(f"a docno is a text, not {docno!r}")
        return shard_of(docno, len(self._states))

    def _to_all(self, *arguments: Any) -> Arguments:
        return dict.fromkeys(range(len(self._states)), arguments)

    def _ask(self, method: str, arguments: Arguments, partial: bool = False) -> dict[int, Any]:
        with_commit = {number: (_commit(self._states[number]), *given) for number, given in arguments.items()}
        return self._fleet.ask(method, with_commit, partial)

    def _renew(self, look: bool = False) -> None:
        """Ask the shards that have changed for their state. One that cannot be reached keeps the one it had."""
        with self._changing:
            stale, self._stale = self._stale, set()
        if not stale:
            return
        known = {number: self._states[number] for number in stale}
        arguments = {number: (state.commit if state else None, look) for number, state in known.items()}
        try:
            answers = self._ask("state", arguments, partial=True)
        except BaseException:
            with self._changing:
                self._stale |= stale
            raise
        with self._changing:
            self._stale |= {number for number in stale - answers.keys() if self._states[number] is None}
            for number, state in answers.items():
                self._learn(number, state)

    def _learn(self, number: int, state: State | None) -> None:
        if state is not None and state.commit >= _commit(self._states[number]):
            self._states[number] = state
            self._sum = None

    def _totals(self) -> tuple[int, Frequencies]:
        """Documents and frequencies of all shards; added up when a shard has changed."""
        with self._changing:
            if self._sum is None:
                known = [state for state in self._states if state is not None]
                self._sum = (
                    sum(state.documents for state in known),
                    reduce(Frequencies.__add__, (state.frequencies for state in known), Frequencies.none()),
                )
            return self._sum

    _sum: tuple[int, Frequencies] | None = None

    def _batches(
        self, documents: str | Path | Iterable[Document | Mapping[str, Any]], on_bad: OnBad | None, new: bool
    ) -> dict[int, list[Document]]:
        """The documents by shard, after all that can be wrong with them has been looked for."""
        batches: dict[int, dict[str, tuple[str, Document]]] = {}

        def bad(problem: str, error: type[SecateursError] = BadDocumentError) -> None:
            if on_bad is None:
                raise error(problem)
            on_bad(problem)

        for place, item in with_places(documents, on_bad)[0]:
            try:
                document = to_document(item)
            except BadDocumentError as error:
                bad(f"{place}: {error}")
                continue
            batch = batches.setdefault(self._home(document.docno), {})
            if document.docno in batch:
                earlier = batch[document.docno][0]
                bad(f"{place}: docno {document.docno!r} is already that of {earlier}", DuplicateDocumentError)
            else:
                batch[document.docno] = (place, document)
        if new and batches:
            there = self._ask("has", {number: (list(batch),) for number, batch in batches.items()})
            for number, docnos in there.items():
                for docno in docnos:
                    place, _ = batches[number].pop(docno)
                    bad(
                        f"{place}: docno {docno!r} is in the index already: to replace it, update",
                        DuplicateDocumentError,
                    )
        return {number: [document for _, document in batch.values()] for number, batch in batches.items() if batch}

    def _write(self, method: str, again: str, batches: Mapping[int, Sequence[Any]]) -> Changes:
        return total(self._each(lambda number: self._change(method, again, number, (batches[number],)), batches))

    def _change(self, method: str, again: str, number: int, arguments: tuple[Any, ...]) -> Changes:
        commit = _commit(self._states[number])
        changes: Changes
        changes, state = self._fleet.write(method, again, number, (commit, *arguments))
        with self._changing:
            self._learn(number, state)
        return changes

    def _each(self, work: Callable[[int], Changes], shards: Iterable[int]) -> list[Changes]:
        """On several shards at once. If some fail, say which: each shard is changed whole or not at all."""
        numbers = sorted(shards)
        if not numbers:
            return []
        done, failed = [], {}
        with ThreadPoolExecutor(min(len(numbers), 32), thread_name_prefix="secateurs-writes") as pool:
            running = {number: pool.submit(work, number) for number in numbers}
            for number, future in running.items():
                try:
                    done.append(future.result())
                except Exception as error:
                    failed[number] = error
        if failed:
            first = next(iter(failed.values()))
            if not done:
                raise first
            names = ", ".join(self.layout.shards[number].name for number in failed)
            raise SecateursError(
                f"{len(done)} of {len(numbers)} shards were changed, but not {names} ({first}): "
                "to change the rest too, update with the same documents, or delete the same docnos"
            ) from first
        return done


class _Decided:
    def __init__(self, asked: Asked, plan: SearchPlan, frequencies: Frequencies, documents: int, matching: int) -> None:
        self.asked, self.plan, self.frequencies = asked, plan, frequencies
        self.documents, self.matching = documents, matching

    @property
    def kept(self) -> Positions:
        return self.asked.ordered[: self.plan.p]


def _commit(state: State | None) -> int:
    return 0 if state is None else state.commit


def _sum(milliseconds: Mapping[str, float]) -> float:
    return sum(milliseconds.values())
