"""The demo's collection is the standard library on this machine; its tables fit a terminal."""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from secateurs import Index
from secateurs import demo as demo_documents
from secateurs.cli.demo import demo
from secateurs.cli.demo_printing import Pair, print_demo_summary, print_side_by_side
from secateurs.demo import standard_library


def test_the_standard_library_has_thousands_of_documented_things() -> None:
    documents = standard_library()
    assert len(documents) > 3000
    assert len({document["docno"] for document in documents}) == len(documents)
    kinds = Counter(document["kind"] for document in documents)
    assert min(kinds[kind] for kind in ("module", "class", "function", "method")) > 100


def test_documents_are_named_and_worded_like_their_source() -> None:
    documents = {document["docno"]: document["text"] for document in standard_library()}
    assert documents["shutil.rmtree"].startswith("shutil.rmtree(path, ignore_errors, onerror")
    assert "Recursively delete a directory tree." in documents["shutil.rmtree"]
    assert "math.isclose" in documents


@pytest.mark.parametrize("columns", [60, 80, 100, 200])
def test_the_comparison_shows_every_number_however_wide_the_terminal_is(
    index: Index, columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    question = "how do I read a zip archive"
    full, pruned = index.search(question, k=5, p=None), index.search(question, k=5, p=3)
    pair = Pair(question, full, pruned, [index.token_text(int(pruned.query.token_ids[i])) for i in pruned.kept])
    print_side_by_side(pair)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= min(columns, 100)
    for rank, (left, right) in enumerate(zip(full, pruned, strict=True), start=1):
        line = next(line for line in lines if re.match(rf" *{rank} ", line))
        assert re.findall(r"\b\d+\.\d{3}\b", line) == [f"{left.score:.3f}", f"{right.score:.3f}"]
    words = " ".join(lines).split()
    for ranking in (full, pruned):
        stats = ranking.stats
        for number in (stats.documents_gathered, stats.documents_scored, f"{stats.search_milliseconds:.1f}"):
            assert str(number) in words
    print_demo_summary([pair])
    printed = capsys.readouterr().out
    assert "Over 1 question, pruned search gathered" in printed
    assert re.search(r"Encoding a question takes another \d+ ms, not counted above\.", printed)


def test_the_demo_draws_no_bar_where_standard_error_is_no_terminal_and_uses_its_index_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [document for document in standard_library() if document["docno"].startswith(("argparse", "shutil"))]
    monkeypatch.setattr(demo_documents, "standard_library", lambda: documents)
    monkeypatch.setattr(sys, "argv", ["/somewhere/secateurs/__main__.py", "demo"])
    path = tmp_path / "my demo.sec"
    for begins in ("Indexing ", "Using the index that is there already"):
        demo(path)
        printed = capsys.readouterr()
        assert printed.out.startswith(begins)
        assert f"Now try:  python -m secateurs search '{path}' " in printed.out
        assert printed.err == ""
