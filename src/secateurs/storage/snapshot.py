"""One committed state of an index, opened: what a search reads from beginning to end, whatever is written meanwhile.

Documents have numbers here too: those of the first segment come first. A deleted document keeps its number until its
segment is rewritten.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from pathlib import Path
from threading import Lock, RLock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..errors import DamagedIndexError, SecateursError
from ..frequencies import Frequencies
from ..kernels.refining import AnyQuery
from ..records import EncodedText, check_docno
from ..settings import GATHERERS, GatherName
from .checksums import check_files
from .codebooks import Codebook
from .codecs import codec
from .file_names import NUMBERS
from .files import REMEDY, open_array
from .filters import Filter, KnownKeys, check_keys
from .locks import FolderGoneError, Hold
from .manifest import DELETIONS, SEGMENTS, Manifest, widest
from .rounding import Store
from .segments import Segment, read_frequencies

_FILTERS_KEPT = 64
_FILTER_BYTES_KEPT = 64 << 20  # of all filters together; one is always kept
_SECONDS_BETWEEN_LOOKS = 0.1  # whether a search was cancelled that waits for another one's filter
_T = TypeVar("_T")


class Snapshot:
    def __init__(self, path: Path, manifest: Manifest, earlier: Snapshot | None = None) -> None:
        """Folders that an earlier snapshot has open are taken over from it."""
        self.path = path
        self.manifest = manifest
        known: dict[str, Segment] = {}
        if earlier is not None and earlier.manifest.codebook == manifest.codebook:
            self.codebook: Codebook = earlier.codebook
            known = {segment.record.name: segment for segment in earlier.segments}
        else:
            self.codebook = Codebook(path, manifest.codebook)
        self.codec = codec(manifest.store)
        self.segments: tuple[Segment, ...] = tuple(
            known[record.name]
            if record.name in known
            else Segment(path / SEGMENTS / record.name, record, self.codec, self.codebook, manifest.dim)
            for record in manifest.segments
        )
        sizes = [len(segment) for segment in self.segments]
        self.firsts = np.cumsum([0, *sizes])  # (segments + 1,): the number of each segment's first document
        self.live: NDArray[np.bool_] | None = None  # which documents are not deleted; None: all
        self._gone: list[Frequencies] = []
        self._holds: list[Hold] = []
        for first, record in zip(self.firsts.tolist(), manifest.segments, strict=False):
            if record.deletions is not None:
                folder = path / DELETIONS / record.deletions.name
                self._holds.append(Hold(folder))
                check_files(folder, record.deletions.files)
                if self.live is None:
                    self.live = np.ones(sum(sizes), dtype=bool)
                self.live[first + open_array(folder / NUMBERS)] = False
                self._gone.append(read_frequencies(folder))
        self._kept: dict[str, Any] = {}
        self._kept_for_good: dict[str, Any] = {} if earlier is None else earlier._kept_for_good
        self._keeping = RLock()
        self._filters: OrderedDict[str, Filtered] = OrderedDict()
        # The lock of each filter that is being evaluated; it is dropped when no thread uses it any longer.
        self._evaluating: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._lock = Lock()  # of these two

    @classmethod
    def open(cls, path: Path, earlier: Snapshot | None = None) -> Snapshot:
        """The newest state. If a writer replaces it while it is opened, the one that replaced it is opened."""
        manifest = Manifest.read(path)
        while True:
            try:
                return cls(path, manifest, earlier)
            except (SecateursError, OSError) as error:
                newer = Manifest.read(path)
                if newer == manifest:
                    if isinstance(error, FolderGoneError):
                        raise DamagedIndexError(f"{error.folder} is missing: {REMEDY}") from error
                    raise
                manifest = newer

    def __len__(self) -> int:
        return sum(record.live_documents for record in self.manifest.segments)

    @cached_property
    def frequencies(self) -> Frequencies:
        """Token frequencies of the live documents, and those of general text if the index has a background."""
        total = reduce(Frequencies.__add__, (segment.frequencies for segment in self.segments), Frequencies.none())
        live = reduce(Frequencies.__sub__, self._gone, total)
        int8 = self.codebook.int8
        centre = int8.centre if int8 is not None and self.embedded else None
        return replace(live, background=self.general_frequencies, centre=centre)

    @property
    def general_frequencies(self) -> Frequencies | None:
        """Those of the background."""
        background = self.codebook.background
        return None if background is None else background.counts

    @cached_property
    def cells(self) -> int:
        """How many cells there are."""
        return 0 if self.codebook.centroids is None else len(self.codebook.centroids)

    @cached_property
    def gatherers(self) -> tuple[GatherName, ...]:
        """The ways of gathering that this index can do, the default first."""
        empty = not any(record.embeddings for record in self.manifest.segments)
        return tuple(name for name in GATHERERS if name == "exhaustive" or empty or name in self.manifest.gather)

    @cached_property
    def store(self) -> Store:
        """Decodes rows, and prepares queries for them."""
        return self.codec.store(self.codebook, widest(self.manifest.segments))

    @property
    def embedded(self) -> list[tuple[int, Segment]]:
        """The segments that have embeddings, each with the number of its first document."""
        segments = zip(self.firsts.tolist(), self.segments, strict=False)
        return [(first, segment) for first, segment in segments if segment.record.embeddings]

    def keep(self, name: str, make: Callable[[], _T]) -> _T:
        """An object that is made by the first call, in one thread, and lives as long as this snapshot."""
        with self._keeping:
            if name not in self._kept:
                self._kept[name] = make()
            kept: _T = self._kept[name]
            return kept

    def keep_for_good(self, name: str, make: Callable[[], _T]) -> _T:
        """The same, but it is shared with the snapshots that were opened from this one. `make` may be called twice."""
        kept: _T = self._kept_for_good.get(name) or self._kept_for_good.setdefault(name, make())
        return kept

    def score(
        self, query: AnyQuery, documents: NDArray[np.int64], k: int | None = None, reached: float = -np.inf
    ) -> NDArray[np.float64]:
        """Eq. 1 for each of the documents; with k, only the k best need be right.

        `reached` is a score that k other documents have at least.
        """
        if len(self.segments) == 1:
            return self.segments[0].score(query, documents, k, reached)
        scores = np.empty(len(documents))
        for segment, places, numbers in self.by_segment(documents):
            scores[places] = segment.score(query, numbers, k, reached)
        return scores

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Every token of a document with every query embedding, (tokens, query embeddings); and the tokens' ids."""
        segment, number = self.place(self.number(docno))
        token_ids, _ = segment.tokens_of(np.array([number]))
        if len(token_ids) == 0:  # its segment may have no dimensions to compare
            return np.empty((0, len(query))), token_ids
        return segment.similarities(self.store.prepare(query.embeddings), number), token_ids

    def by_segment(self, documents: NDArray[np.int64]) -> list[tuple[Segment, NDArray[np.int64], NDArray[np.int64]]]:
        """For each segment with any of the documents: their places in the array, their numbers in the segment."""
        segment_numbers = np.searchsorted(self.firsts, documents, side="right") - 1
        parts = []
        for i in np.unique(segment_numbers).tolist():
            places = np.flatnonzero(segment_numbers == i)
            parts.append((self.segments[i], places, documents[places] - self.firsts[i]))
        return parts

    def find(self, docno: str) -> int | None:
        """The number of a live document; None, which is certain, if there is none with this docno."""
        return self.find_all([docno]).get(docno)

    def number(self, docno: str) -> int:
        found = self.find(docno)
        if found is None:
            raise self._missing(docno)
        return found

    def find_all(self, docnos: Sequence[str]) -> dict[str, int]:
        """The numbers of those that are live documents. That the others are not is certain.

        A document that is found has the checksum of its row. That there is none is certain only if all databases are as
        they were written: only then are they read whole, once.
        """
        for docno in docnos:
            check_docno(docno)
        found: dict[str, int] = {}
        for first, segment in zip(self.firsts.tolist(), self.segments, strict=False):
            for docno, number in segment.documents.numbers(docnos).items():
                if self.live is None or self.live[first + number]:
                    found[docno] = first + number
        if any(docno not in found for docno in docnos):
            for segment in self.segments:
                segment.documents.check()
        return found

    def numbers(self, docnos: Sequence[str]) -> NDArray[np.int64]:
        """The numbers of documents that must be there."""
        found = self.find_all(docnos)
        for docno in docnos:
            if docno not in found:
                raise self._missing(docno)
        return np.array([found[docno] for docno in docnos], dtype=np.int64)

    def _missing(self, docno: str) -> SecateursError:
        return SecateursError(f"no document {docno!r} in {self.path}")

    def encoded(self, number: int) -> EncodedText:
        """The embeddings of a document as they are stored, one for each position of its text."""
        segment, inside = self.place(number)
        start, end = segment.offsets[inside : inside + 2].tolist()
        segment.check_rows(np.array([start]), np.array([end]))
        embeddings = self.store.decode(segment.rows[np.arange(start, end)])
        positions = slice(*segment.position_offsets[inside : inside + 2].tolist())
        if segment.positions.rows is not None:
            embeddings = embeddings[segment.positions.rows[positions]]
        return EncodedText(embeddings, segment.token_ids[positions], segment.token_kinds[positions])

    def place(self, number: int) -> tuple[Segment, int]:
        """The segment a document is in, and its number there."""
        i = int(np.searchsorted(self.firsts, number, side="right")) - 1
        return self.segments[i], number - int(self.firsts[i])

    def docnos(self, documents: Sequence[int] | NDArray[np.int64]) -> list[str]:
        docnos = [""] * len(documents)
        for segment, places, numbers in self.by_segment(np.asarray(documents, dtype=np.int64)):
            for place, docno in zip(places.tolist(), segment.documents.docnos(numbers.tolist()), strict=True):
                docnos[place] = docno
        return docnos

    def filtered(self, where: str, strict: bool = True) -> Filtered:
        """What a filter lets through; the last few are kept.

        An error if no document has a key of the filter, or never with that kind of value. With `strict=False` it is
        not: a shard cannot decide that, because another shard may have the key.
        """
        filtered = self._kept_filter(where)
        if filtered is None:
            with self._lock:
                evaluating = self._evaluating.setdefault(where, Lock())
            # One thread evaluates it. The others wait, and one of them evaluates it if the first was cancelled.
            while not evaluating.acquire(timeout=_SECONDS_BETWEEN_LOOKS):
                stop_if_cancelled()
            try:
                filtered = self._kept_filter(where)
                if filtered is None:
                    filtered = Filtered(self, Filter.parse(where))
                    self._keep_filter(where, filtered)
            finally:
                evaluating.release()
        if strict:
            check_keys(filtered.condition, filtered.keys)
        return filtered

    def _kept_filter(self, where: str) -> Filtered | None:
        with self._lock:
            filtered = self._filters.get(where)
            if filtered is not None:
                self._filters.move_to_end(where)
            return filtered

    def _keep_filter(self, where: str, filtered: Filtered) -> None:
        with self._lock:
            self._filters[where] = filtered
            while len(self._filters) > 1 and (
                len(self._filters) > _FILTERS_KEPT
                or sum(kept.allowed.nbytes for kept in self._filters.values()) > _FILTER_BYTES_KEPT
            ):
                self._filters.popitem(last=False)


class Filtered:
    """The documents of a snapshot that a filter lets through."""

    def __init__(self, snapshot: Snapshot, condition: Filter) -> None:
        self.condition = condition
        parts = [condition.mask(segment.documents, len(segment)) for segment in snapshot.segments]
        self.allowed = np.concatenate([np.zeros(0, dtype=bool), *parts])  # (documents,)
        if snapshot.live is not None:
            self.allowed &= snapshot.live
        self.count = int(self.allowed.sum())
        self._segments = snapshot.segments
        self._documents = len(snapshot)
        self._of_collection = snapshot.frequencies

    @cached_property
    def keys(self) -> KnownKeys:
        """What the index knows of the filter's keys: see filters.check_keys."""
        return KnownKeys.of(self.condition, [segment.documents for segment in self._segments], self._documents)

    @cached_property
    def frequencies(self) -> Frequencies:
        """Token frequencies of these documents alone, with the same background."""
        total = self._of_collection.emptied()
        first = 0
        for segment in self._segments:
            total += segment.frequencies_of(np.flatnonzero(self.allowed[first : first + len(segment)]))
            first += len(segment)
        return total
