"""PyLate: its retriever finds with our index what exact MaxSim of its own ranks first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pylate", reason='needs "secateurs[pylate]": run make test-torch')
import torch
from numpy.typing import NDArray
from pages import blocks
from pylate import rank, retrieve
from pylate.indexes.base import Base

from secateurs import Document, EncodedText, Index
from secateurs.errors import DuplicateDocumentError, UsageError
from secateurs.integrations.pylate import SecateursIndex

Matrix = NDArray[np.float32]


@pytest.fixture(scope="session")
def documents(encoded_passages: list[Document]) -> dict[str, Matrix]:
    """Real embeddings of 96 dimensions, without their token ids."""
    return {d.docno: d.encoded.embeddings for d in encoded_passages if d.encoded is not None}


@pytest.fixture(scope="session")
def queries(encoded_queries: list[EncodedText]) -> list[Matrix]:
    return [query.embeddings for query in encoded_queries]


@pytest.fixture
def small(tmp_path: Path) -> SecateursIndex:
    """Two dimensions, so that scores can be worked out by hand."""
    index = SecateursIndex(tmp_path / "indexes", "small", store="float16", effort="exact")
    east, north = [1.0, 0.0], [0.0, 1.0]
    return index.add_documents(["e", "n", "en"], [np.array([east]), torch.tensor([north]), np.array([east, north])])


def ids(results: list[list[rank.RerankResult]]) -> list[list[str]]:
    return [[result["id"] for result in ranking] for ranking in results]


EAST, BOTH = np.array([[1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])


def test_scores_are_sums_of_the_best_products(small: SecateursIndex) -> None:
    retriever = retrieve.ColBERT(index=small)
    assert retriever.retrieve([BOTH, EAST], k=2) == [
        [{"id": "en", "score": 2.0}, {"id": "e", "score": 1.0}],
        [{"id": "e", "score": 1.0}, {"id": "en", "score": 1.0}],
    ]


@pytest.mark.parametrize(
    "given",
    [
        BOTH,
        torch.tensor(BOTH),
        [torch.tensor(BOTH, dtype=torch.bfloat16)],
        np.stack([BOTH]),
        torch.tensor(np.stack([BOTH])),
        [BOTH.tolist()],
    ],
    ids=["array", "tensor", "bfloat16", "batch", "batch tensor", "lists"],
)
def test_embeddings_come_in_every_form_of_pylate(small: SecateursIndex, given: Any) -> None:
    assert retrieve.ColBERT(index=small).retrieve(given, k=1) == [[{"id": "en", "score": 2.0}]]


def test_the_retriever_finds_what_exact_scoring_by_pylate_ranks_first(
    documents: dict[str, Matrix], queries: list[Matrix], tmp_path: Path
) -> None:
    index = SecateursIndex(tmp_path, store="float16", effort="exact").add_documents(
        list(documents), list(documents.values())
    )
    assert isinstance(index, Base)
    found = retrieve.ColBERT(index=index).retrieve(queries, k=10)
    expected = rank.rerank(
        documents_ids=[list(documents)] * len(queries),
        queries_embeddings=queries,
        documents_embeddings=[[torch.from_numpy(m) for m in documents.values()]] * len(queries),
    )
    for ranking, exact in zip(found, expected, strict=True):
        scores = {result["id"]: result["score"] for result in exact}
        assert [result["score"] for result in ranking] == pytest.approx([r["score"] for r in exact[:10]], abs=0.05)
        assert [result["score"] for result in ranking] == pytest.approx([scores[r["id"]] for r in ranking], abs=0.05)


def test_a_pruned_search_keeps_p_embeddings_and_finds_nearly_the_same(
    documents: dict[str, Matrix], queries: list[Matrix], tmp_path: Path
) -> None:
    exact = SecateursIndex(tmp_path, effort="exact").add_documents(list(documents), list(documents.values()))
    pruned = SecateursIndex(tmp_path, gather="cells", p=3)
    assert pruned.index is not None
    query = EncodedText(queries[0], np.zeros(32), np.zeros(32))
    ranking = pruned.index.search(query, **pruned.settings)
    assert len(ranking.kept) == 3
    assert ids(pruned([queries[0]], k=10)) == [[hit.docno for hit in ranking]]
    both = zip(ids(exact(queries, k=10)), ids(pruned(queries, k=10)), strict=True)
    overlap = np.mean([len(set(full) & set(few)) / 10 for full, few in both])
    assert overlap > 0.7
    # The order needs no token ids: the positions that are least like the mean of all embeddings are kept.
    mean = np.concatenate(list(documents.values())).mean(axis=0)
    assert set(ranking.kept) == set(np.argsort(queries[0] @ mean)[:3].tolist())


def test_documents_are_added_replaced_and_removed_and_the_index_is_opened_again(small: SecateursIndex) -> None:
    small.add_documents("w", np.array([[-1.0, 0.0]]))
    assert ids(small(-EAST, k=1)) == [["w"]]
    with pytest.raises(DuplicateDocumentError):
        small.add_documents(["x", "w"], [EAST, EAST])
    small.update_documents(["w", "x"], [EAST, -EAST])
    assert ids(small(-EAST, k=1)) == [["x"]]
    small.remove_documents(["x", "never there"])
    again = SecateursIndex(small.path.parent, "small", effort="exact")
    assert ids(again(EAST, k=9)) == [["e", "en", "w", "n"]]
    replaced = SecateursIndex(small.path.parent, "small", override=True)
    assert ids(again(EAST, k=1)) == [["e"]]  # until there are documents
    replaced.add_documents(["only"], [EAST])
    assert ids(SecateursIndex(small.path.parent, "small")(EAST)) == [["only"]]


def test_a_subset_is_scored_whole_for_all_queries_or_for_each(small: SecateursIndex) -> None:
    retriever = retrieve.ColBERT(index=small)
    assert ids(retriever.retrieve([BOTH, EAST], k=2, subset=["n", "e", "nobody"])) == [["e", "n"], ["e", "n"]]
    assert ids(retriever.retrieve([BOTH, EAST], k=2, subset=[["n"], ["en", "n"]])) == [["n"], ["en", "n"]]
    assert ids(retriever.retrieve([BOTH, EAST], k=2, subset=[])) == [[], []]
    with pytest.raises(UsageError, match="3 lists of ids, and there are 2 queries"):
        retriever.retrieve([BOTH, EAST], subset=[["n"], ["e"], ["en"]])


def test_the_stored_embeddings_are_returned(small: SecateursIndex) -> None:
    ((first, second), (third,)) = small.get_documents_embeddings([["en", "e"], ["n"]])
    assert (first.tolist(), second.tolist(), third.tolist()) == (BOTH.tolist(), EAST.tolist(), [[0.0, 1.0]])


def test_what_is_wrong_is_named(small: SecateursIndex, tmp_path: Path) -> None:
    empty = SecateursIndex(tmp_path, "none")
    assert empty.add_documents([], []).index is None
    for use in (lambda: empty(EAST), lambda: empty.remove_documents(["e"])):
        with pytest.raises(UsageError, match="add documents first"):
            use()
    for settings, named in (({"k": 3}, "k is no setting"), ({"where": "x = 1"}, "subset"), ({"p": 0}, "p must be")):
        with pytest.raises(UsageError, match=named):
            SecateursIndex(tmp_path, "none", **settings)
    with pytest.raises(UsageError, match="2 ids, and embeddings of 1 documents"):
        small.add_documents(["a", "b"], [EAST])
    with pytest.raises(UsageError, match="a docno is a text, not 7"):
        small.add_documents([7], [EAST])
    with pytest.raises(UsageError, match="3 dimensions, those of the index 2"):
        small(np.ones((1, 3)))
    with pytest.raises(UsageError, match="default output_value"):
        small([{"token_embeddings": EAST}])
    with pytest.raises(UsageError, match="k must be a whole number"):
        small(EAST, k=0, subset=["e"])


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in blocks("integrations.md", "python", "PyLate"):
        exec(compile(block, "integrations.md", "exec"), namespace)
    assert isinstance(namespace["index"].index, Index)
