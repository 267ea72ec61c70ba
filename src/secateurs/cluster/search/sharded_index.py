"""`ShardedIndex`: a collection in shards, searched and changed as if it were one index.

The query is encoded once, and its embeddings are ordered by the frequencies of the whole collection, once. Each shard
gathers with those that are kept and scores exactly with all. The shards' rankings are merged by score, and where scores
are equal by docno, as within one index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...calibration import describe
from ...contract import NOT_SEVERAL, AnyIndex, Documents
from ...corpus import OnBad
from ...encoders import Encoder
from ...errors import DuplicateDocumentError, SecateursError, ShardsMissingError
from ...frequencies import Frequencies
from ...index_encoder import check_several
from ...metadata import to_metadata
from ...rankings import Ranking
from ...records import Changes, Document, EncodedText, Field, check_either, to_docnos
from ...search import decide
from ...settings import GatherName, SearchSettings
from ...storage.fields import merged_fields
from ...storage.indexing import in_index_already
from ...storage.origin import Origin
from ...storage.rounding import Int8Store
from ...transfer.pushing import IndexFiles
from ..hub import collection_files, pull_shards
from .backend import Arguments
from .batches import Batches, encode_batches, new_write_id, read_batches
from .searched_shards import SearchedShards
from .several_queries import search_in_batches
from .shards import Shards

_EXPORTED_AT_ONCE = 256  # documents


class ShardedIndex(AnyIndex):
    """A collection in shards, open for searching. Safe to use from several threads.

    >>> with ShardedIndex("big.sec", ray="auto", replicas=2) as index:
    ...     ranking = index.search("do goldfish grow", k=10, p=3)

    A copy, or a pickled index in another process, opens the same collection again, with threads or actors of its own.
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

        ray        the address of the Ray cluster whose actors hold the shards: "auto" finds one on this machine,
                   "local" starts one; None opens all shards in this process
        replicas   actors for each shard, on different nodes if there are enough
        seconds    how long a search waits for a shard that does not answer, before it counts as missing
        """
        self._shards = Shards(Path(path), ray, replicas, seconds)
        self._write_lock = Lock()  # of this object: each shard's own writer decides between processes
        try:
            super().__init__(Path(path), encoder, ray=ray, replicas=replicas, seconds=seconds)
        except BaseException:
            self._shards.close()
            raise

    def close(self) -> None:
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
        return self._shards.totals()[1]

    def __len__(self) -> int:
        return self._shards.totals()[0]

    def __contains__(self, docno: object) -> bool:
        return isinstance(docno, str) and bool(self._shards.read_one("has", docno, [docno]))

    def searched(self) -> SearchedShards:
        return SearchedShards(self.path, self._shards)

    def search_many(
        self, queries: Iterable[str | EncodedText], threads: int | None = None, **settings: Any
    ) -> Iterator[Ranking]:
        """As `search` for each query, in their order. On Ray, several queries go to a shard in one call."""
        if not self._shards.on_cluster:
            return super().search_many(queries, threads, **settings)
        check_several(queries, NOT_SEVERAL)
        found = search_in_batches(self, queries, SearchSettings.of(settings), threads)
        return (self._viewed(ranking) for ranking in found)

    def candidates(self, query: str | EncodedText, **settings: Any) -> list[str]:
        search_settings = SearchSettings.of(settings)
        searched, encoded = self.searched(), self.encode_query(query)
        decision = decide(searched, encoded, search_settings)
        return searched.candidates(decision, search_settings)

    def score(self, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
        encoded, docnos = self.encode_query(query), to_docnos(docnos)
        by_shard = self._by_shard(docnos)
        arguments = {number: (encoded, shard_docnos) for number, shard_docnos in by_shard.items()}
        answers = self._shards.read("score", arguments)
        scores: dict[str, float] = {}
        for number, shard_docnos in by_shard.items():
            scores.update(zip(shard_docnos, answers[number], strict=True))
        return [scores[docno] for docno in docnos]

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        found: tuple[NDArray[np.float64], NDArray[np.int32]]
        found = self._shards.read_one("similarities", docno, self.encode_query(query), docno)
        return found

    def get(self, docno: str) -> Document:
        document: Document = self._shards.read_one("get", docno, docno)
        return document

    def documents(self, *, embeddings: bool = True) -> Iterator[Document]:
        """Shard after shard. If a shard is changed meanwhile, this raises: read them again from the beginning."""
        for number in range(len(self._shards)):
            count, first_commit = 0, None
            while True:
                page, commit = self._shards.read("documents", {number: (count, _EXPORTED_AT_ONCE, embeddings)})[number]
                if first_commit not in (None, commit):
                    raise SecateursError(f"{self.path} was changed while its documents were read: read them again")
                yield from page
                count, first_commit = count + len(page), commit
                if len(page) < _EXPORTED_AT_ONCE:
                    break

    def _origin(self) -> Origin:
        first, *others = self._shards.read("origin", self._shards.for_all()).values()
        same = all(_same_scale(first.int8, other.int8) for other in others)
        origin: Origin = first._replace(
            unit=all(origin.unit for origin in (first, *others)), dim=self.dim, int8=first.int8 if same else None
        )
        return origin

    _fetch = staticmethod(pull_shards)

    def _files(self) -> IndexFiles:
        self._shards.check_layout()
        return collection_files(self.path, self._shards.layout)

    def fields(self) -> dict[str, Field]:
        # Without the time limit of a search: every value of the metadata is read.
        found, failed = self._shards.work("fields", self._shards.for_all())
        for error in failed.values():
            raise error
        return merged_fields(found.values())

    def add(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        """As `Index.add`, each document to the shard of its docno. All are held in memory: for many, build.

        Docnos that are there are refused before anything is encoded. In the end each shard's writer decides: a shard
        that finds one of its docnos there, because another process has just added it, adds none of its documents. If
        other shards have added theirs, that is a PartlyWrittenError, which names the docnos of both.
        """
        with self._write_lock:
            batches = self._read_batches(documents, on_bad)
            present = self._docnos_present(batches)
            for batch in batches.values():
                for place, document in batch:
                    if document.docno in present:
                        problem = in_index_already(place, document.docno)
                        if on_bad is None:
                            raise DuplicateDocumentError(problem)
                        on_bad(problem)
            absent = {
                number: [(place, document) for place, document in batch if document.docno not in present]
                for number, batch in batches.items()
            }
            skip_present = on_bad is not None
            return self._write_documents("add", absent, progress, on_bad, skip_present)

    def update(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        with self._write_lock:
            return self._write_documents("update", self._read_batches(documents, on_bad), progress, on_bad)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> Changes:
        given = to_metadata(metadata)
        by_shard = self._by_shard(given)
        arguments = {
            number: ({docno: given[docno] for docno in docnos}, new_write_id()) for number, docnos in by_shard.items()
        }
        return self._write_docnos("update_metadata", list(given), arguments, by_shard)

    def delete(self, docnos: str | Iterable[str] | None = None, *, where: str | None = None) -> Changes:
        check_either(docnos, where)
        if where is not None:
            return self._delete_where(where)
        wanted = to_docnos(docnos)
        by_shard = self._by_shard(wanted)
        arguments = {number: (shard_docnos, new_write_id()) for number, shard_docnos in by_shard.items()}
        return self._write_docnos("delete", wanted, arguments, by_shard)

    def _by_shard(self, docnos: Iterable[str]) -> dict[int, list[str]]:
        by_shard: dict[int, list[str]] = {}
        for docno in docnos:
            by_shard.setdefault(self._shards.number_for(docno), []).append(docno)
        return by_shard

    def _delete_where(self, where: str) -> Changes:
        with self._write_lock:
            self._shards.check_layout()
            self.searched().filter(SearchSettings(where=where))  # raises if no shard has a key of the filter
            arguments = {number: (where, new_write_id()) for number in range(len(self._shards))}
            writes = self._shards.write("delete_where", arguments)
        return Changes(deleted=sum(write.changes.deleted for write in writes))

    def _write_docnos(
        self, method: str, docnos: Sequence[str], arguments: Arguments, by_shard: Mapping[int, Sequence[str]]
    ) -> Changes:
        """A write that names docnos, to the shards that they belong to."""
        with self._write_lock:
            self._shards.check_layout()
            writes = self._shards.write(method, arguments, by_shard)
        missing = {docno for write in writes for docno in write.changes.missing}
        return Changes(
            replaced=sum(write.changes.replaced for write in writes),
            deleted=sum(write.changes.deleted for write in writes),
            missing=tuple(docno for docno in dict.fromkeys(docnos) if docno in missing),
        )

    def compact(self, *, progress: bool | None = None) -> None:
        """Each shard as one segment, with cells learnt anew."""
        with self._write_lock:
            self._shards.check_layout()
            self._shards.write("compact", self._shards.for_all())

    def calibrate(self, queries: Iterable[str | EncodedText] | None = None, *, progress: bool | None = None) -> None:
        """Each shard by itself. A search takes the most thorough that a shard needs."""
        encoded = self._encode_queries(queries)
        with self._write_lock:
            self._shards.check_layout()
            self._shards.write("calibrate", self._shards.for_all(encoded))

    def refresh(self) -> bool:
        self._shards.check_layout()
        return self._shards.refresh()

    def info(self) -> dict[str, Any]:
        """What the collection is and holds, in plain values; and each shard of it that can be reached."""
        parts = self._shards.read("info", self._shards.for_all(), partial=True)
        if not parts:
            raise ShardsMissingError(f"none of the shards of {self.path} can be reached")
        first = next(iter(parts.values()))
        sums = (
            "documents",
            "embeddings",
            "merged_embeddings",
            "cut_documents",
            "bytes",
            "segments",
            "deleted_documents",
        )
        return {
            "path": str(self.path),
            **{name: sum(part[name] for part in parts.values()) for name in sums},
            "token_types": len(self.frequencies.token_ids),
            "dim": self.dim,
            "store": first["store"],
            "merge": first["merge"],
            "pool": first["pool"],
            "gather": first["gather"],
            "encoder": dict(self.encoder_spec),
            "background": first["background"],
            "calibration": describe(self._shards.calibrations),
            "shards": [
                {"name": record.name, "node": record.node, "missing": number not in parts}
                | {name: parts[number][name] for name in (*sums, "commit") if number in parts}
                for number, record in enumerate(self._shards.layout.shards)
            ],
            "format_version": self._shards.layout.format_version,
            "written_by": self._shards.layout.written_by,
        }

    def check(self) -> None:
        """Read every byte of every shard, and check that each document is in the shard of its docno."""
        shards = len(self._shards)
        _, failed = self._shards.work("check", {number: (number, shards) for number in range(shards)})
        for error in failed.values():
            raise error

    def _compile(self) -> None:
        self._shards.check_open()  # each shard compiles its kernels when it is opened

    def _read_batches(self, documents: Documents, on_bad: OnBad | None) -> Batches:
        self._shards.check_layout()
        return read_batches(self, documents, on_bad, self._shards.number_for)

    def _docnos_present(self, batches: Batches) -> set[str]:
        arguments = {number: ([document.docno for _, document in batch],) for number, batch in batches.items()}
        return {docno for docnos in self._shards.read("has", arguments).values() for docno in docnos}

    def _write_documents(
        self, method: str, batches: Batches, progress: bool | None, on_bad: OnBad | None, *arguments: Any
    ) -> Changes:
        """Encode the documents here, where the encoder is, and have each shard write its batch."""
        encoded = encode_batches(batches, self.encoder if self.has_encoder else None, progress)
        writes = self._shards.write(
            method,
            {number: (batch, *arguments, new_write_id()) for number, batch in encoded.items() if batch},
            {number: [document.docno for _, document in batch] for number, batch in encoded.items()},
            on_bad,
        )
        return Changes(
            added=sum(write.changes.added for write in writes),
            replaced=sum(write.changes.replaced for write in writes),
        )


def _same_scale(a: Int8Store | None, b: Int8Store | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.step == b.step and bool(np.array_equal(a.centre, b.centre))
