"""Haystack: the store keeps documents as Haystack expects, and the retriever finds what `Index.search` finds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import QUERIES
from haystack import Document, Pipeline
from haystack.components.writers import DocumentWriter
from haystack.core.errors import DeserializationError
from haystack.document_stores.errors import DuplicateDocumentError
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy
from haystack.errors import FilterError
from haystack.testing.document_store import DocumentStoreBaseTests
from haystack.utils.filters import document_matches_filter
from hypothesis import given
from hypothesis import strategies as st
from test_sharded import make_shards

import secateurs
from secateurs import Index, ShardedIndex
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import SecateursError, UsageError
from secateurs.integrations.haystack import SecateursDocumentStore, SecateursRetriever, where_of
from secateurs.storage.filters import Filter

QUERY = QUERIES[0]
TRUSTED = ["secateurs.integrations.haystack"]


def condition(field: str, operator: str, value: Any) -> dict[str, Any]:
    return {"field": field, "operator": operator, "value": value}


class TestDocumentStore(DocumentStoreBaseTests):
    """The conformance tests of Haystack."""

    @pytest.fixture
    def document_store(self, tmp_path: Path, encoder: OnnxEncoder) -> SecateursDocumentStore:
        return SecateursDocumentStore(str(tmp_path / "store.sec"), encoder)

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        """Without the single-vector embeddings, which the store does not keep."""

        def content(documents: list[Document]) -> list[dict[str, Any]]:
            return [document.to_dict(flatten=False) | {"embedding": None} for document in documents]

        assert content(received) == content(expected)

    def test_write_documents(self, document_store: SecateursDocumentStore) -> None:
        """Without a policy, an id that is there already is an error."""
        assert document_store.write_documents([Document(content="Goldfish grow.")]) == 1
        with pytest.raises(DuplicateDocumentError):
            document_store.write_documents([Document(content="Cats sleep."), Document(content="Goldfish grow.")])
        assert document_store.count_documents() == 1


class TestStoreOfShards(TestDocumentStore):
    """The same of a collection in shards, whose documents come shard after shard."""

    @pytest.fixture
    def document_store(self, tmp_path: Path, encoder: OnnxEncoder) -> SecateursDocumentStore:
        return SecateursDocumentStore(str(make_shards(tmp_path / "store.sec", [], 2, encoder=encoder)), encoder)

    @staticmethod
    def assert_documents_are_equal(received: list[Document], expected: list[Document]) -> None:
        received, expected = (sorted(documents, key=lambda document: document.id) for documents in (received, expected))
        TestDocumentStore.assert_documents_are_equal(received, expected)


def test_a_store_of_shards_filters_retrieves_and_is_saved_as_one_index(
    encoded_passages: list[secateurs.Document], encoder: OnnxEncoder, tmp_path: Path
) -> None:
    documents = encoded_passages[:40]
    Index.build(tmp_path / "one.sec", documents, encoder=None, store="float16")
    make_shards(tmp_path / "many.sec", documents, 3, store="float16")
    one, many = (SecateursDocumentStore(str(tmp_path / name), encoder) for name in ("one.sec", "many.sec"))
    assert isinstance(many.index, ShardedIndex)
    filters = condition("meta.kind", "==", "class")
    found = {document.id: document for document in many.filter_documents(filters)}
    assert found == {document.id: document for document in one.filter_documents(filters)}
    assert 0 < len(found) < len(many.filter_documents()) == 40
    with pytest.raises(FilterError, match="colour"):
        many.filter_documents(condition("meta.colour", "==", "red"))
    retriever = SecateursRetriever(many, filters=filters, top_k=4, settings={"effort": "exact"})
    expected = SecateursRetriever(one, filters=filters, top_k=4, settings={"effort": "exact"}).run(QUERY)["documents"]
    assert [document.id for document in retriever.run(QUERY)["documents"]] == [document.id for document in expected]
    assert SecateursDocumentStore.from_dict(many.to_dict()).count_documents() == 40


@pytest.fixture
def store(index_path: Path, encoder: OnnxEncoder) -> SecateursDocumentStore:
    return SecateursDocumentStore(str(index_path), encoder)


def test_the_retriever_finds_what_search_finds(store: SecateursDocumentStore, index: Index) -> None:
    filters = condition("meta.kind", "==", "class")
    found = SecateursRetriever(store, filters=filters, top_k=4, settings={"p": 3}).run(QUERY)["documents"]
    expected = index.search(QUERY, k=4, p=3, where="kind = 'class'")
    assert found == [
        Document(id=hit.docno, content=hit.text, meta={**hit.metadata, "relevance": hit.relevance}, score=hit.score)
        for hit in expected
    ]
    assert len(found) == 4


def test_top_k_and_filters_of_a_run_replace_those_of_the_constructor_or_add_to_them(
    store: SecateursDocumentStore,
) -> None:
    classes, functions = condition("meta.kind", "==", "class"), condition("meta.kind", "==", "function")
    retriever = SecateursRetriever(store, filters=classes, top_k=5)
    found = retriever.run(QUERY, filters=functions, top_k=2)["documents"]
    assert [document.meta["kind"] for document in found] == ["function", "function"]
    assert len(retriever.run(QUERY)["documents"]) == 5
    merging = SecateursRetriever(store, filters=classes, filter_policy=FilterPolicy.MERGE)
    named = condition("id", "in", [document.id for document in found])
    assert merging.run(QUERY, filters=named)["documents"] == []  # a function is no class
    by_name = SecateursRetriever(store, filters=classes, filter_policy="merge")
    assert by_name.run(QUERY, filters=named)["documents"] == []
    assert by_name.to_dict() == merging.to_dict()
    assert len(retriever.run(QUERY, filters=named)["documents"]) == 2


def test_asynchronous_runs_return_the_same(store: SecateursDocumentStore) -> None:
    retriever = SecateursRetriever(store, top_k=3)
    assert asyncio.run(retriever.run_async(QUERY, top_k=2))["documents"] == retriever.run(QUERY)["documents"][:2]


def test_explanations_and_highlights_are_given_on_demand(store: SecateursDocumentStore) -> None:
    (document,) = SecateursRetriever(store, top_k=1, explanations=True, highlights=True).run(QUERY)["documents"]
    json.dumps(document.to_dict())
    assert document.meta["explanation"]["rank"] == 1
    assert len(document.meta["highlights"]) > 1


def test_a_wrong_setting_is_named(store: SecateursDocumentStore) -> None:
    for wrong in ({"top_k": 0}, {"settings": {"effort": "much"}}, {"settings": {"topk": 1}}, {"settings": {"k": 1}}):
        with pytest.raises(UsageError, match=r"\bk\b|effort|topk"):
            SecateursRetriever(store, **wrong)
    with pytest.raises(TypeError, match="SecateursDocumentStore"):
        SecateursRetriever(object())  # type: ignore[arg-type]
    with pytest.raises(FilterError, match="value"):
        SecateursRetriever(store, filters={"field": "meta.kind", "operator": "=="})
    with pytest.raises(FilterError, match="no document has the key 'knd'"):
        SecateursRetriever(store, filters=condition("meta.knd", "==", "class")).run(QUERY)
    with pytest.raises(UsageError, match="the query is empty"):
        SecateursRetriever(store).run(" ")


def test_a_store_without_documents_finds_nothing(tmp_path: Path) -> None:
    store = SecateursDocumentStore(str(tmp_path / "store.sec"))
    assert SecateursRetriever(store).run(QUERY) == {"documents": []}
    assert not (tmp_path / "store.sec").exists()


def test_pipelines_write_and_search_and_are_the_same_after_saving_and_loading(
    tmp_path: Path, encoder: OnnxEncoder
) -> None:
    store = SecateursDocumentStore(str(tmp_path / "animals.sec"), encoder)
    writing = Pipeline()
    writing.add_component("writer", DocumentWriter(store, DuplicatePolicy.OVERWRITE))
    documents = [Document(content="Goldfish grow."), Document(content="Cats sleep.")]
    assert writing.run({"writer": {"documents": documents}}) == {"writer": {"documents_written": 2}}
    searching = Pipeline()
    retriever = SecateursRetriever(
        store, top_k=1, filter_policy=FilterPolicy.MERGE, settings={"effort": "exact"}, highlights=True
    )
    searching.add_component("retriever", retriever)
    saved = searching.dumps()
    loaded = Pipeline.loads(saved, allowed_modules=TRUSTED)
    assert loaded.dumps() == saved
    asked = {"retriever": {"query": "do goldfish grow"}}
    assert loaded.run(asked) == searching.run(asked)
    assert loaded.run(asked)["retriever"]["documents"][0].content == "Goldfish grow."
    assert Pipeline.loads(writing.dumps(), allowed_modules=TRUSTED).run({"writer": {"documents": documents[:1]}})


def test_importing_the_integration_trusts_no_module_for_loading(tmp_path: Path, encoder: OnnxEncoder) -> None:
    """Whoever loads a pipeline decides which modules its file may name."""
    pipeline = Pipeline()
    store = SecateursDocumentStore(str(tmp_path / "store.sec"), encoder)
    pipeline.add_component("retriever", SecateursRetriever(store))
    with pytest.raises(DeserializationError, match="allowed_modules"):
        Pipeline.loads(pipeline.dumps())


def test_policies_hold_within_one_write_too(tmp_path: Path, encoder: OnnxEncoder) -> None:
    store = SecateursDocumentStore(str(tmp_path / "store.sec"), encoder)
    twice = [Document(id="1", content="Goldfish grow."), Document(id="1", content="Cats sleep.")]
    with pytest.raises(DuplicateDocumentError):
        store.write_documents(twice)
    assert store.count_documents() == 0
    assert store.write_documents(twice, DuplicatePolicy.SKIP) == 1
    assert [document.content for document in store.filter_documents()] == ["Goldfish grow."]
    assert store.write_documents(twice, DuplicatePolicy.OVERWRITE) == 2
    assert [document.content for document in store.filter_documents()] == ["Cats sleep."]
    assert store.write_documents([]) == 0
    assert store.write_documents(twice, "skip") == 0  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="replace"):
        store.write_documents(twice, "replace")  # type: ignore[arg-type]


def test_a_document_without_text_is_refused_and_nothing_is_written(tmp_path: Path, encoder: OnnxEncoder) -> None:
    store = SecateursDocumentStore(str(tmp_path / "store.sec"), encoder)
    with pytest.raises(SecateursError, match="text"):
        store.write_documents([Document(content="Goldfish grow."), Document(id="x", content=None, meta={"a": 1})])
    assert store.count_documents() == 0


def test_a_store_sees_what_another_store_has_written(tmp_path: Path, encoder: OnnxEncoder) -> None:
    first, second = (SecateursDocumentStore(str(tmp_path / "store.sec"), encoder) for _ in range(2))
    first.write_documents([Document(id="1", content="Goldfish grow.")])
    assert second.count_documents() == 1
    second.write_documents([Document(id="2", content="Cats sleep.")])
    first.delete_documents(["1", "nobody"])
    assert [document.id for document in second.filter_documents()] == ["2"]


META: list[dict[str, Any]] = [
    {"n": 1, "t": "a"},
    {"n": 2.5, "t": "it's"},
    {"n": -3, "t": "a b", "deep": {"er": True}},
    {"n": 1, "deep": {"er": False}},
    {"t": "a"},
    {},
]
values = {
    "meta.n": st.sampled_from([None, 1, 2.5, -3, 7]),
    "meta.t": st.sampled_from([None, "a", "it's", "a b", "z"]),
    "meta.deep.er": st.sampled_from([None, True, False]),
    "id": st.sampled_from(["0", "3", "9"]),
}


@st.composite
def comparisons(draw: st.DrawFn) -> dict[str, Any]:
    field = draw(st.sampled_from(sorted(values)))
    operators = ["==", "!=", "in", "not in"] + ([">", ">=", "<", "<="] if field == "meta.n" else [])
    operator = draw(st.sampled_from(operators))
    value = draw(st.lists(values[field], max_size=3) if "in" in operator else values[field])
    return condition(field, operator, value)


filters_of_any_shape = st.recursive(
    comparisons(),
    lambda inner: st.builds(
        lambda operator, parts: {"operator": operator, "conditions": parts},
        st.sampled_from(["AND", "OR", "NOT"]),
        st.lists(inner, min_size=1, max_size=3),
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, encoder: OnnxEncoder) -> SecateursDocumentStore:
    store = SecateursDocumentStore(str(tmp_path_factory.mktemp("small") / "store.sec"), encoder)
    store.write_documents([Document(id=str(n), content=f"Text {n}.", meta=meta) for n, meta in enumerate(META)])
    return store


@given(filters=filters_of_any_shape)
def test_filters_let_through_what_haystack_lets_through(small: SecateursDocumentStore, filters: dict[str, Any]) -> None:
    everything = small.filter_documents()
    assert len(everything) == len(META)
    expected = [document.id for document in everything if document_matches_filter(filters, document)]
    assert [document.id for document in small.filter_documents(filters)] == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"operator": "XOR", "conditions": [condition("meta.n", "==", 1)]}, "AND, OR or NOT"),
        ({"operator": "AND", "conditions": []}, "at least one condition"),
        ({"operator": "AND", "conditions": ["n"]}, "a condition is a dictionary"),
        (condition("meta.n", "~", 1), "the operator of a comparison"),
        (condition("content", "==", "x"), "not by content"),
        (condition("meta.n", "==", float("nan")), "compared with"),
        (condition("meta.n", "==", {"a": 1}), "compared with"),
        (condition("meta.n", "in", "abc"), "is a list"),
    ],
)
def test_a_filter_that_makes_no_sense_is_named(filters: dict[str, Any], message: str) -> None:
    with pytest.raises(FilterError, match=message):
        where_of(filters)


def test_filters_too_deep_are_refused_and_quotes_cannot_leave_their_text() -> None:
    deep: dict[str, Any] = condition("meta.n", "==", 1)
    for _ in range(100):
        deep = {"operator": "NOT", "conditions": [deep]}
    with pytest.raises(FilterError, match="inside each other"):
        where_of(deep)
    where = where_of(condition('meta.a" or "b', "==", "x' or '1' = '1"))
    assert where is not None
    assert [key for key, _ in Filter.parse(where).compared()] == ['a" or "b']
