"""What a search gives: the hits, and what it did to find them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from .errors import require
from .html_views import Viewed, hit_html, ranking_html
from .records import EncodedText
from .settings import SearchPlan

Facets = Mapping[str, Sequence[tuple[str | int | float | bool, int]]]


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
    facets: Facets = field(default_factory=dict)

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
