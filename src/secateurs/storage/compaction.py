"""When parts of an index are rewritten, and how.

Every `add` makes a segment, and many small ones make a search slow: four segments of about one size become one
(sizes count in powers of four, so a document is copied a few times in its life). A segment of which a third is
deleted is copied without what is gone. In both cases rows and cells are copied as they are.

The codebook is learnt again, from everything that is left, when it no longer fits:
- there are four times as many embeddings as it was learnt from, or an eighth of them: it has half or three times the
  cells that it should have;
- embeddings lie half as far again from their cells as others of those that it was learnt from would: they are of
  another kind.

What is added may not fit the int8 scale, which was made for all but one value in ten thousand. If more than five in ten
thousand of all would be cut off, everything is rewritten on a new scale, and the new embeddings are not cut off first.

`compact()` does all of this at once, whatever the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..progress import progress_bar
from ..records import Document, EncodedText
from . import cell_lists
from .cell_lists import CellLists
from .checksums import BLOCK_ROWS, describe_files
from .codecs.stores import Residuals
from .documents import DocumentWriter
from .file_names import CELLS_OF_EMBEDDINGS
from .files import new_array
from .manifest import Manifest, SegmentRecord, widest
from .rows import are_of_unit_length
from .segment_writer import Made, Recipe, finish_rows, write_segment, write_tokens
from .segments import Segment, rows_of
from .snapshot import Snapshot

_FANOUT = 4  # segments of one size that become one
_SMALLEST = 4096  # embeddings; smaller segments count as one size
_GROWN, _SHRUNK = 4, 8
_FARTHER = 1.5
_DEAD = 3  # one embedding in so many
_CLIPPED = 0.0005
_DOCUMENTS_PER_BLOCK = 512


def has_outgrown(manifest: Manifest) -> bool:
    """Whether the codebook no longer fits the live embeddings."""
    book = manifest.codebook
    records = [record for record in manifest.segments if record.embeddings]
    live = sum(record.live_embeddings for record in records)
    if book.step is None or live == 0:
        return False
    if live > _GROWN * book.embeddings or live * _SHRUNK < book.embeddings:
        return True
    spread = sum(record.spread * record.live_embeddings for record in records) / live
    return book.spread > 0 and spread > _FARTHER * book.spread  # older versions did not measure it


def clips_too_much(manifest: Manifest, embeddings: int, clipped: float) -> bool:
    """Whether so many more embeddings, with that share of their values cut off, would be too much for the scale."""
    parts = [(record.live_embeddings, record.clipped) for record in manifest.segments] + [(embeddings, clipped)]
    return sum(count * share for count, share in parts) > _CLIPPED * max(sum(count for count, _ in parts), 1)


def to_merge(manifest: Manifest) -> list[str]:
    """Names of the segments to rewrite as one, in their order; none if all is well."""
    for record in manifest.segments:
        if record.deletions is not None and _DEAD * record.deletions.embeddings >= record.embeddings:
            return [record.name]

    def size(record: SegmentRecord) -> int:
        return int(np.log(max(record.live_embeddings, _SMALLEST) / _SMALLEST) / np.log(_FANOUT))

    for _, group in groupby(sorted(manifest.segments, key=size), key=size):
        alike = [record.name for record in group]
        if len(alike) >= _FANOUT:
            return alike
    return []


def live_documents(snapshot: Snapshot, without: Sequence[int] = (), skip: int = 0) -> Iterator[Document]:
    """Every document that is not deleted, but the first `skip`, with its embeddings as they are stored, in order."""
    for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False):
        numbers = np.setdiff1d(_live(snapshot, first, segment), np.array(without, dtype=np.int64) - first)
        skipped = min(skip, len(numbers))
        numbers, skip = numbers[skipped:], skip - skipped
        cut = segment.documents.cut()
        for start in range(0, len(numbers), _DOCUMENTS_PER_BLOCK):
            some = numbers[start : start + _DOCUMENTS_PER_BLOCK]
            rows, offsets = rows_of(segment.offsets, some)
            segment.embeddings.check(segment.offsets[some], segment.offsets[some + 1])
            embeddings = snapshot.store.decode(segment.rows[rows])
            ids, kinds = segment.token_ids[rows], segment.token_kinds[rows]
            for i, stored in enumerate(segment.documents.get(some.tolist())):
                own = slice(offsets[i], offsets[i + 1])
                encoded = EncodedText(embeddings[own], ids[own], kinds[own], cut.get(int(some[i]), 0))
                yield Document(stored.docno, stored.text, stored.metadata, encoded)


def rewrite(folder: Path, snapshot: Snapshot, recipe: Recipe, progress: bool | None) -> Made:
    """All live documents as one segment with a new codebook.

    Rows keep their int8 scale, and so their bytes, if that is about what it would be now: rounding again to another
    scale would lose a little each time.
    """
    manifest = snapshot.manifest
    return write_segment(
        folder,
        (("", document) for document in live_documents(snapshot)),
        None,
        recipe,
        total=len(snapshot),
        progress=progress,
        int8=snapshot.codebook.int8,
        unit=all(record.unit for record in manifest.segments) if manifest.format_version >= 3 else None,
        dim=manifest.dim,
    )


def merge(folder: Path, snapshot: Snapshot, names: Sequence[str], recipe: Recipe, progress: bool | None) -> Made:
    """The live documents of some segments as one, under the same codebook: everything is copied."""
    chosen = [
        (segment, _live(snapshot, first, segment))
        for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False)
        if segment.record.name in names
    ]
    folder.mkdir(parents=True)
    cut = _copy_documents(folder, chosen)
    parts = [(segment, *rows_of(segment.offsets, numbers)) for segment, numbers in chosen]
    lengths = [np.diff(offsets) for _, _, offsets in parts]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    total = int(offsets[-1])
    write_tokens(
        folder,
        offsets,
        np.concatenate([segment.token_ids[rows] for segment, rows, _ in parts]),
        np.concatenate([segment.token_kinds[rows] for segment, rows, _ in parts]),
    )
    book = snapshot.codebook
    kept = new_array(folder / "embeddings.npy", *_like(snapshot, total))
    at = 0
    with progress_bar("copying embeddings", total, "embeddings", progress) as advance:
        for segment, rows, _ in parts:
            for start in range(0, len(rows), 1 << 16):
                some = rows[start : start + (1 << 16)]
                segment.embeddings.check(some, some + 1)
                kept[at : at + len(some)] = segment.embeddings.rows[some]
                at += len(some)
                advance(len(some))
    stored: Any = kept
    if recipe.store == "residual4":
        homes = new_array(folder / CELLS_OF_EMBEDDINGS, np.uint32, (total,))
        homes[:] = np.concatenate([segment.homes[rows] for segment, rows, _ in parts])
        assert book.centroids is not None
        assert book.levels is not None
        stored = Residuals(kept, homes, book.centroids, book.levels, snapshot.manifest.dim)
    if recipe.has_cells and total:
        assert book.centroids is not None
        cell_lists.join(folder, list(_renumbered(chosen)), len(book.centroids))
    records = [segment.record for segment, _ in chosen]
    weights = [len(rows) / max(total, 1) for _, rows, _ in parts]
    unit = all(record.unit for record in records)
    if snapshot.manifest.format_version < 3:  # which did not say
        unit = are_of_unit_length(snapshot.store, stored)
    finish_rows(folder, recipe, offsets, stored, book.int8, unit, progress)
    record = SegmentRecord(
        name=folder.name,
        documents=len(offsets) - 1,
        embeddings=total,
        cut_documents=cut,
        files=describe_files(folder),
        block_rows=BLOCK_ROWS,
        reach=widest(records),
        spread=sum(w * record.spread for w, record in zip(weights, records, strict=True)),
        clipped=sum(w * record.clipped for w, record in zip(weights, records, strict=True)),
        unit=unit,
    )
    return Made(record, book.learnt(), snapshot.manifest.dim, record.documents)


def _live(snapshot: Snapshot, first: int, segment: Segment) -> NDArray[np.int64]:
    if snapshot.live is None:
        return np.arange(len(segment))
    return np.flatnonzero(snapshot.live[first : first + len(segment)])


def _like(snapshot: Snapshot, total: int) -> tuple[np.dtype[np.generic], tuple[int, int]]:
    store, dim = snapshot.manifest.store, snapshot.manifest.dim
    if store == "residual4":
        return np.dtype(np.uint8), (total, -(-dim // 4) * 2)
    return np.dtype(store), (total, dim)


def _renumbered(
    chosen: Sequence[tuple[Segment, NDArray[np.int64]]],
) -> Iterator[tuple[CellLists, NDArray[np.int64]]]:
    first = 0
    for segment, numbers in chosen:
        renumbered = np.full(len(segment), -1, dtype=np.int64)
        renumbered[numbers] = np.arange(first, first + len(numbers))
        first += len(numbers)
        if segment.record.embeddings:
            yield segment.lists, renumbered


def _copy_documents(folder: Path, chosen: Sequence[tuple[Segment, NDArray[np.int64]]]) -> int:
    """Into a new database; give how many of them were cut."""
    writer = DocumentWriter(folder / "documents.sqlite")
    number, cut_documents = 0, 0
    try:
        for segment, numbers in chosen:
            cut = segment.documents.cut()
            for start in range(0, len(numbers), _DOCUMENTS_PER_BLOCK):
                some = numbers[start : start + _DOCUMENTS_PER_BLOCK].tolist()
                for own, stored in zip(some, segment.documents.get(some), strict=True):
                    writer.add(stored.docno, stored.text, stored.metadata)
                    if own in cut:
                        writer.mark_cut(number, cut[own])
                        cut_documents += 1
                    number += 1
    finally:
        writer.close()
    return cut_documents
