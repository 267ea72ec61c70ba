"""What an index holds, document by document: for baselines that search the same collection in another way."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..index.index import Index

_BLOCK = 1000  # documents read at a time


def stored_texts(index: Index) -> tuple[list[str], list[str]]:
    """Docnos and texts."""
    docnos: list[str] = []
    texts: list[str] = []
    for segment in index.segments:
        for first in range(0, len(segment), _BLOCK):
            for document in segment.documents.get(list(range(first, min(first + _BLOCK, len(segment))))):
                docnos.append(document.docno)
                texts.append(document.text)
    return docnos, texts


def stored_vectors(index: Index) -> tuple[list[str], NDArray[np.float32]]:
    """Docnos, and the mean of each document's embeddings: (documents, dim)."""
    docnos: list[str] = []
    means = [np.empty((0, index.manifest.dim), dtype=np.float32)]
    for segment in index.segments:
        for first in range(0, len(segment), _BLOCK):
            numbers = list(range(first, min(first + _BLOCK, len(segment))))
            docnos += segment.documents.docnos(numbers)
            bounds = np.asarray(segment.offsets[first : numbers[-1] + 2])
            segment.embeddings.check(bounds[:1], bounds[-1:])
            embeddings = segment.store.decode(segment._rows[bounds[0] : bounds[-1]])
            bounds = bounds - bounds[0]
            block = np.zeros((len(numbers), index.manifest.dim), dtype=np.float32)
            for place, (start, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
                if end > start:  # a document without a token has no mean, and is like nothing
                    block[place] = embeddings[start:end].mean(axis=0)
            means.append(block)
    return docnos, np.concatenate(means)
