"""PyTerrier: the retriever and its stages agree with `Index`, and behave as PyTerrier wants transformers to."""

import functools
import http.server
import json
import re
import subprocess
import sys
import threading
import unittest
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from conftest import QUERIES, random_documents, random_text

from secateurs import Document, EncodedText, Index, SecateursError
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.integrations.pyterrier import (
    ENCODED,
    Candidates,
    Prune,
    QueryEncoder,
    Retriever,
    Scorer,
    SecateursIndex,
    SecateursIndexer,
    TextLoader,
)

QIDS = [f"q{i}" for i in range(len(QUERIES))]
RESULT = ["qid", "query", "docno", "score", "rank"]


@pytest.fixture
def queries() -> pd.DataFrame:
    return pt.new.queries(list(QUERIES), QIDS)


@pytest.fixture(scope="session")
def prunable(tmp_path_factory: pytest.TempPathFactory, encoded_passages: list[Document], encoder: OnnxEncoder) -> Index:
    """An index for which gathering matters: faiss finds only some of the documents."""
    path = tmp_path_factory.mktemp("prunable") / "library.sec"
    Index.build(path, encoded_passages[::4], encoder=None, gather=("cells", "faiss"))
    return Index(path, encoder)


def rows(frame: pd.DataFrame) -> list[tuple[Any, ...]]:
    return list(frame[RESULT].itertuples(index=False, name=None))


def stages(index: Index, **settings: Any) -> pt.Transformer:
    return QueryEncoder(index) >> Prune(index, **settings) >> Candidates(index, **settings) >> Scorer(index)


def test_the_retriever_ranks_as_search_does(index: Index, queries: pd.DataFrame) -> None:
    expected = [
        (qid, query, hit.docno, hit.score, rank)
        for qid, query in zip(QIDS, QUERIES, strict=True)
        for rank, hit in enumerate(index.search(query, k=5, p=3, candidates=20))
    ]
    assert rows(index.retriever(k=5, p=3, candidates=20)(queries)) == expected


def test_thresholds_leave_out_rows(index: Index, queries: pd.DataFrame) -> None:
    expected = {qid: index.search(query, k=5) for qid, query in zip(QIDS, QUERIES, strict=True)}
    least = sorted(hit.relevance for ranking in expected.values() for hit in ranking)[len(expected)]
    found = index.retriever(k=5, min_relevance=least)(queries)
    assert list(zip(found["qid"], found["docno"], strict=True)) == [
        (qid, hit.docno) for qid, ranking in expected.items() for hit in ranking if hit.relevance >= least
    ]
    assert len(found) == 4 * len(expected)
    assert "relevance" not in found
    assert len((index.retriever(k=5, min_score=1e6) % 3)(queries)) == 0


@pytest.mark.parametrize(
    "settings",
    [
        {"p": 3, "order": "icf", "gather": "faiss", "k_prime": 20},
        {"p": 2, "order": "first", "gather": "cells", "candidates": 30},
        {"effort": "fast", "gather": "cells", "candidates": 30},
        {"p": None, "gather": "faiss", "k_prime": 5},
        {},
        {"weights": "idf"},
        {"weights": "idf", "p": 2, "gather": "cells", "candidates": 30},
        {"weights": "idf", "p": 3, "gather": "faiss", "k_prime": 20},
    ],
)
def test_the_four_stages_give_exactly_what_the_retriever_gives(
    prunable: Index, queries: pd.DataFrame, settings: dict[str, Any]
) -> None:
    assert rows((stages(prunable, **settings) % 10)(queries)) == rows(prunable.retriever(**settings)(queries))


def test_pruning_leaves_all_embeddings_and_says_what_it_keeps(index: Index, queries: pd.DataFrame) -> None:
    encoded = QueryEncoder(index)(queries)
    pruned = Prune(index, p=3)(encoded)
    for text, before, after in zip(QUERIES, encoded.itertuples(), pruned.itertuples(), strict=True):
        whole = index.encode_query(text)
        assert after.query_embs.tolist() == before.query_embs.tolist() == whole.embeddings.tolist()
        assert after.query_toks.tolist() == whole.token_ids.tolist()
        assert after.query_kinds.tolist() == whole.token_kinds.tolist()
        assert tuple(after.query_keep.tolist()) == index.search(text, p=3).kept


class GivesWeights:
    """The built-in encoder, with a weight for each query embedding: 0.5 and 1.5, in turns."""

    def __init__(self, encoder: OnnxEncoder) -> None:
        self._encoder, self.dim, self.spec = encoder, encoder.dim, encoder.spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_query(self, text: str) -> EncodedText:
        encoded = self._encoder.encode_query(text)
        return replace(encoded, weights=0.5 + np.arange(len(encoded)) % 2)


@pytest.mark.parametrize("weights", [None, "idf"])
@pytest.mark.parametrize("encoder_weighs", [False, True])
def test_weights_count_once_in_every_pipeline(
    prunable: Index, encoder: OnnxEncoder, queries: pd.DataFrame, weights: Any, encoder_weighs: bool
) -> None:
    """Whichever stage applies the setting, with an encoder that gives weights and with one that gives none."""
    index = Index(prunable.path, GivesWeights(encoder) if encoder_weighs else encoder)  # type: ignore[arg-type]
    settings: dict[str, Any] = {"weights": weights, "p": 3, "gather": "cells", "candidates": 30}
    expected = rows(index.retriever(**settings)(queries))
    assert (expected == rows(prunable.retriever(**{**settings, "weights": None})(queries))) == (
        not encoder_weighs and not weights
    )
    encode, prune, retrieve = QueryEncoder(index), Prune(index, **settings), index.retriever(**settings)
    for pipeline in (
        stages(index, **settings) % 10,
        encode >> retrieve,
        encode >> prune >> retrieve,
        encode >> prune >> prune >> Candidates(index, **settings) >> Scorer(index) % 10,
        encode >> prune >> encode >> prune >> retrieve,
    ):
        assert rows(pipeline(queries)) == expected
    users_pruning = pt.apply.query_keep(lambda row: index.decide(row["query"], **settings).kept)
    assert rows((encode >> users_pruning >> retrieve)(queries)) == expected


def test_weights_are_a_column_only_if_there_are_any(
    index: Index, index_path: Path, encoder: OnnxEncoder, queries: pd.DataFrame
) -> None:
    assert list(QueryEncoder(index)(queries)) == ["qid", "query", *ENCODED]
    assert list(Prune(index)(QueryEncoder(index)(queries))) == ["qid", "query", *ENCODED, "query_keep"]
    pruned = Prune(index, weights="idf")(QueryEncoder(index)(queries))
    assert list(pruned)[-3:] == ["query_keep", "query_weights", "query_weighed"]
    for text, weights in zip(QUERIES, pruned["query_weights"], strict=True):
        assert np.array_equal(weights, index.decide(text, weights="idf").query.weights)
    again = QueryEncoder(index)(pruned)
    assert not {"query_weights", "query_weighed"} & set(again)  # those of the embeddings before
    weighing = QueryEncoder(Index(index_path, GivesWeights(encoder)))(queries)  # type: ignore[arg-type]
    assert weighing["query_weights"][0].tolist() == [0.5, 1.5] * 16


def test_rows_with_and_without_weights_may_be_in_one_frame(index: Index, queries: pd.DataFrame) -> None:
    encoded = QueryEncoder(index)(queries.head(4))
    mixed = pd.concat([Prune(index, weights="idf")(encoded.head(2)), encoded.tail(2)], ignore_index=True)
    for settings in ({}, {"weights": "idf"}):
        found = rows(Retriever(index, **settings)(mixed.drop(columns="query_keep")))
        weighed = index.retriever(weights="idf")(queries.head(2))
        rest = index.retriever(**settings)(queries.head(4).tail(2))
        assert found == rows(weighed) + rows(rest)


def test_another_retrievers_documents_are_scored_with_weights(index: Index, queries: pd.DataFrame) -> None:
    weighed = (QueryEncoder(index) >> Prune(index, weights="idf"))(queries.head(1))
    docnos = [hit.docno for hit in index.search(QUERIES[0])]
    found = Scorer(index)(weighed.merge(pd.DataFrame({"qid": QIDS[0], "docno": docnos}), on="qid"))
    query = index.decide(QUERIES[0], weights="idf").query
    assert dict(zip(found["docno"], found["score"], strict=True)) == dict(
        zip(docnos, index.score(query, docnos), strict=True)
    )


def test_wrong_weights_are_a_clear_error(index: Index, queries: pd.DataFrame) -> None:
    with pytest.raises(UsageError, match="weights is idf, or None for equal weights, not 'heavy'"):
        index.retriever(weights="heavy")
    encoded = QueryEncoder(index)(queries.head(1))
    for wrong in ([1.0], [-1.0] * 32):
        with pytest.raises(UsageError, match="weights must be a number from 0 to 1,000 for each embedding"):
            index.retriever()(encoded.assign(query_weights=[np.array(wrong)]))


def test_what_was_kept_gathers_in_place_of_p_and_order(prunable: Index, queries: pd.DataFrame) -> None:
    kept = queries.head(1).assign(query_keep=[np.array([5, 3])])
    settings = {"gather": "faiss", "k_prime": 5}
    expected = prunable.candidates(
        QUERIES[0], p=2, order=lambda query, _: np.r_[5, 3, np.delete(np.arange(len(query)), [3, 5])], **settings
    )
    assert Candidates(prunable, p=1, order="first", **settings)(kept)["docno"].tolist() == expected
    assert expected != prunable.candidates(QUERIES[0], p=1, order="first", **settings)


def test_a_query_is_encoded_once_for_all_pipelines_of_a_tree(
    prunable: Index, queries: pd.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []
    original = OnnxEncoder.encode_query

    def counting(self: OnnxEncoder, text: str) -> EncodedText:
        encoded.append(text)
        return original(self, text)

    monkeypatch.setattr(OnnxEncoder, "encode_query", counting)
    systems = [stages(prunable, p=p, order=order) for p in (1, 3) for order in ("first", "icf")]
    qrels = pd.DataFrame({"qid": QIDS, "docno": "nothing", "label": 1})
    pt.Experiment(systems, queries, qrels, ["recip_rank"], plan="tree", verbose=False)
    assert sorted(encoded) == sorted(QUERIES)


def test_an_experiment_marks_what_differs_significantly(prunable: Index, queries: pd.DataFrame) -> None:
    """Judged by the unpruned system itself: it has nDCG 1, and a system that misses everything differs from it."""
    unpruned = prunable.retriever(k=5, effort="exact")
    qrels = unpruned(queries)[["qid", "docno"]].assign(label=1)
    nothing = prunable.retriever(k=5) >> pt.apply.docno(lambda row: "nothing")
    table = pt.Experiment(
        [unpruned, prunable.retriever(k=5, p=None, gather="faiss"), nothing],
        queries,
        qrels,
        ["ndcg_cut_5", "num_ret"],
        names=["unpruned", "same", "nothing"],
        baseline=0,
        correction="bonferroni",
        validate="ignore",
    ).set_index("name")
    assert table["ndcg_cut_5"].to_dict() == {"unpruned": 1.0, "same": 1.0, "nothing": 0.0}
    assert table["ndcg_cut_5 reject"].to_dict() == {"unpruned": False, "same": False, "nothing": True}
    assert not pt.java.started()


def test_pipelines_pass_the_validation_of_experiments(index: Index, queries: pd.DataFrame) -> None:
    qrels = pd.DataFrame({"qid": QIDS, "docno": "nothing", "label": 1})
    systems = [index.retriever(p=3), stages(index, p=3), index.retriever() >> Scorer(index)]
    pt.Experiment(systems, queries, qrels, ["map"], validate="error")
    with pytest.raises(ValueError, match="Prune"):
        pt.Experiment([Prune(index) >> Candidates(index)], queries, qrels, ["map"], validate="error")


@pytest.mark.parametrize(
    "make", [QueryEncoder, Prune, Candidates, Scorer, Retriever, TextLoader, stages], ids=lambda make: make.__name__
)
def test_transformers_pass_pyterriers_own_checks(make: Any, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PT_TEST_TRANSFORMER_REPORTS", "0")
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(pt.testing.transformer_test_class(lambda: make(index)))
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun == 2
    assert not result.failures + result.errors


def test_every_stage_says_which_columns_it_takes_and_gives(index: Index) -> None:
    def columns(transformer: pt.Transformer) -> dict[str, str]:
        taken = pt.inspect.transformer_inputs(transformer)
        return {" ".join(columns): " ".join(pt.inspect.transformer_outputs(transformer, columns)) for columns in taken}

    encoded = " ".join(ENCODED)
    assert columns(QueryEncoder(index)) == {"qid query": f"qid query {encoded}"}
    assert columns(Prune(index)) == {f"qid {encoded}": f"qid {encoded} query_keep"}
    weighed = f"qid {encoded} query_keep query_weights query_weighed"
    assert columns(Prune(index, weights="idf")) == {f"qid {encoded}": weighed}
    assert columns(Candidates(index)) == {"qid query": "qid query docno", f"qid {encoded}": f"qid {encoded} docno"}
    assert columns(Scorer(index)) == {
        "qid docno query": "qid docno query score rank",
        f"qid docno {encoded}": f"qid docno {encoded} score rank",
    }
    assert columns(Retriever(index)) == {
        "qid query": "qid query docno score rank",
        f"qid {encoded}": f"qid {encoded} docno score rank",
    }
    assert columns(stages(index)) == {"qid query": f"qid query {encoded} query_keep docno score rank"}


def test_no_queries_give_no_results_with_all_columns(index: Index) -> None:
    found = index.retriever()(pt.new.empty_Q())
    assert list(found) == RESULT
    assert len(found) == 0
    assert found.dtypes[["score", "rank"]].astype(str).tolist() == ["float64", "int64"]


def test_queries_that_find_nothing_have_no_rows_and_a_query_without_embeddings_is_an_error(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "empty.sec", [], encoder=None)
    full = Index.build(tmp_path / "full.sec", random_documents(8), encoder=None)
    encoded = [random_text(np.random.default_rng(0), tokens) for tokens in (3, 1, 0)]
    frame = pd.DataFrame({"qid": ["1", "2", "3"]}).assign(
        query_embs=[query.embeddings for query in encoded],
        query_toks=[query.token_ids for query in encoded],
        query_kinds=[query.token_kinds for query in encoded],
    )
    for searched, found in ((index, set()), (full, {"1", "2"})):
        pipeline = Prune(searched, p=1) >> Candidates(searched, gather="cells") >> Scorer(searched)
        retriever = searched.retriever(gather="cells")
        assert set(pipeline(frame[:2])["qid"]) == set(retriever(frame[:2])["qid"]) == found
        for stage in (pipeline, retriever):
            with pytest.raises(UsageError, match="the query is empty"):
                stage(frame)


def test_columns_of_a_query_stay_with_its_results_and_the_input_is_not_changed(index: Index) -> None:
    frame = pd.DataFrame({"qid": ["b", "a"], "query": QUERIES[:2], "topic": [7, 8], "rank": [1, 1]}, index=[10, 20])
    before = frame.copy()
    found = index.retriever(k=2)(frame)
    assert found[["qid", "topic", "rank"]].values.tolist() == [["b", 7, 0], ["b", 7, 1], ["a", 8, 0], ["a", 8, 1]]
    assert stages(index)(frame)["qid"].drop_duplicates().tolist() == ["b", "a"]
    pd.testing.assert_frame_equal(frame, before)


def test_records_work_as_frames_do(index: Index) -> None:
    found = index.retriever(k=1)([{"qid": "1", "query": QUERIES[0]}])
    hit = index.search(QUERIES[0], k=1)[0]
    assert found == [{"qid": "1", "query": QUERIES[0], "docno": hit.docno, "score": hit.score, "rank": 0}]


def test_the_scorer_ranks_again_what_anything_found_and_ties_go_by_docno(tmp_path: Path) -> None:
    same = random_text(np.random.default_rng(1), 4)
    twins = [Document(docno, encoded=same) for docno in ("twin b", "twin a", "twin c")]
    index = Index.build(tmp_path / "twins.sec", [*random_documents(5), *twins], encoder=None)
    query = random_text(np.random.default_rng(2), 3)
    docnos = ["d001", "twin c", "twin a", "d004", "twin b"]
    parts = (query.embeddings, query.token_ids, query.token_kinds)
    frame = pd.DataFrame({"qid": "1", "docno": docnos, "score": [9.0, 8, 7, 6, 5], "rank": range(5)}).assign(
        **{name: [part] * 5 for name, part in zip(ENCODED, parts, strict=True)}
    )
    scores = dict(zip(docnos, index.score(query, docnos), strict=True))
    assert scores["twin a"] == scores["twin b"] == scores["twin c"]
    again = Scorer(index)(frame)
    assert again["docno"].tolist() == sorted(docnos, key=lambda docno: (-scores[docno], docno))
    assert again["score"].tolist() == [scores[docno] for docno in again["docno"]]
    assert again["rank"].tolist() == [0, 1, 2, 3, 4]


def test_a_document_that_is_not_in_the_index_is_named(index: Index) -> None:
    frame = pd.DataFrame({"qid": ["1"], "query": [QUERIES[0]], "docno": ["no such thing"]})
    for stage in (Scorer(index), TextLoader(index)):
        with pytest.raises(SecateursError, match="no document 'no such thing'"):
            stage(frame)


def test_a_rank_cutoff_becomes_part_of_the_search_and_changes_nothing_else(
    prunable: Index, queries: pd.DataFrame
) -> None:
    deep = prunable.retriever(k=100, p=1, gather="cells", nprobe=2, candidates=400)
    fused = (deep % 3).compile()
    assert isinstance(fused, Retriever)
    assert fused.settings == {**deep.settings, "k": 3, "candidates": 400}
    assert rows(fused(queries)) == rows((deep % 3)(queries))
    by_effort = prunable.retriever(k=100, p=1, gather="cells", nprobe=2)  # how many it scores depends on k
    assert not isinstance((by_effort % 3).compile(), Retriever)
    assert rows((by_effort % 3).compile()(queries)) == rows((by_effort % 3)(queries))
    assert (prunable.retriever(k=3) % 5).compile() == prunable.retriever(k=3)


def test_stages_are_equal_when_they_do_the_same(index: Index, index_path: Path) -> None:
    assert Prune(index, p=3) == Prune(index, p=3)
    assert hash(Prune(index, p=3)) == hash(Prune(index, p=3))
    assert len({Prune(index, p=3), Prune(index, p=4), Candidates(index, p=3), QueryEncoder(index), Scorer(index)}) == 5
    assert QueryEncoder(index) != QueryEncoder(Index(index_path)), "another open index may be another snapshot"
    assert repr(Prune(index, p=3, order="icf")) == f"Prune({str(index_path)!r}, p=3, order='icf')"


def test_a_grid_search_varies_settings_by_their_names(index: Index, queries: pd.DataFrame) -> None:
    retriever = index.retriever(k=3)
    qrels = index.retriever(k=3, effort="exact")(queries)[["qid", "docno"]].assign(label=1)
    grid = {retriever: {"p": [1, 4], "candidates": [3, 10_000]}}
    table = pt.GridScan(retriever, grid, queries, qrels, ["P_3"], verbose=False)
    found = {(row.tran_0_p, row.tran_1_candidates): row.P_3 for row in table.itertuples()}
    assert found[1, 10_000] == found[4, 10_000] == 1.0, "all documents are candidates"
    assert found[1, 3] < found[4, 3] < 1.0
    with pytest.raises(ValueError, match="num_results"):
        retriever.set_parameter("num_results", 5)


def test_an_unknown_setting_is_refused_when_the_stage_is_made(index: Index) -> None:
    with pytest.raises(SecateursError, match="no search setting 'num_results': there are k, offset, p"):
        index.retriever(num_results=100)
    with pytest.raises(SecateursError, match="p must be"):
        Prune(index, p=0)


def test_wrong_frames_are_refused_with_a_reason(index: Index, queries: pd.DataFrame) -> None:
    query = queries.head(1)
    for keep in ([], [3, 3], [2, 32]):
        with pytest.raises(
            UsageError, match=f"some of the query's 32 positions, each once, not {re.escape(str(keep))}"
        ):
            index.retriever()(query.assign(query_keep=[keep]))
    for stage in (QueryEncoder(index), Candidates(index), index.retriever()):
        with pytest.raises(UsageError, match="a query is a string, not nan"):
            stage(query.assign(query=[float("nan")]))
    with pytest.raises(pt.validate.InputValidationError, match="query_embs"):
        Prune(index)(query)


def test_texts_and_metadata_come_by_get_text_of_pyterrier(index: Index) -> None:
    found = index.retriever(k=2).search(QUERIES[0])
    stored = [index.get(docno) for docno in found["docno"]]
    full = pt.text.get_text(index)(found)
    assert list(full) == [*RESULT, "text", "kind", "python"]
    assert full["text"].tolist() == [document.text for document in stored]
    loaded = pt.text.get_text(index, ["kind", "year"])(found)
    assert loaded["kind"].tolist() == [document.metadata["kind"] for document in stored]
    assert loaded["year"].tolist() == [None, None]


def test_metadata_does_not_replace_the_columns_of_a_ranking(tmp_path: Path) -> None:
    documents = [Document("a", "text", {"score": "high", "year": 2020}, random_text(np.random.default_rng(0), 3))]
    index = Index.build(tmp_path / "scores.sec", documents, encoder=None)
    frame = pd.DataFrame({"docno": ["a"], "score": [1.5]})
    assert index.text_loader()(frame).to_dict("records") == [
        {"docno": "a", "score": 1.5, "text": "text", "year": 2020},
    ]


def test_an_index_folder_is_an_artifact_as_it_is(index_path: Path, queries: pd.DataFrame, index: Index) -> None:
    before = sorted(index_path.rglob("*"))
    artifact = pt.Artifact.load(str(index_path))
    assert type(artifact) is SecateursIndex
    assert rows(artifact.retriever(p=3)(queries)) == rows(index.retriever(p=3)(queries))
    assert pt.inspect.artifact_type_format(artifact) == ("multivector_index", "secateurs")
    assert sorted(index_path.rglob("*")) == before


def test_other_folders_are_no_artifacts_of_this_kind(tmp_path: Path) -> None:
    for content in (None, "{", '{"format": "something else"}', "[]"):
        if content is not None:
            (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(ValueError, match="No implementation found"):
            pt.Artifact.load(str(tmp_path))


def test_a_shared_package_is_an_index_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTERRIER_HOME", str(tmp_path / "home"))
    built = SecateursIndex.build(tmp_path / "mine.sec", random_documents(30), encoder=None)
    (tmp_path / "shared").mkdir()
    built.build_package(str(tmp_path / "shared" / "mine.tar.lz4"), verbose=False)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "shared"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        received = pt.Artifact.from_url(f"http://127.0.0.1:{server.server_port}/mine.tar.lz4")
        server.shutdown()
    metadata = json.loads((received.path / "pt_meta.json").read_text())
    assert metadata == {"type": "multivector_index", "format": "secateurs", "package_hint": "secateurs[pyterrier]"}
    query = random_text(np.random.default_rng(3), 4)
    again = Index(received.path)
    again.check()
    assert [(hit.docno, hit.score) for hit in again.search(query)] == [
        (hit.docno, hit.score) for hit in built.search(query)
    ]
    replaced = Index.build(received.path, random_documents(3), encoder=None, overwrite=True)
    assert len(replaced) == len(pt.Artifact.load(str(received.path))) == 3


def test_an_indexing_pipeline_ends_in_an_index(tmp_path: Path, encoder: OnnxEncoder) -> None:
    indexer = SecateursIndexer(tmp_path / "made.sec", encoder=encoder, store="float16")
    shout = pt.apply.generic(lambda frame: frame.assign(text=frame["text"].str.upper()))
    documents = [{"docno": f"d{i}", "text": f"text {i}", "year": 2000 + i} for i in range(3)]
    built = (shout >> indexer).index(iter(documents))
    assert type(built) is SecateursIndex
    assert [(built.get(f"d{i}").text, built.get(f"d{i}").metadata) for i in range(3)] == [
        (f"TEXT {i}", {"year": 2000 + i}) for i in range(3)
    ]
    assert built.info()["store"] == "float16"
    assert pt.inspect.indexer_inputs(indexer) == [["docno", "text"]]
    assert "SecateursIndexer" in pt.schematic.draw(indexer)
    with pytest.raises(SecateursError, match="there is an index at"):
        indexer.index(iter(documents))


def test_the_indexer_refuses_or_skips_a_document_without_text(tmp_path: Path, encoder: OnnxEncoder) -> None:
    documents = [{"docno": "a", "text": "goldfish"}, {"docno": "b", "text": ""}]
    with pytest.raises(SecateursError, match="document 2: text of 'b' is empty"):
        SecateursIndexer(tmp_path / "x.sec", encoder=encoder).index(documents)
    problems: list[str] = []
    built = SecateursIndexer(tmp_path / "x.sec", encoder=encoder, on_bad=problems.append).index(documents)
    assert (len(built), len(problems)) == (1, 1)


def test_without_the_extra_the_pip_line_is_named(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "secateurs.integrations.pyterrier")
    monkeypatch.setitem(sys.modules, "pyterrier", None)  # as if it were not installed
    with pytest.raises(SecateursError, match=r'pip install "secateurs\[pyterrier\]"'):
        index.retriever()


def test_searching_without_pyterrier_does_not_import_it() -> None:
    code = "import sys; from secateurs import Index; print('pandas' in sys.modules, 'pyterrier' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False False"


def test_the_example_draws_the_figure_of_a_collection(
    tmp_path: Path, passages: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = tmp_path / "small"
    collection.mkdir()
    sample = passages[::10]
    (collection / "corpus.jsonl").write_text("\n".join(map(json.dumps, sample)))
    (collection / "queries.test.tsv").write_text("".join(f'{i}\t{sample[i]["docno"]} "quoted\n' for i in range(5)))
    (collection / "qrels.test").write_text("".join(f"{i} 0 {sample[i]['docno']} 1\n" for i in range(5)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    script = Path(__file__).parent.parent / "examples" / "pyterrier_figure3.py"
    printed = subprocess.check_output([sys.executable, script, collection], text=True)
    assert "5 queries" in printed
    assert f"{len(sample)} documents" in printed
    assert len([line for line in printed.splitlines() if line.startswith(("first ", "icf "))]) == 28
    assert (tmp_path / "small.figure3.png").read_bytes().startswith(b"\x89PNG")


def test_the_example_prints_its_usage() -> None:
    script = Path(__file__).parent.parent / "examples" / "pyterrier_figure3.py"
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "python examples/pyterrier_figure3.py [COLLECTION]" in done.stdout
    assert subprocess.run([sys.executable, script, "--unknown"], capture_output=True).returncode == 2
