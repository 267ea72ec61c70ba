"""Documents into and out of an index from the command line, with standard input and output."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli import CORPUS, run

from secateurs import Index

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("animals") / "animals.sec"
    done = run("index", "-", path, stdin=CORPUS)
    assert done.returncode == 0, done.stderr
    assert "3 documents" in done.stdout
    return path


def test_documents_come_from_standard_input_and_a_bad_line_is_named(animals: Path, tmp_path: Path) -> None:
    refused = run("index", "-", tmp_path / "a.sec", stdin='{"docno": "a", "text": "x"}\nnonsense\n')
    assert refused.returncode == 1
    assert "standard input, line 2: not JSON" in refused.stderr
    assert not (tmp_path / "a.sec").exists()


def test_get_prints_documents_and_names_those_that_are_not_there(animals: Path) -> None:
    shown = run("get", animals, "fish")
    assert shown.stdout == "docno: fish\nyear: 2020\n\nGoldfish grow as large as their pond lets them.\n"
    done = run("get", animals, "bees", "owls", "fish", "--json")
    assert done.returncode == 1
    assert done.stderr == "not there: owls\n"
    assert [json.loads(line)["docno"] for line in done.stdout.splitlines()] == ["bees", "fish"]
    assert json.loads(done.stdout.splitlines()[1])["metadata"] == {"year": 2020}


def test_an_export_to_standard_output_is_an_index_again(animals: Path, tmp_path: Path) -> None:
    exported = run("export", animals, "-")
    assert exported.returncode == 0, exported.stderr
    assert exported.stdout == CORPUS
    assert run("index", "-", tmp_path / "again.sec", stdin=exported.stdout).returncode == 0
    again = Index(tmp_path / "again.sec")
    assert {d.docno: (d.text, d.metadata) for d in again.documents()} == {
        d.docno: (d.text, d.metadata) for d in Index(animals).documents()
    }
    assert "<DOCNO>cats</DOCNO>" in run("export", animals, "-", "--format", "trec").stdout


def test_an_exported_table_is_imported_and_searched_with_text(animals: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    done = run("export", animals, tmp_path / "a.parquet")
    assert "3 documents" in done.stdout
    imported = run("import", tmp_path / "a.parquet", tmp_path / "b.sec")
    assert imported.returncode == 0, imported.stderr
    expected = json.loads(run("search", animals, "do goldfish grow", "--json").stdout)["hits"]
    assert json.loads(run("search", tmp_path / "b.sec", "do goldfish grow", "--json").stdout)["hits"] == expected


def test_arrays_are_imported_and_what_cannot_be_is_one_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32)[:2])
    done = run("import", tmp_path / "a.npz", tmp_path / "a.sec", "--store", "float16")
    assert done.stdout.startswith(f"{tmp_path / 'a.sec'}: 2 documents, 6 embeddings")
    refused = run("import", tmp_path / "a.sec", tmp_path / "b.sec")
    assert refused.returncode == 2
    assert refused.stderr.startswith("secateurs: ")
    assert refused.stderr.count("\n") == 1


def test_deleting_by_a_filter_says_how_many_and_needs_a_yes(tmp_path: Path) -> None:
    path = tmp_path / "a.sec"
    run("index", "-", path, stdin=CORPUS)
    asked = run("delete", path, "--where", "year = 2020")
    assert asked.returncode == 2
    assert f"this would delete 1 of 3 documents in {path}, and nothing was deleted" in asked.stderr
    assert len(Index(path)) == 3
    for wrong in (("--where", ""), ("--yes",), ("--where", "year = 2020", "fish"), ("--where", "yaer = 1", "--yes")):
        assert run("delete", path, *wrong).returncode == 2
    assert len(Index(path)) == 3
    none = run("delete", path, "--where", "year = 1999")
    assert none.stdout == f"nothing to delete: 0 of 3 documents in {path} match\n"
    assert run("delete", path, "--where", "year = 2020", "--yes").stdout.startswith("deleted 1: ")
    assert len(Index(path)) == 2


def test_metadata_alone_is_updated_and_fields_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.sec"
    run("index", "-", path, stdin=CORPUS)
    lines = '{"docno": "cats", "year": 2021, "tags": ["pets"]}\n{"docno": "owls", "year": 1}\n'
    done = run("update", path, "-", "--metadata-only", stdin=lines)
    assert done.returncode == 1
    assert done.stdout.startswith("changed the metadata of 1: ")
    assert done.stderr == "not there: owls\n"
    shown = run("info", path, "--fields")
    assert [line.split() for line in shown.stdout.splitlines()] == [
        ["key", "types", "documents", "example"],
        ["tags", "text,", "nested", "1", '"pets"'],
        ["year", "number", "2", "2020"],
    ]
    told = json.loads(run("info", path, "--fields", "--json").stdout)
    assert told["year"]["types"] == ["number"]
    assert told["year"]["documents"] == 2


def test_a_folder_of_beir_is_a_corpus_and_has_queries(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    (folder / "README.md").write_text("not a document")
    (folder / "corpus.jsonl").write_text(
        '{"_id": "1", "title": "Goldfish", "text": "grow all their life.", "metadata": {}}\n'
        '{"_id": "2", "title": "", "text": "Cats sleep.", "metadata": {}}\n'
    )
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "do fish grow", "metadata": {}}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\t1\t1\n")
    done = run("index", folder, tmp_path / "tiny.sec")
    assert done.returncode == 0, done.stderr
    assert Index(tmp_path / "tiny.sec").get("1").text == "Goldfish grow all their life."
    found = run("search", tmp_path / "tiny.sec", "--queries", folder, "--trec", "-k", "1")
    assert found.stdout.split()[:4] == ["q1", "Q0", "1", "1"]
