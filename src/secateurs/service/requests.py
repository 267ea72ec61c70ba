"""What may be sent. The search settings are those of the library: a field for each field of SearchSettings."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from ..corpus import DOCNO_FIELDS, TEXT_FIELDS
from ..records import (
    TokenKind,
)
from ..settings import (
    EFFORTS,
    FREQUENCIES,
    FUSES,
    GATHER_SETTINGS,
    MOST_FACETS,
    ORDER_NAMES,
    WEIGHTS,
    SearchSettings,
)
from .limits import Limits

SETTINGS = tuple(field.name for field in fields(SearchSettings))
_MOST_FIELDS = 100  # of a hit, by name
_MOST_KEYS = 50  # an unknown key is a line in the answer
_MOST_DIMENSIONS = 4_096
_LONGEST_BUDGET = 60_000  # milliseconds
_LARGEST_WEIGHT = 1e3
_LARGEST = 1e6  # far beyond any normalised embedding, and far from where float32 products overflow

_MEANINGS = {
    "k": "Hits wanted",
    "offset": "Hits to leave out before them, for the next page; k + offset is limited as k is",
    "p": "Query embeddings to gather with; all (or null) prunes nothing, auto follows the effort",
    "order": "Which query embeddings matter most",
    "gather": "How candidates are found; auto is the best that the index is prepared for",
    "k_prime": "faiss: nearest document embeddings per kept query embedding",
    "nprobe": "Cells, or partitions of faiss, that a kept query embedding looks into; by effort if left out",
    "candidates": "cells, text: documents that are scored exactly, of each of the two; by effort if left out",
    "effort": "What p, gather, nprobe and candidates follow where they are left open",
    "budget_ms": "cells: milliseconds that the search may take after encoding; chooses p, nprobe and candidates",
    "where": "Only documents whose metadata fulfil this, for example: year >= 2020 and lang = 'en'",
    "frequencies": "Whose token frequencies the order and the weights go by: of the collection, or of what matches",
    "weights": "What query embeddings count for in the score: idf gives rare words more; none (or null): all the same",
    "fuse": "rrf orders hits by reciprocal ranks, by the exact score and by BM25; none (or null): by the exact score",
    "min_score": "Leave out hits with a lower score; null: none",
    "min_relevance": "Leave out hits with a lower relevance: from 0 to 1, to compare between queries; null: none",
    "facets": "Keys of the metadata: how many of the documents that match the filter have each of their values",
    "partial": "Over shards: answer without those that cannot be reached (stats.shards_missing), instead of failing",
}


@dataclass(frozen=True, slots=True)
class RequestModels:
    """Pydantic models that know the limits, so that the OpenAPI description states them."""

    search: Any  # a JSON body
    explain: Any  # a query string
    curve: Any  # a query string
    colbertv2: Any  # a query string
    documents: Any  # a JSON body
    rerank: Any  # a JSON body
    encode: Any  # a JSON body
    metadata: Any  # a JSON body
    matching: Any  # a query string

    @classmethod
    def within(cls, limits: Limits) -> RequestModels:
        text = Annotated[
            str,
            Field(max_length=limits.query_characters, description="What to look for", examples=["read a zip archive"]),
        ]
        settings = _settings(limits)
        explained = {name: field for name, field in settings.items() if name != "facets"}
        no_p = {name: field for name, field in explained.items() if name not in ("p", "budget_ms", "offset")}
        details = Field(default=False, description="Tell the query's tokens too, and the words that matched")
        several = Field(
            default=None, description="Several queries, answered in their order; each counts for the limits"
        )
        chosen = Field(
            default=None,
            description="What of a hit comes back beside rank, docno, score and relevance: text, metadata, or keys of "
            "the metadata; null: everything",
            examples=[["docno", "title"]],
        )
        which = Field(description="Its name", examples=["zipfile.ZipFile"])
        with_map = Field(default=False, description="Tell the similarity of every pair of tokens too")
        document = _model("DocumentRequest", _Document, _encoded(limits.document_embeddings))
        given = Annotated[str, Field(max_length=limits.text_characters)]
        named = _model("TextRequest", _Body, {"docno": (str, ...), "text": (given, ...)})
        whose = Field(
            default=None, description="The index whose encoder is used; it may be left out if all have the same"
        )
        role = Field(default="query", description="What the texts are encoded as")
        return cls(
            search=_model(
                "SearchRequest",
                _SearchBody,
                {"query": (text | None, None), "queries": (_listed(text, limits.batch, least=1) | None, several)}
                | _encoded(limits.p)
                | _embedding_weights(limits.p)
                | settings
                | {"details": (bool, details), "fields": (_listed(str, _MOST_FIELDS) | None, chosen)},
            ),
            explain=_model(
                "ExplainRequest",
                _QueryString,
                {"query": (text, ...), "docno": (str, which), **explained, "map": (bool, with_map)},
            ),
            curve=_model("PruneCurveRequest", _QueryString, {"query": (text, ...), **no_p}),
            colbertv2=_model("ColBERTv2Request", _QueryString, {"query": (text, ...), **settings}),
            documents=_model("DocumentsRequest", _Body, {"documents": (_listed(document, limits.batch, least=1), ...)}),
            rerank=_model(
                "RerankRequest",
                _RerankBody,
                {
                    "query": (text, ...),
                    "texts": (_listed(given | named, limits.batch), ...),
                    "index": (str | None, whose),
                },
            ),
            encode=_model(
                "EncodeRequest",
                _EncodeBody,
                {
                    "texts": (_listed(given, limits.batch), ...),
                    "role": (_one_of("query", "document"), role),
                    "index": (str | None, whose),
                },
            ),
            metadata=_model("MetadataRequest", _Body, {"documents": (_listed(_Metadata, limits.batch, least=1), ...)}),
            matching=_model("MatchingRequest", _QueryString, {"where": (str, Field(description=_MEANINGS["where"]))}),
        )


class _QueryString(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _not_too_many(cls, given: Any) -> Any:
        if isinstance(given, dict) and len(given) > _MOST_KEYS:
            raise ValueError(f"there are {len(given):,} fields; at most {_MOST_KEYS} are allowed")
        return given


class _Body(_QueryString):
    model_config = ConfigDict(strict=True)  # "3" and true are not numbers


class _SearchBody(_Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "read a zip archive", "k": 5, "p": 3},
                {"query": "read a zip archive", "effort": "exact", "details": True},
                {"queries": ["read a zip archive", "wait for a thread"], "k": 3, "fields": ["docno", "kind"]},
                {"embeddings": [[0.6, 0.8], [0.0, 1.0]], "token_ids": [7, 9], "token_kinds": [0, 0], "p": 1},
            ]
        }
    )

    @model_validator(mode="after")
    def _one_query(self) -> _SearchBody:
        given = [name for name in ("query", "queries", "embeddings") if getattr(self, name, None) is not None]
        if len(given) != 1:
            raise ValueError("give either query, or queries, or embeddings with token_ids and token_kinds")
        if given != ["embeddings"] and has_tokens(self):
            raise ValueError("token_ids and token_kinds belong to embeddings, not to a query")
        if given != ["embeddings"] and getattr(self, "embedding_weights", None) is not None:
            raise ValueError("embedding_weights belong to embeddings, not to a query")
        return self


class _RerankBody(_Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"query": "read a zip archive", "texts": ["Cats sleep.", "Read the files of a zip archive."]},
                {"query": "read a zip archive", "texts": [{"docno": "cats", "text": "Cats sleep."}]},
            ]
        }
    )


class _EncodeBody(_Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"texts": ["read a zip archive"], "role": "query"}]})


def _describe_document(schema: dict[str, Any]) -> None:
    """Add to the description what `to_document` takes: it decides about these fields, not Pydantic."""
    also_named = "Also accepted as {}. The first of these names that is there counts, the others are metadata"
    schema["properties"] = {
        "docno": {
            "anyOf": [{"type": "string", "minLength": 1}, {"type": "integer"}],
            "description": f"A stable name of your choice. {also_named.format(', '.join(DOCNO_FIELDS[1:]))}",
        },
        "text": {
            "type": "string",
            "description": f"What is encoded and shown. {also_named.format(', '.join(TEXT_FIELDS[1:]))}. "
            "May be missing beside embeddings",
        },
        "title": {"description": "Metadata. A text goes in front of the document's text too, unless it has embeddings"},
    } | schema["properties"]
    schema["allOf"] = [
        {"anyOf": [{"required": [name]} for name in DOCNO_FIELDS]},
        {"anyOf": [{"required": [name]} for name in (*TEXT_FIELDS, "embeddings")]},
    ]
    schema["examples"] = [{"docno": "fish", "text": "Goldfish grow as large as their pond.", "year": 2020}]


class _Document(BaseModel):
    """A document as the library takes it: every field that is not named here is metadata."""

    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra=_describe_document)


class _Metadata(BaseModel):
    """Keys to set in a document's metadata; null removes a key, and keys that are not named stay."""

    model_config = ConfigDict(
        extra="allow", strict=True, json_schema_extra={"examples": [{"docno": "d1", "year": 2021}]}
    )

    docno: Annotated[str, Field(min_length=1, description="The document")]


def has_tokens(item: Any) -> bool:
    return item.token_ids is not None or item.token_kinds is not None


def _settings(limits: Limits) -> dict[str, Any]:
    def up_to(most: int) -> Any:
        return Annotated[int, Field(ge=1, le=most)]

    # A setting that is not here is taken as the dataclass declares it, so that a new setting is served too.
    kinds: dict[str, Any] = get_type_hints(SearchSettings) | {
        "k": up_to(limits.k),
        "offset": Annotated[int, Field(ge=0, le=limits.k)],
        "p": up_to(limits.p) | Literal["auto", "all"] | None,
        "order": _one_of(*ORDER_NAMES),
        "gather": _one_of(*GATHER_SETTINGS),
        "k_prime": up_to(limits.candidates),
        "nprobe": up_to(limits.nprobe) | None,
        "candidates": up_to(limits.candidates) | None,
        "effort": _one_of(*EFFORTS),
        "frequencies": _one_of(*FREQUENCIES),
        "facets": _listed(str, MOST_FACETS),
        "budget_ms": Annotated[float, Field(gt=0, le=_LONGEST_BUDGET)] | None,
        "weights": _one_of(*WEIGHTS, "none") | None,
        "fuse": _one_of(*FUSES, "none") | None,
        "min_score": Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)] | None,
        "min_relevance": Annotated[float, Field(ge=0, le=1)] | None,
    }
    return {
        field.name: (kinds[field.name], Field(default=field.default, description=_MEANINGS.get(field.name)))
        for field in fields(SearchSettings)
    }


def _encoded(most: int) -> dict[str, Any]:
    def optional_list(kind: Any) -> Any:
        return _listed(kind, most) | None

    number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]
    token_id = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
    token_kind = Annotated[int, Field(ge=0, le=max(TokenKind))]
    kinds = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in TokenKind)
    return {
        "embeddings": (
            optional_list(_listed(number, _MOST_DIMENSIONS)),
            Field(default=None, description="Instead of text: a row for each token"),
        ),
        "token_ids": (optional_list(token_id), Field(default=None, description="The token id behind each embedding")),
        "token_kinds": (optional_list(token_kind), Field(default=None, description=f"What each token is: {kinds}")),
    }


def _embedding_weights(most: int) -> dict[str, Any]:
    """Not called `weights`, which is a search setting: the two are multiplied."""
    weight = Annotated[float, Field(ge=0, le=_LARGEST_WEIGHT)]
    described = Field(default=None, description="What each embedding counts for in the score; 1 if left out")
    return {"embedding_weights": (_listed(weight, most) | None, described)}


def _listed(kind: Any, most: int, least: int = 0) -> Any:
    """Parsing stops at the first wrong item: a large body could be wrong in a million places, each with a message."""
    return Annotated[list[kind], Field(min_length=least, max_length=most, fail_fast=True)]


def _one_of(*names: str) -> Any:
    return Literal[names]


def _model(name: str, base: type[BaseModel], fields: dict[str, Any]) -> Any:
    return create_model(name, __base__=base, **fields)
