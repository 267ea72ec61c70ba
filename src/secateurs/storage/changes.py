"""Changes to an index: add, replace, delete, compact. Each is one commit, and one commit is one rename. Tidying up
afterwards is another commit, which changes no answer.

New folders are written and synced first; then a new manifest names them. They are part of the index from the rename of
the manifest on. Folders that a crash leaves without a name are removed by the next change.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..corpus import OnBad
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
from .file_names import NUMBERS
from .files import new_folder_name, open_array
from .indexing import Item, write_segment
from .locks import sweep, write_lock
from .manifest import DELETIONS, SEGMENTS, DeletionsRecord, Manifest, SegmentRecord
from .new_index import remove_leftovers
from .recipe import Recipe
from .segment_writer import NewSegment
from .segments import Segment, read_frequencies, write_frequencies
from .snapshot import Snapshot


class Writer:
    """Used under the lock of an index, with its newest state. Every commit sets `snapshot` to the new state."""

    def __init__(self, path: Path, snapshot: Snapshot, progress: bool | None) -> None:
        self.path = path
        self.snapshot = snapshot
        self._progress = progress

    @property
    def _recipe(self) -> Recipe:
        return Recipe(self.snapshot.manifest.store, self.snapshot.manifest.gather)

    def add(self, items: Iterable[Item], encoder: Encoder | None, on_bad: OnBad | None, replacing: bool) -> Changes:
        snapshot = self.snapshot
        manifest = snapshot.manifest
        replaced: set[int] = set()
        is_rewritten = False  # whether the new segment is the whole index

        def is_taken(docno: str) -> bool:
            number = snapshot.find(docno)
            if number is not None and replacing:
                replaced.add(number)
            return number is not None and not replacing

        def to_rewrite(embeddings: int, clipped: float) -> Iterable[Document] | None:
            nonlocal is_rewritten
            is_rewritten = clips_too_much(manifest, embeddings, clipped)
            return live_documents(snapshot, sorted(replaced)) if is_rewritten else None

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
            self._commit((*others, segment.record), segment if is_rewritten or is_empty else None)
        self._tidy()
        return Changes(added=given - len(replaced), replaced=len(replaced))

    def delete(self, docnos: Iterable[str]) -> Changes:
        wanted = list(dict.fromkeys(docnos))
        found = self.snapshot.find_all(wanted)
        if found:
            self._commit(self._without(list(found.values())))
            self._tidy()
        return Changes(deleted=len(found), missing=tuple(docno for docno in wanted if docno not in found))

    def compact(self) -> None:
        """All live documents as one segment, with a codebook learnt from it."""
        with self._new_segment(lambda folder: rewrite(folder, self.snapshot, self._recipe, self._progress)) as segment:
            self._commit((segment.record,), segment)

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

    def _without(self, numbers: Sequence[int]) -> tuple[SegmentRecord, ...]:
        """The segments' records without these live documents; a segment without live documents is left out."""
        deleted = {
            segment.record.name: np.sort(in_segment)
            for segment, _, in_segment in self.snapshot.by_segment(np.array(numbers, dtype=np.int64))
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
        cut = sum(cut > 0 for _, cut in segment.documents.get_with_cut(numbers.tolist()))
        if before is not None:
            earlier = self.path / DELETIONS / before.name
            all_numbers = np.union1d(open_array(earlier / NUMBERS), numbers)
            frequencies = read_frequencies(earlier) + frequencies
            embeddings, cut = before.embeddings + embeddings, before.cut_documents + cut
        np.save(folder / NUMBERS, all_numbers.astype(np.int32))
        write_frequencies(folder, frequencies)
        return DeletionsRecord(folder.name, len(all_numbers), embeddings, cut, describe_files(folder))

    def _commit(self, records: tuple[SegmentRecord, ...], relearnt: NewSegment | None = None) -> None:
        """`relearnt` is a new segment with a new codebook."""
        before = self.snapshot.manifest
        manifest = replace(
            before,
            segments=records,
            commit=before.commit + 1,
            written_by=f"secateurs {__version__}",
        )
        if relearnt is not None:
            manifest = replace(manifest, dim=relearnt.dim, codebook=relearnt.codebook.write(self.path))
        manifest.write(self.path)
        self.snapshot = Snapshot(self.path, manifest, self.snapshot)


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
