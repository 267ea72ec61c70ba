"""The nouns every step shares, in the order in which a query meets them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError

if TYPE_CHECKING:
    from .importance import Order


class TokenKind(IntEnum):
    """What a position holds. Steps after the encoder look at kinds, never at a vocabulary's ids."""

    WORD = 0  # a wordpiece of the text
    PUNCTUATION = 1  # a wordpiece that documents do not store
    CLS = 2
    MARKER = 3  # "this is a query", "this is a document"
    SEP = 4
    MASK = 5  # query expansion


@dataclass(frozen=True, slots=True, eq=False)
class EncodedText:
    """A query or a document after the encoder: one row per position.

    `cut` counts the wordpieces that the encoder's length limit left out.
    """

    embeddings: NDArray[np.float32]  # (positions, dim)
    token_ids: NDArray[np.int32]  # (positions,)
    token_kinds: NDArray[np.uint8]  # (positions,) of TokenKind
    cut: int = 0

    def __post_init__(self) -> None:
        # Arrays may come straight from a user, so the shapes are checked here, once for every path.
        embeddings = np.ascontiguousarray(self.embeddings, dtype=np.float32)
        if embeddings.ndim != 2:
            raise UsageError(f"embeddings must be a (positions, dim) matrix, not of shape {embeddings.shape}")
        if not np.isfinite(embeddings).all():
            raise UsageError("embeddings contain NaN or infinity")
        token_ids = np.ascontiguousarray(self.token_ids, dtype=np.int32)
        token_kinds = np.ascontiguousarray(self.token_kinds, dtype=np.uint8)
        for name, array in (("token_ids", token_ids), ("token_kinds", token_kinds)):
            if array.shape != (len(embeddings),):
                raise UsageError(
                    f"{name} must have one entry per embedding: {len(embeddings)} embeddings, shape {array.shape}"
                )
        if token_kinds.size and token_kinds.max() > max(TokenKind):
            raise UsageError(f"token_kinds must be values of TokenKind (0 to {max(TokenKind)})")
        object.__setattr__(self, "embeddings", embeddings)
        object.__setattr__(self, "token_ids", token_ids)
        object.__setattr__(self, "token_kinds", token_kinds)

    def __len__(self) -> int:
        return len(self.embeddings)


@dataclass(frozen=True, slots=True)
class Document:
    """One thing to index: the user's own stable name, its text, and any JSON object about it.

    With `encoded` the document brings its embeddings along and no encoder runs.
    """

    docno: str
    text: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    encoded: EncodedText | None = None


EFFORTS = ("fast", "balanced", "exact")
FREQUENCIES = ("collection", "matching")


@dataclass(frozen=True)  # no slots: the defaults below are read off the class
class SearchSettings:
    """How to search. The same words, with the same defaults, on every surface; effort.py fills in what is left open."""

    k: int = 10  # hits wanted
    p: int | Literal["auto"] | None = "auto"  # query embeddings to gather with; None: all of them
    order: str | Order = "icf"  # which query embeddings matter most: see importance.ORDERS
    gather: str = "auto"  # how candidates are found: see gather.GATHERERS
    k_prime: int = 1000  # faiss: nearest document embeddings per kept query embedding, Eq. 2
    nprobe: int | None = None  # cells, or partitions of faiss, that a kept query embedding looks into
    candidates: int | None = None  # cells: documents that are scored exactly
    effort: str = "balanced"  # what p, gather, nprobe and candidates follow where they are left open
    where: str | None = None  # which documents may be found: see filters.py
    frequencies: str = "collection"  # whose token frequencies order the embeddings: its, or of those "matching" where
    partial: bool = False  # over shards: leave out those that cannot be reached, instead of failing

    def __post_init__(self) -> None:
        if isinstance(self.p, str) and self.p != "auto":
            raise UsageError(
                f'p must be a whole number of at least 1, None to prune nothing, or "auto", not {self.p!r}'
            )
        if self.p != "auto":
            check_p(self.p)
        for name in ("k", "k_prime"):
            _check_whole_number(name, getattr(self, name))
        for name in ("nprobe", "candidates"):
            if getattr(self, name) is not None:
                _check_whole_number(name, getattr(self, name), ", or None to let the effort decide")
        if self.effort not in EFFORTS:
            raise UsageError(f"effort is one of {', '.join(EFFORTS)}, not {self.effort!r}")
        if self.frequencies not in FREQUENCIES:
            raise UsageError(f"frequencies is one of {', '.join(FREQUENCIES)}, not {self.frequencies!r}")
        if not isinstance(self.partial, bool):
            raise UsageError(f"partial is True or False, not {self.partial!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SearchSettings:
        """From settings by name; one that does not exist is an error that names those that do."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(f"there is no search setting {name!r}: there are {', '.join(known)}")
        return cls(**given)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Settings with nothing left open: what one search really did."""

    k: int
    p: int | None
    order: str | Order
    gather: str
    k_prime: int
    nprobe: int
    candidates: int
    where: str | None = None
    frequencies: str = "collection"


def check_p(p: int | None) -> None:
    if p is not None:
        _check_whole_number("p", p, ", or None to prune nothing")


def _check_whole_number(name: str, value: object, otherwise: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UsageError(f"{name} must be a whole number of at least 1{otherwise}, not {value!r}")


@dataclass(frozen=True, slots=True)
class SearchStats:
    """What one search did, stage by stage."""

    query_embeddings: int  # positions in the encoded query; scoring used all of them
    embeddings_kept: int  # positions that gathering used
    documents_gathered: int  # found by a kept embedding
    documents_scored: int  # of those, scored exactly
    documents_in_index: int
    documents_matching: int  # of those, what `where` lets through
    milliseconds: Mapping[str, float]  # encode, filter, prune, gather, score, fetch; over shards, the slowest; cluster
    shards_missing: int = 0  # that could not be reached: their documents are not in the ranking

    @property
    def total_milliseconds(self) -> float:
        return sum(self.milliseconds.values())


@dataclass(frozen=True, slots=True)
class Hit:
    docno: str
    score: float
    text: str
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ranking(Sequence[Hit]):
    """Hits from best to worst, the query with the positions that gathered them, and the statistics of the search."""

    hits: tuple[Hit, ...]
    query: EncodedText  # in full: scoring used all of it
    kept: tuple[int, ...]  # query positions used for gathering, most important first
    plan: SearchPlan
    stats: SearchStats

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, index: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[index]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)
