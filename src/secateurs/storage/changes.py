"""Changes to an index: add, replace, delete, compact. Each is one commit, and one commit is one rename. Tidying up
afterwards is another, which changes no answer.

New folders are written and synced first; then a new manifest names them. Until its rename nobody sees them, and after
it everybody does. What a crash leaves unnamed is swept away by the next change.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..corpus import OnBad, to_document
from ..encoders import Encoder
from ..errors import SecateursError
from ..records import Changes, Document
from ..version import __version__
from .checksums import describe_files
from .compaction import (
    clips_too_much,
    has_outgrown,
    live_documents,
    merge,
    rewrite,
    to_merge,
)
from .files import new_folder_name, open_array
from .locks import sweep, write_lock
from .manifest import DELETIONS, FORMAT_VERSION, SEGMENTS, DeletionsRecord, Manifest, SegmentRecord
from .new_index import remove_leftovers
from .recent_writes import present_before, with_write
from .segment_writer import Item, Made, Recipe, in_index_already, write_segment
from .segments import Segment, read_frequencies, write_frequencies
from .snapshot import Snapshot

_T = TypeVar("_T")


class Writer:
    """Holds the lock of an index, and its newest state. Every commit moves `snapshot` on."""

    def __init__(self, path: Path, snapshot: Snapshot, progress: bool | None) -> None:
        self.path = path
        self.snapshot = snapshot
        self._progress = progress

    @property
    def _recipe(self) -> Recipe:
        return Recipe(self.snapshot.manifest.store, self.snapshot.manifest.gather)

    def add(
        self,
        items: Iterable[Item],
        encoder: Encoder | None,
        on_bad: OnBad | None,
        replacing: bool,
        write_id: str | None = None,
    ) -> Changes:
        """Documents with a `write_id` must be valid, and their docnos different: see recent_writes.py."""
        snapshot = self.snapshot
        manifest = snapshot.manifest
        if write_id is not None:
            items = list(items)
            before = present_before(manifest.writes, write_id, len(items))
            if before is not None:
                return _report_again(items, before, on_bad, replacing)
        replaced: list[int] = []
        present: list[bool] = []  # of each document, whether its docno is in the index

        def is_taken(docno: str) -> bool:
            number = snapshot.find(docno)
            present.append(number is not None)
            if number is not None and replacing:
                replaced.append(number)
            return number is not None and not replacing

        def take_along(embeddings: int, clipped: float) -> Iterable[Document] | None:
            return live_documents(snapshot, replaced) if clips_too_much(manifest, embeddings, clipped) else None

        # A codebook that was learnt from nothing says nothing: the first documents bring their own.
        empty = not any(record.embeddings for record in manifest.segments)

        def make(folder: Path) -> Made:
            return write_segment(
                folder,
                items,
                encoder,
                self._recipe,
                progress=self._progress,
                on_bad=on_bad,
                is_taken=is_taken,
                take_along=take_along,
                codebook=None if empty else snapshot.codebook.learnt(),
                dim=manifest.dim,
            )

        with self._new_segment(make) as made:
            if made.given == 0:
                return Changes()
            replaced = sorted(set(replaced))
            writes = None if write_id is None else with_write(manifest.writes, write_id, present)
            if made.took_along:
                self._commit((made.record,), made, writes)
            else:
                self._commit((*self._without(replaced), made.record), made if empty else None, writes)
        self._tidy()
        return Changes(added=made.given - len(replaced), replaced=len(replaced))

    def delete(self, docnos: Iterable[str], write_id: str | None = None) -> Changes:
        wanted = list(dict.fromkeys(docnos))
        recorded = self.snapshot.manifest.writes
        present = present_before(recorded, write_id, len(wanted))
        if present is None:
            found = self.snapshot.find_all(wanted)
            present = [docno in found for docno in wanted]
            if found:
                writes = None if write_id is None else with_write(recorded, write_id, present)
                self._commit(self._without(list(found.values())), writes=writes)
                self._tidy()
        missing = tuple(docno for docno, was_present in zip(wanted, present, strict=True) if not was_present)
        return Changes(deleted=len(wanted) - len(missing), missing=missing)

    def compact(self) -> None:
        """Everything that lives as one segment, under a codebook learnt from it."""
        with self._new_segment(lambda folder: rewrite(folder, self.snapshot, self._recipe, self._progress)) as made:
            self._commit((made.record,), made)

    def upgrade(self) -> None:
        """From an older version: copied, where all that is needed is there."""
        recipe, snapshot = self._recipe, self.snapshot
        if recipe.has_int8 and snapshot.codebook.int8 is None:  # float16 with cells did not keep their scale
            self.compact()
            return
        names = [record.name for record in snapshot.manifest.segments]
        with self._new_segment(lambda folder: merge(folder, snapshot, names, recipe, self._progress)) as made:
            self._commit((made.record,), made)

    def _tidy(self) -> None:
        """Rewrite what needs it. The change is made already: what goes wrong here must not look like its failure."""
        try:
            if has_outgrown(self.snapshot.manifest):
                self.compact()
            while names := to_merge(self.snapshot.manifest):
                self._merge(names)
        except (SecateursError, OSError, MemoryError) as error:
            warnings.warn(
                f"{self.path} was changed, but could not be tidied up ({error}): the next change tries again",
                stacklevel=2,
            )

    def _merge(self, names: Sequence[str]) -> None:
        def make(folder: Path) -> Made:
            return merge(folder, self.snapshot, names, self._recipe, self._progress)

        with self._new_segment(make) as made:
            others = [record for record in self.snapshot.manifest.segments if record.name not in names]
            self._commit((*others, made.record))

    @contextmanager
    def _new_segment(self, make: Callable[[Path], Made]) -> Iterator[Made]:
        """A segment's folder, which goes again unless it is committed."""
        folder = self.path / SEGMENTS / new_folder_name()
        try:
            yield make(folder)
        finally:
            # What is on disk decides: an exception may have come just after a commit.
            if (SEGMENTS, folder.name) not in set(Manifest.read(self.path).named()):
                shutil.rmtree(folder, ignore_errors=True)

    def _without(self, numbers: Sequence[int]) -> tuple[SegmentRecord, ...]:
        """The segments' records once these documents are gone; a segment of which nothing is left goes too."""
        snapshot = self.snapshot
        gone = np.zeros(int(snapshot.firsts[-1]), dtype=bool) if snapshot.live is None else ~snapshot.live
        gone[list(numbers)] = True
        records = []
        for first, segment, record in zip(
            snapshot.firsts.tolist(), snapshot.segments, snapshot.manifest.segments, strict=False
        ):
            deleted = np.flatnonzero(gone[first : first + len(segment)])
            if len(deleted) == len(segment):
                continue
            before = record.deletions.documents if record.deletions else 0
            if len(deleted) > before:
                record = replace(record, deletions=self._write_deletions(segment, record.deletions, deleted))
            records.append(record)
        return tuple(records)

    def _write_deletions(
        self, segment: Segment, before: DeletionsRecord | None, numbers: NDArray[np.int64]
    ) -> DeletionsRecord:
        folder = self.path / DELETIONS / new_folder_name()
        folder.mkdir(parents=True)
        np.save(folder / "numbers.npy", numbers.astype(np.int32))
        if before is None:
            write_frequencies(folder, segment.frequencies_of(numbers))
        else:
            earlier = self.path / DELETIONS / before.name
            new = np.setdiff1d(numbers, open_array(earlier / "numbers.npy"))
            write_frequencies(folder, read_frequencies(earlier) + segment.frequencies_of(new))
        embeddings = int((segment.offsets[numbers + 1] - segment.offsets[numbers]).sum())
        cut = len(segment.documents.cut().keys() & set(numbers.tolist()))
        return DeletionsRecord(folder.name, len(numbers), embeddings, cut, describe_files(folder))

    def _commit(
        self,
        records: tuple[SegmentRecord, ...],
        made: Made | None = None,
        writes: Mapping[str, str] | None = None,
    ) -> None:
        """`made` brings a new codebook along, `writes` the recorded writes if there is one more."""
        before = self.snapshot.manifest
        manifest = replace(
            before,
            segments=records,
            commit=before.commit + 1,
            format_version=FORMAT_VERSION,
            written_by=f"secateurs {__version__}",
            writes=before.writes if writes is None else writes,
        )
        if made is not None:
            manifest = replace(manifest, dim=made.dim, codebook=made.codebook.write(self.path))
        manifest.write(self.path)
        self.snapshot = Snapshot(self.path, manifest, self.snapshot)


def _report_again(items: Sequence[Item], present: Sequence[bool], on_bad: OnBad | None, replacing: bool) -> Changes:
    """What `add` answered when it committed these documents."""
    if replacing:
        return Changes(added=len(items) - sum(present), replaced=sum(present))
    for (place, item), was_present in zip(items, present, strict=True):
        if was_present and on_bad is not None:
            on_bad(in_index_already(place, to_document(item).docno))
    return Changes(added=len(items) - sum(present))


@contextmanager
def writing(path: Path, earlier: Snapshot, progress: bool | None) -> Iterator[Writer]:
    """The one writer of an index. An index of an older version is brought up to date first."""
    with write_lock(path):
        writer = Writer(path, Snapshot.open(path, earlier), progress)
        del earlier  # or it would hold on to what can go
        sweep(path, writer.snapshot.manifest)
        remove_leftovers(path)
        if writer.snapshot.manifest.format_version < FORMAT_VERSION:
            writer.upgrade()
        try:
            yield writer
        finally:
            sweep(path, Manifest.read(path))
