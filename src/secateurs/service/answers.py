"""What is sent back: the library's records as JSON, under the names that they have there."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ..rankings import SearchStats


class Highlight(BaseModel):
    """A piece of a document's text that is the best match of at least one query embedding."""

    start: int = Field(description="In Unicode code points of the text")
    end: int
    contribution: float = Field(
        description="What it adds to the document's score: the sum of weight x similarity, split between merged places"
    )
    positions: list[int] = Field(description="The query embeddings it is the best match of")
    similarities: list[float] = Field(description="With each of them, without the weights")
    rarity: float = Field(
        description="Of the piece itself: 0 for the most common word of all, 1 if it is as rare as "
        "the rarest word of the query"
    )


class QueryToken(BaseModel):
    """One query embedding and its place in the importance order."""

    position: int
    token: str
    kind: str
    collection_frequency: int
    importance: int = Field(description="1 is the most important")
    kept: bool = Field(description="Used for gathering")
    rarity: float = Field(
        description="0 for the most common word of all, 1 for the rarest word of the query, 0 for special tokens"
    )
    weight: float = Field(description="What it counts for in the score; 1 unless there are weights")


class HitAnswer(BaseModel):
    rank: int
    docno: str
    score: float
    relevance: float = Field(description="From 0 to 1, to compare between queries")
    exact_score: float | None = Field(default=None, description="With fuse, where score is the fused score; else null")
    text_score: float | None = Field(default=None, description="With fuse: BM25 of the query's words; else null")
    text: str | None = Field(default=None, description="Null if `fields` does not name it")
    metadata: dict[str, Any] = Field(description="All of it, or what the document has of the keys that `fields` names")
    highlights: list[Highlight] | None = Field(
        default=None, description="With details, where the encoder can tell which words its embeddings stand for"
    )


class FacetValue(BaseModel):
    value: Any = Field(description="A text, a number, true or false")
    documents: int = Field(description="That have this value and match the filter, in the whole index")


class SearchAnswer(BaseModel):
    """A Ranking."""

    hits: list[HitAnswer]
    kept: list[int] = Field(description="Query positions used for gathering, most important first")
    plan: dict[str, Any] = Field(description="What the settings became for this query; p null: all were kept")
    stats: SearchStats
    search_milliseconds: float = Field(
        description="The sum of stats.milliseconds without encode, which takes as long pruned or not"
    )
    tokens: list[QueryToken] | None = Field(default=None, description="With details: most important first")
    facets: dict[str, list[FacetValue]] = Field(description="Of each key of `facets`, most frequent value first")


class SearchesAnswer(BaseModel):
    """A Ranking for each of the queries, in their order."""

    rankings: list[SearchAnswer]


class TokenMatch(QueryToken):
    """A query embedding's best match in one document."""

    gathers: bool = Field(description="Whether it gathers this document alone; false if it is not kept")
    similarity: float | None = Field(description="Without the weight; null for a document without embeddings")
    match: str
    match_positions: list[int] = Field(description="Where it is; several where a document's embeddings were merged")


class DocumentToken(BaseModel):
    token: str
    start: int | None = Field(description="In Unicode code points of the text; null for a special token")
    end: int | None


class SimilarityMap(BaseModel):
    """Everything MaxSim takes its maxima of."""

    text: str
    document_tokens: list[DocumentToken]
    similarities: list[list[float]] = Field(description="A row per document token, a column per query position")


class ExplainAnswer(BaseModel):
    """An Explanation."""

    docno: str
    score: float | None = Field(description="The sum of weight x similarity over the tokens")
    relevance: float = Field(description="As that of a hit")
    gathered: bool
    text_score: float | None = Field(description="BM25 of the query's words; null unless gather is text or cells+text")
    rank: int | None
    documents_scored: int
    tokens: list[TokenMatch]
    map: SimilarityMap | None = None


class CurvePoint(BaseModel):
    p: int
    documents_gathered: int
    documents_scored: int
    overlap: float = Field(description="Of the k best of the unpruned ranking, the share that is found")
    milliseconds: float = Field(description="Of the search without encoding, the quicker of two")


class CurveAnswer(BaseModel):
    """The same query with every p."""

    k: int
    gather: str
    documents_in_index: int
    points: list[CurvePoint]


class RerankedHit(BaseModel):
    rank: int
    number: int = Field(description="Of the text in the request, counted from 0")
    docno: str | None = Field(description="As in the request; null for a text without one")
    score: float | None = Field(description="MaxSim with all query embeddings; null for a blank text, which is last")
    relevance: float = Field(description="From 0 to 1, to compare between queries")


class RerankAnswer(BaseModel):
    """All texts of the request, best first."""

    hits: list[RerankedHit]


class EncodedAnswer(BaseModel):
    """An EncodedText. Search takes the first four fields of a query under the same names."""

    embeddings: list[list[float]] = Field(description="A row for each token")
    token_ids: list[int]
    token_kinds: list[int]
    embedding_weights: list[float] | None = Field(description="What each counts for in the score; null: 1 for each")
    tokens: list[str]
    cut: int = Field(description="Tokens beyond the length that the encoder takes, which were left out")


class EncodeAnswer(BaseModel):
    """In the order of the request."""

    encoded: list[EncodedAnswer]
    dim: int
    model: str = Field(description="The encoder")


class InfoAnswer(BaseModel):
    """Index.info(), with the name that the index is served under instead of the folder."""

    model_config = ConfigDict(extra="allow")

    name: str
    documents: int
    embeddings: int
    gather: list[str]
    calibration: dict[str, Any] | None = Field(description="What each effort promises, and finds by its own measure")


class LimitsAnswer(BaseModel):
    """The largest values that the service takes."""

    k: int
    p: int
    query_characters: int
    batch: int = Field(description="Documents, texts or queries in one request")
    text_characters: int = Field(description="Of a text to encode or to re-rank")
    gather_work: int = Field(description="Without a key: query embeddings that gather x cells that each looks into")
    score_work: int = Field(description="Without a key: documents that are scored x query embeddings")
    encode_work: int = Field(description="Without a key: characters of all texts, or queries, of a request")


class IndexesAnswer(BaseModel):
    indexes: list[InfoAnswer]
    limits: LimitsAnswer
    writable: bool = Field(description="Whether the service takes writes, which need a key")


class DocumentAnswer(BaseModel):
    docno: str
    text: str
    metadata: dict[str, Any]


class FieldAnswer(BaseModel):
    types: list[str] = Field(description="Of its values: number, text, boolean; nested: in lists, or an object")
    documents: int = Field(description="That have a value")
    example: str | bool | int | float | None = Field(description="A value; null if it is an object")


class FieldsAnswer(BaseModel):
    fields: dict[str, FieldAnswer] = Field(description="By the key of the metadata, as filters name it")


class ChangesAnswer(BaseModel):
    """How many documents a write added, replaced and deleted, and which it did not find."""

    added: int
    replaced: int
    deleted: int
    missing: list[str]


class HealthAnswer(BaseModel):
    status: str
    indexes: list[str]
    stale: list[str] = Field(description="Indexes whose newest state cannot be read: an earlier state is served")
    version: str
