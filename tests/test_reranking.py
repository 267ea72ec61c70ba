"""Re-ranking texts that are in no index."""

import numpy as np
import pytest
from conftest import QUERIES

import secateurs
from secateurs import Document, EncodedText, Index
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.reranking import rerank


class TwoDimensions:
    """Each word of a text is an embedding: `east` is (1, 0), `north` is (0, 1), `west` is (-1, 0)."""

    dim = 2
    spec = {"kind": "test", "model": "two dimensions", "fingerprint": "2"}  # noqa: RUF012
    directions = {"east": (1.0, 0.0), "north": (0.0, 1.0), "west": (-1.0, 0.0)}  # noqa: RUF012

    def encode_query(self, text: str) -> EncodedText:
        embeddings = np.array([self.directions[word] for word in text.split()], dtype=np.float32)
        return EncodedText(embeddings, np.arange(len(embeddings)), np.zeros(len(embeddings)))

    def encode_documents(self, texts):  # type: ignore[no-untyped-def]
        return map(self.encode_query, texts)

    def token_text(self, token_id: int) -> str:
        return "east"


def test_scores_are_sums_of_the_best_products() -> None:
    texts = ["west", "east north", "north", "east east"]
    assert rerank("east north", texts, TwoDimensions()) == [
        (1, 2.0, 1.0),
        (2, 1.0, 0.5),  # before the text that has the same score, as it was given
        (3, 1.0, 0.5),
        (0, -1.0, 0.0),
    ]


def test_weights_of_the_query_count() -> None:
    query = TwoDimensions().encode_query("east north")
    weighted = EncodedText(query.embeddings, query.token_ids, query.token_kinds, weights=np.array([3.0, 1.0]))
    assert rerank(weighted, ["north", "east"], TwoDimensions()) == [(1, 3.0, 0.75), (0, 1.0, 0.25)]


def test_a_blank_text_is_last_and_not_relevant() -> None:
    assert rerank("east", [" \n", "west"], TwoDimensions()) == [(1, -1.0, 0.0), (0, -np.inf, 0.0)]


def test_no_texts_are_ranked_as_none() -> None:
    assert rerank("east", [], TwoDimensions()) == []


def test_the_built_in_model_is_the_encoder_unless_another_is_given() -> None:
    ranked = secateurs.rerank("do goldfish grow", ["Cats sleep.", "Goldfish grow as large as their pond."])
    assert [text.number for text in ranked] == [1, 0]
    by_name = secateurs.rerank(
        "do goldfish grow", ["Cats sleep.", "Goldfish grow as large as their pond."], "colbert-small"
    )
    assert by_name == ranked


def test_a_query_of_other_dimensions_is_an_error() -> None:
    three = EncodedText(np.ones((1, 3)), [0], [0])
    with pytest.raises(UsageError, match="have 3 dimensions, those of the encoder 2"):
        rerank(three, ["east"], TwoDimensions())


@pytest.mark.parametrize(
    ("query", "texts"),
    [("", ["east"]), (" \t", ["east"]), (None, ["east"]), ("east", "east"), ("east", [1]), ("east", {"east"})],
)
def test_an_empty_query_and_what_is_no_list_of_texts_are_errors(query: str, texts: list[str]) -> None:
    with pytest.raises(UsageError):
        rerank(query, texts, TwoDimensions())


def test_texts_of_an_index_rank_as_in_the_index(
    index: Index, encoder: OnnxEncoder, encoded_passages: list[Document]
) -> None:
    texts = encoded_passages[:30]
    for query in QUERIES[:3]:
        ranked = rerank(query, [document.text for document in texts], encoder)
        of_index = index.score(query, [document.docno for document in texts])
        relevance = {hit.docno: hit.relevance for hit in index.search(query, k=len(index), effort="exact")}
        assert sorted(text.number for text in ranked) == list(range(30))
        for number, score, relevant in ranked:
            assert score == pytest.approx(of_index[number], abs=0.1)  # of 32; the index rounds and merges
            assert relevant == pytest.approx(relevance[texts[number].docno], abs=0.1)
