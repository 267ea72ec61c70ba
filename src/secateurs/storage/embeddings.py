"""Which embeddings are accepted, from the encoder or from the documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..encoders import Encoder
from ..errors import UsageError
from ..records import Document, EncodedText

_UNIT = 0.01  # how far from 1 a length may be


def encode(documents: Iterable[Document], encoder: Encoder | None) -> Iterator[EncodedText]:
    """The documents' embeddings: from the encoder, or without an encoder those that the documents bring."""
    if encoder is None:
        return map(embeddings_of, documents)
    return encoder.encode_documents(map(_text_of, documents))


def embeddings_of(document: Document) -> EncodedText:
    if document.encoded is None:
        raise UsageError(f"document {document.docno!r} has no embeddings, and the build has no encoder")
    return document.encoded


def _text_of(document: Document) -> str:
    if document.encoded is not None:
        raise UsageError(f"document {document.docno!r} brings its embeddings: build with encoder=None")
    return document.text


def check_source(document: Document, encoder: Encoder | None, dim: int | None) -> None:
    """Raise if the embeddings of a document cannot be had, or not stored beside others of `dim` dimensions."""
    if encoder is not None:
        _text_of(document)
        return
    encoded = embeddings_of(document)
    check_embeddings(encoded, dim or encoded.embeddings.shape[1], repr(document.docno))


def check_embeddings(encoded: EncodedText, dim: int | None, which: str) -> None:
    """Raise if embeddings cannot be stored beside others of `dim` dimensions; `which` names the document."""
    if encoded.weights is not None:
        raise UsageError(f"{which} has weights: they are for queries, documents have none")
    if len(encoded) and encoded.embeddings.shape[1] != dim:
        raise UsageError(
            f"{which} has embeddings of {encoded.embeddings.shape[1]} dimensions, those before it of {dim}"
        )
    if np.abs(encoded.embeddings).max(initial=0) > np.finfo(np.float16).max:
        raise UsageError(f"{which} has embeddings too large to store: normalise them")


def are_unit(encoded: EncodedText) -> bool:
    """Whether every embedding has length 1."""
    return bool((np.abs(np.linalg.norm(encoded.embeddings, axis=1) - 1) < _UNIT).all())


def exact_sum(rows: NDArray[np.float16]) -> NDArray[np.float64]:
    """Float16 values are multiples of 2^-24, so sums of them below 2^29 are exact in float64, in whatever order.

    That is half a billion embeddings of unit length, at least. So the mean over all shards is that of one index.
    """
    total: NDArray[np.float64] = rows.sum(axis=0, dtype=np.float64)
    return total
