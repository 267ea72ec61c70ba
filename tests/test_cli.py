"""The command line in a process of its own, with its exit codes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import typer.main
from test_sharded import make_shards

import secateurs
from secateurs import Index
from secateurs.cli.app import app
from secateurs.cli.interruption import InterruptedCommandError, on_interrupt
from secateurs.cli.printing import print_ranking
from secateurs.corpus import read_corpus
from secateurs.encoders.onnx import OnnxEncoder

CORPUS = (
    '{"docno": "fish", "text": "Goldfish grow as large as their pond lets them.", "year": 2020}\n'
    '{"docno": "cats", "text": "Cats sleep for most of the day."}\n'
    '{"docno": "bees", "text": "Bees dance to tell each other where flowers are."}\n'
)


def run(*arguments: str | Path, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "secateurs", *map(str, arguments)],
        capture_output=True,
        text=True,
        input=stdin,
        cwd=cwd,
        timeout=300,
        env=os.environ | {"COLUMNS": "120", "HF_HUB_OFFLINE": "1"},
    )


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("animals")
    (folder / "corpus.jsonl").write_text(CORPUS)
    done = run("index", folder / "corpus.jsonl", folder / "animals.sec")
    assert done.returncode == 0, done.stderr
    assert "3 documents" in done.stdout
    return folder / "animals.sec"


def test_search_prints_a_table_and_what_the_search_did(animals: Path) -> None:
    done = run("search", animals, "do goldfish grow", "-k", "2", "-p", "3")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "fish" in lines[2]
    assert "scored all 3 documents, " in done.stdout
    gathered = run("search", animals, "do goldfish grow", "-k", "2", "-p", "3", "--gather", "cells")
    assert "gathered 3 of 3 documents with 3 of 10 embeddings (" in gathered.stdout


@pytest.mark.parametrize(
    "settings", [("-p", "3", "--effort", "exact"), ("-p", "3"), ("-p", "3", "--gather", "exhaustive")]
)
def test_a_search_that_scores_every_document_reports_no_pruning(animals: Path, settings: tuple[str, ...]) -> None:
    done = run("search", animals, "do goldfish grow", *settings, "--where", "year = 2020")
    assert "scored all 1 matching of 3 documents, " in done.stdout
    assert "gathered" not in done.stdout
    assert "embeddings" not in done.stdout


def test_a_narrow_terminal_keeps_rank_score_relevance_and_docno(animals: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "secateurs", "search", animals, "do goldfish grow"],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "50"},
    )
    first = next(line for line in done.stdout.splitlines() if "fish" in line and "Goldfish" in line)
    assert first.split()[0] == "1"
    assert float(first.split()[1]) > 20
    assert 0 < float(first.split()[2]) < 1
    assert first.split()[3] == "fish"


def test_search_prints_json_that_equals_the_library(animals: Path) -> None:
    done = json.loads(run("search", animals, "do goldfish grow", "-p", "2", "--json").stdout)
    ranking = Index(animals).search("do goldfish grow", p=2)
    assert [(h["docno"], h["score"]) for h in done["hits"]] == [(h.docno, h.score) for h in ranking]
    assert done["hits"][0]["metadata"] == {"year": 2020}
    assert done["stats"]["embeddings_kept"] == 2
    assert done["plan"] == asdict(ranking.plan)
    assert done["plan"]["order"] == "focus"


@pytest.mark.parametrize("source", ["file", "-"])
def test_search_prints_a_trec_run_for_a_file_of_queries(animals: Path, source: str, tmp_path: Path) -> None:
    queries = "q1\tdo goldfish grow\nq2\twhere do bees find flowers\n"
    (tmp_path / "q.tsv").write_text(queries)
    done = run(
        "search", animals, "--queries", "-" if source == "-" else tmp_path / "q.tsv", "--trec", "-k", "1", stdin=queries
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [(row[0], row[1], row[2], row[3], row[5]) for row in rows] == [
        ("q1", "Q0", "fish", "1", "secateurs"),
        ("q2", "Q0", "bees", "1", "secateurs"),
    ]


def test_search_reads_the_queries_of_beir(animals: Path, tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "do goldfish grow", "metadata": {}}\n')
    done = run("search", animals, "--queries", tmp_path / "queries.jsonl", "--trec", "-k", "1")
    assert done.stdout.split()[:3] == ["q1", "Q0", "fish"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("3\tcats\n\n3\tbees\n", "q.tsv, line 3: qid '3' is already that of line 1"),
        ("3\tcats\nbees\n", "q.tsv: line 1 has a qid and a tab, line 2 has not"),
    ],
)
def test_search_refuses_queries_of_which_two_would_have_the_same_qid(
    animals: Path, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "q.tsv").write_text(content)
    done = run("search", animals, "--queries", "q.tsv", "--trec", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr


def test_control_characters_of_a_document_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("two words\tgoldfish \x1b]0;owned\x07 \x1b[31m [bold]grow[/bold]\n")
    assert run("index", tmp_path / "c.tsv", tmp_path / "c.sec").returncode == 0
    done = run("search", tmp_path / "c.sec", "goldfish")
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert "[bold]grow[/bold]" in done.stdout
    refused = run("search", tmp_path / "c.sec", "goldfish", "--trec")
    assert refused.returncode == 1
    assert "docno 'two words' has white space in it" in refused.stderr


def test_explain_shows_every_query_token(animals: Path) -> None:
    done = run("explain", animals, "do goldfish grow", "fish", "-p", "2")
    assert done.returncode == 0
    assert "##fish" in done.stdout
    assert "pruned" in done.stdout
    assert "rank 1 of" in done.stdout
    tokens = json.loads(run("explain", animals, "do goldfish grow", "fish", "--json").stdout)["tokens"]
    assert len(tokens) == 10


def test_weights_are_a_column_of_an_explanation_if_they_are_not_all_1(animals: Path, tmp_path: Path) -> None:
    padded = tmp_path / "padded.sec"  # few MASKs have the weight of all, and all of them 1 each
    assert run("index", animals.parent / "corpus.jsonl", padded, "--setting", "expansion=all").returncode == 0
    plain = run("explain", padded, "do goldfish grow", "fish")
    equal = run("explain", padded, "do goldfish grow", "fish", "--weights", "none")
    assert plain.stdout == equal.stdout
    assert "weight" not in plain.stdout
    weighed = run("explain", animals, "do goldfish grow", "fish", "--weights", "idf").stdout
    assert re.search(r"similarity +weight\n", weighed)
    expected = Index(animals).explain("do goldfish grow", "fish", weights="idf")
    for token in expected.tokens:
        assert f"{token.similarity:.3f}   {token.weight:.3f}" in weighed, token
    assert f"fish: score {expected.score:.3f}" in weighed


@pytest.mark.parametrize("command", [("search",), ("shard", "search")])
def test_search_takes_weights_and_says_so(animals: Path, command: tuple[str, ...]) -> None:
    found = json.loads(run(*command, animals, "do goldfish grow", "--weights", "idf", "--json").stdout)
    assert found["plan"]["weights"] == "idf"
    ranking = Index(animals).search("do goldfish grow", weights="idf")
    assert [hit["score"] for hit in found["hits"]] == [hit.score for hit in ranking]


def test_info_prints_what_the_index_holds(animals: Path) -> None:
    done = run("info", animals, "--check")
    assert "documents         3" in done.stdout
    assert done.stdout.startswith("every byte is as it was written, and all parts agree\n")
    assert json.loads(run("info", animals, "--json").stdout)["documents"] == 3


def test_background_counts_corpora_and_an_index_uses_the_table(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"docno": "a", "text": "The pond, the goldfish."}\n{"docno": "b", "text": ""}\n')
    (tmp_path / "b.tsv").write_text("x\tA pond.\n")
    done = run("background", "a.jsonl", "b.tsv", "ponds.npz", "--skip-bad", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ponds.npz: 2 texts, 7 tokens, 5 types", "skipped: 1"]
    assert run("index", "b.tsv", "i.sec", "--background", "ponds.npz", cwd=tmp_path).returncode == 0
    info = run("info", "i.sec", cwd=tmp_path).stdout
    assert re.search(r"^background +name ponds, vocabulary [0-9a-f]{16}$", info, re.MULTILINE)
    assert run("index", "b.tsv", "j.sec", "--background", "none", cwd=tmp_path).returncode == 0
    assert re.search(r"^background +none$", run("info", "j.sec", cwd=tmp_path).stdout, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("a.tsv", "there.npz"), 1, "there.npz is there already"),
        (("a.tsv",), 2, "name what to count first"),
        (("a.tsv", "b.tsv"), 2, "which ends in .npz"),
        (("a.tsv", "nowhere/b.npz"), 1, "there is no folder nowhere"),
        (("nothing.tsv", "b.npz"), 1, "there is no file or folder nothing.tsv"),
    ],
)
def test_background_refuses_before_it_counts(
    arguments: tuple[str, ...], code: int, message: str, tmp_path: Path
) -> None:
    for name in ("a.tsv", "b.tsv", "there.npz"):
        (tmp_path / name).write_text("x\tA pond.\n")
    done = run("background", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert (tmp_path / "there.npz").read_text() == "x\tA pond.\n"


def test_an_empty_corpus_makes_an_empty_index_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text("\n")
    done = run("index", "c.jsonl", "c.sec", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "no documents in c.jsonl\n"
    assert "0 documents, 0 embeddings" in done.stdout
    assert "\ngather            cells, exhaustive\n" in run("info", tmp_path / "c.sec").stdout


def test_one_document_is_singular(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("fish\tGoldfish grow.\n")
    done = run("index", tmp_path / "c.tsv", tmp_path / "c.sec")
    assert ": 1 document, " in done.stdout
    assert "scored all 1 document, " in run("search", tmp_path / "c.sec", "goldfish").stdout


def test_bad_lines_stop_the_build_or_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_text(CORPUS + '{"docno": "cats", "text": "again"}\n{"text": "nameless"}\n')
    stopped = run("index", tmp_path / "c.jsonl", tmp_path / "c.sec")
    assert stopped.returncode == 1
    assert re.search(r"line 4: docno 'cats' is already that of .*, line 2", stopped.stderr)
    assert not (tmp_path / "c.sec").exists()
    done = run("index", tmp_path / "c.jsonl", tmp_path / "c.sec", "--skip-bad")
    assert done.returncode == 0
    assert "skipped: 2" in done.stdout
    assert "line 5: no docno" in done.stderr


@pytest.mark.parametrize("source", ["texts.jsonl", "texts.txt", "-", "- as JSON"])
def test_rerank_orders_the_texts_of_a_file_or_of_standard_input(tmp_path: Path, source: str) -> None:
    lines = "".join(f"{json.loads(line)['text']}\n" for line in CORPUS.splitlines())
    (tmp_path / "texts.jsonl").write_text(CORPUS)
    (tmp_path / "texts.txt").write_text(lines)
    file = "-" if source.startswith("-") else tmp_path / source
    stdin = CORPUS if source == "- as JSON" else lines
    done = run("rerank", "where are flowers", file, "--json", "-k", "2", stdin=stdin)
    assert done.returncode == 0, done.stderr
    documents = list(read_corpus(tmp_path / "texts.jsonl"))
    expected = secateurs.rerank("where are flowers", [document.text for document in documents])[:2]
    named = source in ("texts.jsonl", "- as JSON")
    assert json.loads(done.stdout) == {
        "query": "where are flowers",
        "hits": [
            {
                "rank": rank,
                "docno": documents[text.number].docno if named else str(text.number + 1),
                "score": text.score,
                "text": documents[text.number].text,
                "metadata": dict(documents[text.number].metadata) if named else {},
                "relevance": text.relevance,
            }
            for rank, text in enumerate(expected, start=1)
        ],
    }


def test_rerank_prints_a_table_or_a_run(tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text(CORPUS + "not JSON\n")
    table = run("rerank", "where are flowers", tmp_path / "texts.jsonl", "--skip-bad")
    assert re.search(r"^ 1 .* bees +Bees dance", table.stdout, re.MULTILINE)
    assert "scored 3 texts\n" in table.stdout
    assert "skipped: 1" in table.stdout
    ran = run("rerank", "where are flowers", tmp_path / "texts.jsonl", "--skip-bad", "--trec", "-k", "1")
    assert re.fullmatch(r"1 Q0 bees 1 \d+\.\d+ secateurs\n", ran.stdout)


@pytest.mark.parametrize("command", [("search",), ("shard", "search")])
def test_pages_fields_and_facets_are_those_of_the_library(animals: Path, command: tuple[str, ...]) -> None:
    how = ("do goldfish grow", "-k", "1", "--offset", "1", "--facets", "year", "--effort", "exact")
    done = run(*command, animals, *how, "--json", "--fields", "docno, year")
    assert done.returncode == 0, done.stderr
    hit = Index(animals).search("do goldfish grow", 2, effort="exact")[1]
    content = json.loads(done.stdout)
    assert content["hits"] == [
        {"rank": 2, "docno": hit.docno, "score": hit.score, "relevance": hit.relevance, "metadata": {}}
    ]
    assert content["facets"] == {"year": [{"value": 2020, "documents": 1}]}
    table = run(*command, animals, *how).stdout
    assert re.search(rf"^ 2 .* {hit.docno} ", table, re.MULTILINE)
    assert "\nyear: 2020 (1)\n" in table


WRONG = [
    (["search", "INDEX", "a", "--fields", "docno"], 2, "--fields chooses what --json prints"),
    (["search", "INDEX", "a", "--facets", "yaer"], 2, "facets: no document has the key 'yaer'; there are: year"),
    (["search", "INDEX", "a", "--facets", "year", "--trec"], 2, "a TREC run has no facets"),
    (["search", "INDEX", "a", "--offset", "-1"], 2, "offset must be a whole number of at least 0, not -1"),
    (["rerank", "", "f"], 2, "the query is empty"),
    (["rerank", "a", "nowhere.jsonl"], 1, "there is no file or folder nowhere.jsonl"),
    (["rerank", "a", "-"], 1, "- has no texts in it"),
    (["rerank", "a", "-", "-k", "0"], 2, "k must be a whole number of at least 1, not 0"),
    (["rerank", "a", "-", "--json", "--trec"], 2, "not both"),
    (["rerank", "do", "goldfish", "f"], 2, "put the query in quotes"),
    (["search", "nowhere.sec", "a"], 1, "there is no index at nowhere.sec"),
    (["search", "INDEX"], 2, "give either a QUERY or --queries FILE"),
    (["search", "INDEX", "a", "--queries", "f"], 2, "give either a QUERY or --queries FILE"),
    (["search", "INDEX", "a", "-p", "0"], 2, "p must be a whole number of at least 1"),
    (["search", "INDEX", "a", "-p", "many"], 2, "p is a number, all or auto, not 'many'"),
    (["search", "INDEX", "a", "-k", "0"], 2, "k must be a whole number of at least 1, not 0"),
    (["search", "INDEX", "a", "-k", "ten"], 2, "k must be a whole number of at least 1, not 'ten'"),
    (["explain", "INDEX", "a", "fish", "-k", "ten"], 2, "k must be a whole number of at least 1, not 'ten'"),
    (["search", "INDEX", "a", "--nprobe", "ten"], 2, "nprobe must be a whole number of at least 1"),
    (["search", "INDEX", "a", "--candidates", "1.5"], 2, "candidates must be a whole number of at least 1"),
    (["search", "INDEX", "a", "--k-prime", "x"], 2, "k_prime must be a whole number of at least 1"),
    (["demo", "x.sec", "-p", "three"], 2, "p must be a whole number of at least 1"),
    (["search", "INDEX", "do", "goldfish", "grow"], 2, "(goldfish grow): put the query in quotes"),
    (["shard", "search", "INDEX", "do", "goldfish"], 2, "(goldfish): put the query in quotes"),
    (["explain", "INDEX", "do", "goldfish", "grow", "fish"], 2, "(grow fish): put the query in quotes"),
    (["search", "INDEX", "--queries", "."], 1, ". is a folder, not a file"),
    (["search", "INDEX", "--queries", "q.csv"], 2, "q.csv: queries are lines of qid, tab, text"),
    (["demo", "INDEX"], 2, "is not an index of this demo: choose another name"),
    (["demo", "INDEX", "--rebuild"], 2, "is not an index of this demo: choose another name"),
    (["search", "INDEX", "a", "--order", "best"], 2, "order is one of"),
    (["search", "INDEX", "a", "--gather", "magic"], 2, "gather is one of"),
    (["search", "INDEX", "a", "--weights", "heavy"], 2, "weights is idf, or None for equal weights, not 'heavy'"),
    (["explain", "INDEX", "a", "fish", "--weights", ""], 2, "weights is idf, or None for equal weights, not ''"),
    (["search", "INDEX", "a", "--json", "--trec"], 2, "not both"),
    (["search", "INDEX", "--queries", "none.tsv"], 1, "there is no file none.tsv"),
    (["explain", "INDEX", "a", "nobody"], 1, "no document 'nobody'"),
    (["index", "nowhere.jsonl", "x.sec"], 1, "there is no file or folder nowhere.jsonl"),
    (["index", "nowhere.jsonl", "x.sec", "--model", "./none"], 1, "no model './none'"),
    (["index", "nowhere.jsonl", "x.sec", "--encoder", "magic"], 2, 'encoder kind is "onnx" or "st"'),
    (["search", "INDEX", "x", "--where", "year >"], 2, "where: expected a number"),
    (["add", "INDEX", "nowhere.jsonl"], 1, "nowhere.jsonl"),
    (["add", "nowhere.sec", "nowhere.jsonl"], 1, "no index at nowhere.sec"),
    (["delete", "INDEX"], 2, "give docnos to delete"),
    (["delete", "INDEX", "--from", "nowhere"], 1, "no file nowhere"),
    (["check", "nowhere.sec", "--repair"], 1, "no index at nowhere.sec"),
    (["prune"], 2, "No such command"),
    ([], 2, "Usage"),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_wrong_input_has_an_exit_code_and_a_message_and_no_trace(
    animals: Path, arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    done = run(*[str(animals) if a == "INDEX" else a for a in arguments], cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_any_docno_can_be_printed_whatever_the_systems_encoding(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("[/bold] 💐\tflowers\n")
    assert run("index", tmp_path / "c.tsv", tmp_path / "c.sec").returncode == 0
    for form in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "secateurs", "search", tmp_path / "c.sec", "flowers", *form],
            capture_output=True,
            env=os.environ | {"PYTHONIOENCODING": "cp1252"},
        )
        assert done.returncode == 0, done.stderr
        assert "[/bold] 💐" in done.stdout.decode()


def test_an_index_is_added_to_updated_and_deleted_from(animals: Path, tmp_path: Path) -> None:
    shutil.copytree(animals, tmp_path / "a.sec")
    (tmp_path / "more.jsonl").write_text('{"docno": "owls", "text": "Owls hunt by night.", "year": 2021}\n')
    done = run("add", tmp_path / "a.sec", tmp_path / "more.jsonl")
    assert "added 1, replaced 0" in done.stdout
    assert "4 documents" in done.stdout
    again = run("add", tmp_path / "a.sec", tmp_path / "more.jsonl")
    assert again.returncode == 1
    assert "line 1: docno 'owls' is in the index already" in again.stderr
    assert "skipped: 1" in run("add", tmp_path / "a.sec", tmp_path / "more.jsonl", "--skip-bad").stdout
    assert "added 0, replaced 1" in run("update", tmp_path / "a.sec", tmp_path / "more.jsonl").stdout
    filtered = run("search", tmp_path / "a.sec", "animals", "--where", "year >= 2021", "--json")
    assert [hit["docno"] for hit in json.loads(filtered.stdout)["hits"]] == ["owls"]
    assert "1 matching of 4" in run("search", tmp_path / "a.sec", "animals", "--where", "year >= 2021").stdout
    gone = run("delete", tmp_path / "a.sec", "cats", "dogs", "--from", "-", stdin="bees\n\n")
    assert gone.returncode == 1
    assert "deleted 2" in gone.stdout
    assert "not there: dogs" in gone.stderr
    assert "2 documents" in run("compact", tmp_path / "a.sec").stdout
    assert "all parts agree" in run("check", tmp_path / "a.sec").stdout
    assert run("delete", tmp_path / "a.sec", "owls").returncode == 0


def test_check_finds_damage_and_repairs_it(animals: Path, tmp_path: Path) -> None:
    shutil.copytree(animals, tmp_path / "a.sec")
    victim = next((tmp_path / "a.sec" / "segments").glob("*/token_ids.npy"))
    victim.write_bytes(victim.read_bytes()[:-1])
    done = run("check", tmp_path / "a.sec")
    assert done.returncode == 1
    assert "token_ids.npy has" in done.stderr
    assert "--repair" in done.stderr
    mended = run("check", tmp_path / "a.sec", "--repair")
    assert mended.returncode == 0
    assert "no document is lost" in mended.stdout
    assert "rebuilt with 3 documents" in mended.stdout


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[str]:
    """A command that SIGINT reaches even if the tests run where it is ignored."""
    return subprocess.Popen(
        [sys.executable, "-m", "secateurs", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )


def interrupt(process: subprocess.Popen[str], begun: Callable[[], bool]) -> str:
    """Ctrl-C as soon as the work has begun; what standard error says then."""
    deadline = time.monotonic() + 200
    while not begun() and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, printed = process.communicate(timeout=200)
    assert process.returncode == 130, printed
    return printed


@pytest.fixture(scope="module")
def long_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("long") / "c.tsv"
    path.write_text("".join(f"d{number}\t{'many words of text ' * 30}\n" for number in range(20_000)))
    return path


def test_ctrl_c_inside_pythons_own_locks_is_an_interruption_too() -> None:
    def interrupted_lock() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")

    with (
        pytest.raises(InterruptedCommandError, match="nothing was changed"),
        on_interrupt(lambda: "nothing was changed"),
    ):
        interrupted_lock()
    with pytest.raises(RuntimeError, match="another"), on_interrupt(lambda: ""):
        raise RuntimeError("another")


def test_ctrl_c_while_indexing_leaves_no_index_and_says_so(long_corpus: Path, tmp_path: Path) -> None:
    process = start("index", long_corpus, "x.sec", cwd=tmp_path)
    printed = interrupt(process, lambda: any(tmp_path.glob(".x.sec.staged-*/staged.rows")))
    assert printed == "secateurs: interrupted: there is no index at x.sec\n"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_adding_changes_nothing_and_says_so(animals: Path, long_corpus: Path, tmp_path: Path) -> None:
    shutil.copytree(animals, tmp_path / "a.sec")
    segments = tmp_path / "a.sec" / "segments"
    process = start("add", "a.sec", long_corpus, cwd=tmp_path)
    assert interrupt(process, lambda: len(list(segments.iterdir())) > 1) == (
        "secateurs: interrupted: a.sec was not changed\n"
    )
    assert json.loads(run("info", tmp_path / "a.sec", "--json", "--check").stdout)["documents"] == 3


def test_ctrl_c_does_not_wait_for_threads_that_are_still_running() -> None:
    script = (
        "import atexit, sys, threading, time\n"
        "from secateurs.cli import app, main\n"
        "atexit.register(print, 'cleaned up')\n"
        "def interrupted(standalone_mode):\n"
        "    threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "    print('printed before')\n"
        "    raise KeyboardInterrupt\n"
        "app.app = interrupted\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "secateurs: interrupted\n")
    assert done.stdout == "printed before\ncleaned up\n"


def test_ctrl_c_while_the_commands_are_imported_prints_no_stack_trace() -> None:
    script = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "import runpy\n"
        "runpy.run_module('secateurs', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "secateurs: interrupted\n")


def test_loading_is_shown_apart_from_the_search(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    ranking = index.search("zip archive", k=1)
    print_ranking(None, "zip archive", ranking, [], 1234.0)
    assert "\nloading took 1.2 s before that\n" in capsys.readouterr().out
    print_ranking(None, "zip archive", ranking, [], 20.0)
    assert "loading" not in capsys.readouterr().out


def test_debug_shows_the_trace() -> None:
    done = run("--debug", "info", "nowhere.sec")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_an_index_is_calibrated_with_its_documents_or_with_queries(animals: Path, tmp_path: Path) -> None:
    assert re.search(r"^calibration +none: fewer than 1,000 documents", run("info", animals).stdout, re.MULTILINE)
    copy = tmp_path / "animals.sec"
    shutil.copytree(animals, copy)
    done = run("calibrate", copy)
    assert (done.returncode, done.stderr) == (0, "")
    assert "by 3 parts of documents: fast finds 100.0% of the exact ten best (85% promised)" in done.stdout
    (tmp_path / "q.tsv").write_text("1\tdo goldfish grow\n2\tcats\n")
    assert "by 2 queries: fast finds 100.0%" in run("calibrate", copy, "--queries", tmp_path / "q.tsv").stdout
    assert json.loads(run("info", copy, "--json").stdout)["calibration"]["efforts"]["thorough"]["promised"] == 0.99
    assert "by 2 queries: " in run("info", copy).stdout
    wrong = run("calibrate", copy, "--queries", tmp_path / "none.tsv")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (1, 1)
    assert "none.tsv" in wrong.stderr


@pytest.mark.parametrize(
    "command",
    [
        *("index", "background", "add", "update", "delete", "compact", "check", "search", "explain", "info", "demo"),
        *("calibrate", "serve", "mcp", "evaluate", "report", "reproduce"),
    ],
)
def test_help_shows_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert f"Example: secateurs {command}" in " ".join(done.stdout.split())


def test_help_shows_an_example_of_shards_and_no_types_of_flags() -> None:
    assert "Example: secateurs shard build" in " ".join(run("shard", "--help").stdout.split())
    for command in (["search"], ["index"], ["shard", "build"], ["serve"], ["mcp"], ["demo"], ["delete"], ["evaluate"]):
        shown = run(*command, "--help").stdout
        flags = [line for line in shown.splitlines() if "<bool>" in line and "--help" not in line]
        assert flags == []
        assert "[[" not in shown


def test_every_option_of_every_command_is_documented() -> None:
    docs = Path(__file__).parent.parent / "docs"
    pages = {name: (docs / name).read_text("utf-8") for name in ("command-line.md", "lab.md")}

    def commands(group: Any) -> Iterator[Any]:
        for command in group.commands.values():
            yield from commands(command) if hasattr(command, "commands") else [command]

    for command in commands(typer.main.get_command(app)):
        text = pages["command-line.md"]
        text += pages["lab.md"] if command.name in ("evaluate", "report", "reproduce") else ""
        for parameter in command.params:
            options = [option for option in parameter.opts if option.startswith("-")]
            shown = any(re.search(rf"`[^`]*{re.escape(option)}\b", text) for option in options)
            assert shown or not options, f"{command.name} {options}"


def test_version() -> None:
    from secateurs import __version__

    assert run("--version").stdout.strip() == f"secateurs {__version__}"


def test_a_collection_in_shards_is_searched_changed_and_described_like_an_index(
    animals: Path, tmp_path: Path, encoder: OnnxEncoder
) -> None:
    path = make_shards(tmp_path / "big.sec", list(read_corpus(animals.parent / "corpus.jsonl")), 2, encoder=encoder)
    for command in (["search"], ["shard", "search"]):
        found = json.loads(run(*command, path, "do goldfish grow", "-k", "1", "--json", "--partial").stdout)
        assert [hit["docno"] for hit in found["hits"]] == ["fish"]
        assert found["stats"]["shards_missing"] == 0
    printed = run("shard", "info", path).stdout
    assert "documents         3" in printed
    assert re.search(r"shard-0001 +\d documents?, ", printed)
    assert len(json.loads(run("info", path, "--json").stdout)["shards"]) == 2
    assert "rank 1 of 3" in run("explain", path, "do goldfish grow", "fish").stdout
    (tmp_path / "more.tsv").write_text("ants\tAnts lay a trail of scent.\n")
    assert "added 1" in run("add", path, tmp_path / "more.tsv").stdout
    again = run("add", path, tmp_path / "more.tsv")
    assert again.returncode == 1
    assert "docno 'ants' is in the index already" in again.stderr
    gone = run("delete", path, "ants", "nobody")
    assert gone.returncode == 1
    assert "deleted 1" in gone.stdout
    assert "not there: nobody" in gone.stderr
    assert run("check", path).returncode == 0


@pytest.mark.parametrize("command", [("search", "x"), ("info",), ("serve", "--port", "0")])
def test_a_cluster_for_one_index_is_wrong_usage(animals: Path, command: tuple[str, ...]) -> None:
    verb, *rest = command
    done = run(verb, animals, *rest, "--ray", "local")
    assert done.returncode == 2
    assert "is one index, and --ray and --replicas are for collections in shards" in done.stderr
    assert "Traceback" not in done.stderr
