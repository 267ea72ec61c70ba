"""The records that all steps share: encoded texts, documents, what a change did, what is known of a key."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError


class TokenKind(IntEnum):
    """The kind of token at a position. Steps after the encoder use kinds, never the ids of a vocabulary."""

    WORD = 0  # a wordpiece of the text
    PUNCTUATION = 1  # a wordpiece that documents do not store
    CLS = 2
    MARKER = 3  # "this is a query", "this is a document"
    SEP = 4
    MASK = 5  # query expansion
    SUMMARY = 6  # a special token whose embedding stands for the whole text, in queries and in documents


@dataclass(frozen=True, slots=True, eq=False)
class EncodedText:
    """A query or a document after the encoder: one row per position.

    `cut` counts the wordpieces that the encoder's length limit left out. `weights` are for queries: what each embedding
    counts for in the score, and where documents are gathered by a score. Without them each counts 1, as in Eq. 1.
    `text` is for queries too: gather="text" looks for its words.
    """

    embeddings: NDArray[np.float32]  # (positions, dim)
    token_ids: NDArray[np.int32]  # (positions,)
    token_kinds: NDArray[np.uint8]  # (positions,) of TokenKind
    cut: int = 0
    weights: NDArray[np.float32] | None = None  # (positions,) from 0 to 1,000; None: 1 for each
    text: str | None = None

    def __post_init__(self) -> None:
        # Arrays may come from a user: they are checked here, for every path.
        embeddings = _as_array("embeddings", self.embeddings, np.float32)
        if embeddings.ndim != 2:
            raise UsageError(f"embeddings must be a (positions, dim) matrix, not of shape {embeddings.shape}")
        if not np.isfinite(embeddings).all():
            raise UsageError("embeddings contain NaN or infinity")
        token_ids = _as_array("token_ids", self.token_ids, np.int32)
        token_kinds = _as_array("token_kinds", self.token_kinds, np.uint8)
        for name, array in (("token_ids", token_ids), ("token_kinds", token_kinds)):
            if array.shape != (len(embeddings),):
                raise UsageError(
                    f"{name} must have one entry per embedding: {len(embeddings)} embeddings, shape {array.shape}"
                )
        if token_kinds.size and token_kinds.max() > max(TokenKind):
            raise UsageError(_KINDS)
        if self.weights is not None:
            weights = _as_array("weights", self.weights, np.float32)
            # float16 stores multiply in float16, which ends at 65,504.
            if weights.shape != (len(embeddings),) or not ((weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
                raise UsageError(
                    f"weights must be a number from 0 to {LARGEST_WEIGHT:,} for each embedding: {len(embeddings)} "
                    f"embeddings, shape {weights.shape}"
                )
            object.__setattr__(self, "weights", weights)
        if self.text is not None:
            if not isinstance(self.text, str):
                raise UsageError(f"text is a text, or None, not {self.text!r}")
            check_unicode(self.text)
        object.__setattr__(self, "embeddings", embeddings)
        object.__setattr__(self, "token_ids", token_ids)
        object.__setattr__(self, "token_kinds", token_kinds)

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def all_weights(self) -> NDArray[np.float32]:
        """(positions,): the weights, 1 for each embedding if there are none."""
        return np.ones(len(self), dtype=np.float32) if self.weights is None else self.weights

    @property
    def weighted(self) -> NDArray[np.float32]:
        """The embeddings, each multiplied by its weight: a product with one of these is a weighted similarity."""
        return self.embeddings if self.weights is None else self.embeddings * self.weights[:, None]


LARGEST_WEIGHT = 1000
_KINDS = "token_kinds must be values of TokenKind: " + ", ".join(f"{kind.value} {kind.name}" for kind in TokenKind)


def _as_array(name: str, given: object, dtype: Any) -> NDArray[Any]:
    """The array in the type that is stored. A number that does not fit into that type is an error."""
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise UsageError(f"{name}: the rows do not all have the same number of dimensions") from error
    if array.dtype.kind not in "biuf":
        raise UsageError(_KINDS if name == "token_kinds" else f"{name} must be numbers, not {array.dtype}")
    if np.issubdtype(dtype, np.integer) and array.size and array.dtype != dtype:
        least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
        if not ((array >= least) & (array <= most) & (array == np.floor(array))).all():
            raise UsageError(f"{name} must be whole numbers from {least} to {most}")
    return np.ascontiguousarray(array, dtype=dtype)


@dataclass(frozen=True, slots=True)
class Document:
    """A document: the user's stable name for it, its text, and a JSON object of metadata.

    With `encoded` the document brings its embeddings, and no encoder runs.
    """

    docno: str
    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    encoded: EncodedText | None = None


_BLANK = {"Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cs"}  # not Cn: a newer Unicode may assign a visible character there


def is_blank(text: str) -> bool:
    """Whether a text has nothing to encode: only white space, control characters and characters without width.

    These are the Unicode categories Z* (separators), Cc, Cf, Co and Cs, which the built-in encoder's tokenizer removes.
    """
    return all(unicodedata.category(character) in _BLANK for character in text)


def check_unicode(query: str) -> None:
    try:
        query.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"the query is not valid Unicode ({error.reason})") from error


def check_query_text(query: str) -> None:
    """Raise unless an encoder can encode the query."""
    check_unicode(query)
    if is_blank(query):
        raise UsageError("the query is empty: give at least one word")


Positions: TypeAlias = NDArray[np.int64]  # positions of a query, most important first


def check_docno(docno: object) -> None:
    if not isinstance(docno, str):
        raise UsageError(f"a docno is a text, not {docno!r}")


def to_docnos(docnos: object) -> list[str]:
    """A docno, or several of them, as a list."""
    if isinstance(docnos, str):
        return [docnos]
    if isinstance(docnos, bytes) or not isinstance(docnos, Iterable):
        raise UsageError(f"docnos are a text or several texts, not {docnos!r}")
    listed = list(docnos)
    for docno in listed:
        check_docno(docno)
    return listed


def check_either(docnos: object, where: object) -> None:
    """Of `delete`: nothing is deleted by a filter that was left out."""
    if (docnos is None) == (where is None):
        raise UsageError("delete takes docnos, or  where  with a filter: exactly one of them")


@dataclass(frozen=True, slots=True)
class Changes:
    """What a change of an index did."""

    added: int = 0
    replaced: int = 0
    deleted: int = 0
    missing: tuple[str, ...] = ()  # docnos that were to be deleted or changed and are not there


@dataclass(frozen=True, slots=True)
class Field:
    """What an index knows of a key of the metadata, as filters name it: "author.name" is inside of an object."""

    types: tuple[str, ...]  # of its values: "number", "text", "boolean"; "nested" beside them: in lists, or an object
    documents: int  # that have a value
    example: str | int | float | bool | None = None  # a value; None if it is an object, or its lists are empty
