"""LangChain: the retriever returns what `Index.search` finds, and the re-ranker orders by MaxSim."""

import asyncio
import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from conftest import QUERIES
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField
from langchain_tests.integration_tests import RetrieversIntegrationTests
from pydantic import ValidationError
from test_sharded import make_shards

import secateurs
from secateurs import Index, SearchSettings, ShardedIndex
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.integrations.langchain import SecateursReranker, SecateursRetriever

QUERY = QUERIES[0]


class TestRetriever(RetrieversIntegrationTests):
    """The conformance tests of LangChain."""

    @pytest.fixture(autouse=True)
    def _open(self, index: Index) -> None:
        self.index = index

    @property
    def retriever_constructor(self) -> type[BaseRetriever]:
        return SecateursRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.index}

    @property
    def retriever_query_example(self) -> str:
        return QUERY


def test_the_documents_are_the_hits(index: Index) -> None:
    retriever = SecateursRetriever(index=index, k=4, p=3, where="kind = 'class'")
    assert retriever.invoke(QUERY) == [
        Document(
            id=hit.docno,
            page_content=hit.text,
            metadata={**hit.metadata, "docno": hit.docno, "score": hit.score, "relevance": hit.relevance},
        )
        for hit in index.search(QUERY, k=4, p=3, where="kind = 'class'")
    ]
    assert len(retriever.invoke(QUERY)) == 4


def test_settings_of_a_call_replace_those_of_the_constructor_for_that_call(index: Index) -> None:
    retriever = SecateursRetriever(index=index, k=5, where="kind = 'class'")
    once = retriever.invoke(QUERY, k=2, where="kind = 'function'")
    assert [document.id for document in once] == [
        hit.docno for hit in index.search(QUERY, 2, where="kind = 'function'")
    ]
    assert len(retriever.invoke(QUERY)) == 5
    assert {document.metadata["kind"] for document in retriever.invoke(QUERY)} == {"class"}


def test_asynchronous_calls_and_batches_return_the_same(index: Index) -> None:
    retriever = SecateursRetriever(index=index, k=3)
    assert asyncio.run(retriever.ainvoke(QUERY, k=2)) == retriever.invoke(QUERY)[:2]
    assert retriever.batch(list(QUERIES[:3])) == [retriever.invoke(query) for query in QUERIES[:3]]


def test_every_search_setting_is_a_field_with_its_default(index: Index) -> None:
    retriever = SecateursRetriever(index=index)
    for setting in fields(SearchSettings):
        assert getattr(retriever, setting.name) == setting.default, setting.name
    assert set(SecateursRetriever.model_fields) - set(BaseRetriever.model_fields) == {
        *("index", "explanations", "highlights"),
        *(setting.name for setting in fields(SearchSettings)),
    }


def test_a_wrong_setting_is_named_by_the_constructor_and_by_the_call(index: Index) -> None:
    for wrong in ({"k": 0}, {"effort": "much"}, {"topk": 3}, {"budget_ms": 5.0, "p": 3}):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            SecateursRetriever(index=index, **wrong)
        with pytest.raises(UsageError, match=next(iter(wrong))):
            SecateursRetriever(index=index).invoke(QUERY, **wrong)
    with pytest.raises(UsageError, match="the query is empty"):
        SecateursRetriever(index=index).invoke(" ")
    with pytest.raises(ValidationError, match=r"an open index.*not 'demo.sec'"):
        SecateursRetriever(index="demo.sec")  # type: ignore[arg-type]


def test_a_function_can_be_the_order(index: Index) -> None:
    def backwards(query: Any, frequencies: Any) -> Any:
        return (-query.token_ids).argsort()

    retriever = SecateursRetriever(index=index, order=backwards, p=2, k=3)
    assert [document.id for document in retriever.invoke(QUERY)] == [
        hit.docno for hit in index.search(QUERY, order=backwards, p=2, k=3)
    ]


def test_explanations_and_highlights_are_given_on_demand_and_are_json(index: Index) -> None:
    plain = SecateursRetriever(index=index, k=2)
    detailed = SecateursRetriever(index=index, k=2, explanations=True, highlights=True, weights="idf")
    assert not {"explanation", "highlights"} & plain.invoke(QUERY)[0].metadata.keys()
    assert {"explanation", "highlights"} <= plain.invoke(QUERY, explanations=True, highlights=True)[0].metadata.keys()
    for rank, document in enumerate(detailed.invoke(QUERY), start=1):
        metadata = document.metadata
        json.dumps(metadata)
        explanation = index.explain(QUERY, str(document.id), k=2, weights="idf")
        assert metadata["explanation"] == asdict(explanation)
        assert metadata["explanation"]["rank"] == rank
        assert metadata["explanation"]["score"] == pytest.approx(metadata["score"])
        best = max(metadata["highlights"], key=lambda match: float(match["strength"]))
        assert document.page_content[best["start"] : best["end"]].lower() in ("zip", "archive", "read")
        # Special tokens have no place in the text, and the others add the rest.
        assert 0 < sum(match["contribution"] for match in metadata["highlights"]) <= metadata["score"] + 1e-6


def test_k_can_be_configured_in_a_chain(index: Index) -> None:
    retriever = SecateursRetriever(index=index).configurable_fields(k=ConfigurableField(id="k"))
    chain = retriever | (lambda documents: [document.id for document in documents])
    assert len(chain.invoke(QUERY)) == 10
    assert len(chain.invoke(QUERY, config={"configurable": {"k": 2}})) == 2


def test_callbacks_hear_of_documents_and_of_errors(index: Index) -> None:
    heard: list[Any] = []

    class Listener(BaseCallbackHandler):
        def on_retriever_end(self, documents: Any, **others: Any) -> None:
            heard.append(len(documents))

        def on_retriever_error(self, error: BaseException, **others: Any) -> None:
            heard.append(type(error))

    retriever = SecateursRetriever(index=index, k=3)
    retriever.invoke(QUERY, config={"callbacks": [Listener()]})
    with pytest.raises(UsageError):
        retriever.invoke("", config={"callbacks": [Listener()]})
    assert heard == [3, UsageError]


def test_a_collection_in_shards_is_retrieved_as_one_index(
    encoded_passages: list[secateurs.Document], encoder: OnnxEncoder, tmp_path: Path
) -> None:
    documents = encoded_passages[:60]
    one = Index.build(tmp_path / "one.sec", documents, encoder=None, store="float16")
    one.use_encoder(encoder)
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 3, store="float16"), encoder) as sharded:
        settings: dict[str, Any] = {"k": 5, "effort": "exact", "highlights": True, "explanations": True}
        found = SecateursRetriever(index=sharded, **settings).invoke(QUERY)
        expected = SecateursRetriever(index=one, **settings).invoke(QUERY)
        assert [document.id for document in found] == [document.id for document in expected]
        assert [document.metadata["explanation"]["rank"] for document in found] == [1, 2, 3, 4, 5]


def test_the_reranker_puts_the_best_documents_of_any_source_first(encoder: OnnxEncoder) -> None:
    texts = ["Cats sleep all day.", "A zip file is an archive of compressed files.", "", "How to read a zip archive."]
    documents = [Document(text, metadata={"from": "elsewhere", "score": 0.1}) for text in texts]
    ranked = SecateursReranker(encoder=encoder).compress_documents(documents, QUERY)
    assert [document.page_content for document in ranked] == [texts[3], texts[1], texts[0], texts[2]]
    scores = [document.metadata["score"] for document in ranked]
    assert scores[:3] == sorted(scores[:3], reverse=True)
    assert scores[3] is None
    assert ranked[3].metadata["relevance"] == pytest.approx(0)
    assert all(document.metadata["from"] == "elsewhere" for document in ranked)
    assert all(document.metadata["score"] == 0.1 for document in documents)  # those of the caller are as they were


def test_the_reranker_keeps_k_documents_and_those_that_are_relevant(encoder: OnnxEncoder) -> None:
    documents = [Document("Cats sleep all day."), Document("How do I read a zip archive?"), Document("Read a zip.")]
    ranked = SecateursReranker(encoder=encoder).compress_documents(documents, QUERY)
    assert SecateursReranker(encoder=encoder, k=2).compress_documents(documents, QUERY) == ranked[:2]
    least = ranked[0].metadata["relevance"]
    assert SecateursReranker(encoder=encoder, min_relevance=least).compress_documents(documents, QUERY) == ranked[:1]
    assert asyncio.run(SecateursReranker(encoder=encoder, k=1).acompress_documents(documents, QUERY)) == ranked[:1]
    assert SecateursReranker(encoder=encoder).compress_documents([], QUERY) == []


@pytest.mark.parametrize("wrong", [{"k": 0}, {"min_relevance": 2}, {"encoder": "colbert"}, {"top_n": 3}])
def test_a_wrong_setting_of_the_reranker_is_named(encoder: OnnxEncoder, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        SecateursReranker(**{"encoder": encoder, **wrong})
