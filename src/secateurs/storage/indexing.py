"""Documents to a new segment: each is accepted or refused, encoded, and appended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..corpus import BadDocumentError, OnBad, to_document
from ..encoders import Encoder
from ..errors import DuplicateDocumentError, SecateursError, UsageError
from ..progress import progress_bar
from ..records import Document
from .codebooks import CodebookContent
from .embeddings import check_source, embeddings_of
from .journal import StagedText
from .merging import merge_alike
from .recipe import Recipe
from .rounding import Int8Store
from .salvage import Salvage, Staging, encode_or_take_over
from .segment_writer import NewSegment, SegmentWriter, StoredRows

Item = tuple[str, Document | Mapping[str, Any]]  # with its place ("corpus.jsonl, line 7"), for error messages

StoredDocument = tuple[Document, StoredRows | None]  # None where rows are stored again


def write_segment(
    folder: Path,
    items: Iterable[Item],
    encoder: Encoder | None,
    recipe: Recipe,
    *,
    total: int | None = None,
    progress: bool | None = None,
    on_bad: OnBad | None = None,
    is_taken: Callable[[str], bool] = lambda docno: False,
    to_rewrite: Callable[[int, float], Iterable[StoredDocument] | None] = lambda embeddings, clipped: None,
    stored: Iterable[StoredDocument] = (),
    codebook: CodebookContent | None = None,
    int8: Int8Store | None = None,
    unit: bool | None = None,
    dim: int | None = None,
    merged: bool = False,
    staging: Staging | None = None,
) -> NewSegment:
    """Encode and store documents.

    is_taken    whether the index has a document with this docno already
    to_rewrite  called with the number of embeddings, and the share of their values that the codebook's scale cuts off;
                gives all other documents of the index, to make one segment of everything with a new codebook; or None
    stored      documents of the index that come after the others, with what is stored of them
    codebook    that of the index the segment is added to; what it does not have is learnt
    int8        a scale to keep if it fits
    unit        whether embeddings have length 1, where that cannot be told from rounded ones
    dim         that the embeddings must have
    merged      whether the documents come from an index, where their embeddings were merged already
    staging     where embeddings are staged, and what can be taken over; otherwise they are staged in the folder
    """
    recipe.check()
    description = "encoding documents" if encoder is not None else "reading embeddings"
    salvage = Salvage() if staging is None else staging.salvage
    if len(salvage):
        description += f", {len(salvage):,} of an interrupted build"
    with SegmentWriter(folder, recipe, dim or None, staging) as writer:
        with progress_bar(description, total, "passages", progress) as advance:
            as_given = recipe._replace(merge=None, pool=1)
            _fill(writer, items, encoder, salvage, as_given if merged else recipe, on_bad, is_taken, advance)
        dim = writer.dim or (encoder.dim if encoder is not None else 0)
        if codebook is not None and codebook.int8 is not None:
            others = to_rewrite(*writer.clipped_by(codebook.int8))
            if others is not None:
                codebook, unit, stored = CodebookContent(0, code=codebook.code), None, others
        for document, rows in stored:
            writer.reserve(document)
            writer.append(embeddings_of(document), rows)
        dim = writer.dim or dim
        return writer.finish(recipe, dim, codebook, int8, unit, progress)


def in_index_already(place: str, docno: str) -> str:
    return f"{place}: docno {docno!r} is in the index already: to replace it, update"


def _fill(
    writer: SegmentWriter,
    items: Iterable[Item],
    encoder: Encoder | None,
    salvage: Salvage,
    recipe: Recipe,
    on_bad: OnBad | None,
    is_taken: Callable[[str], bool],
    advance: Callable[[int], None],
) -> None:
    def skip(problem: str, error: type[SecateursError] = BadDocumentError) -> None:
        if on_bad is None:
            raise error(problem)
        on_bad(problem)
        advance(1)

    def accepted() -> Iterator[Document]:
        for place, item in items:
            try:
                document = to_document(item)
            except BadDocumentError as error:
                skip(f"{place}: {error}")
                continue
            if is_taken(document.docno):
                skip(in_index_already(place, document.docno), DuplicateDocumentError)
                continue
            try:
                check_source(document, encoder, writer.dim)
            except UsageError as error:
                skip(f"{place}: {error}", UsageError)
                continue
            earlier = writer.reserve(document, place)
            if earlier is None:
                yield document
            else:
                skip(f"{place}: docno {document.docno!r} is already that of {earlier}", DuplicateDocumentError)

    for text in encode_or_take_over(accepted(), encoder, salvage):
        if isinstance(text, StagedText):  # it was merged before it was staged
            writer.stage(text)
        else:
            writer.append(merge_alike(text, recipe.merge, recipe.pool))
        advance(1)
