"""The records that all steps share: encoded texts, documents, settings, plans, rankings."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any, Literal, TypeAlias, cast, get_args, overload

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError, require
from .frequencies import Frequencies
from .html_views import Viewed, hit_html, ranking_html


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
            if weights.shape != (len(embeddings),) or not ((weights >= 0) & (weights <= _LARGEST_WEIGHT)).all():
                raise UsageError(
                    f"weights must be a number from 0 to {_LARGEST_WEIGHT:,} for each embedding: {len(embeddings)} "
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


_LARGEST_WEIGHT = 1000
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
OrderFunction: TypeAlias = Callable[[EncodedText, Frequencies], Positions]

# The words that settings take, as types, so that editors complete them; and as tuples.
OrderName = Literal["focus", "rarity", "icf", "idf", "first", "random"]
GatherName = Literal["cells", "faiss", "exhaustive", "text"]
GatherSetting = Literal["auto", "cells", "faiss", "exhaustive", "text", "cells+text"]
EffortName = Literal["fast", "balanced", "thorough", "exact"]
FrequenciesName = Literal["collection", "matching"]
WeightsName = Literal["idf"]
FuseName = Literal["rrf"]
StoreName = Literal["int8", "int16", "float16", "residual4"]
Order: TypeAlias = OrderName | OrderFunction
Merge: TypeAlias = float | Literal["auto"] | None  # which embeddings of a document become one: see storage/merging.py
ORDER_NAMES: tuple[OrderName, ...] = get_args(OrderName)
GATHERERS: tuple[GatherName, ...] = get_args(GatherName)  # the first that an index was built for is its default
GATHER_SETTINGS: tuple[GatherSetting, ...] = get_args(GatherSetting)
EFFORTS: tuple[EffortName, ...] = get_args(EffortName)
FREQUENCIES: tuple[FrequenciesName, ...] = get_args(FrequenciesName)
WEIGHTS: tuple[WeightsName, ...] = get_args(WeightsName)  # besides None: equal weights, Eq. 1
FUSES: tuple[FuseName, ...] = get_args(FuseName)  # besides None: the order of the exact score
STORES: tuple[StoreName, ...] = get_args(StoreName)
DEFAULT_STORE: StoreName = "int8"


def ways(gather: str) -> set[str]:
    """What an index must be built for to gather like this."""
    return set(gather.split("+"))


def check_choice(setting: str, value: object, choices: Collection[str]) -> None:
    """Raise unless the value is one of the words that the setting takes."""
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{setting} is one of {', '.join(choices)}, not {value!r}")


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


@dataclass(frozen=True)  # no slots: the defaults below are read off the class
class SearchSettings:
    """How to search. Every surface has the same names and defaults; effort.py decides what is left open."""

    k: int = 10  # hits wanted
    offset: int = 0  # hits to leave out before them: the ranking is the slice [offset : offset + k] of a longer one
    p: int | Literal["auto", "all"] | None = "auto"  # query embeddings to gather with; None, or "all": all of them
    order: Order = "focus"  # which query embeddings matter most: see importance.py
    gather: GatherSetting = "auto"  # how candidates are found: see gather/
    k_prime: int = 1000  # faiss: nearest document embeddings per kept query embedding, Eq. 2
    nprobe: int | None = None  # cells, or partitions of faiss, that a kept query embedding looks into
    candidates: int | None = None  # cells, text: documents that are scored exactly; cells+text: so many of each
    effort: EffortName = "balanced"  # what p, gather, nprobe and candidates follow where they are left open
    budget_ms: float | None = None  # cells: milliseconds that a search may take after encoding, instead of an effort
    where: str | None = None  # which documents may be found: see storage/filters.py
    frequencies: FrequenciesName = "collection"  # whose token frequencies decide the order, and the weights
    weights: WeightsName | None = None  # what each query embedding counts for in the score: weights.py; None: Eq. 1
    fuse: FuseName | None = None  # order hits by BM25 too: see fusion.py; None: by the exact score
    min_score: float | None = None  # leave out hits with a lower score
    min_relevance: float | None = None  # leave out hits with a lower relevance, from 0 to 1: see relevance.py
    facets: Sequence[str] = ()  # keys of the metadata whose values are counted: see storage/facets.py
    partial: bool = False  # over shards: leave out shards that cannot be reached, instead of raising

    def __post_init__(self) -> None:
        if isinstance(self.p, str) and self.p == "all":
            object.__setattr__(self, "p", None)  # the same in one form
        if not isinstance(self.p, str) or self.p != "auto":
            check_p(self.p)
        for name in ("k", "k_prime"):
            _check_whole_number(name, getattr(self, name))
        _check_whole_number("offset", self.offset, least=0)
        for name in ("nprobe", "candidates"):
            if getattr(self, name) is not None:
                _check_whole_number(name, getattr(self, name), ", or None to let the effort decide")
        if not callable(self.order):
            check_choice("order", self.order, ORDER_NAMES)
        check_choice("gather", self.gather, GATHER_SETTINGS)
        check_choice("effort", self.effort, EFFORTS)
        check_choice("frequencies", self.frequencies, FREQUENCIES)
        if self.weights is not None and (not isinstance(self.weights, str) or self.weights not in WEIGHTS):
            raise UsageError(f"weights is {', '.join(WEIGHTS)}, or None for equal weights, not {self.weights!r}")
        if self.fuse is not None:
            self._check_fuse()
        if self.budget_ms is not None:
            self._check_budget()
        _check_threshold("min_score", self.min_score, float("-inf"), float("inf"), "a number")
        _check_threshold("min_relevance", self.min_relevance, 0, 1, "a number from 0 to 1")
        if self.where is not None and not isinstance(self.where, str):
            raise UsageError(f"where is a text such as \"year >= 2020 and lang = 'en'\", not {self.where!r}")
        object.__setattr__(self, "facets", _to_keys(self.facets))
        if not isinstance(self.partial, bool):
            raise UsageError(f"partial is True or False, not {self.partial!r}")

    @property
    def depth(self) -> int:
        """How many of the best documents are needed."""
        return self.k + self.offset

    def _check_fuse(self) -> None:
        if not isinstance(self.fuse, str) or self.fuse not in FUSES:
            raise UsageError(f"fuse is {', '.join(FUSES)}, or None for the order of the exact score, not {self.fuse!r}")
        if self.min_score is not None:
            raise UsageError("with fuse, the score of a hit comes from ranks: use min_relevance instead of min_score")

    def _check_budget(self) -> None:
        budget = self.budget_ms
        if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < float("inf"):
            raise UsageError(f"budget_ms is a number of milliseconds above 0, or None, not {budget!r}")
        decided = ("p", "nprobe", "candidates", "effort", "fuse")
        given = [name for name in decided if getattr(self, name) != _DEFAULTS[name]]
        if given:
            raise UsageError(f"budget_ms chooses p, nprobe and candidates: leave out {' and '.join(given)}")
        if self.gather not in ("auto", "cells"):
            raise UsageError(f'budget_ms is for gather="cells", not {self.gather!r}')

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SearchSettings:
        """From settings by name; one that does not exist is an error that names those that do."""
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError(f"there is no search setting {name!r}: there are {', '.join(known)}")
        return cls(**given)


MOST_FACETS = 16
_DEFAULTS = {field.name: field.default for field in fields(SearchSettings)}


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The words of a query as BM25 weighs them in the whole collection: see gather/bm25.py."""

    words: tuple[str, ...]  # each once
    weights: tuple[float, ...]  # of each: its inverse document frequency, times how often the query has it
    mean_length: float  # words per document


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """Settings with nothing left open: what one search did.

    Over shards, `k_prime`, `nprobe` and `candidates` are those of each shard.
    """

    k: int
    p: int | None  # None: all query embeddings
    order: Order
    gather: str  # over shards that gathered in different ways: the ways, joined by "+"
    k_prime: int
    nprobe: int
    candidates: int
    where: str | None = None
    frequencies: FrequenciesName = "collection"
    weights: WeightsName | None = None
    nprobe_each: tuple[int, ...] | None = None  # cells: of each kept embedding, at most `nprobe`; None: it for each
    budget_ms: float | None = None  # what p, nprobe and candidates were chosen for
    min_score: float | None = None
    min_relevance: float | None = None
    fuse: FuseName | None = None
    words: QueryWords | None = None  # text: what is looked for
    offset: int = 0

    @property
    def depth(self) -> int:
        """How many of the best documents are needed."""
        return self.k + self.offset


def check_p(p: object) -> None:
    if p is not None:
        _check_whole_number("p", p, ', or None (or "all") to prune nothing')


def _check_whole_number(name: str, value: object, otherwise: str = "", least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}{otherwise}, not {value!r}")


def _to_keys(facets: object) -> tuple[str, ...]:
    if isinstance(facets, Sequence) and not isinstance(facets, str) and len(facets) <= MOST_FACETS:
        with suppress(TypeError, UnicodeEncodeError):
            "".join(facets).encode()  # they are texts, and SQLite can look for them
            return tuple(dict.fromkeys(facets))
    raise UsageError(f"facets is a list of up to {MOST_FACETS} keys of the metadata, not {facets!r:.200}")


def _check_threshold(name: str, value: object, least: float, most: float, what: str) -> None:
    if value is None:
        return
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not (is_number and least <= cast(float, value) <= most):  # nan is not between any two numbers
        raise UsageError(f"{name} is {what}, or None to leave out no hit, not {value!r}")


@dataclass(frozen=True, slots=True)
class SearchStats:
    """What one search did, stage by stage."""

    query_embeddings: int  # positions in the encoded query; scoring used all of them
    embeddings_kept: int  # positions that gathering used
    documents_gathered: int  # found by a kept embedding
    documents_scored: int  # of those, scored exactly
    documents_in_index: int
    documents_matching: int  # of those, the ones that `where` lets through
    milliseconds: Mapping[str, float]  # encode, filter, prune, gather, score, fetch; over shards the slowest; cluster
    loading_milliseconds: float = 0.0  # before the search: loading the model, compiling the kernels
    shards_missing: int = 0  # shards that could not be reached: their documents are not in the ranking

    @property
    def total_milliseconds(self) -> float:
        return sum(self.milliseconds.values())

    @property
    def search_milliseconds(self) -> float:
        """Everything but encoding, which takes the same time pruned or not."""
        return self.total_milliseconds - self.milliseconds["encode"]


@dataclass(frozen=True, slots=True)
class Hit(Viewed):
    docno: str
    score: float  # exact: Eq. 1 with all query embeddings; with fuse, the fused score
    text: str
    metadata: Mapping[str, Any]
    relevance: float = 0.0  # between 0 and 1, to compare between queries: see relevance.py
    exact_score: float | None = None  # with fuse: Eq. 1
    text_score: float | None = None  # with fuse: BM25

    def __repr__(self) -> str:
        return f"Hit({self.docno!r}, score={self.score:.3f}, relevance={self.relevance:.2f})"

    def _repr_html_(self) -> str:
        return hit_html(self)


@dataclass(frozen=True, slots=True)
class Ranking(Viewed, Sequence[Hit]):
    """Hits from best to worst, `plan.offset` better ones left out; the query, with the positions that gathered them;
    and the statistics of the search.
    """

    hits: tuple[Hit, ...]
    query: EncodedText  # in full, with the weights of its embeddings: scoring used all of it
    kept: tuple[int, ...]  # query positions used for gathering, most important first
    plan: SearchPlan
    stats: SearchStats
    # By key of `facets`: values with the number of documents that have them and match the filter, most frequent first.
    facets: Mapping[str, Sequence[tuple[str | int | float | bool, int]]] = field(default_factory=dict)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> Ranking: ...
    def __getitem__(self, index: int | slice) -> Hit | Ranking:
        if not isinstance(index, slice):
            return self.hits[index]
        part = replace(self, hits=self.hits[index])
        return part.viewed_by(self.viewer) if self.viewer else part

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __repr__(self) -> str:
        best = f": {self.hits[0].docno!r} {self.hits[0].score:.3f}" if self.hits else ""
        return f"Ranking({len(self)} hits{best}{', ...' if len(self) > 1 else ''})"

    def _repr_html_(self) -> str:
        return ranking_html(self)

    def to_pandas(self) -> Any:
        """A DataFrame with a row for each hit: rank, docno, score, relevance, text, and the metadata as columns.

        With fuse, exact_score and text_score come after the score.
        """
        pandas = require("pandas", "notebook")
        fused = ("exact_score", "text_score") if self.plan.fuse is not None else ()
        columns = ("rank", "docno", "score", *fused, "relevance", "text")
        rows = []
        for rank, hit in enumerate(self.hits, start=1):
            # A key of the metadata that has the name of a column, such as "rank", is kept as "metadata.rank".
            facts = {f"metadata.{key}" if key in columns else key: value for key, value in hit.metadata.items()}
            rows.append({"rank": rank, **{name: getattr(hit, name) for name in columns[1:]}} | facts)
        return pandas.DataFrame(rows) if rows else pandas.DataFrame(columns=list(columns))


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
