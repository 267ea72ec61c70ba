"""Pruned search of vectors that live in another database. Each engine is the real one, and all promise the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text

from secateurs import Document, EncodedText, Frequencies
from secateurs.errors import UsageError
from secateurs.kernels.maxsim import maxsim

ENGINES = ("lancedb", "qdrant", "voyager", "milvus")
Make = Callable[..., Any]


def lancedb(folder: Path, documents: list[Document]) -> Make:
    import lancedb
    import pyarrow

    from secateurs.integrations.lancedb import PrunedSearch

    multivector = pyarrow.list_(pyarrow.list_(pyarrow.float32(), width(documents)))
    schema = pyarrow.schema([("docno", pyarrow.string()), ("number", pyarrow.int64()), ("vector", multivector)])
    rows = [
        {"docno": d.docno, "number": number, "vector": d.encoded.embeddings.tolist()}
        for number, d in enumerate(documents)
        if d.encoded is not None
    ]
    table = lancedb.connect(folder).create_table("documents", rows, schema=schema)
    return lambda frequencies, **options: PrunedSearch(table, frequencies, **options)


def qdrant(folder: Path, documents: list[Document], distance: str = "Dot", name: str = "colbert") -> Make:
    from qdrant_client import QdrantClient, models

    from secateurs.integrations.qdrant import PrunedSearch

    client = QdrantClient(":memory:")
    comparator = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    params = models.VectorParams(
        size=width(documents), distance=models.Distance(distance), multivector_config=comparator
    )
    client.create_collection("documents", vectors_config={name: params} if name else params)
    points = []
    for number, d in enumerate(documents):
        assert d.encoded is not None
        rows = d.encoded.embeddings.tolist()
        payload = {"docno": d.docno, "number": number}
        points.append(models.PointStruct(id=number, vector={name: rows} if name else rows, payload=payload))
    client.upsert("documents", points)
    return lambda frequencies, **options: PrunedSearch(
        client, "documents", frequencies, **{"vector": name, "docno": "docno", **options}
    )


def voyager(folder: Path, documents: list[Document]) -> Make:
    from voyager import Index, Space

    from secateurs.integrations.voyager import PrunedSearch

    index = Index(Space.InnerProduct, width(documents))
    ids = {d.docno: index.add_items(d.encoded.embeddings) for d in documents if d.encoded is not None}
    return lambda frequencies, **options: PrunedSearch(index, ids, frequencies, **options)


def milvus(folder: Path, documents: list[Document]) -> Make:
    from pymilvus import DataType, MilvusClient

    from secateurs.integrations.milvus import PrunedSearch

    client = MilvusClient(str(folder / "milvus.db"))
    schema = client.create_schema(auto_id=True)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("docno", DataType.VARCHAR, max_length=100)
    schema.add_field("number", DataType.INT64)
    schema.add_field("vector", DataType.FLOAT_VECTOR, dim=width(documents))
    by_product = client.prepare_index_params()
    by_product.add_index("vector", index_type="FLAT", metric_type="IP")
    client.create_collection("documents", schema=schema, index_params=by_product)
    rows = [
        {"docno": d.docno, "number": number, "vector": row.tolist()}
        for number, d in enumerate(documents)
        if d.encoded is not None
        for row in d.encoded.embeddings
    ]
    client.insert("documents", rows)
    return lambda frequencies, **options: PrunedSearch(client, "documents", frequencies, **options)


def width(documents: list[Document]) -> int:
    assert documents[0].encoded is not None
    return documents[0].encoded.embeddings.shape[1]


def everything(engine: str, documents: list[Document]) -> dict[str, int]:
    """The setting with which every document is scored."""
    if engine in ("lancedb", "qdrant"):
        return {"candidates": len(documents)}
    return {"k_prime": sum(len(d.encoded) for d in documents if d.encoded is not None)}


def one(engine: str) -> dict[str, int]:
    """The setting with which each kept embedding finds one document."""
    return {"candidates": 1} if engine in ("lancedb", "qdrant") else {"k_prime": 1}


def exhaustive(query: EncodedText, documents: list[Document]) -> list[tuple[str, float]]:
    start = np.zeros(1, dtype=np.int64)
    scores = {
        d.docno: float(maxsim(query.weighted, d.encoded.embeddings, start, np.array([len(d.encoded)]))[0])
        for d in documents
        if d.encoded is not None
    }
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return random_documents(40)[::-1]  # not in the order of their docnos


@pytest.fixture(scope="module")
def frequencies(documents: list[Document]) -> Frequencies:
    return Frequencies.count(d.encoded.token_ids for d in documents if d.encoded is not None)


@pytest.fixture(scope="module")
def make(engine: str, documents: list[Document], tmp_path_factory: pytest.TempPathFactory) -> Make:
    opened: Make = globals()[engine](tmp_path_factory.mktemp(engine), documents)
    return opened


@pytest.fixture
def query() -> EncodedText:
    text = random_text(np.random.default_rng(7), 6)
    return EncodedText(text.embeddings, text.token_ids, text.token_kinds, weights=np.array([1, 1, 2, 1, 6, 0.5]))


@pytest.mark.parametrize("p", [1, 3, "all", None])
def test_the_scores_are_those_of_all_embeddings_with_their_weights(
    engine: str, make: Make, documents: list[Document], frequencies: Frequencies, query: EncodedText, p: Any
) -> None:
    found = make(frequencies).search(query, k=40, p=p, **everything(engine, documents))
    exact = exhaustive(query, documents)
    assert [hit.docno for hit in found] == [docno for docno, _ in exact]
    np.testing.assert_allclose([hit.score for hit in found], [score for _, score in exact], rtol=1e-5)


WITH_FIELDS = pytest.mark.parametrize("engine", ["lancedb", "qdrant", "milvus"], indirect=True, scope="module")
AXES = np.eye(3, dtype=np.float32)
TWO = [
    Document("with-the-common-word", encoded=EncodedText(AXES[[0, 0]], [5, 5], [0, 0])),
    Document("with-the-rare-word", encoded=EncodedText(AXES[[1]], [9], [0])),
]


def test_only_the_kept_embeddings_gather(engine: str, tmp_path: Path) -> None:
    counted = Frequencies.count(d.encoded.token_ids for d in TWO if d.encoded is not None)
    searched = globals()[engine](tmp_path, TWO)(counted)
    query = EncodedText(AXES[[0, 1]], [5, 9], [0, 0])
    assert searched.search(query, k=1, p=1, **one(engine)) == [("with-the-rare-word", 1.0)]
    assert searched.search(query, k=1, p=1, order="first", **one(engine)) == [("with-the-common-word", 1.0)]
    both = searched.search(query, p=2, k=2, **everything(engine, TWO))
    assert both == [("with-the-common-word", 1.0), ("with-the-rare-word", 1.0)]  # equal scores by docno


def test_a_docno_may_have_any_characters(engine: str, tmp_path: Path) -> None:
    strange = [Document('\'a "q\\uote" {x} ü', encoded=TWO[0].encoded), Document("日本\n", encoded=TWO[1].encoded)]
    searched = globals()[engine](tmp_path, strange)(Frequencies.none())
    found = searched.search(EncodedText(AXES[[0, 1]], [5, 9], [0, 0]), **everything(engine, strange))
    assert [hit.docno for hit in found] == [document.docno for document in strange]


def test_k_documents_come_back_best_first(
    engine: str, make: Make, documents: list[Document], frequencies: Frequencies, query: EncodedText
) -> None:
    found = make(frequencies).search(query, k=5, **everything(engine, documents))
    assert [hit.docno for hit in found] == [docno for docno, _ in exhaustive(query, documents)[:5]]


@WITH_FIELDS
def test_a_filter_of_the_database_holds_in_the_first_stage(
    engine: str, make: Make, documents: list[Document], frequencies: Frequencies, query: EncodedText
) -> None:
    where: Any = "number < 5"
    if engine == "qdrant":
        from qdrant_client import models

        where = models.Filter(must=[models.FieldCondition(key="number", range=models.Range(lt=5))])
    found = make(frequencies).search(query, p=2, where=where)
    assert {hit.docno for hit in found} == {document.docno for document in documents[:5]}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"k": 0}, "k must be"),
        ({"p": 0}, "p must be"),
        ({"order": "rarest"}, "order is one of"),
        ({"depth": 0}, "must be a whole number of at least 1, not 0"),
        ({"depth": None}, "must be a whole number of at least 1, not None"),
        ({"query": "goldfish"}, "EncodedText"),
        ({"query": EncodedText(np.zeros((0, 16)), [], [])}, "no embeddings"),
        ({"query": EncodedText(np.ones((2, 5)), [1, 2], [0, 0])}, "5 dimensions"),
    ],
)
def test_a_search_that_makes_no_sense_is_a_clear_error(
    engine: str, make: Make, frequencies: Frequencies, query: EncodedText, wrong: dict[str, Any], message: str
) -> None:
    if "depth" in wrong:
        wrong = {"k_prime" if engine in ("voyager", "milvus") else "candidates": wrong["depth"]}
    with pytest.raises(UsageError, match=message):
        make(frequencies).search(**{"query": query, **wrong})


def test_frequencies_that_are_none_or_of_another_model_are_a_clear_error(
    make: Make, frequencies: Frequencies, query: EncodedText
) -> None:
    for wrong, message in (
        ("frequencies.npz", "Frequencies.load"),
        (frequencies.with_centre(np.zeros(5)), "mean of all embeddings has 5 dimensions and the query 16"),
    ):
        with pytest.raises(UsageError, match=message):
            make(wrong).search(query)


@WITH_FIELDS
@pytest.mark.parametrize("option", ["vector", "docno"])
def test_a_field_that_is_not_there_is_a_clear_error(
    engine: str, make: Make, frequencies: Frequencies, query: EncodedText, option: str
) -> None:
    with pytest.raises(UsageError, match=r"has no .*'nothing'"):
        make(frequencies, **{option: "nothing"}).search(query)
    if engine != "qdrant":
        with pytest.raises(UsageError, match="is no"):
            make(frequencies, vector="number")


def test_a_collection_of_qdrant_by_cosine_gives_the_same_scores(
    documents: list[Document], frequencies: Frequencies, query: EncodedText, tmp_path: Path
) -> None:
    """Qdrant's cosine divides the weights out of the query, so that these scores are computed here."""
    searched = qdrant(tmp_path, documents, distance="Cosine")(frequencies)
    exact = exhaustive(query, documents)[:10]
    found = searched.search(query, p=2, candidates=40)
    assert [hit.docno for hit in found] == [docno for docno, _ in exact]
    np.testing.assert_allclose([hit.score for hit in found], [score for _, score in exact], rtol=1e-5)
    plain = EncodedText(query.embeddings, query.token_ids, query.token_kinds)
    found = searched.search(plain, p=2, candidates=40)
    np.testing.assert_allclose([h.score for h in found], [s for _, s in exhaustive(plain, documents)[:10]], rtol=1e-5)


def test_a_vector_of_qdrant_without_a_name_and_the_id_as_docno(
    documents: list[Document], frequencies: Frequencies, query: EncodedText, tmp_path: Path
) -> None:
    for distance in ("Dot", "Cosine"):
        searched = qdrant(tmp_path, documents, distance, name="")(frequencies, docno=None)
        best = exhaustive(query, documents)[0][0]
        found = searched.search(query, candidates=40)
        assert documents[int(found[0].docno)].docno == best


def test_what_qdrant_cannot_prune_is_a_clear_error(frequencies: Frequencies) -> None:
    from qdrant_client import QdrantClient, models

    from secateurs.integrations.qdrant import PrunedSearch

    client = QdrantClient(":memory:")
    maxsim_of = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
    vectors = {
        "dense": models.VectorParams(size=4, distance=models.Distance.DOT),
        "far": models.VectorParams(size=4, distance=models.Distance.EUCLID, multivector_config=maxsim_of),
    }
    client.create_collection("documents", vectors_config=vectors)
    for collection, vector, message in (
        ("nothing", "dense", "no collection"),
        ("documents", "", "give vector="),
        ("documents", "dense", "no multivector"),
        ("documents", "far", "not distances"),
    ):
        with pytest.raises(UsageError, match=message):
            PrunedSearch(client, collection, frequencies, vector=vector)


def test_elements_of_voyager_that_no_document_has_are_left_out(frequencies: Frequencies) -> None:
    from voyager import Index, Space

    from secateurs.integrations.voyager import PrunedSearch

    index = Index(Space.InnerProduct, 3)
    index.add_items(AXES)
    query = EncodedText(AXES[[0, 1]], [5, 9], [0, 0])
    assert PrunedSearch(index, {"middle": [1]}, frequencies).search(query) == [("middle", 1.0)]
    assert PrunedSearch(index, {}, frequencies).search(query) == []
    assert PrunedSearch(Index(Space.InnerProduct, 3), {}, frequencies).search(query) == []
    with pytest.raises(UsageError, match="the index has not"):
        PrunedSearch(index, {"middle": [1, 77]}, frequencies).search(query)
    for documents, message in (
        ({"middle": [1, 1]}, "two documents"),
        ({"middle": [-1]}, "negative"),
        ({"middle": [0.5]}, "whole numbers"),
        ({"middle": 1}, "whole numbers"),
        ([[1]], "by docno"),
    ):
        with pytest.raises(UsageError, match=message):
            PrunedSearch(index, documents, frequencies)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="Index of Voyager"):
        PrunedSearch("graph.voy", {}, frequencies)
    with pytest.raises(UsageError, match="query_ef must be at least 3"):
        PrunedSearch(index, {"middle": [1]}, frequencies).search(query, query_ef=2)


def test_the_ids_of_voyager_may_be_any_numbers(frequencies: Frequencies) -> None:
    from voyager import Index, Space

    from secateurs.integrations.voyager import PrunedSearch

    index = Index(Space.InnerProduct, 3)
    index.add_items(AXES, ids=[7, 2**40, 2**63 + 1])
    search = PrunedSearch(index, {"last": [2**63 + 1], "first": [2**40, 7]}, frequencies)
    query = EncodedText(AXES[[0, 1]], [5, 9], [0, 0])
    assert search.search(query) == [("first", 2.0), ("last", 0.0)]
