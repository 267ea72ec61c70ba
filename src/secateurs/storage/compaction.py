"""When parts of an index are rewritten, and how.

Every `add` makes a segment, and many small ones make a search slow: four segments of about one size become one
(sizes count in powers of four, so a document is copied a few times in its life). A segment of which a third is
deleted is copied without the deleted documents. In both cases rows and cells are copied as they are.

The codebook is learnt again, from all live embeddings, when it no longer fits:
- there are four times as many embeddings as it was learnt from, or an eighth of them: it has half or three times the
  cells that it should have;
- the mean squared distance of embeddings from their cells is 1.5 times what it was for those that it was learnt from:
  the new embeddings are of another kind.

What is added may not fit the int8 scale, which was made for all but one value in ten thousand. If more than five in ten
thousand of all would be cut off, everything is rewritten on a new scale, and the new embeddings are not cut off first.

`compact()` rewrites everything as one segment with a new codebook, whatever the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.cell_scores import packed_width
from ..progress import progress_bar
from ..records import Document, EncodedText
from . import cell_lists
from .cell_lists import CellLists
from .checksums import BLOCK_ROWS, TOKEN_BLOCK_ROWS, describe_files
from .codebooks import CodebookContent
from .document_writer import DocumentWriter
from .documents import StoredDocument as DocumentRow
from .file_names import DOCUMENTS
from .files import new_array
from .indexing import StoredDocument, write_segment
from .manifest import Manifest, SegmentRecord, widest
from .position_rows import write_positions
from .recipe import Recipe
from .segment_files import write_checksums_and_faiss, write_tokens
from .segment_writer import NewSegment
from .segments import Segment, rows_of
from .snapshot import Snapshot
from .summaries import merge_summaries

_FANOUT = 4  # segments of one size that become one
_SMALLEST = 4096  # embeddings; smaller segments count as one size
_GROWN, _SHRUNK = 4, 8
_FARTHER = 1.5
_DEAD = 3  # one embedding in so many
_CLIPPED = 0.0005
_DOCUMENTS_PER_BLOCK = 512
_ROWS_PER_BLOCK = 1 << 16


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
    return book.spread > 0 and spread > _FARTHER * book.spread  # without cells both are 0


def clips_too_much(manifest: Manifest, embeddings: int, clipped: float) -> bool:
    """Whether the scale would cut off too much, with so many more embeddings and that share of their values cut off."""
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


def live_documents(snapshot: Snapshot, skip: int = 0, embeddings: bool = True) -> Iterator[Document]:
    """Every live document but the first `skip`, with its embeddings as they are stored unless not wanted, in order."""
    if embeddings:
        yield from (document for document, _ in stored_documents(snapshot, skip=skip))
        return
    for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False):
        numbers = _live(snapshot, first, segment)
        skipped = min(skip, len(numbers))
        numbers, skip = numbers[skipped:], skip - skipped
        for start in range(0, len(numbers), _DOCUMENTS_PER_BLOCK):
            for stored in segment.documents.get(numbers[start : start + _DOCUMENTS_PER_BLOCK].tolist()):
                yield Document(stored.docno, stored.text, stored.metadata)


def stored_documents(snapshot: Snapshot, without: Sequence[int] = (), skip: int = 0) -> Iterator[StoredDocument]:
    """The same, also with what is stored of each position, if the codec copies that; not those with these numbers."""
    for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False):
        numbers = np.setdiff1d(_live(snapshot, first, segment), np.array(without, dtype=np.int64) - first)
        skipped = min(skip, len(numbers))
        numbers, skip = numbers[skipped:], skip - skipped
        for start in range(0, len(numbers), _DOCUMENTS_PER_BLOCK):
            block = numbers[start : start + _DOCUMENTS_PER_BLOCK]
            rows, starts = rows_of(segment.offsets, block)
            segment.check_rows(segment.offsets[block], segment.offsets[block + 1])
            positions, offsets = rows_of(segment.position_offsets, block)
            embeddings = snapshot.store.decode(segment.rows[rows])  # of rows
            copied = {name: array[rows] for name, array in segment.arrays.items()} if snapshot.codec.copies_rows else {}
            if segment.positions.rows is not None:  # of positions
                of_position = np.repeat(starts[:-1], np.diff(offsets)) + segment.positions.rows[positions]
                embeddings = embeddings[of_position]
                copied = {name: array[of_position] for name, array in copied.items()}
            ids, kinds = segment.token_ids[positions], segment.token_kinds[positions]
            for i, (stored, cut) in enumerate(segment.documents.get_with_cut(block.tolist())):
                part = slice(offsets[i], offsets[i + 1])  # the positions of this document
                encoded = EncodedText(embeddings[part], ids[part], kinds[part], cut)
                copied_here = {name: array[part] for name, array in copied.items()} or None
                yield Document(stored.docno, stored.text, stored.metadata, encoded), copied_here


def rewrite(folder: Path, snapshot: Snapshot, recipe: Recipe, progress: bool | None) -> NewSegment:
    """All live documents as one segment with a new codebook.

    Rows keep their int8 scale, and so their bytes, if that is about what it would be now: rounding again to another
    scale would lose a little each time. Codes are copied on any scale.
    """
    manifest = snapshot.manifest
    return write_segment(
        folder,
        (),
        None,
        recipe,
        total=len(snapshot),
        progress=progress,
        stored=stored_documents(snapshot),
        codebook=CodebookContent(0, code=snapshot.codebook.code),
        int8=snapshot.codebook.int8,
        unit=all(record.unit for record in manifest.segments),
        dim=manifest.dim,
    )


def merge(folder: Path, snapshot: Snapshot, names: Sequence[str], recipe: Recipe, progress: bool | None) -> NewSegment:
    """The live documents of the named segments as one segment, under the same codebook: everything is copied."""
    chosen = [
        (segment, _live(snapshot, first, segment))
        for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False)
        if segment.record.name in names
    ]
    return copy(folder, snapshot, chosen, recipe, progress)


def copy(
    folder: Path,
    snapshot: Snapshot,
    chosen: Sequence[tuple[Segment, NDArray[np.int64]]],
    recipe: Recipe,
    progress: bool | None,
    metadata_of: Callable[[DocumentRow], Mapping[str, Any]] = lambda stored: stored.metadata,
) -> NewSegment:
    """These documents, by their numbers in their segments, as one segment under the same codebook.

    All is copied but the metadata, which is what `metadata_of` makes of a document.
    """
    folder.mkdir(parents=True)
    cut = _copy_documents(folder, chosen, metadata_of, recipe.has_text)
    parts = [(segment, *rows_of(segment.offsets, numbers)) for segment, numbers in chosen]
    lengths = [np.diff(offsets) for _, _, offsets in parts]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)
    positions = _copy_tokens(folder, offsets, chosen)
    codec, codebook, dim = recipe.codec, snapshot.codebook, snapshot.manifest.dim
    total = int(offsets[-1])
    copies = {
        name: new_array(folder / name, dtype, (total, *shape)) for name, (dtype, shape) in codec.arrays(dim).items()
    }
    _copy_rows(copies, [(segment, rows) for segment, rows, _ in parts], progress)
    if recipe.has_cells and total:
        assert codebook.centroids is not None
        cell_lists.merge_cell_lists(folder, list(_renumbered(chosen)), len(codebook.centroids))
        merge_summaries(folder, [(_summaries(segment, dim), numbers) for segment, numbers in chosen])
    records = [segment.record for segment, _ in chosen]
    weights = [len(rows) / max(total, 1) for _, rows, _ in parts]
    unit = all(record.unit for record in records)
    write_checksums_and_faiss(folder, recipe, offsets, codec.rows(copies, codebook), codebook, unit, progress)
    record = SegmentRecord(
        name=folder.name,
        documents=len(offsets) - 1,
        embeddings=total,
        positions=positions,
        cut_documents=cut,
        files=describe_files(folder),
        block_rows=BLOCK_ROWS,
        token_block_rows=TOKEN_BLOCK_ROWS,
        reach=widest(records),
        spread=sum(w * record.spread for w, record in zip(weights, records, strict=True)),
        clipped=sum(w * record.clipped for w, record in zip(weights, records, strict=True)),
        unit=unit,
    )
    return NewSegment(record, codebook.content(), dim)


def _live(snapshot: Snapshot, first: int, segment: Segment) -> NDArray[np.int64]:
    if snapshot.live is None:
        return np.arange(len(segment))
    return np.flatnonzero(snapshot.live[first : first + len(segment)])


def _copy_tokens(folder: Path, offsets: NDArray[np.int64], chosen: Sequence[tuple[Segment, NDArray[np.int64]]]) -> int:
    """The tokens of the documents, and which rows their positions have; give how many positions there are."""
    parts = [(segment, *rows_of(segment.position_offsets, numbers)) for segment, numbers in chosen]
    position_offsets = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(edges) for _, _, edges in parts]))])
    rows = [
        positions - np.repeat(segment.offsets[numbers], np.diff(edges))
        if segment.positions.rows is None
        else segment.positions.rows[positions]
        for (segment, positions, edges), (_, numbers) in zip(parts, chosen, strict=True)
    ]
    write_positions(folder, offsets, position_offsets.astype(np.int64), np.concatenate(rows))
    write_tokens(
        folder,
        position_offsets.astype(np.int64),
        np.concatenate([segment.token_ids[positions] for segment, positions, _ in parts]),
        np.concatenate([segment.token_kinds[positions] for segment, positions, _ in parts]),
    )
    return int(position_offsets[-1])


def _summaries(segment: Segment, dim: int) -> NDArray[np.uint8] | None:
    if segment.record.embeddings == 0:
        return np.zeros((len(segment), packed_width(dim)), dtype=np.uint8)
    return segment.summaries


def _copy_rows(
    copies: Mapping[str, NDArray[Any]],
    parts: Sequence[tuple[Segment, NDArray[np.int64]]],
    progress: bool | None,
) -> None:
    """The given rows of each segment, one segment after the other, into the new arrays."""
    at = 0
    with progress_bar("copying embeddings", sum(len(rows) for _, rows in parts), "embeddings", progress) as advance:
        for segment, rows in parts:
            for start in range(0, len(rows), _ROWS_PER_BLOCK):
                block = rows[start : start + _ROWS_PER_BLOCK]
                segment.check_rows(block, block + 1)
                for name, copy in copies.items():
                    copy[at : at + len(block)] = segment.arrays[name][block]
                at += len(block)
                advance(len(block))


def _renumbered(
    chosen: Sequence[tuple[Segment, NDArray[np.int64]]],
) -> Iterator[tuple[CellLists, NDArray[np.int64]]]:
    first = 0
    for segment, numbers in chosen:
        new_numbers = np.full(len(segment), -1, dtype=np.int64)
        new_numbers[numbers] = np.arange(first, first + len(numbers))
        first += len(numbers)
        if segment.record.embeddings:
            yield segment.lists, new_numbers


def _copy_documents(
    folder: Path,
    chosen: Sequence[tuple[Segment, NDArray[np.int64]]],
    metadata_of: Callable[[DocumentRow], Mapping[str, Any]],
    has_words: bool,
) -> int:
    """Into a new database; give how many of them were cut."""
    writer = DocumentWriter(folder / DOCUMENTS, has_words)
    cut_documents = 0
    try:
        for segment, numbers in chosen:
            for start in range(0, len(numbers), _DOCUMENTS_PER_BLOCK):
                block = numbers[start : start + _DOCUMENTS_PER_BLOCK].tolist()
                for stored, cut in segment.documents.get_with_cut(block):
                    writer.add(stored.docno, stored.text, metadata_of(stored), cut)
                    cut_documents += cut > 0
        writer.finish()
    finally:
        writer.close()
    return cut_documents
