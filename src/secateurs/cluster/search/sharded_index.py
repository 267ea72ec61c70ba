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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...contract import AnyIndex, Documents
from ...corpus import BadDocumentError, OnBad, to_document, with_places
from ...encoders import Encoder
from ...errors import DuplicateDocumentError, SecateursError, ShardsMissingError, UsageError
from ...explain import Evidence, Standing
from ...frequencies import Frequencies
from ...progress import progress_bar
from ...records import Changes, Document, EncodedText, GatherName, SearchSettings
from ...search import Decision, Found, Matching, Stopwatch, decide
from ...storage.embeddings import encode
from ...storage.filters import Filter, KnownKeys, check_keys
from .shard import Answer, Asked
from .shards import Shards

_EXPORTED_AT_ONCE = 256  # documents


class ShardedIndex(AnyIndex):
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
        self._shards = Shards(Path(path), ray, replicas, seconds)
        self._writing = Lock()
        try:
            super().__init__(Path(path), encoder)
        except BaseException:
            self._shards.close()
            raise

    def close(self) -> None:
        """Let go of the shards. Actors on Ray end."""
        self._shards.close()

    @property
    def encoder_spec(self) -> Mapping[str, Any]:
        return self._shards.known[0].encoder

    @property
    def dim(self) -> int:
        return max(state.dim for state in self._shards.known)

    @property
    def gatherers(self) -> tuple[GatherName, ...]:
        return self._shards.gatherers

    @property
    def frequencies(self) -> Frequencies:
        """Token frequencies of the whole collection."""
        return self._shards.totals()[1]

    def __len__(self) -> int:
        return self._shards.totals()[0]

    def __contains__(self, docno: object) -> bool:
        if not isinstance(docno, str):
            return False
        home = self._shards.home(docno)
        return bool(self._shards.ask("has", {home: ([docno],)})[home])

    def searched(self) -> _SearchedShards:
        return _SearchedShards(self.path, self._shards)

    def candidates(self, query: str | EncodedText, **settings: Any) -> list[str]:
        wanted = SearchSettings.of(settings)
        searched, encoded = self.searched(), self.encode_query(query)
        decision = decide(searched, encoded, wanted)
        answers = self._shards.ask("candidates", searched.to_all(encoded, decision), wanted.partial)
        return [docno for docnos in answers.values() for docno in docnos]

    def score(self, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
        encoded = self.encode_query(query)
        by_shard: dict[int, list[str]] = {}
        for docno in docnos:
            by_shard.setdefault(self._shards.home(docno), []).append(docno)
        answers = self._shards.ask("score", {number: (encoded, own) for number, own in by_shard.items()})
        scores: dict[str, float] = {}
        for number, own in by_shard.items():
            scores.update(zip(own, answers[number], strict=True))
        return [scores[docno] for docno in docnos]

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """What MaxSim takes the maxima of, (document tokens, query embeddings); and those tokens' ids."""
        home = self._shards.home(docno)
        found: tuple[NDArray[np.float64], NDArray[np.int32]] = self._shards.ask("similarities", {home: (query, docno)})[
            home
        ]
        return found

    def get(self, docno: str) -> Document:
        """The stored document of that docno."""
        home = self._shards.home(docno)
        document: Document = self._shards.ask("get", {home: (docno,)})[home]
        return document

    def documents(self) -> Iterator[Document]:
        """Shard after shard. A shard that is changed meanwhile raises: begin again."""
        for number in range(len(self._shards)):
            read, commit = 0, None
            while True:
                page, seen = self._shards.ask("documents", {number: (read, _EXPORTED_AT_ONCE)})[number]
                if commit not in (None, seen):
                    raise SecateursError(f"{self.path} was changed while its documents were read: read them again")
                yield from page
                read, commit = read + len(page), seen
                if len(page) < _EXPORTED_AT_ONCE:
                    break

    def add(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        """As `Index.add`, each document to the shard that its docno says. All are held in memory: for many, build."""
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

    def update(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        with self._writing:
            batches, there = self._batches(documents, on_bad)
            self._write_documents(batches, progress)
            return Changes(added=sum(map(len, batches.values())) - len(there), replaced=len(there))

    def delete(self, docnos: str | Iterable[str]) -> Changes:
        """Delete documents. Docnos that are not there come back as `missing`."""
        batches: dict[int, list[str]] = {}
        wanted = [docnos] if isinstance(docnos, str) else list(docnos)
        for docno in wanted:
            batches.setdefault(self._shards.home(docno), []).append(docno)
        with self._writing:
            self._shards.check_layout()
            there = {docno for some in self._which_are_there(batches).values() for docno in some}
            some = {number: [docno for docno in batch if docno in there] for number, batch in batches.items()}
            self._shards.change("delete", {number: (batch,) for number, batch in some.items() if batch})
        missing = tuple(docno for docno in dict.fromkeys(wanted) if docno not in there)
        return Changes(deleted=len(there), missing=missing)

    def compact(self, *, progress: bool | None = None) -> None:
        """Each shard as one segment, with cells learnt anew."""
        with self._writing:
            self._shards.check_layout()
            self._shards.change("compact", self._shards.to_all())

    def refresh(self) -> bool:
        """See what others have written; say whether they had."""
        self._shards.check_layout()
        return self._shards.look()

    def info(self) -> dict[str, Any]:
        """What the collection is and holds, in plain values; and each shard of it that can be reached."""
        parts = self._shards.ask("info", self._shards.to_all(), partial=True)
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
            "gather": list(self.gatherers),
            "encoder": dict(self.encoder_spec),
            "shards": [
                {"name": record.name, "node": record.node, "missing": number not in parts}
                | {name: parts[number][name] for name in (*sums, "commit") if number in parts}
                for number, record in enumerate(self._shards.layout.shards)
            ],
            "format_version": self._shards.layout.format_version,
            "written_by": self._shards.layout.written_by,
        }

    def check(self) -> None:
        """Read every byte of every shard, and see that each document is in the shard that its docno says."""
        shards = len(self._shards)
        _, failed = self._shards.work("check", {number: (number, shards) for number in range(shards)})
        for error in failed.values():
            raise error

    def _batches(self, documents: Documents, on_bad: OnBad | None) -> tuple[dict[int, list[Document]], dict[str, str]]:
        """The documents by shard, after all that can be wrong with them has been looked for; and of those whose docno
        is there already, where they were given."""
        self._shards.check_layout()
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
            batches.setdefault(self._shards.home(document.docno), []).append(document)
        there = self._which_are_there({n: [document.docno for document in batch] for n, batch in batches.items()})
        return batches, {docno: places[docno] for some in there.values() for docno in some}

    def _compile(self) -> None:
        """Shards do it where they are, when they are opened."""

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
        return self._shards.ask("has", {number: (some,) for number, some in docnos.items()})

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
        self._shards.change(
            "update", {number: (list(islice(ready, len(batch))),) for number, batch in batches.items() if batch}
        )


class _SearchedShards:
    """All shards, as a search sees them."""

    def __init__(self, path: Path, shards: Shards) -> None:
        self._path, self._shards = path, shards
        self.shards = len(shards)

    def __len__(self) -> int:
        return self._shards.totals()[0]

    @property
    def gatherers(self) -> tuple[GatherName, ...]:
        return self._shards.gatherers

    def filter(self, settings: SearchSettings) -> Matching:
        self._shards.renew(settings.partial)
        documents, frequencies = self._shards.totals()
        if settings.where is None:
            return Matching(documents, frequencies)
        of_matching = settings.frequencies == "matching"
        arguments = self._shards.to_all(settings.where, of_matching)
        parts = self._shards.ask("matching", arguments, settings.partial).values()
        if len(parts) == self.shards:  # a shard that is missing may have the key
            check_keys(Filter.parse(settings.where), KnownKeys.merged(keys for _, _, keys in parts))
        if of_matching:
            frequencies = reduce(Frequencies.__add__, (part for _, part, _ in parts), Frequencies.none())
        return Matching(sum(count for count, _, _ in parts), frequencies)

    def find(self, query: EncodedText, decision: Decision, settings: SearchSettings, watch: Stopwatch) -> Found:
        """Each shard gathers, scores and ranks; what comes back is merged by score, equal scores by docno."""
        plan = decision.plan
        if plan.gather not in self.gatherers:
            raise SecateursError(
                f'{self._path} was built without gather="{plan.gather}": build it again with  --gather {plan.gather}'
            )
        answers: dict[int, Answer] = self._shards.ask("search", self.to_all(query, decision), settings.partial)
        watch.lap("cluster")
        self._shards.note({number: answer.commit for number, answer in answers.items()})
        parts = [answer.found for answer in answers.values()]
        merged = heapq.merge(*(part.hits for part in parts), key=lambda hit: (-hit.score, hit.docno))
        slowest = max((answer.milliseconds for answer in answers.values()), key=_sum, default={})
        for stage, milliseconds in slowest.items():
            watch.laps[stage] = watch.laps.get(stage, 0.0) + milliseconds
        watch.laps["cluster"] = max(watch.laps["cluster"] - _sum(slowest), 0.0)
        ways = dict.fromkeys(part.plan.gather for part in parts)
        return Found(
            hits=tuple(islice(merged, plan.k)),
            gathered=sum(part.gathered for part in parts),
            scored=sum(part.scored for part in parts),
            plan=replace(plan, gather="+".join(sorted(ways)) if ways else plan.gather),
            shards_missing=len(self._shards) - len(answers),
        )

    def evidence(self, query: EncodedText, decision: Decision, docno: str) -> Evidence:
        home = self._shards.home(docno)
        found: Evidence = self._shards.ask("evidence", {home: (_asked(query, decision), docno)})[home]
        return found

    def standings(
        self, query: EncodedText, decision: Decision, settings: SearchSettings, score: float, docno: str
    ) -> list[Standing]:
        arguments = self._shards.to_all(_asked(query, decision), score, docno)
        return list(self._shards.ask("standing", arguments, settings.partial).values())

    def to_all(self, query: EncodedText, decision: Decision) -> Mapping[int, tuple[Asked]]:
        return self._shards.to_all(_asked(query, decision))


def _asked(query: EncodedText, decision: Decision) -> Asked:
    # The order is decided, and a function of the user's own might not travel to another process.
    return Asked(query, replace(decision.plan, order="first"), decision.ordered)


def _sum(milliseconds: Mapping[str, float]) -> float:
    return sum(milliseconds.values())
