"""LangChain: an index as a retriever, and MaxSim as a document compressor that re-ranks what any retriever found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from ..contract import AnyIndex
from ..encoders import Encoder, load_encoder
from ..errors import require
from ..reranking import rerank
from ..settings import (
    EffortName,
    FrequenciesName,
    FuseName,
    GatherSetting,
    Order,
    SearchSettings,
    WeightsName,
)
from .details import check_index, reranked_details, search_with_details

require("langchain_core", "langchain")  # says which pip line is missing, where the imports below would only fail

from langchain_core.callbacks import (  # noqa: E402
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
    Callbacks,
)
from langchain_core.documents import BaseDocumentCompressor, Document  # noqa: E402
from langchain_core.retrievers import BaseRetriever  # noqa: E402
from langchain_core.runnables import run_in_executor  # noqa: E402
from pydantic import ConfigDict, Field, field_validator, model_validator  # noqa: E402


class SecateursRetriever(BaseRetriever):
    """The hits of a search as documents. The settings are those of `Index.search`, here and in `invoke`.

    A document has the docno as its `id`; its metadata are those of the hit, with what `search_with_details` adds.
    """

    index: AnyIndex
    explanations: bool = False
    highlights: bool = False
    k: int = SearchSettings.k
    p: int | Literal["auto", "all"] | None = SearchSettings.p
    order: Order = SearchSettings.order
    gather: GatherSetting = SearchSettings.gather
    k_prime: int = SearchSettings.k_prime
    nprobe: int | None = SearchSettings.nprobe
    candidates: int | None = SearchSettings.candidates
    effort: EffortName = SearchSettings.effort
    budget_ms: float | None = SearchSettings.budget_ms
    where: str | None = SearchSettings.where
    frequencies: FrequenciesName = SearchSettings.frequencies
    weights: WeightsName | None = SearchSettings.weights
    fuse: FuseName | None = SearchSettings.fuse
    min_score: float | None = SearchSettings.min_score
    min_relevance: float | None = SearchSettings.min_relevance
    partial: bool = SearchSettings.partial
    offset: int = SearchSettings.offset
    facets: Sequence[str] = SearchSettings.facets

    model_config = ConfigDict(extra="forbid")  # else a setting with a typing error would be ignored

    @field_validator("index", mode="before")
    @classmethod
    def _check_index(cls, index: Any) -> AnyIndex:
        return check_index(index)

    @model_validator(mode="after")
    def _check_settings(self) -> Self:
        self._settings()
        return self

    def _settings(self, **given: Any) -> dict[str, Any]:
        """Those of the constructor, less what was given for one call."""
        settings = {name: getattr(self, name) for name in SearchSettings.__dataclass_fields__}
        return vars(SearchSettings.of({**settings, **given}))

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        explanations: bool | None = None,
        highlights: bool | None = None,
        **settings: Any,
    ) -> list[Document]:
        found = search_with_details(
            self.index,
            query,
            self._settings(**settings),
            self.explanations if explanations is None else explanations,
            self.highlights if highlights is None else highlights,
        )
        return [
            Document(id=hit.docno, page_content=hit.text, metadata={**hit.metadata, **details})
            for hit, details in found
        ]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **settings: Any
    ) -> list[Document]:
        """On a thread, as LangChain does by default; but its default drops the settings of the call."""
        found: list[Document] = await run_in_executor(
            None, self._get_relevant_documents, query, run_manager=run_manager.get_sync(), **settings
        )
        return found


class SecateursReranker(BaseDocumentCompressor):
    """Encodes the documents and orders them by their exact MaxSim score, which the metadata then tell.

    The documents may come from anywhere. To order documents of an index, search the index with `where`, or use
    `Index.score`: it has their embeddings.
    """

    encoder: Encoder = Field(default_factory=load_encoder)  # the built-in one
    k: int | None = Field(default=None, ge=1)  # documents to keep; None: all of them
    min_relevance: float | None = Field(default=None, ge=0, le=1)  # leave out documents that have less

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        ranked = rerank(query, [document.page_content for document in documents], self.encoder)[: self.k]
        least = self.min_relevance or 0.0
        return [
            # A copy: the documents belong to the caller, who may re-rank them for another query at the same time.
            documents[text.number].model_copy(
                update={"metadata": {**documents[text.number].metadata, **reranked_details(text)}}
            )
            for text in ranked
            if text.relevance >= least
        ]
