"""Files of queries: every format, and every error names its lines."""

import gzip
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from secateurs import SecateursError
from secateurs.lab import read_topics
from secateurs.queries import read_queries

BEIR_QUERIES = (
    '{"_id": "PLAIN-2", "text": "do statin drugs cause cancer", "metadata": {"url": "http://x"}}\n'
    '{"_id": "PLAIN-12", "text": " exploiting autophagy \\u00fc "}\n'
)
BEIR_QRELS = "query-id\tcorpus-id\tscore\nPLAIN-2\tMED-2427\t2\nPLAIN-2\tMED-10\t1\n"


def test_a_folder_of_beir_is_its_queries_file(tmp_path: Path) -> None:
    write(tmp_path / "queries.jsonl.gz", BEIR_QUERIES)
    assert [qid for qid, _ in read_queries(str(tmp_path))] == ["PLAIN-2", "PLAIN-12"]
    with pytest.raises(SecateursError, match="is a folder, not a file"):
        read_queries(str(tmp_path.parent))


def write(path: Path, content: str) -> str:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def standard_input(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content.encode())))


@pytest.mark.parametrize("name", ["q.tsv", "q.txt", "q.tsv.gz"])
def test_a_line_is_a_qid_a_tab_and_a_text(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, "\ufeff1\tcats\tand dogs\r\n\n 2 \t bees \n")
    assert read_queries(path) == [("1", "cats\tand dogs"), ("2", "bees")]


def test_lines_without_tabs_are_numbered(tmp_path: Path) -> None:
    assert read_queries(write(tmp_path / "q.txt", "cats\n\nbees\n")) == [("1", "cats"), ("3", "bees")]


@pytest.mark.parametrize("name", ["queries.jsonl", "queries.jsonl.gz", "queries.json", "-"])
def test_queries_of_beir_are_read_as_json(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standard_input(monkeypatch, BEIR_QUERIES)
    path = name if name == "-" else write(tmp_path / name, BEIR_QUERIES)
    assert read_queries(path) == [
        ("PLAIN-2", "do statin drugs cause cancer"),
        ("PLAIN-12", "exploiting autophagy ü"),
    ]


def test_a_json_query_may_use_other_names_and_a_number_as_qid(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", '{"qid": 7, "query": "cats"}\n{"id": "8", "text": "bees"}\n')
    assert read_queries(path) == [("7", "cats"), ("8", "bees")]


def test_standard_input_may_be_tab_separated(monkeypatch: pytest.MonkeyPatch) -> None:
    standard_input(monkeypatch, "1\tcats\n2\tbees\n")
    assert read_queries("-") == [("1", "cats"), ("2", "bees")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.tsv", "3\tcats\n\n2\tbees\n3\towls\n", r"q\.tsv, line 4: qid '3' is already that of line 1"),
        ("q.tsv", "1\tcats\nbees\n", r"q\.tsv: line 1 has a qid and a tab, line 2 has not"),
        ("q.tsv", "cats\n\n2\tbees\n", r"q\.tsv: line 3 has a qid and a tab, line 1 has not"),
        ("q.tsv", "1\tcats\n\tbees\n", "line 2: has no qid before the tab"),
        ("q.tsv", "1\tcats\n2\t \n", "line 2: the query '2' has no text"),
        ("q.tsv", "\n", r"q\.tsv has no queries in it"),
        (
            "q.jsonl",
            '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n',
            "line 2: qid 'a' is already that of line 1",
        ),
        ("q.jsonl", '{"_id": "a"}\n', r"line 1: no text \(under one of text, query\)"),
        ("q.jsonl", '{"_id": "a", "text": "  "}\n', "line 1: the query 'a' has no text"),
        ("q.jsonl", '{"text": "cats"}\n', r"line 1: no qid"),
        ("q.jsonl", '{"_id": true, "text": "cats"}\n', r"line 1: no qid"),
        ("q.jsonl", "cats\n", "line 1: not JSON"),
        ("q.jsonl", "[1]\n", "line 1: not a JSON object"),
        ("q.tsv", BEIR_QRELS, r"q\.tsv has judgements \(qrels\) in it, not queries"),
        ("q.csv", "qid,text\n1,cats\n", r"q\.csv: queries are lines of qid, tab, text, .* not \.csv"),
        ("q.csv.gz", "qid,text\n1,cats\n", r"q\.csv\.gz: queries are lines of qid, tab, text, .* not \.csv"),
    ],
)
def test_a_wrong_file_of_queries_is_refused_with_its_lines(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    with pytest.raises(SecateursError, match=message):
        read_queries(write(tmp_path / name, content))


def test_broken_encoding_and_missing_files_are_errors(tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_bytes(b"1\tcats\n2\t\xff\n")
    with pytest.raises(SecateursError, match=r"q\.tsv, line 2: not UTF-8"):
        read_queries(str(tmp_path / "q.tsv"))
    (tmp_path / "q.tsv.gz").write_bytes(b"1\tcats\n")
    with pytest.raises(SecateursError, match="cannot be read further"):
        read_queries(str(tmp_path / "q.tsv.gz"))
    with pytest.raises(SecateursError, match="there is no file"):
        read_queries(str(tmp_path / "none.tsv"))
    with pytest.raises(SecateursError, match="is a folder, not a file"):
        read_queries(str(tmp_path))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_judgements_of_beir_are_read_by_their_header(tmp_path: Path, suffix: str) -> None:
    queries = write(tmp_path / f"queries.jsonl{suffix}", BEIR_QUERIES)
    topics = read_topics(queries, write(tmp_path / f"qrels.tsv{suffix}", BEIR_QRELS))
    assert topics.queries == {"PLAIN-2": "do statin drugs cause cancer"}
    assert topics.qrels == {"PLAIN-2": {"MED-2427": 2, "MED-10": 1}}


def test_a_wrong_line_of_beirs_judgements_is_named(tmp_path: Path) -> None:
    queries = write(tmp_path / "queries.jsonl", BEIR_QUERIES)
    for line, message in (
        ("PLAIN-2\tMED-1", "line 4: has 2 columns and not 3"),
        ("a\tb\tc", "line 4: a grade is a whole"),
    ):
        with pytest.raises(SecateursError, match=message):
            read_topics(queries, write(tmp_path / "qrels.tsv", BEIR_QRELS + line + "\n"))
