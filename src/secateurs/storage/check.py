"""Whether every byte of an index is as it was written, and whether its parts agree with each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import DamagedIndexError
from ..frequencies import Frequencies
from .checksums import check_files
from .files import REMEDY
from .manifest import DELETIONS, MANIFEST_COPY, Manifest, SegmentRecord
from .position_rows import rows_of_all
from .segments import Segment
from .snapshot import Snapshot


def check_snapshot(snapshot: Snapshot) -> None:
    """Raise at the first problem."""
    Manifest.read(snapshot.path, MANIFEST_COPY)
    check_files(snapshot.codebook.folder, snapshot.codebook.record.files, every_byte=True)
    for record, segment in zip(snapshot.manifest.segments, snapshot.segments, strict=True):
        check_segment(snapshot, record, segment)
    seen: dict[str, Segment] = {}
    for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False):
        numbers = np.arange(len(segment))
        if snapshot.live is not None:
            numbers = numbers[snapshot.live[first : first + len(segment)]]
        for docno in segment.documents.docnos(numbers.tolist()):
            if docno in seen:
                raise DamagedIndexError(f"docno {docno!r} is in {seen[docno].folder} and in {segment.folder}: {REMEDY}")
            seen[docno] = segment


def check_segment(snapshot: Snapshot, record: SegmentRecord, segment: Segment) -> None:
    check_files(segment.folder, record.files, every_byte=True)
    if record.deletions is not None:
        check_files(snapshot.path / DELETIONS / record.deletions.name, record.deletions.files, every_byte=True)
    for problem in _disagreements(snapshot, record, segment):
        raise DamagedIndexError(f"{segment.folder}: {problem}: {REMEDY}")


def _disagreements(snapshot: Snapshot, record: SegmentRecord, segment: Segment) -> Iterator[str]:
    offsets, token_ids, positions = segment.offsets, segment.token_ids, segment.positions
    if len(offsets) != record.documents + 1 or offsets[0] != 0 or offsets[-1] != record.embeddings:
        yield "the offsets are not those of its documents"
    if (np.diff(offsets) < 0).any():
        yield "the offsets go backwards"
    if segment.documents.count() != record.documents:
        yield "the database has another number of documents"
    if len(segment.embeddings.rows) != record.embeddings:
        yield "the embeddings are not as many as the manifest says"
    for name, entries in (("tokens", token_ids), ("kinds", segment.token_kinds), ("positions", positions.rows)):
        if entries is not None and len(entries) != record.positions:
            yield f"the {name} are not as many as the manifest says"
    if len(positions.offsets) != record.documents + 1 or positions.offsets[-1] != record.positions:
        yield "the positions are not those of its documents"
    elif not np.array_equal(np.unique(rows_of_all(offsets, positions, 0, record.documents)), np.arange(offsets[-1])):
        yield "a row belongs to no position, or a position to no row"
    counted = Frequencies.of(token_ids, positions.offsets)
    for name in ("token_ids", "collection", "document"):
        if not np.array_equal(getattr(counted, name), getattr(segment.frequencies, name)):
            yield "the frequencies are not those of its tokens"
    if "text" in snapshot.manifest.gather and len(segment.documents.lengths) != record.documents:
        yield "the words are not those of its documents"
    if "cells" in snapshot.manifest.gather and record.embeddings:
        listed = segment.lists.documents
        if snapshot.codebook.centroids is None or len(segment.lists.offsets) != len(snapshot.codebook.centroids) + 1:
            yield "its cells are not those of the codebook"
        if not np.array_equal(np.unique(listed), np.flatnonzero(np.diff(offsets))):
            yield "a document is in no cell, or a cell has a document that is not there"
        if segment.summaries is not None and len(segment.summaries) != record.documents:
            yield "the summaries are not those of its documents"
