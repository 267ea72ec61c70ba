"""Documents of a write, by the shard that each belongs to: checked first, then encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from uuid import uuid4

from ...contract import AnyIndex, Documents
from ...corpus import BadDocumentError, OnBad, to_document, with_places
from ...encoders import Encoder
from ...errors import DuplicateDocumentError, UsageError
from ...progress import progress_bar
from ...records import Document
from ...storage.embeddings import encode

Batches = Mapping[int, list[tuple[str, Document]]]  # shard number -> (place, document), in the order they were given


def new_write_id() -> str:
    """For each write to each shard: see storage/recent_writes.py."""
    return uuid4().hex


def read_batches(
    index: AnyIndex, documents: Documents, on_bad: OnBad | None, number_for: Callable[[str], int]
) -> Batches:
    """The documents by shard. Everything that can be wrong with them, other than docnos that are there, is checked."""
    places: dict[str, str] = {}
    batches: dict[int, list[tuple[str, Document]]] = {}
    dim = index.dim
    for place, item in with_places(documents, on_bad)[0]:
        try:
            document = to_document(item)
            if document.docno in places:
                raise DuplicateDocumentError(f"docno {document.docno!r} is already that of {places[document.docno]}")
        except (BadDocumentError, DuplicateDocumentError) as error:
            if on_bad is None:
                raise type(error)(f"{place}: {error}") from error
            on_bad(f"{place}: {error}")
            continue
        dim = _check_embeddings(index, document, place, dim)
        places[document.docno] = place
        batches.setdefault(number_for(document.docno), []).append((place, document))
    return batches


def _check_embeddings(index: AnyIndex, document: Document, place: str, dim: int) -> int:
    """How many dimensions embeddings have: those of the collection, or of the first document."""
    if document.encoded is None and not index.has_encoder:
        raise UsageError(f"{place}: {document.docno!r} has no embeddings, and {index.path} has no encoder")
    if document.encoded is None:
        return dim
    if index.has_encoder:
        raise UsageError(f"{place}: {document.docno!r} brings its embeddings, but {index.path} makes its own")
    if document.encoded.weights is not None:  # here too, so that no shard has been written to
        raise UsageError(f"{place}: {document.docno!r} has weights: they are for queries, documents have none")
    width = document.encoded.embeddings.shape[1]
    if len(document.encoded) and dim and width != dim:
        raise UsageError(f"{place}: {document.docno!r} has embeddings of {width} dimensions, the others of {dim}")
    return dim or width


def encode_batches(batches: Batches, encoder: Encoder | None, progress: bool | None) -> Batches:
    """The same batches, each document with its embeddings."""
    placed = [item for batch in batches.values() for item in batch]
    encoded = []
    with progress_bar("encoding documents", len(placed), "passages", progress) as advance:
        texts = encode((document for _, document in placed), encoder)
        for (place, document), text in zip(placed, texts, strict=True):
            encoded.append((place, replace(document, encoded=text)))
            advance(1)
    items = iter(encoded)
    return {number: list(islice(items, len(batch))) for number, batch in batches.items()}
