"""An experiment on a built-in collection: what is measured, what is written, and what happens when it is stopped."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from secateurs import Document, Index, SecateursError
from secateurs.lab import (
    Outcome,
    Query,
    Results,
    Topics,
    evaluate,
    read_run,
    summarise,
    sweep,
)
from secateurs.lab.built_in_collections import BuiltInCollection, synthetic
from secateurs.lab.figures import find_curves
from secateurs.lab.results import planned
from secateurs.lab.summary_text import notes

SETTINGS = {
    name.removesuffix(" gather=faiss k_prime=50"): settings
    for name, settings in sweep("p=1,all", "order=first,icf", "gather=faiss", "k_prime=50").items()
}


@pytest.fixture(scope="module")
def collection() -> BuiltInCollection:
    return synthetic()


@pytest.fixture(scope="module")
def opened(collection: BuiltInCollection, tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("lab") / "synthetic.sec"
    return Index.build(path, collection.documents, encoder=None, gather=("faiss",))


@pytest.fixture(scope="module")
def topics(collection: BuiltInCollection) -> Topics:
    return collection.topics.sample(12)


@pytest.fixture(scope="module")
def results(opened: Index, topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> Results:
    out = tmp_path_factory.mktemp("out") / "synthetic"
    return evaluate(opened, topics, SETTINGS, measures=["nDCG@10", "RR"], out=out, runs_folder=out.parent / "runs")


class Scripted:
    """A system with fixed hits that counts its searches and can be interrupted."""

    name = "scripted"
    label = "scripted"
    settings = {"k": 10}  # noqa: RUF012

    def __init__(self, hits: Sequence[tuple[str, float]], stop_after: int | None = None) -> None:
        self.hits, self.stop_after, self.searches = hits, stop_after, 0

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        if self.searches == self.stop_after:
            raise KeyboardInterrupt
        self.searches += 1
        return Outcome(
            hits=self.hits, gathered=3, scored=2, relevant_scored=1, milliseconds={"gather": 4.0, "fetch": 9}
        )


def test_ranks_and_measures_of_ties_agree_in_the_table(opened: Index, topics: Topics) -> None:
    hits = [(docno, 7.0) for docno in sorted({docno for qid in topics.queries for docno in topics.qrels[qid]})]
    found = evaluate(opened, topics, [], systems=[Scripted(hits)], runs={"r": dict.fromkeys(topics.queries, hits)})
    for row in found.rows:
        (rank,) = row["relevant_ranks"].values()
        assert row["RR@10"] == pytest.approx(1 / rank if rank <= 10 else 0)
        assert row["AP"] == pytest.approx(1 / rank)


def test_a_score_that_is_no_number_is_refused(opened: Index, topics: Topics) -> None:
    with pytest.raises(SecateursError, match="the score of 'd1' is nan"):
        evaluate(opened, topics, [], systems=[Scripted([("d1", float("nan"))])])


def test_a_row_has_what_the_index_says_of_the_same_search(results: Results, opened: Index, topics: Topics) -> None:
    assert len(results.rows) == len(SETTINGS) * len(topics)
    for row in results.of("p=1 order=icf"):
        qid = row["qid"]
        ranking = opened.search(topics.encoded[qid], k=1000, p=1, order="icf", gather="faiss", k_prime=50)
        (relevant,) = topics.relevant(qid, 1)
        docnos = [hit.docno for hit in ranking]
        assert row["documents_scored"] == ranking.stats.documents_scored == len(ranking)
        assert row["embeddings_kept"] == 1
        assert row["kept"] == [opened.token_text(int(ranking.query.token_ids[ranking.kept[0]]))]
        assert row["relevant_scored"] == int(relevant in docnos)
        assert row["relevant_ranks"] == ({relevant: docnos.index(relevant) + 1} if relevant in docnos else {})
        assert row["RR"] == pytest.approx(1 / (docnos.index(relevant) + 1) if relevant in docnos else 0)
        assert (row["system"], row["p"], row["order"], row["k_prime"], row["nprobe"]) == (
            "secateurs", "1", "icf", 50, None,
        )  # fmt: skip


@pytest.mark.parametrize("k", [10, 1000])
def test_relevant_documents_are_counted_below_the_ranking_too(opened: Index, topics: Topics, k: int) -> None:
    """With k = 10 the ranking does not show all that was scored; what was scored does not depend on it."""
    found = evaluate(opened, topics, sweep("p=2", "gather=faiss,exhaustive", k=k), measures=["RR"])
    for row in found.of("p=2 gather=faiss"):
        candidates = opened.candidates(topics.encoded[row["qid"]], p=2, gather="faiss", k=k)
        assert row["relevant_scored"] == len(topics.relevant(row["qid"], 1).intersection(candidates))
    assert {row["relevant_scored"] for row in found.of("p=2 gather=exhaustive")} == {1}


def test_the_files_hold_the_same_tidy_table_and_what_made_it(results: Results, tmp_path: Path) -> None:
    results.save(tmp_path / "again")
    table = pyarrow.parquet.read_table(tmp_path / "again.parquet")
    with (tmp_path / "again.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert table.num_rows == len(rows) == len(results.rows)
    assert table.column_names == list(rows[0]) == list(results.columns)
    assert [float(row["nDCG@10"]) for row in rows] == table["nDCG@10"].to_pylist()
    about = json.loads((tmp_path / "again.json").read_text("utf-8"))
    assert about["index"]["documents"] == 480
    assert {"secateurs", "python", "libraries", "queries_and_qrels", "measures"} <= about.keys()
    loaded = Results.load(tmp_path / "again.settings.csv")
    assert [dict(row) for row in loaded.rows] == [
        {name: row.get(name) for name in results.columns} for row in results.rows
    ]
    assert list(tmp_path.glob(".*")) == []


def test_the_summary_is_the_mean_over_the_queries(results: Results) -> None:
    rows = {row["setting"]: row for row in summarise(results, "p=all")}
    baseline, pruned = rows["p=all order=first"], rows["p=1 order=first"]
    assert baseline["baseline"]
    assert (baseline["saved"], baseline["speed_up"], baseline["nDCG@10 p"]) == (0, 1, None)
    assert pruned["nDCG@10"] == pytest.approx(np.mean([row["nDCG@10"] for row in results.of("p=1 order=first")]))
    assert pruned["saved"] == pytest.approx(1 - pruned["documents_scored"] / baseline["documents_scored"])
    assert pruned["nDCG@10 difference"] == pytest.approx(pruned["nDCG@10"] - baseline["nDCG@10"])
    assert pruned["nDCG@10 won"] + pruned["nDCG@10 lost"] + pruned["nDCG@10 tied"] == 12
    times = [row["milliseconds"] for row in results.of("p=1 order=first")]
    assert pruned["milliseconds_p95"] == pytest.approx(np.percentile(times, 95))
    assert rows["p=all order=icf"]["nDCG@10 tied"] == 12


def test_a_baseline_is_found_by_some_of_its_settings(results: Results) -> None:
    assert results.find("p=all order=icf") == "p=all order=icf"
    assert results.find("k_prime=50 p=1") == "p=1 order=first"
    assert results.fullest == "p=all order=first"
    assert planned([("p=1 gather=faiss", "secateurs", {"p": "1", "gather": "faiss"})]).find("p=1") == "p=1 gather=faiss"
    with pytest.raises(SecateursError, match="no setting is 'bm25': there are p=1 order=first"):
        results.find("bm25")


def test_a_baseline_is_found_by_its_system() -> None:
    rows = planned([("p=1", "secateurs", {"p": "1"}), ("quit:50", "quit", {"k": 10}), ("quit:99", "quit", {"k": 10})])
    assert rows.find("quit") == "quit:50"


def test_a_wrong_baseline_is_an_error_before_anything_is_searched(opened: Index, topics: Topics) -> None:
    system = Scripted([])
    with pytest.raises(SecateursError, match="no setting is 'p=7'"):
        evaluate(opened, topics, SETTINGS, systems=[system], baseline="p=7")
    assert system.searches == 0


def test_a_system_of_the_user_is_a_row_of_the_table(opened: Index, topics: Topics) -> None:
    found = evaluate(opened, topics, [], systems=[Scripted([("d0001", 2.0), ("d0002", 1.0)])], measures=["RR"])
    for row in found.rows:
        assert (row["system"], row["documents_scored"], row["milliseconds"], row["milliseconds_fetch"]) == (
            "scripted", 2, 4.0, 9,
        )  # fmt: skip


def test_a_run_that_is_written_and_read_again_has_the_same_scores(
    opened: Index, topics: Topics, results: Results, tmp_path: Path
) -> None:
    evaluate(opened, topics, SETTINGS, measures=["nDCG@10", "RR"], runs_folder=tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names[0] == "p=1_order=first.run"
    assert len(names) == len(SETTINGS)
    runs = {path.stem: read_run(path) for path in tmp_path.iterdir()}
    again = evaluate(opened, topics, [], runs=runs, measures=["nDCG@10", "RR"])
    for label in results.settings:
        other = label.replace(" ", "_")
        assert again.values(other, "nDCG@10").tolist() == results.values(label, "nDCG@10").tolist()
        assert np.isnan(again.values(other, "milliseconds")).all()


def test_a_run_of_other_queries_is_refused_and_missing_rankings_are_counted(opened: Index, topics: Topics) -> None:
    first = next(iter(topics.queries))
    with pytest.raises(SecateursError, match="the run other has none of the queries"):
        evaluate(opened, topics, [], runs={"other": {"elsewhere": [("d0001", 1.0)]}})
    found = evaluate(opened, topics, [], runs={"partial": {first: [("d0001", 1.0)]}}, measures=["RR"])
    assert found.about["lacking"] == {"partial": 11}
    assert "partial has no ranking for 11 of the queries, which count as 0." in notes(found)


def test_judged_documents_and_queries_that_are_not_there_are_counted(opened: Index, tmp_path: Path) -> None:
    topics = Topics(
        queries={"q1": "w1", "q2": "w2", "q3": "not judged"},
        qrels={"q1": {"d0001": 1, "gone": 2, "away": 0}, "q2": {"gone": 1}, "q9": {"d0002": 1, "elsewhere": 1}},
        encoded=dict.fromkeys(("q1", "q2"), next(iter(synthetic().topics.encoded.values()))),
    )
    expected = {
        "unjudged_queries": 1,
        "judged_qids_without_query": 1,
        "judged_documents": 3,
        "judged_documents_not_in_index": 2,
        "relevant_documents_not_in_index": 1,
    }
    found = evaluate(opened, topics, [], systems=[Scripted([])], out=tmp_path / "x")
    about = json.loads((tmp_path / "x.json").read_text("utf-8"))
    assert {name: about[name] for name in expected} == expected
    assert notes(found)[:3] == [
        "Judged documents that are not in the index, so that it cannot find them: 2 of 3, 1 of them relevant.",
        "Judged qids that are not among the queries: 1.",
        "Queries without a judgement, which are left out: 1.",
    ]
    sampled = topics.sample(1)
    assert (sampled.unjudged_queries, sampled.judged_qids_without_query) == (1, 1)  # of the files, not of the sample


def test_there_is_no_note_if_no_query_or_document_is_missing(results: Results) -> None:
    assert results.about["judged_documents_not_in_index"] == 0
    assert notes(results)[0].startswith("12 queries. The baseline is ")


def test_what_was_measured_before_a_stop_is_not_measured_again(opened: Index, topics: Topics, tmp_path: Path) -> None:
    hits, out = [("d0001", 2.0)], tmp_path / "stopped"
    warm_up = 2
    with pytest.raises(KeyboardInterrupt):
        evaluate(opened, topics, [], systems=[Scripted(hits, stop_after=warm_up + 5)], out=out)
    work = tmp_path / "stopped.work.jsonl"
    assert len(work.read_text().splitlines()) == 1 + 5
    with work.open("a") as file:
        file.write('{"setting": "scripted", "qid": "q0')  # killed in the middle of a line
    second = Scripted(hits)
    resumed = evaluate(opened, topics, [], systems=[second], out=out)
    assert second.searches == warm_up + len(topics) - 5
    assert not work.exists()
    whole = evaluate(opened, topics, [], systems=[Scripted(hits)])
    skipped = ("milliseconds_encode",)
    assert [{n: v for n, v in row.items() if n not in skipped} for row in resumed.rows] == [
        {n: v for n, v in row.items() if n not in skipped} for row in whole.rows
    ]


def test_the_work_file_of_another_experiment_is_refused_and_not_changed(
    opened: Index, topics: Topics, tmp_path: Path
) -> None:
    out = tmp_path / "x"
    with pytest.raises(KeyboardInterrupt):
        evaluate(opened, topics, [], systems=[Scripted([], stop_after=4)], out=out, measures=["RR"])
    before = (tmp_path / "x.work.jsonl").read_bytes()
    with pytest.raises(SecateursError, match=r"another experiment \(other measures\)"):
        evaluate(opened, topics, [], systems=[Scripted([])], out=out, measures=["AP"])
    with pytest.raises(SecateursError, match=r"another experiment \(other queries and qrels\)"):
        evaluate(opened, topics.sample(3), [], systems=[Scripted([])], out=out, measures=["RR"])
    assert (tmp_path / "x.work.jsonl").read_bytes() == before
    moved = {qid: replace(query, embeddings=-query.embeddings) for qid, query in topics.encoded.items()}
    with pytest.raises(SecateursError, match=r"another experiment \(other queries and qrels\)"):
        evaluate(opened, replace(topics, encoded=moved), [], systems=[Scripted([])], out=out, measures=["RR"])
    docnos = [document.docno for document in opened.documents()]
    swapped = zip(docnos[1:] + docnos[:1], opened.documents(), strict=True)  # as many documents, of the same sizes
    other = Index.build(
        tmp_path / "other.sec",
        [Document(docno, encoded=document.encoded) for docno, document in swapped],
        encoder=None,
        gather=("faiss",),
    )
    with pytest.raises(SecateursError, match=r"another experiment \(other index\)"):
        evaluate(other, topics, [], systems=[Scripted([])], out=out, measures=["RR"])
    (tmp_path / "x.work.jsonl").write_bytes(before + b"no json\n")
    with pytest.raises(SecateursError, match="line 4: damaged"):
        evaluate(opened, topics, [], systems=[Scripted([])], out=out, measures=["RR"])


def test_finished_results_are_overwritten_only_with_overwrite(opened: Index, topics: Topics, tmp_path: Path) -> None:
    evaluate(opened, topics, [], systems=[Scripted([])], out=tmp_path / "x")
    with pytest.raises(SecateursError, match="is there already"):
        evaluate(opened, topics, [], systems=[Scripted([])], out=tmp_path / "x")
    evaluate(opened, topics, [], systems=[Scripted([])], out=tmp_path / "x", overwrite=True)


def test_results_that_could_not_be_saved_are_saved_by_the_same_command(
    opened: Index, topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr("secateurs.lab.results._write_parquet", full)
        with pytest.raises(OSError, match="no space left"):
            evaluate(opened, topics, [], systems=[Scripted([])], out=tmp_path / "x", runs_folder=tmp_path / "runs")
    assert (tmp_path / "x.csv").exists()
    again = Scripted([], stop_after=0)  # nothing is searched a second time
    evaluate(opened, topics, [], systems=[again], out=tmp_path / "x", runs_folder=tmp_path / "runs")
    assert len(Results.load(tmp_path / "x").rows) == len(topics)
    assert not (tmp_path / "x.work.jsonl").exists()


def test_two_experiments_cannot_write_the_same_results_at_once(opened: Index, topics: Topics, tmp_path: Path) -> None:
    class Nested(Scripted):
        def search(self, query: Query, relevant: set[str]) -> Outcome:
            with pytest.raises(SecateursError, match="another process is at work"):
                evaluate(opened, topics, [], systems=[Scripted([])], out=tmp_path / "x")
            return super().search(query, relevant)

    evaluate(opened, topics.sample(1), [], systems=[Nested([])], out=tmp_path / "x")
    assert len(Results.load(tmp_path / "x").rows) == 1


def test_runs_are_overwritten_only_with_overwrite_and_this_is_checked_before_searching(
    opened: Index, topics: Topics, tmp_path: Path
) -> None:
    (tmp_path / "scripted.run").write_text("mine")
    system = Scripted([("d0001", 1.0)])
    with pytest.raises(SecateursError, match=r"scripted\.run is there already"):
        evaluate(opened, topics, [], systems=[system], runs_folder=tmp_path)
    alike = {name: {qid: [("d0001", 1.0)] for qid in topics.queries} for name in ("a b", "a/b")}
    with pytest.raises(SecateursError, match="two rows would have the same run file"):
        evaluate(opened, topics, [], systems=[system], runs=alike, runs_folder=tmp_path / "new")
    assert (system.searches, (tmp_path / "scripted.run").read_text()) == (0, "mine")
    evaluate(opened, topics, [], systems=[system], runs_folder=tmp_path, overwrite=True)
    assert len(read_run(tmp_path / "scripted.run")) == len(topics)


def test_systems_of_the_user_may_differ_in_columns_types_and_numbers(
    opened: Index, topics: Topics, tmp_path: Path
) -> None:
    class Odd(Scripted):
        label = "odd"
        settings = {"k": "many", "threshold": np.float32(0.5), "where": Path("x")}  # type: ignore[assignment]  # noqa: RUF012

        def search(self, query: Query, relevant: set[str]) -> Outcome:
            self.searches += 1
            stages = {"late": np.float32(2)} if self.searches > 5 else {}
            hits = [(np.str_("d0001"), np.float32(0.1))]
            return Outcome(hits, scored=np.int64(3), milliseconds=stages)  # type: ignore[arg-type]

    found = evaluate(opened, topics, [], systems=[Scripted([]), Odd([])], out=tmp_path / "x")
    assert "milliseconds_late" in found.columns
    loaded = {row["setting"]: row for row in Results.load(tmp_path / "x").rows}
    assert (loaded["scripted"]["k"], loaded["odd"]["k"]) == ("10", "many")
    odd = loaded["odd"]
    assert (odd["threshold"], odd["where"], odd["documents_scored"], odd["milliseconds"]) == (0.5, "x", 3, 2.0)


def test_the_value_of_a_setting_that_was_left_open_is_in_the_table(opened: Index, topics: Topics) -> None:
    found = evaluate(opened, topics, sweep(), measures=["RR"])
    plan = opened.search(next(iter(topics.encoded.values())), k=1000).plan
    assert {(row["gather"], row["used_gather"]) for row in found.rows} == {("auto", plan.gather)}
    (row,) = summarise(found)
    assert (row["used_nprobe"], row["used_candidates"]) == (str(plan.nprobe), str(plan.candidates))


def test_the_first_query_is_encoded_twice_so_that_its_time_has_no_loading_in_it(
    opened: Index, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded_queries, encode = [], opened.encode_query
    monkeypatch.setattr(opened, "encode_query", lambda query: encoded_queries.append(query) or encode(query))
    evaluate(opened, topics, [], systems=[Scripted([])])
    expected = [topics.encoded[qid] for qid in topics.queries]
    assert [id(query) for query in encoded_queries] == [id(query) for query in (expected[0], *expected)]


def test_the_summary_has_percentiles_of_every_stage(results: Results) -> None:
    row = next(row for row in summarise(results) if row["setting"] == "p=1 order=icf")
    times = results.values("p=1 order=icf", "milliseconds_gather")
    assert row["milliseconds_gather"] == pytest.approx(times.mean())
    assert row["milliseconds_gather_p99"] == pytest.approx(np.percentile(times, 99))


def test_nothing_is_saved_where_the_baseline_scores_nothing(opened: Index, topics: Topics) -> None:
    class Idle(Scripted):
        label = "idle"

        def search(self, query: Query, relevant: set[str]) -> Outcome:
            return Outcome([], scored=0, milliseconds={"gather": 1.0})

    found = evaluate(opened, topics, [], systems=[Idle([]), Scripted([])], baseline="idle")
    assert [row["saved"] for row in summarise(found)] == [None, None]


def test_the_name_of_results_may_end_in_a_suffix(opened: Index, topics: Topics, tmp_path: Path) -> None:
    evaluate(opened, topics, [], systems=[Scripted([])], out=tmp_path / "x.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.csv", "x.json", "x.parquet", "x.settings.csv"]


def test_what_is_not_a_table_of_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecateursError, match="there is no file"):
        Results.load(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").write_text("no")
    with pytest.raises(SecateursError, match="is not a table of secateurs evaluate"):
        Results.load(tmp_path / "x")
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), tmp_path / "x.parquet")
    with pytest.raises(SecateursError, match="is not a table of secateurs evaluate"):
        Results.load(tmp_path / "x")


def test_weights_are_swept_and_drawn_as_two_curves(opened: Index, topics: Topics, tmp_path: Path) -> None:
    settings = sweep("p=1,2", "weights=none,idf", "gather=exhaustive", k=20)
    evaluate(opened, topics, settings, measures=["RR"], out=tmp_path / "weights", baseline="weights=none")
    loaded = Results.load(tmp_path / "weights.parquet")
    assert list(loaded.settings) == [f"p={p} weights={w} gather=exhaustive" for p in (1, 2) for w in ("none", "idf")]
    assert [row["weights"] for row in loaded.settings.values()] == ["none", "idf", "none", "idf"]
    assert loaded.find("weights=idf p=2") == "p=2 weights=idf gather=exhaustive"
    assert [curve.name for curve in find_curves(loaded, summarise(loaded))] == ["weights=none", "weights=idf"]
    for row in loaded.of("p=1 weights=idf gather=exhaustive"):
        hits = opened.search(topics.encoded[row["qid"]], k=20, p=1, gather="exhaustive", weights="idf")
        ranks = {hit.docno: rank for rank, hit in enumerate(hits, start=1)}
        assert row["relevant_ranks"] == {d: ranks[d] for d in topics.relevant(row["qid"], 1) if d in ranks}
