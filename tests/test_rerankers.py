"""The package `rerankers`: its documents and texts are ordered by MaxSim, as `rerank` orders them."""

import asyncio
from typing import Any

import pytest
from conftest import QUERIES
from test_reranking import TwoDimensions

pytest.importorskip("rerankers", reason='pip install "secateurs[rerankers]"')
from rerankers import Document, Reranker
from rerankers.models.ranker import BaseRanker
from rerankers.results import RankedResults

from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.integrations.rerankers import SecateursRanker
from secateurs.reranking import rerank

QUERY = QUERIES[0]
TEXTS = ["Cats sleep all day.", "A zip file is an archive of compressed files.", "", "How to read a zip archive."]


@pytest.fixture
def compass() -> SecateursRanker:
    """Scores that can be worked out by hand: see TwoDimensions."""
    return SecateursRanker(TwoDimensions())


def found(results: RankedResults) -> list[tuple[Any, ...]]:
    return [(result.rank, result.doc_id, result.score, result.relevance) for result in results]


def test_texts_are_ranked_by_their_sums_of_best_products(compass: SecateursRanker) -> None:
    results = compass.rank("east north", ["west", "east north", " ", "north"])
    assert found(results) == [(1, 1, 2.0, 1.0), (2, 3, 1.0, 0.5), (3, 0, -1.0, 0.0), (4, 2, None, 0.0)]
    assert [result.text for result in results] == ["east north", "north", "west", " "]
    assert [result.doc_id for result in results.top_k(2)] == [1, 3]
    assert results.get_score_by_docid(3) == 1.0
    assert results.query == "east north"


def test_documents_keep_their_ids_and_metadata_and_those_of_the_caller_stay_as_they_were(
    compass: SecateursRanker,
) -> None:
    documents = [Document("west", doc_id="w", metadata={"from": "elsewhere"}), Document("east"), Document("north")]
    results = compass.rank("east north", documents, metadata=[{"row": row} for row in range(3)])
    assert [(result.doc_id, result.row) for result in results] == [(1, 1), (2, 2), ("w", 0)]
    assert [document.doc_id for document in documents] == ["w", None, None]
    assert [document.metadata for document in documents] == [{"from": "elsewhere"}, {}, {}]
    renamed = compass.rank("east", documents, doc_ids=["a", "b", "c"])
    assert [result.doc_id for result in renamed] == ["b", "c", "a"]
    assert compass.rank("east", documents)[2].metadata == {"from": "elsewhere", "relevance": 0.0}


def test_a_single_document_no_document_and_an_asynchronous_call(compass: SecateursRanker) -> None:
    assert found(compass.rank("east", "east")) == [(1, 0, 1.0, 1.0)]
    assert found(compass.rank("east", Document("west", doc_id="w"))) == [(1, "w", -1.0, 0.0)]
    assert found(compass.rank("east", [])) == []
    assert found(asyncio.run(compass.rank_async("east", ["west", "east"], ["w", "e"]))) == [
        (1, "e", 1.0, 1.0),
        (2, "w", -1.0, 0.0),
    ]
    assert compass.score("east north", "east") == 1.0
    assert compass.score("east north", "\n") == float("-inf")


def test_the_scores_are_those_of_rerank(encoder: OnnxEncoder) -> None:
    results = SecateursRanker(encoder).rank(QUERY, TEXTS)
    assert [result.doc_id for result in results] == [3, 1, 0, 2]
    expected = rerank(QUERY, TEXTS, encoder)
    assert [result.score for result in results][:3] == [text.score for text in expected][:3]
    assert [result.relevance for result in results] == [text.relevance for text in expected]


def test_the_package_loads_it_by_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    ranker = Reranker("colbert-small", model_type="SecateursRanker", verbose=0, settings={"expansion": "all"})
    assert isinstance(ranker, SecateursRanker)
    assert isinstance(ranker, BaseRanker)
    assert ranker.encoder.spec["settings"] == {"expansion": "all"}
    assert [result.doc_id for result in ranker.rank(QUERY, TEXTS)][:2] == [3, 1]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"query": " ", "docs": ["east"]}, "the query is empty"),
        ({"query": "east", "docs": [Document(document_type="image", image_path="a.png")]}, r"docs\[0\] has no text"),
        ({"query": "east", "docs": ["east", 1]}, r"docs\[1\] has no text"),
        ({"query": "east", "docs": ["east"], "doc_ids": ["a", "b"]}, "1 documents, 2 entries"),
        ({"query": "east", "docs": ["east"], "metadata": []}, "1 documents, 0 entries"),
    ],
)
def test_what_cannot_be_ranked_is_named(compass: SecateursRanker, arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        compass.rank(**arguments)


def test_a_loaded_encoder_takes_no_options() -> None:
    with pytest.raises(UsageError, match="settings: the encoder is loaded already"):
        SecateursRanker(TwoDimensions(), settings={"expansion": "all"})
    with pytest.raises(UsageError, match="an encoder or the name of a model, not 3"):
        SecateursRanker(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="encoder kind"):
        SecateursRanker(kind="torch")
