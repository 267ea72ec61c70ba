"""Documents that a client writes: what the index cannot take, said by the field that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract import AnyIndex
from ..records import Document
from .problems import Problem


def check_documents(index: AnyIndex, documents: Sequence[Document]) -> None:
    dim = index.dim
    for number, document in enumerate(documents):
        wrong = None
        if index.has_encoder and document.encoded is not None:
            wrong = "come from the encoder of this index: send the text only"
        elif not index.has_encoder and document.encoded is None:
            wrong = "are missing: this index was built without an encoder"
        elif document.encoded is not None and len(document.encoded):
            width = document.encoded.embeddings.shape[1]
            dim = dim or width  # an empty index takes the dimensions of its first document
            if width != dim:
                wrong = f"have {width} dimensions, those of the index {dim}"
        if wrong:
            raise Problem.of_field(f"documents.{number}.embeddings", wrong)


def conflict(index: AnyIndex, documents: Sequence[Document], replacing: bool) -> Problem:
    """The first docno that is twice among the documents or, when they are added, in the index already."""
    places: dict[str, str] = {}
    for number, document in enumerate(documents):
        place = f"documents.{number}"
        if not replacing and document.docno in index:
            message = f"{document.docno!r} is in the index already: to replace it, send it with PUT"
        elif document.docno in places:
            message = f"{document.docno!r} is already that of {places[document.docno]}"
        else:
            places[document.docno] = place
            continue
        return Problem.of_field(f"{place}.docno", message, status=409)
    return Problem.of_field("documents", "a docno is in the index already", status=409)
