"""`ShardedIndex`: a collection in shards, searched and changed as if it were one index.

The query is encoded once, and its embeddings are ordered by the frequencies of the whole collection, once. Each shard
gathers with those that are kept and scores exactly with all. What comes back is merged by score, and where scores are
equal by docno, as within one index.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...contract import EncodesQueries
from ...corpus import BadDocumentError, OnBad, to_document
from ...effort import plan as make_plan
from ...effort import share
from ...encoders import Encoder
from ...errors import DuplicateDocumentError, SecateursError, ShardsMissingError, UsageError
from ...explain import Explanation, assemble
from ...frequencies import Frequencies
from ...gather import check_gatherer
from ...importance import Positions, order_positions
from ...index import with_places
from ...progress import progress_bar
from ...records import (
    Document,
    EncodedText,
    Ranking,
    SearchPlan,
    SearchSettings,
    SearchStats,
)
from ...search import Stopwatch
from ...storage.changes import Changes
from ...storage.segment_writer import encode
from ...threads import in_order
from .shard import Answer, Asked
from .shards import Members


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
        self._members = Members(Path(path), ray, replicas, seconds)
        self._writing = Lock()
        try:
            super().__init__(Path(path), encoder)
        except BaseException:
            self._members.close()
            raise

    def close(self) -> None:
        """Let go of the shards. Actors on Ray end."""
        self._members.close()

    def __enter__(self) -> ShardedIndex:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def encoder_spec(self) -> Mapping[str, Any]:
        return self._members.known[0].encoder

    @property
    def dim(self) -> int:
        return max(state.dim for state in self._members.known)

    @property
    def prepared(self) -> tuple[str, ...]:
        """The ways of gathering that every shard can do, the default first."""
        return self._members.prepared

    @property
    def frequencies(self) -> Frequencies:
        """Token frequencies of the whole collection."""
        return self._members.totals()[1]

    def __len__(self) -> int:
        return self._members.totals()[0]

    def __contains__(self, docno: object) -> bool:
        if not isinstance(docno, str):
            return False
        home = self._members.home(docno)
        return bool(self._members.ask("has", {home: ([docno],)})[home])

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
        answers: dict[int, Answer] = self._members.ask("search", self._members.to_all(decided.asked), settings.partial)
        watch.lap("cluster")
        self._members.note({number: answer.commit for number, answer in answers.items()})
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
                shards_missing=len(self._members) - len(answers),
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
        home = self._members.home(docno)
        evidence = self._members.ask("evidence", {home: (decided.asked, docno)})[home]
        standings = self._members.ask(
            "standing", self._members.to_all(decided.asked, evidence.score, docno), wanted.partial
        )
        ordered, p = decided.asked.ordered, decided.plan.p
        return assemble(docno, encoded, ordered, p, decided.frequencies, evidence, list(standings.values()), self)

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """What MaxSim takes the maxima of, (document tokens, query embeddings); and those tokens' ids."""
        home = self._members.home(docno)
        found: tuple[NDArray[np.float64], NDArray[np.int32]] = self._members.ask(
            "similarities", {home: (query, docno)}
        )[home]
        return found

    def get(self, docno: str) -> Document:
        """The stored document of that docno."""
        home = self._members.home(docno)
        document: Document = self._members.ask("get", {home: (docno,)})[home]
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
            batches, there = self._batches(documents, on_bad)
            for docno, place in there.items():
                problem = f"{place}: docno {docno!r} is in the index already: to replace it, update"
                if on_bad is None:
                    raise DuplicateDocumentError(problem)
                on_bad(problem)
            new = {
                number: [document for document in batch if document.docno not in there]
                for number, batch in batches.items()
            }
            self._write_documents(new, progress)
            return Changes(added=sum(map(len, new.values())))

    def update(
        self,
        documents: str | Path | Iterable[Document | Mapping[str, Any]],
        *,
        progress: bool | None = None,
        on_bad: OnBad | None = None,
    ) -> Changes:
        """Add documents, each in place of the one that has its docno, if there is one. One step in each shard."""
        with self._writing:
            batches, there = self._batches(documents, on_bad)
            self._write_documents(batches, progress)
            return Changes(added=sum(map(len, batches.values())) - len(there), replaced=len(there))

    def delete(self, docnos: str | Iterable[str]) -> Changes:
        """Delete documents. Docnos that are not there come back as `missing`."""
        batches: dict[int, list[str]] = {}
        wanted = [docnos] if isinstance(docnos, str) else list(docnos)
        for docno in wanted:
            batches.setdefault(self._members.home(docno), []).append(docno)
        with self._writing:
            self._members.check_layout()
            there = {docno for some in self._which_are_there(batches).values() for docno in some}
            some = {number: [docno for docno in batch if docno in there] for number, batch in batches.items()}
            self._members.change("delete", {number: (batch,) for number, batch in some.items() if batch})
        missing = tuple(docno for docno in dict.fromkeys(wanted) if docno not in there)
        return Changes(deleted=len(there), missing=missing)

    def compact(self, *, progress: bool | None = None) -> None:
        """Each shard as one segment, with cells learnt anew."""
        with self._writing:
            self._members.check_layout()
            self._members.change("compact", self._members.to_all())

    def refresh(self) -> bool:
        """See what others have written; say whether they had."""
        self._members.check_layout()
        return self._members.look()

    def info(self) -> dict[str, Any]:
        """What the collection is and holds, in plain values; and each shard of it that can be reached."""
        parts = self._members.ask("info", self._members.to_all(), partial=True)
        if not parts:
            raise ShardsMissingError(f"none of the shards of {self.path} can be reached")
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
                for number, record in enumerate(self._members.layout.shards)
            ],
            "format_version": self._members.layout.format_version,
            "written_by": self._members.layout.written_by,
        }

    def check(self) -> None:
        """Read every byte of every shard, and see that each document is in the shard that its docno says."""
        shards = len(self._members)
        _, failed = self._members.work("check", {number: (number, shards) for number in range(shards)})
        for error in failed.values():
            raise error

    def _decide(self, query: EncodedText, settings: SearchSettings) -> _Decided:
        """What holds for all shards: which embeddings gather, and how much each shard looks at."""
        self._members.renew(settings.partial)
        documents, frequencies = self._members.totals()
        matching = documents
        if settings.where is not None:
            with_frequencies = settings.frequencies == "matching"
            parts = self._members.ask(
                "matching", self._members.to_all(settings.where, with_frequencies), settings.partial
            ).values()
            matching = sum(count for count, _ in parts)
            if with_frequencies:
                frequencies = reduce(Frequencies.__add__, (part for _, part in parts), Frequencies.none())
        plan = make_plan(settings, query, self.prepared, documents, matching)
        if plan.gather not in self.prepared:
            check_gatherer(plan.gather)
            raise SecateursError(
                f'{self.path} was built without gather="{plan.gather}": build it again with  --gather {plan.gather}'
            )
        ordered = order_positions(plan.order, query, frequencies)
        for_shards = replace(
            settings,
            p=plan.p,
            order="first",  # it is decided; one's own function might not travel
            gather=plan.gather,
            k_prime=share(plan.k_prime, len(self._members)),
            candidates=share(plan.candidates, len(self._members)),
        )
        return _Decided(Asked(query, ordered, for_shards), plan, frequencies, documents, matching)

    def _batches(
        self, documents: str | Path | Iterable[Document | Mapping[str, Any]], on_bad: OnBad | None
    ) -> tuple[dict[int, list[Document]], dict[str, str]]:
        """The documents by shard, after all that can be wrong with them has been looked for; and of those whose docno
        is there already, where they were given."""
        self._members.check_layout()
        places: dict[str, str] = {}
        batches: dict[int, list[Document]] = {}
        dim = self.dim
        for place, item in with_places(documents, on_bad)[0]:
            try:
                document = to_document(item)
                if document.docno in places:
                    raise DuplicateDocumentError(
                        f"docno {document.docno!r} is already that of {places[document.docno]}"
                    )
            except (BadDocumentError, DuplicateDocumentError) as error:
                if on_bad is None:
                    raise type(error)(f"{place}: {error}") from error
                on_bad(f"{place}: {error}")
                continue
            dim = self._check_embeddings(document, place, dim)
            places[document.docno] = place
            batches.setdefault(self._members.home(document.docno), []).append(document)
        there = self._which_are_there({n: [document.docno for document in batch] for n, batch in batches.items()})
        return batches, {docno: places[docno] for some in there.values() for docno in some}

    def _check_embeddings(self, document: Document, place: str, dim: int) -> int:
        """How many dimensions embeddings have: those of the collection, or of the first document."""
        if document.encoded is None and not self.has_encoder:
            raise UsageError(f"{place}: {document.docno!r} has no embeddings, and {self.path} has no encoder")
        if document.encoded is None:
            return dim
        if self.has_encoder:
            raise UsageError(f"{place}: {document.docno!r} brings its embeddings, but {self.path} makes its own")
        own = document.encoded.embeddings.shape[1]
        if len(document.encoded) and dim and own != dim:
            raise UsageError(f"{place}: {document.docno!r} has embeddings of {own} dimensions, the others of {dim}")
        return dim or own

    def _which_are_there(self, docnos: Mapping[int, list[str]]) -> dict[int, list[str]]:
        return self._members.ask("has", {number: (some,) for number, some in docnos.items()})

    def _write_documents(self, batches: Mapping[int, Sequence[Document]], progress: bool | None) -> None:
        """Encode here, with the one encoder there is, and hand over."""
        documents = [document for batch in batches.values() for document in batch]
        with progress_bar("encoding documents", len(documents), "passages", progress) as advance:
            encoded = []
            for document, own in zip(
                documents, encode(documents, self.encoder if self.has_encoder else None), strict=True
            ):
                encoded.append(replace(document, encoded=own))
                advance(1)
        ready = iter(encoded)
        self._members.change(
            "update", {number: (list(islice(ready, len(batch))),) for number, batch in batches.items() if batch}
        )


class _Decided(NamedTuple):
    asked: Asked
    plan: SearchPlan
    frequencies: Frequencies
    documents: int
    matching: int

    @property
    def kept(self) -> Positions:
        return self.asked.ordered[: self.plan.p]


def _sum(milliseconds: Mapping[str, float]) -> float:
    return sum(milliseconds.values())
