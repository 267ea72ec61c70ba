"""MTEB: a retrieval task runs with our encoder and index, pruned and unpruned, and MTEB keeps their results apart."""

import logging
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mteb", reason='needs "secateurs[mteb]": run make test-torch')
import mteb
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.cache import ResultCache
from mteb.models import SearchProtocol
from pages import blocks

from secateurs import Index, SearchSettings
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.integrations.mteb import SecateursSearch
from secateurs.reranking import rerank

DOCUMENTS = {
    "fish": ("Goldfish", "They grow as large as their pond lets them."),
    "cats": ("", "Cats sleep for most of the day."),
    "zip": ("zipfile", "Read and write the files of a zip archive."),
    "bees": ("", "Bees carry pollen from flower to flower."),
    "blank": ("", " "),
}
ASKED = {"q1": "do goldfish grow", "q2": "when do cats sleep", "q3": "open a zip archive", "q4": " "}
RELEVANT = {"q1": {"fish": 1}, "q2": {"cats": 1}, "q3": {"zip": 1}, "q4": {"bees": 1}}
TOP_RANKED = {"q1": ["cats", "fish", "blank"], "q2": ["bees", "cats"], "q3": ["bees"], "q4": ["bees"]}


def make_task(kind: str, documents: dict[str, tuple[str, str]] = DOCUMENTS) -> AbsTaskRetrieval:
    class SmallTask(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=f"Small{kind}",
            description="Five documents.",
            reference=None,
            dataset={"path": "none", "revision": "1"},
            type=kind,
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, **options: Any) -> None:
            rows = [{"id": docno, "title": title, "text": text} for docno, (title, text) in documents.items()]
            split = RetrievalSplitData(
                corpus=Dataset.from_list(rows),
                queries=Dataset.from_list([{"id": query_id, "text": text} for query_id, text in ASKED.items()]),
                relevant_docs=RELEVANT,
                top_ranked=TOP_RANKED if kind == "Reranking" else None,
            )
            self.dataset, self.data_loaded = {"default": {"test": split}}, True

    return SmallTask()


def scores(model: SecateursSearch, task: AbsTaskRetrieval, cache: ResultCache | None = None) -> dict[str, Any]:
    (result,) = mteb.evaluate(model, task, cache=cache, show_progress_bar=False).task_results
    return result.scores["test"][0]


def searched(model: SecateursSearch, task: AbsTaskRetrieval, **options: Any) -> dict[str, dict[str, float]]:
    """What the model finds, by the two calls that MTEB makes."""
    task.load_data()
    split = task.dataset["default"]["test"]
    common: dict[str, Any] = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
    model.index(split["corpus"], **common, encode_kwargs={}, num_proc=None)
    return model.search(split["queries"], **common, encode_kwargs={}, num_proc=None, **{"top_k": 10, **options})


def test_a_retrieval_task_is_evaluated(encoder: OnnxEncoder) -> None:
    model = SecateursSearch(encoder)
    assert isinstance(model, SearchProtocol)
    found = scores(model, make_task("Retrieval"))
    # Three queries find their document first, and the blank query finds nothing.
    assert found["ndcg_at_10"] == pytest.approx(0.75)
    assert found["recall_at_1"] == pytest.approx(0.75)


def test_a_reranking_task_is_evaluated_with_its_documents_only(encoder: OnnxEncoder) -> None:
    found = scores(SecateursSearch(encoder), make_task("Reranking"))
    assert found["recall_at_1"] == pytest.approx(0.5)  # of q1 and q2: the document of q3 is not among its candidates


def test_the_scores_are_exact_and_titles_are_in_front(encoder: OnnxEncoder) -> None:
    model = SecateursSearch(encoder, store="float16", effort="exact")
    found = searched(model, make_task("Retrieval"), top_k=2)
    texts = {docno: f"{title} {text}".strip() for docno, (title, text) in DOCUMENTS.items()}
    ranked = rerank(encoder, ASKED["q1"], list(texts.values()))[:2]
    assert list(found["q1"]) == [list(texts)[text.number] for text in ranked]
    assert list(found["q1"].values()) == pytest.approx([text.score for text in ranked], abs=0.1)  # merged repeats
    assert found["q4"] == {}
    top = searched(model, make_task("Retrieval"), top_ranked=TOP_RANKED)
    assert {query_id: list(of_query) for query_id, of_query in top.items()} == {
        "q1": ["fish", "cats"],
        "q2": ["cats", "bees"],
        "q3": ["bees"],
        "q4": [],
    }
    assert top["q1"]["fish"] == found["q1"]["fish"]
    one = searched(model, make_task("Retrieval"), top_ranked=TOP_RANKED, top_k=1)
    assert one["q1"] == {"fish": found["q1"]["fish"]}


def test_pruned_and_unpruned_results_are_kept_apart(encoder: OnnxEncoder, tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "results")
    models = [SecateursSearch(encoder, tmp_path / "indexes", **given) for given in ({"p": 1}, {"p": "all"}, {})]
    for model in models:
        assert scores(model, make_task("Retrieval"), cache)["ndcg_at_10"] == pytest.approx(0.75)
    names = {model.mteb_model_meta.experiment_name for model in models}
    assert names == {"p_1", "p_all", None}
    assert {model.mteb_model_meta.name for model in models} == {"secateurs/colbert-small"}
    written = {path.relative_to(cache.cache_path).as_posix() for path in cache.cache_path.rglob("SmallRetrieval.json")}
    assert len(written) == 3
    assert len(list((tmp_path / "indexes").glob("*.sec"))) == 1  # one index for all of them


def test_settings_reach_every_search(
    encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch, passages: list[dict[str, str]]
) -> None:
    seen: list[SearchSettings] = []
    search_many = Index.search_many

    def watched(self: Index, queries: Any, threads: int | None = None, **settings: Any) -> Any:
        seen.append(SearchSettings.of(settings))
        return search_many(self, queries, threads, **settings)

    monkeypatch.setattr(Index, "search_many", watched)
    searched(SecateursSearch(encoder, p=2, order="icf", gather="cells"), make_task("Retrieval"), top_k=3)
    assert seen == [SearchSettings(k=3, p=2, order="icf", gather="cells")]


def test_an_index_of_a_folder_is_opened_again_unless_the_corpus_has_changed(
    encoder: OnnxEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = searched(SecateursSearch(encoder, tmp_path, effort="exact"), make_task("Retrieval"))
    built = Index.build
    monkeypatch.setattr(Index, "build", None)  # raises if it is called
    assert searched(SecateursSearch(encoder, tmp_path, effort="exact"), make_task("Retrieval")) == first
    monkeypatch.setattr(Index, "build", built)
    changed = {**DOCUMENTS, "cats": ("", "Goldfish grow.")}
    found = searched(SecateursSearch(encoder, tmp_path), make_task("Retrieval", changed))
    assert next(iter(found["q1"])) == "cats"
    searched(SecateursSearch(encoder, tmp_path, store="float16"), make_task("Retrieval"))
    assert len(list(tmp_path.glob("SmallRetrieval-*.sec"))) == 3


def test_a_blank_document_is_left_out_and_named(encoder: OnnxEncoder, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="secateurs.mteb"):
        found = searched(SecateursSearch(encoder, effort="exact"), make_task("Retrieval"))
    assert set(found["q1"]) == {"fish", "cats", "zip", "bees"}
    assert "blank" in caplog.text


def test_what_is_wrong_is_named(encoder: OnnxEncoder) -> None:
    with pytest.raises(UsageError, match="k is no setting"):
        SecateursSearch(encoder, k=3)
    with pytest.raises(UsageError, match="there is no search setting 'topk'"):
        SecateursSearch(encoder, topk=3)
    task: Any = make_task("Retrieval")
    common = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "default"}
    with pytest.raises(UsageError, match="call index first"):
        SecateursSearch(encoder).search(Dataset.from_list([{"id": "q", "text": "x"}]), top_k=1, **common)
    with pytest.raises(UsageError, match="has no texts"):
        SecateursSearch(encoder).index(Dataset.from_list([{"id": "d", "image": "x"}]), **common)


def test_a_function_as_the_order_and_a_store_are_part_of_the_experiment(encoder: OnnxEncoder) -> None:
    def backwards(query: Any, frequencies: Any) -> Any:
        return (-query.token_ids).argsort()

    meta = SecateursSearch(encoder, store="float16", order=backwards, p=2).mteb_model_meta
    assert dict(meta.experiment_kwargs) == {"order": "backwards", "p": 2, "store": "float16"}
    assert meta.revision == encoder.spec["fingerprint"]
    assert meta.embed_dim == encoder.dim


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mteb, "get_task", lambda name: make_task("Retrieval"))  # the real one is downloaded
    for block in blocks("integrations.md", "python", "MTEB"):
        exec(compile(block, "integrations.md", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-2:] == ["p = all: 0.75", "p = 3: 0.75"]
    assert {path.name for path in tmp_path.iterdir()} == {"indexes", "results"}
