"""LlamaIndex: the retriever returns what `Index.search` finds, and the re-ranker orders nodes by MaxSim."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import QUERIES
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers.no_text import NoText
from llama_index.core.schema import IndexNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
from pydantic import ValidationError
from test_sharded import make_shards

from secateurs import Document, Index, ShardedIndex
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.integrations.llama_index import SecateursReranker, SecateursRetriever

QUERY = QUERIES[0]
TEXTS = ["Cats sleep all day.", "A zip file is an archive of compressed files.", "", "How to read a zip archive."]


@pytest.fixture
def nodes() -> list[NodeWithScore]:
    """As another retriever may have found them."""
    return [
        NodeWithScore(node=TextNode(id_=str(number), text=text, metadata={"page": number}), score=0.5)
        for number, text in enumerate(TEXTS)
    ]


def ids(nodes: list[NodeWithScore]) -> list[str]:
    return [node.node_id for node in nodes]


def test_the_nodes_are_the_hits(index: Index) -> None:
    settings: dict[str, Any] = {"k": 4, "p": 3, "where": "kind = 'class'", "effort": "fast"}
    found = SecateursRetriever(index, **settings).retrieve(QUERY)
    expected = index.search(QUERY, **settings)
    assert [(node.node_id, node.score, node.text) for node in found] == [
        (hit.docno, hit.score, hit.text) for hit in expected
    ]
    assert [node.metadata for node in found] == [
        {**hit.metadata, "docno": hit.docno, "score": hit.score, "relevance": hit.relevance} for hit in expected
    ]
    assert len(found) == 4


def test_language_models_see_the_metadata_of_the_document_only(index: Index) -> None:
    node = SecateursRetriever(index, k=1, explanations=True, highlights=True).retrieve(QUERY)[0]
    for mode in (MetadataMode.LLM, MetadataMode.EMBED):
        lines = node.get_content(mode).removesuffix(node.text).split()
        assert [line for line in lines if line.endswith(":")] == ["kind:", "python:"]


def test_asynchronous_calls_and_query_bundles_return_the_same(index: Index) -> None:
    retriever = SecateursRetriever(index, k=3)
    assert asyncio.run(retriever.aretrieve(QUERY)) == retriever.retrieve(QueryBundle(QUERY))


def test_a_wrong_setting_is_named(index: Index) -> None:
    for wrong in ({"k": 0}, {"effort": "much"}, {"similarity_top_k": 3}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            SecateursRetriever(index, **wrong)
    with pytest.raises(UsageError, match="the query is empty"):
        SecateursRetriever(index).retrieve(" ")
    with pytest.raises(UsageError, match=r"an open index.*not 'demo.sec'"):
        SecateursRetriever("demo.sec")  # type: ignore[arg-type]


def test_explanations_and_highlights_are_given_on_demand_and_are_json(index: Index) -> None:
    for node in SecateursRetriever(index, k=2, explanations=True, highlights=True, weights="idf").retrieve(QUERY):
        json.dumps(node.metadata)
        assert node.metadata["explanation"] == asdict(index.explain(QUERY, node.node_id, k=2, weights="idf"))
        best = max(node.metadata["highlights"], key=lambda match: float(match["strength"]))
        assert node.text[best["start"] : best["end"]].lower() in ("zip", "archive", "read")


def test_a_collection_in_shards_is_retrieved_as_one_index(
    encoded_passages: list[Document], encoder: OnnxEncoder, tmp_path: Path
) -> None:
    with ShardedIndex(make_shards(tmp_path / "many.sec", encoded_passages[:60], 3), encoder) as sharded:
        found = SecateursRetriever(sharded, k=3).retrieve(QUERY)
        assert ids(found) == [hit.docno for hit in sharded.search(QUERY, k=3)]


def test_the_reranker_puts_the_best_nodes_of_any_source_first(encoder: OnnxEncoder, nodes: list[NodeWithScore]) -> None:
    ranked = SecateursReranker(encoder=encoder).postprocess_nodes(nodes, query_str=QUERY)
    assert ids(ranked)[:2] == ["3", "1"]
    scores = [node.get_score() for node in ranked]
    assert scores == sorted(scores, reverse=True)
    assert [node.metadata["score"] for node in ranked] == [node.score for node in ranked]
    assert all(0 <= node.metadata["relevance"] <= 1 for node in ranked)
    # Those of the caller are as they were.
    assert [(node.score, node.metadata) for node in nodes] == [(0.5, {"page": number}) for number in range(4)]


def test_a_node_is_encoded_with_its_metadata_unless_it_excludes_them(encoder: OnnxEncoder) -> None:
    def score(**options: Any) -> float:
        node = NodeWithScore(node=TextNode(text="It opens files.", metadata={"about": "zip archive"}, **options))
        return SecateursReranker(encoder=encoder).postprocess_nodes([node], query_str=QUERY)[0].get_score()

    plain = NodeWithScore(node=TextNode(text="It opens files."))
    alone = SecateursReranker(encoder=encoder).postprocess_nodes([plain], query_str=QUERY)[0].get_score()
    assert score() > alone
    assert score(excluded_embed_metadata_keys=["about"]) == alone


def test_ranking_again_gives_the_same_scores(encoder: OnnxEncoder, nodes: list[NodeWithScore]) -> None:
    """The score that is added to the metadata is not encoded the next time."""
    reranker = SecateursReranker(encoder=encoder)
    ranked = reranker.postprocess_nodes(nodes, query_str=QUERY)
    assert reranker.postprocess_nodes(ranked, query_str=QUERY) == ranked


def test_a_blank_node_is_last_and_has_no_score(encoder: OnnxEncoder) -> None:
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in ("", "Cats sleep.")]
    ranked = SecateursReranker(encoder=encoder).postprocess_nodes(nodes, query_str=QUERY)
    assert [node.text for node in ranked] == ["Cats sleep.", ""]
    assert ranked[1].score is None
    assert ranked[1].metadata["relevance"] == pytest.approx(0)


def test_the_reranker_keeps_k_nodes_and_those_that_are_relevant(
    encoder: OnnxEncoder, nodes: list[NodeWithScore]
) -> None:
    ranked = SecateursReranker(encoder=encoder).postprocess_nodes(nodes, query_str=QUERY)
    assert SecateursReranker(encoder=encoder, k=2).postprocess_nodes(nodes, query_str=QUERY) == ranked[:2]
    least = ranked[0].metadata["relevance"]
    relevant = SecateursReranker(encoder=encoder, min_relevance=least)
    assert asyncio.run(relevant.apostprocess_nodes(nodes, QueryBundle(QUERY))) == ranked[:1]
    assert relevant.postprocess_nodes([], query_str=QUERY) == []


def test_the_reranker_needs_a_query_and_names_a_wrong_setting(encoder: OnnxEncoder, nodes: list[NodeWithScore]) -> None:
    with pytest.raises(UsageError, match="needs the query"):
        SecateursReranker(encoder=encoder).postprocess_nodes(nodes)
    for wrong in ({"k": 0}, {"min_relevance": 2}, {"encoder": "colbert"}, {"top_n": 3}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            SecateursReranker(**{"encoder": encoder, **wrong})


def test_retriever_and_reranker_work_in_a_query_engine(index: Index, encoder: OnnxEncoder) -> None:
    heard = LlamaDebugHandler(print_trace_on_end=False)
    engine = RetrieverQueryEngine(
        SecateursRetriever(index, k=5),
        NoText(llm=MockLLM()),
        node_postprocessors=[SecateursReranker(encoder=encoder, k=2)],
        callback_manager=CallbackManager([heard]),
    )
    sources = engine.query(QUERY).source_nodes
    assert len(sources) == 2
    assert set(ids(sources)) <= {hit.docno for hit in index.search(QUERY, k=5)}
    assert len(heard.get_event_pairs(CBEventType.RERANKING)) == 1


def test_an_index_node_leads_to_the_retriever(index: Index) -> None:
    retriever = SecateursRetriever(index, k=2)
    outer = SecateursRetriever(index, k=1)
    outer._retrieve = lambda bundle: [  # type: ignore[method-assign]
        NodeWithScore(node=IndexNode(text="inner", index_id="inner", obj=retriever), score=1.0)
    ]
    assert ids(outer.retrieve(QUERY)) == ids(retriever.retrieve(QUERY))


def test_the_settings_of_a_reranker_can_be_written_as_json(encoder: OnnxEncoder) -> None:
    written = SecateursReranker(encoder=encoder, k=2).to_dict()
    assert json.loads(json.dumps(written)) == {"k": 2, "min_relevance": None, "class_name": "SecateursReranker"}
    assert SecateursReranker.from_dict(written, encoder=encoder).k == 2
