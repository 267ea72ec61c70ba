"""LlamaIndex: an index as a retriever, and MaxSim as a node postprocessor that re-ranks what any retriever found."""

from __future__ import annotations

import asyncio
from typing import Any

from ..contract import AnyIndex
from ..encoders import Encoder, load_encoder
from ..errors import UsageError, require
from ..reranking import rerank
from ..settings import SearchSettings
from .details import ADDED, check_index, reranked_details, search_with_details

require("llama_index.core", "llama-index")  # says which pip line is missing, where the imports below would only fail

from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload  # noqa: E402
from llama_index.core.postprocessor.types import BaseNodePostprocessor  # noqa: E402
from llama_index.core.retrievers import BaseRetriever  # noqa: E402
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode  # noqa: E402
from pydantic import ConfigDict, Field  # noqa: E402


class SecateursRetriever(BaseRetriever):
    """The hits of a search as nodes. The settings are those of `Index.search`.

    A node has the docno as its `id_`; its metadata are those of the hit, with what `search_with_details` adds. What is
    added is not shown to language models and not embedded.
    """

    def __init__(
        self,
        index: AnyIndex,
        *,
        explanations: bool = False,
        highlights: bool = False,
        callback_manager: CallbackManager | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(callback_manager)
        self.index, self.explanations, self.highlights = check_index(index), explanations, highlights
        self.settings = vars(SearchSettings.of(settings))

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found = search_with_details(
            self.index, query_bundle.query_str, self.settings, self.explanations, self.highlights
        )
        return [
            NodeWithScore(
                node=TextNode(
                    id_=hit.docno,
                    text=hit.text,
                    metadata={**hit.metadata, **details},
                    excluded_embed_metadata_keys=list(ADDED),
                    excluded_llm_metadata_keys=list(ADDED),
                ),
                score=hit.score,
            )
            for hit, details in found
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """On a thread: by default LlamaIndex would hold up its event loop."""
        return await asyncio.to_thread(self._retrieve, query_bundle)


class SecateursReranker(BaseNodePostprocessor):
    """Encodes the nodes and orders them by their exact MaxSim score, which becomes their score.

    What is encoded is the text with the metadata that a node does not exclude from being embedded, as LlamaIndex does.
    """

    encoder: Encoder = Field(default_factory=load_encoder, exclude=True)  # the built-in one
    k: int | None = Field(default=None, ge=1)  # nodes to keep; None: all of them
    min_relevance: float | None = Field(default=None, ge=0, le=1)  # leave out nodes that have less

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def class_name(cls) -> str:
        return "SecateursReranker"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise UsageError("re-ranking needs the query: give query_bundle or query_str")
        told = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: self.encoder.spec["model"],
            EventPayload.QUERY_STR: query_bundle.query_str,
            EventPayload.TOP_K: self.k,
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=told) as event:
            texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
            ranked = rerank(query_bundle.query_str, texts, self.encoder)[: self.k]
            least = self.min_relevance or 0.0
            best = [
                _with_details(nodes[text.number], reranked_details(text)) for text in ranked if text.relevance >= least
            ]
            event.on_end(payload={EventPayload.NODES: best})
        return best


def _with_details(node: NodeWithScore, details: dict[str, Any]) -> NodeWithScore:
    """A copy: the node belongs to the caller, who may re-rank it for another query at the same time."""
    inner = node.node
    changed = {
        "metadata": {**inner.metadata, **details},
        "excluded_embed_metadata_keys": sorted({*inner.excluded_embed_metadata_keys, *details}),
        "excluded_llm_metadata_keys": sorted({*inner.excluded_llm_metadata_keys, *details}),
    }
    return NodeWithScore(node=inner.model_copy(update=changed), score=details["score"])
