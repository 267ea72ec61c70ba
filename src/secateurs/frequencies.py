"""How often each token occurs among the stored document embeddings, and how often in general text.

Counts cover what the index holds: after the document limit, after the punctuation skip. Token ids may be any int32,
so the counts are kept sparse and nothing here knows a vocabulary.

A background is a second table for the same vocabulary, counted in text of the same language: it tells words that are
rare in the language from words that are only rare in this collection. See background.py.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import SecateursError, UsageError
from .progress import progress_bar

_DOCUMENTS_PER_BLOCK = 65_536


@dataclass(frozen=True, slots=True, eq=False)
class Frequencies:
    token_ids: NDArray[np.int32]  # (types,) ascending
    collection: NDArray[np.int64]  # (types,) embeddings with that token
    document: NDArray[np.int64]  # (types,) documents with at least one
    background: Frequencies | None = None  # of general text; it stays as it is when collections are added up
    centre: NDArray[np.float32] | None = None  # (dim,) mean of all embeddings, if it is known
    one_token: bool | None = None  # whether all embeddings of the collection have one token id; None: as counted here
    embeddings: int = field(init=False)  # of all tokens together; added up once, because every search asks for it

    def __post_init__(self) -> None:
        object.__setattr__(self, "embeddings", int(self.collection.sum()))

    @classmethod
    def of(cls, token_ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> Frequencies:
        """Count documents laid end to end: document i is token_ids[offsets[i]:offsets[i + 1]]."""
        total = cls.none()
        for first in range(0, len(offsets) - 1, _DOCUMENTS_PER_BLOCK):  # bounded memory for any collection
            bounds = offsets[first : first + _DOCUMENTS_PER_BLOCK + 1]
            block = np.asarray(token_ids[bounds[0] : bounds[-1]], dtype=np.int64)
            types, collection = np.unique(block, return_counts=True)
            documents = np.repeat(np.arange(len(bounds) - 1, dtype=np.int64), np.diff(bounds))
            # One number per (document, token) pair; a repeated pair is the same document again.
            slots = documents * max(len(types), 1) + np.searchsorted(types, block)
            document = np.bincount(np.unique(slots) % max(len(types), 1), minlength=len(types))
            total = total + cls(types.astype(np.int32), collection.astype(np.int64), document.astype(np.int64))
        return total

    @classmethod
    def count(
        cls, documents: Iterable[ArrayLike], *, total: int | None = None, progress: bool | None = None
    ) -> Frequencies:
        """Count the token ids of each document, streaming: for documents that are in no index of ours.

        Count the ids of the embeddings that are stored, one for each. `total` is how many documents to expect, for the
        progress bar.
        """
        counted, remaining = cls.none(), iter(documents)
        with progress_bar("counting tokens", total, "documents", progress) as advance:
            while block := [_checked_ids(ids) for ids in islice(remaining, _DOCUMENTS_PER_BLOCK)]:
                counted = counted + cls.of(np.concatenate(block), np.cumsum([0, *map(len, block)]))
                advance(len(block))
        return counted

    @classmethod
    def none(cls) -> Frequencies:
        return cls(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))

    @classmethod
    def from_counts(cls, collection: Mapping[int, int], document: Mapping[int, int] | None = None) -> Frequencies:
        """From plain dictionaries; without document frequencies, collection frequencies stand in for them."""
        try:
            ids = np.array(sorted(collection), dtype=np.int32)
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"token ids are whole numbers below 2^31: {error}") from error
        counts = np.array([collection[int(i)] for i in ids], dtype=np.int64)
        if (counts < 0).any():
            raise UsageError("a frequency cannot be negative")
        if document is None:
            return cls(ids, counts, counts)
        return cls(ids, counts, np.array([document.get(int(i), 0) for i in ids], dtype=np.int64))

    def save(self, path: str | Path) -> None:
        """Write the counts and the mean of all embeddings to a file; the background has a file of its own."""
        mean = np.empty(0, dtype=np.float32) if self.centre is None else self.centre
        with Path(path).open("wb") as file:  # np.savez would add .npz to a name without it
            np.savez_compressed(
                file, token_ids=self.token_ids, collection=self.collection, document=self.document, centre=mean
            )

    @classmethod
    def load(cls, path: str | Path) -> Frequencies:
        """The counts of a file that `save` wrote."""
        if not Path(path).is_file():
            raise UsageError(f"there is no file {path}: Frequencies.save writes one")
        try:
            if not zipfile.is_zipfile(path):  # np.load would take it for something else
                raise ValueError("it is no .npz file")
            with np.load(path, allow_pickle=False) as arrays:
                token_ids, collection, document = (arrays[name] for name in ("token_ids", "collection", "document"))
                centre = arrays["centre"]
            if {array.shape for array in (token_ids, collection, document)} != {(token_ids.size,)}:
                raise ValueError("its ids and counts do not fit together")
            if {array.dtype.kind for array in (token_ids, collection, document)} != {"i"}:
                raise ValueError("its ids and counts are no whole numbers")
            if (np.diff(token_ids.astype(np.int64)) < 1).any():
                raise ValueError("its ids do not ascend")
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise SecateursError(f"{path} has no frequencies ({error}): Frequencies.save writes them") from error
        counts = cls(token_ids.astype(np.int32), collection.astype(np.int64), document.astype(np.int64))
        return counts.with_centre(centre) if centre.size else counts

    def __add__(self, other: Frequencies) -> Frequencies:
        ids = np.union1d(self.token_ids, other.token_ids).astype(np.int32)
        return Frequencies(
            ids,
            self.collection_frequency(ids) + other.collection_frequency(ids),
            self.document_frequency(ids) + other.document_frequency(ids),
            self.background or other.background,
            _mean(self, other),
            other.one_token if self.one_token is None else self.one_token,
        )

    def __sub__(self, other: Frequencies) -> Frequencies:
        """Without what `other` counts, which must be among what this counts."""
        collection = self.collection - other.collection_frequency(self.token_ids)
        document = self.document - other.document_frequency(self.token_ids)
        left = collection > 0
        return replace(self, token_ids=self.token_ids[left], collection=collection[left], document=document[left])

    def mean_without_token_ids(self) -> NDArray[np.float32] | None:
        """The mean of all embeddings, if they have all the same token id, as those of page images; otherwise None."""
        one_token = len(self.token_ids) == 1 if self.one_token is None else self.one_token
        return self.centre if one_token else None

    def with_centre(self, centre: ArrayLike) -> Frequencies:
        """With the mean of all document embeddings, (dim,), by which the order `focus` goes."""
        mean = np.asarray(centre)
        if mean.ndim != 1 or mean.dtype.kind != "f" or not np.isfinite(mean).all():
            raise UsageError(f"the mean of all embeddings is a vector of numbers, not {centre!r:.100}")
        return replace(self, centre=mean.astype(np.float32))

    def emptied(self) -> Frequencies:
        """No counts, to which those of documents of this collection are added: what else is known stays as it is."""
        # Some documents may have one token type of many: then the frequencies still tell tokens apart.
        one_token = self.mean_without_token_ids() is not None
        return replace(Frequencies.none(), background=self.background, centre=self.centre, one_token=one_token)

    def with_background(self, background: Frequencies | None) -> Frequencies:
        return replace(self, background=background)

    def collection_frequency(self, token_ids: ArrayLike) -> NDArray[np.int64]:
        """Per token: how many stored embeddings carry it; 0 for a token the collection does not have."""
        return self._look_up(self.collection, token_ids)

    def document_frequency(self, token_ids: ArrayLike) -> NDArray[np.int64]:
        return self._look_up(self.document, token_ids)

    def _look_up(self, counts: NDArray[np.int64], token_ids: ArrayLike) -> NDArray[np.int64]:
        wanted = np.asarray(token_ids, dtype=np.int32)
        if len(self.token_ids) == 0:
            return np.zeros(wanted.shape, dtype=np.int64)
        slots = np.minimum(np.searchsorted(self.token_ids, wanted), len(self.token_ids) - 1)
        return np.where(self.token_ids[slots] == wanted, counts[slots], 0)


def _mean(a: Frequencies, b: Frequencies) -> NDArray[np.float32] | None:
    """The mean of all embeddings of both, as far as it is known."""
    if a.centre is None or b.centre is None:
        return b.centre if a.centre is None else a.centre
    if np.array_equal(a.centre, b.centre):  # that of shards with a common codebook stays as it is, to the last bit
        return a.centre
    both = a.embeddings * a.centre.astype(np.float64) + b.embeddings * b.centre.astype(np.float64)
    return (both / max(a.embeddings + b.embeddings, 1)).astype(np.float32)


def _checked_ids(given: ArrayLike) -> NDArray[np.int32]:
    """The token ids of a document. Ids that are cut to 32 bits would be those of other tokens."""
    ids = np.asarray(given)
    limits = np.iinfo(np.int32)
    whole = ids.size == 0 or (ids.dtype.kind in "iu" and limits.min <= int(ids.min()) and int(ids.max()) <= limits.max)
    if ids.ndim != 1 or not whole:
        raise UsageError(
            f"give the token ids of each document as a list of whole numbers of 32 bits, not {given!r:.100}; "
            "an EncodedText has them in token_ids"
        )
    return ids.astype(np.int32)
