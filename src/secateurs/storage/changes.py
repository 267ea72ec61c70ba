"""Changes to an index: add, replace, delete, compact, calibrate. Each is one commit, and one commit is one rename.
Tidying up afterwards is another commit, which changes no answer.

New folders are written and synced first; then a new manifest names them. They are part of the index from the rename of
the manifest on. Folders that a crash leaves without a name are removed by the next change.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corpus import OnBad, to_document
from ..encoders import Encoder
from ..errors import SecateursError
from ..records import Changes
from ..version import __version__
from .checksums import describe_files
from .compaction import (
    clips_too_much,
    copy,
    has_outgrown,
    merge,
    rewrite,
    stored_documents,
    to_merge,
)
from .documents import StoredDocument as DocumentRow
from .file_names import NUMBERS
from .files import new_folder_name, open_array
from .indexing import Item, StoredDocument, in_index_already, write_segment
from .locks import sweep, write_lock
from .manifest import DELETIONS, SEGMENTS, CalibrationRecord, DeletionsRecord, Manifest, SegmentRecord
from .new_index import remove_leftovers
from .recent_writes import count_before, present_before, with_count, with_write
from .recipe import Recipe
from .segment_writer import NewSegment
from .segments import Segment, read_frequencies, write_frequencies
from .snapshot import Snapshot

_DOCUMENTS_PER_BLOCK = 512


class Writer:
    """Used under the lock of an index, with its newest state. Every commit sets `snapshot` to the new state."""

    def __init__(self, path: Path, snapshot: Snapshot, progress: bool | None) -> None:
        self.path = path
        self.snapshot = snapshot
        self._progress = progress

    @property
    def _recipe(self) -> Recipe:
        return Recipe.of(self.snapshot.manifest)

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
        replaced: set[int] = set()
        present: list[bool] = []  # of each document, whether its docno is in the index
        is_rewritten = False  # whether the new segment is the whole index

        def is_taken(docno: str) -> bool:
            number = snapshot.find(docno)
            present.append(number is not None)
            if number is not None and replacing:
                replaced.add(number)
            return number is not None and not replacing

        def to_rewrite(embeddings: int, clipped: float) -> Iterable[StoredDocument] | None:
            nonlocal is_rewritten
            is_rewritten = clips_too_much(manifest, embeddings, clipped)
            return stored_documents(snapshot, sorted(replaced)) if is_rewritten else None

        # A codebook that was learnt from no embeddings means nothing: the first documents get a new one.
        is_empty = not any(record.embeddings for record in manifest.segments)

        def make(folder: Path) -> NewSegment:
            return write_segment(
                folder,
                items,
                encoder,
                self._recipe,
                progress=self._progress,
                on_bad=on_bad,
                is_taken=is_taken,
                to_rewrite=to_rewrite,
                codebook=None if is_empty else snapshot.codebook.content(),
                dim=manifest.dim,
            )

        with self._new_segment(make) as segment:
            given = segment.record.documents - (len(snapshot) - len(replaced) if is_rewritten else 0)
            if given == 0:
                return Changes()
            others = () if is_rewritten else self._without(sorted(replaced))
            writes = None if write_id is None else with_write(manifest.writes, write_id, present)
            self._commit((*others, segment.record), segment if is_rewritten or is_empty else None, writes)
        self._tidy()
        return Changes(added=given - len(replaced), replaced=len(replaced))

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

    def delete_where(self, where: str, write_id: str | None = None, strict: bool = True) -> Changes:
        """Delete the documents that match a filter; `strict` as in Snapshot.filtered."""
        recorded = self.snapshot.manifest.writes
        count = count_before(recorded, write_id)
        if count is None:
            numbers = np.flatnonzero(self.snapshot.filtered(where, strict).allowed)
            count = len(numbers)
            if count:
                writes = None if write_id is None else with_count(recorded, write_id, count)
                self._commit(self._without(numbers), writes=writes)
                self._tidy()
        return Changes(deleted=count)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]], write_id: str | None = None) -> Changes:
        """Set keys of documents' metadata, by docno; None removes a key. Embeddings and texts are copied."""
        wanted, snapshot = list(metadata), self.snapshot
        recorded = snapshot.manifest.writes
        present = present_before(recorded, write_id, len(wanted))
        if present is None:
            found = snapshot.find_all(wanted)
            present = [docno in found for docno in wanted]
            if found:
                writes = None if write_id is None else with_write(recorded, write_id, present)
                numbers = np.sort(np.array(list(found.values()), dtype=np.int64))
                chosen = [(segment, in_segment) for segment, _, in_segment in snapshot.by_segment(numbers)]

                def make(folder: Path) -> NewSegment:
                    return copy(folder, snapshot, chosen, self._recipe, self._progress, changed)

                def changed(stored: DocumentRow) -> dict[str, Any]:
                    given = metadata[stored.docno]
                    kept = {key: value for key, value in stored.metadata.items() if key not in given}
                    return kept | {key: value for key, value in given.items() if value is not None}

                with self._new_segment(make) as segment:
                    self._commit((*self._without(numbers), segment.record), writes=writes)
                self._tidy()
        missing = tuple(docno for docno, was_present in zip(wanted, present, strict=True) if not was_present)
        return Changes(replaced=len(wanted) - len(missing), missing=missing)

    def compact(self) -> None:
        """All live documents as one segment, with a codebook learnt from it."""
        with self._new_segment(lambda folder: rewrite(folder, self.snapshot, self._recipe, self._progress)) as segment:
            self._commit((segment.record,), segment)

    def set_calibration(self, measured: CalibrationRecord) -> None:
        self._commit(self.snapshot.manifest.segments, calibration=measured)

    def _tidy(self) -> None:
        """Rewrite what needs it. The change is committed already, so a failure here is a warning and not an error."""
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
        def make(folder: Path) -> NewSegment:
            return merge(folder, self.snapshot, names, self._recipe, self._progress)

        with self._new_segment(make) as segment:
            others = [record for record in self.snapshot.manifest.segments if record.name not in names]
            self._commit((*others, segment.record))

    @contextmanager
    def _new_segment(self, make: Callable[[Path], NewSegment]) -> Iterator[NewSegment]:
        """A new segment, whose folder is removed unless it is committed."""
        folder = self.path / SEGMENTS / new_folder_name()
        try:
            yield make(folder)
        finally:
            # What is on disk decides: an exception may have come just after a commit.
            if (SEGMENTS, folder.name) not in set(Manifest.read(self.path).named()):
                shutil.rmtree(folder, ignore_errors=True)

    def _without(self, numbers: Sequence[int] | NDArray[np.int64]) -> tuple[SegmentRecord, ...]:
        """The segments' records without these live documents; a segment without live documents is left out."""
        deleted = {
            segment.record.name: np.sort(in_segment)
            for segment, _, in_segment in self.snapshot.by_segment(np.asarray(numbers, dtype=np.int64))
        }
        records = []
        for segment, record in zip(self.snapshot.segments, self.snapshot.manifest.segments, strict=True):
            newly_deleted = deleted.get(record.name, np.empty(0, dtype=np.int64))
            if record.live_documents == len(newly_deleted):
                continue
            if len(newly_deleted):
                record = replace(record, deletions=self._write_deletions(segment, record.deletions, newly_deleted))
            records.append(record)
        return tuple(records)

    def _write_deletions(
        self, segment: Segment, before: DeletionsRecord | None, numbers: NDArray[np.int64]
    ) -> DeletionsRecord:
        """Of the documents deleted before and these ones. Nothing is read of the segment's other documents."""
        folder = self.path / DELETIONS / new_folder_name()
        folder.mkdir(parents=True)
        all_numbers, frequencies = numbers, segment.frequencies_of(numbers)
        embeddings = int((segment.offsets[numbers + 1] - segment.offsets[numbers]).sum())
        cut = 0
        for start in range(0, len(numbers), _DOCUMENTS_PER_BLOCK):  # a filter may delete millions
            block = numbers[start : start + _DOCUMENTS_PER_BLOCK].tolist()
            cut += sum(tokens > 0 for _, tokens in segment.documents.get_with_cut(block))
        if before is not None:
            earlier = self.path / DELETIONS / before.name
            all_numbers = np.union1d(open_array(earlier / NUMBERS), numbers)
            frequencies = read_frequencies(earlier) + frequencies
            embeddings, cut = before.embeddings + embeddings, before.cut_documents + cut
        np.save(folder / NUMBERS, all_numbers.astype(np.int32))
        write_frequencies(folder, frequencies)
        return DeletionsRecord(folder.name, len(all_numbers), embeddings, cut, describe_files(folder))

    def _commit(
        self,
        records: tuple[SegmentRecord, ...],
        relearnt: NewSegment | None = None,
        writes: Mapping[str, str] | None = None,
        calibration: CalibrationRecord | None = None,
    ) -> None:
        """`relearnt` is a new segment with a new codebook, `writes` the recorded writes if there is one more.

        A calibration is for the cells of a codebook, and stays until it is measured again.
        """
        before = self.snapshot.manifest
        manifest = replace(
            before,
            segments=records,
            commit=before.commit + 1,
            written_by=f"secateurs {__version__}",
            writes=before.writes if writes is None else writes,
            calibration=calibration or before.calibration,
        )
        if relearnt is not None:
            codebook = relearnt.codebook.write(self.path, self.snapshot.codebook.background)
            manifest = replace(manifest, dim=relearnt.dim, codebook=codebook, calibration=None)
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
    """The one writer of an index."""
    with write_lock(path):
        writer = Writer(path, Snapshot.open(path, earlier), progress)
        del earlier  # or it would hold folders that can be removed
        sweep(path, writer.snapshot.manifest)
        remove_leftovers(path)
        try:
            yield writer
        finally:
            sweep(path, Manifest.read(path))
