"""evaluate, report and reproduce in a process of their own, also stopped half-way."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import QUERIES

from secateurs import Index


def run(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "secateurs", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        env=os.environ | {"COLUMNS": "100"},
    )


@pytest.fixture(scope="module")
def folder(index_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries, and judgements that are the exact ranking."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "demo.sec").symlink_to(index_path)
    opened = Index(index_path)
    queries, qrels = [], []
    for number, query in enumerate(QUERIES):
        queries.append(f"q{number}\t{query}\n")
        for rank, hit in enumerate(opened.search(query, k=5, effort="exact")):
            qrels.append(f"q{number} 0 {hit.docno} {2 if rank < 2 else 1}\n")
    (folder / "q.tsv").write_text("".join(queries))
    (folder / "qrels").write_text("".join(qrels))
    return folder


ASKED = ("evaluate", "demo.sec", "--queries", "q.tsv", "--qrels", "qrels")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_evaluate_writes_tables_and_runs_and_prints_a_summary(folder: Path) -> None:
    sweep = (
        "--sweep",
        "p=1,4,all",
        "--sweep",
        "order=first,icf",
        "--sweep",
        "gather=cells",
        "--sweep",
        "candidates=20",
    )
    others = ("--with", "bm25", "--also", "gather=exhaustive p=all", "--baseline", "gather=exhaustive")
    done = run(
        *ASKED, "-m", "nDCG@10 AP(rel=2)", *sweep, *others, "-k", "10", "--out", "a", "--runs", "runs", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    assert "The baseline is gather=exhaustive p=all." in " ".join(done.stdout.split())
    settings = {row["setting"]: row for row in table(folder / "a.settings.csv")}
    assert len(settings) == 8
    exhaustive = settings["gather=exhaustive p=all"]
    assert (float(exhaustive["nDCG@10"]), exhaustive["baseline"]) == (1.0, "True")
    assert float(settings["bm25"]["nDCG@10"]) < 1
    assert len(table(folder / "a.csv")) == 8 * len(QUERIES)
    about = json.loads((folder / "a.json").read_text())
    assert about["command"].startswith("secateurs evaluate demo.sec --queries q.tsv")
    assert len(list((folder / "runs").iterdir())) == 8

    again = run(*ASKED, "--run", "runs/bm25.run", "-m", "nDCG@10 AP(rel=2)", "-k", "10", "--out", "b", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert {row["setting"] for row in table(folder / "b.settings.csv")} == {"default", "bm25"}
    assert table(folder / "b.settings.csv")[1]["nDCG@10"] == settings["bm25"]["nDCG@10"]

    page = run("report", "a.parquet", "--figures", "figures", cwd=folder)
    assert page.returncode == 0, page.stderr
    assert page.stdout.splitlines()[0] == "a.html"
    assert (folder / "figures" / "a-documents.svg").is_file()
    assert "parse command line arguments" in (folder / "a.html").read_text("utf-8")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_evaluation_goes_on_where_it_was(folder: Path, number: signal.Signals) -> None:
    # 1,350 searches, so that the evaluation is not finished by itself before it is stopped, on a busy machine either.
    orders = "order=rarity,icf,idf,first,random"
    command = [*ASKED, "--sweep", "p=1:30", "--sweep", orders, "--sweep", "gather=exhaustive", "--sample", "9"]
    command += ["--out", number.name]
    work = folder / f"{number.name}.work.jsonl"
    first = subprocess.Popen(
        [sys.executable, "-m", "secateurs", *command],
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,  # even if it is ignored here
    )
    deadline = time.monotonic() + 200
    while (not work.exists() or work.read_bytes().count(b"\n") < 8) and time.monotonic() < deadline:
        assert first.poll() is None
        time.sleep(0.01)
    first.send_signal(number)
    _, printed = first.communicate()
    if number == signal.SIGINT:
        assert first.returncode == 130
        assert printed.startswith(
            f"secateurs: interrupted: {work.name} has what was measured: repeat the command to continue"
        )
    kept = [json.loads(line) for line in work.read_bytes().split(b"\n")[1:-1]]
    assert 7 <= len(kept) < 1350
    assert not (folder / f"{number.name}.parquet").exists()
    done = run(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert not work.exists()
    rows = {(row["setting"], row["qid"]): row for row in table(folder / f"{number.name}.csv")}
    assert len(rows) == 1350
    for record in kept:  # measured before the stop: their times are still those
        assert float(rows[record["setting"], record["qid"]]["milliseconds_gather"]) == record["milliseconds"]["gather"]


WRONG = [
    ([*ASKED, "-m", "goodness"], 2, "'goodness' is no measure of ir-measures"),
    ([*ASKED, "--sweep", "q=1"], 2, "there is no search setting 'q'"),
    ([*ASKED, "--sweep", "p=0"], 2, "p must be a whole number"),
    ([*ASKED, "--sweep", "gather=faiss"], 1, 'built without gather="faiss"'),
    ([*ASKED, "--sweep", "order=best"], 2, "order is one of"),
    ([*ASKED, "--baseline", "p=77"], 2, "no setting is 'p=77'"),
    ([*ASKED, "--correction", "magic"], 2, "correction is one of"),
    ([*ASKED, "--with", "magic"], 2, "a baseline is one of"),
    ([*ASKED, "--run", "none.run"], 1, "there is no file none.run"),
    ([*ASKED, "-m", "goodness", "--with", "dense:none"], 2, "'goodness' is no measure"),
    ([*ASKED, "-m", "P@0"], 2, "cutoff is at least 1"),
    ([*ASKED, "--relevant-grade", "0"], 2, "relevant_grade is at least 1"),
    ([*ASKED, "--sample", "0"], 2, "a sample has at least 1 query"),
    (["evaluate", "none.sec", *ASKED[2:]], 1, "there is no index at none.sec"),
    ([*ASKED[:3], "none.tsv", *ASKED[4:]], 1, "there is no file none.tsv"),
    ([*ASKED[:5], "none"], 1, "there is no file none"),
    ([*ASKED[:5], "q.tsv"], 1, "columns and not 4"),
    (["report", "none.parquet"], 1, "there is no file none.parquet"),
    (["report", "."], 1, ". is no result of secateurs evaluate: give the .parquet file"),
    (["report", "q.tsv"], 1, "secateurs evaluate --out"),
    (["reproduce", "magic"], 2, "there is no reproduction 'magic': there are standard-library, synthetic"),
    (["reproduce", "none.yaml"], 1, "there is no file none.yaml"),
    (["reproduce", "synthetic", "--collection", "."], 2, "has a built-in collection"),
]


def test_wrong_input_has_an_exit_code_and_a_message_and_no_trace(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from secateurs.cli.app import main

    monkeypatch.chdir(folder)
    before = sorted(folder.iterdir())
    for arguments, code, message in WRONG:
        monkeypatch.setattr(sys, "argv", ["secateurs", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = capsys.readouterr().err
        assert message in printed, arguments
        assert (stopped.value.code, printed.count("\n")) == (code, 1), arguments
    assert sorted(folder.iterdir()) == before


def test_reproduce_lists_and_exits_with_1_when_results_disagree(tmp_path: Path) -> None:
    listed = run("reproduce", cwd=tmp_path)
    assert listed.returncode == 0
    assert "trec2019-p3" in listed.stdout
    (tmp_path / "wrong.yaml").write_text(
        "title: t\nabout: a\ncollection: {made: synthetic}\ngather: [faiss]\nmeasures: [RR]\nbaseline: p=all\n"
        "sweep: ['p=1,all', gather=faiss]\nexpected: [{setting: p=all, measure: RR, value: 0, tolerance: 0.1}]\n"
    )
    done = run("reproduce", "wrong.yaml", cwd=tmp_path)
    assert done.returncode == 1
    assert "DISAGREES" in done.stdout
    assert "expected 0.0000 +- 0.1" in done.stdout
    assert (tmp_path / "wrong.lab" / "report.html").is_file()
