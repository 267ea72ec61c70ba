"""Files to documents, with every kind of bad line."""

import gzip
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from secateurs import Document, EncodedText, Index, SecateursError
from secateurs.corpus import BadDocumentError, count_documents, read_corpus, read_texts, to_document
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import MissingExtraError, UsageError
from secateurs.records import is_blank


def write(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_jsonl_takes_docno_text_and_metadata(tmp_path: Path, suffix: str) -> None:
    path = write(
        tmp_path / f"c.jsonl{suffix}", '{"docno": "a", "text": "one", "year": 2020}\n\n{"_id": 7, "contents": "zwö"}\n'
    )
    assert list(read_corpus(path)) == [Document("a", "one", {"year": 2020}), Document("7", "zwö")]
    assert count_documents(path) == 3  # an upper bound: the blank line counts


def test_a_title_goes_in_front_of_the_text_and_stays_in_the_metadata() -> None:
    document = to_document({"_id": "a", "title": "Fish", "text": "They swim."})
    assert document == Document("a", "Fish They swim.", {"title": "Fish"})


def test_no_title_goes_in_front_of_a_full_text_and_another_text_comes_first() -> None:
    assert to_document({"_id": "a", "title": "Fish", "full_text": "They swim."}).text == "They swim."
    both = to_document({"_id": "a", "title": "Fish", "full_text": "all", "text": "They swim."})
    assert both == Document("a", "Fish They swim.", {"title": "Fish", "full_text": "all"})


def test_standard_input_is_read_as_jsonl_and_its_lines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b'{"docno": "a", "text": "one"}\nnonsense\n{"docno": "b", "text": "two"}\n'
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(lines)))
    problems: list[str] = []
    assert [document.docno for document in read_corpus("-", problems.append)] == ["a", "b"]
    assert problems[0].startswith("standard input, line 2: not JSON")
    assert count_documents("-") is None


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_folder_of_beir_is_its_corpus_file_and_another_folder_is_its_texts(tmp_path: Path, suffix: str) -> None:
    write(tmp_path / f"corpus.jsonl{suffix}", '{"_id": "1", "title": "Fish", "text": "swim."}\n')
    write(tmp_path / "README.md", "about")
    assert list(read_corpus(tmp_path)) == [Document("README.md", "about")]
    (tmp_path / "qrels").mkdir()
    assert list(read_corpus(tmp_path)) == [Document("1", "Fish swim.", {"title": "Fish"})]
    assert count_documents(tmp_path) == 1


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_tsv_splits_at_the_first_tab(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"c.tsv{suffix}", "a\tone\ttwo\r\nb\tthree\n")
    assert list(read_corpus(path)) == [Document("a", "one\ttwo"), Document("b", "three")]


def test_csv_has_a_header_and_quoted_line_breaks(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", '\ufeffid,text,lang\na,"one\ntwo",en\n')
    assert list(read_corpus(path)) == [Document("a", "one\ntwo", {"lang": "en"})]


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("2020", 2020),
        ("-3", -3),
        ("0", 0),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        (" 7 ", 7),
        ("\u00a02020", 2020),
        ("2020\u2003", 2020),
        ("007", "007"),
        ("+1", "+1"),
        (".5", ".5"),
        ("5.", "5."),
        ("1,5", "1,5"),
        ("1_000", "1_000"),
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("1e999", "1e999"),
        ("9" * 400, "9" * 400),
        ("true", "true"),
        ("null", "null"),
        ("0x10", "0x10"),
        ("٣", "٣"),
        (" en ", " en "),
    ],
)
def test_metadata_of_a_csv_is_a_number_where_it_reads_as_one_in_json(tmp_path: Path, cell: str, value: object) -> None:
    path = write(tmp_path / "c.csv", f'docno,text,value\na,one,"{cell}"\n')
    (document,) = read_corpus(path)
    assert document.metadata == {"value": value}
    assert type(document.metadata["value"]) is type(value)


def test_docno_text_and_title_of_a_csv_stay_text_and_an_empty_cell_is_no_value(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "docno,title,text,year,lang\n7,1984,2020,,\n8,,3,1999,en\n")
    assert list(read_corpus(path)) == [
        Document("7", "1984 2020", {"title": "1984"}),
        Document("8", "3", {"year": 1999, "lang": "en"}),
    ]


def test_columns_of_a_csv_that_are_not_the_docno_or_the_text_are_metadata_if_they_are_not_empty(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", "docno,id,text,body\na,,one,\n\nb,7,two,x\n")
    assert list(read_corpus(path)) == [Document("a", "one"), Document("b", "two", {"id": "7", "body": "x"})]


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("title;text", r"c\.csv: no column for the docno .*; the columns are: 'title;text'"),
        ("docno,words", r"c\.csv: no column for the text .*; the columns are: 'docno', 'words'"),
    ],
)
def test_a_csv_without_a_docno_or_text_column_lists_the_columns_found(
    tmp_path: Path, header: str, message: str
) -> None:
    path = write(tmp_path / "c.csv", f"{header}\na,b\n")
    for on_bad in (None, print):
        with pytest.raises(SecateursError, match=message):
            list(read_corpus(path, on_bad))


@pytest.mark.parametrize("text", ["", " \n", "\u00a0", "\u200b\u2060", "\x00\x1b", "\u00ad \ufeff", "\ue000"])
def test_a_text_of_white_space_control_and_zero_width_characters_is_blank(text: str) -> None:
    assert is_blank(text)
    assert not is_blank(f"{text}.{text}")
    with pytest.raises(BadDocumentError, match="text of 'a' is empty"):
        to_document({"docno": "a", "text": text})


@pytest.mark.parametrize("text", ["?", "\u0378", "\U0001f490", "\u00e9"])
def test_a_text_with_a_visible_or_unassigned_character_is_not_blank(text: str) -> None:
    assert to_document({"docno": "a", "text": text}).text == text


def test_a_folder_gives_its_text_files_under_their_paths(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub" / "b.md", "bee")
    write(tmp_path / "a.txt", "ay")
    write(tmp_path / "ignored.bin", b"\xff\xfe")
    assert list(read_corpus(tmp_path)) == [Document("a.txt", "ay"), Document("sub/b.md", "bee")]
    assert count_documents(tmp_path) == 2


BAD = [
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"text": "nameless"}\n', 2, "no docno"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x"}\n', 2, "no text"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": 5}\n', 2, "not a string"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "", "text": "x"}\n', 2, "non-empty"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": \n', 2, "not JSON"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n[1, 2]\n', 2, "not a JSON object"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": "\xff"}\n', 2, "not UTF-8"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": "\\ud800"}\n', 2, "not valid Unicode"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": ""}\n', 2, "text of 'x' is empty"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": " \\n\\u2003"}\n', 2, "text of 'x' is empty"),
    (
        "c.jsonl",
        b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "title": " ", "text": ""}\n',
        2,
        "text of 'x' is empty",
    ),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": null}\n', 2, "text of 'x' is not a string"),
    ("c.tsv", b"ok\tfine\nx\t\n", 2, "text of 'x' is empty"),
    ("c.csv", b"docno,text\nok,fine\nx, \n", 3, "text of 'x' is empty"),
    ("c.tsv", b"ok\tfine\nno tab here\n", 2, "no tab"),
    ("c.tsv", b"ok\tfine\n\xff\tx\n", 2, "not UTF-8"),
    ("c.csv", b"docno,text\nok,fine\nx\n", 3, "has 1 column, the header has 2"),
    ("c.csv", b"docno,text\nok,fine\nx,y,z\n", 3, "has 3 columns, the header has 2"),
    ("c.csv", b"docno,id,text\nok,1,fine\n,2,x\n", 3, "docno is not a non-empty string: ''"),
    ("c.csv", b"docno,id,text\nok,1,fine\n  ,2,x\n", 3, "docno is not a non-empty string: ''"),
    (
        "c.jsonl",
        '{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": "\u200b"}\n'.encode(),
        2,
        "text of 'x' is empty",
    ),
    ("c.csv", b"docno,text\nok,fine\nx,\xff\n", 3, "not valid Unicode"),
    ("c.csv", b"docno,text,by\nok,fine,\nx,fine,\xff\n", 3, "metadata of 'x' is not JSON"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n{"docno": "x", "text": "x", "y": NaN}\n', 2, "is not JSON"),
    ("c.jsonl", b'{"docno": "ok", "text": "fine"}\n' + b"[" * 100_000 + b"\n", 2, "not JSON"),
]


@pytest.mark.parametrize(("name", "content", "line", "reason"), BAD)
def test_a_bad_line_is_reported_with_its_number_or_skipped(
    tmp_path: Path, name: str, content: bytes, line: int, reason: str
) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(BadDocumentError, match=f"{name}, line {line}: .*{reason}"):
        list(read_corpus(path))
    problems: list[str] = []
    assert [(d.docno, d.text) for d in read_corpus(path, problems.append)] == [("ok", "fine")]
    assert len(problems) == 1


@pytest.mark.parametrize("name", ["c.jsonl.gz", "c.tsv.gz", "c.csv.gz"])
@pytest.mark.parametrize("damage", ["cut", "altered"])
def test_a_broken_gzip_file_says_where(tmp_path: Path, name: str, damage: str) -> None:
    lines = "".join(f"{i},{i * i}\n" for i in range(3000)).encode()
    content = bytearray(gzip.compress(b"docno,text\n" + lines))
    if damage == "cut":
        del content[-20:]
    else:
        content[len(content) // 2] ^= 0xFF
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SecateursError, match="cannot be read further"):
        list(read_corpus(tmp_path / name, on_bad=lambda problem: None))
    count_documents(tmp_path / name)


def test_an_open_quote_does_not_swallow_the_rest_of_a_csv(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", 'docno,text\na,fine\nb,"open\nc,lost\nd,lost\n')
    with pytest.raises(SecateursError, match="cannot be read further"):
        list(read_corpus(path))


@pytest.mark.parametrize(
    ("name", "message"), [("missing.jsonl", "no file or folder"), ("c.docx", r"ends in \.jsonl, \.tsv or \.csv")]
)
def test_a_wrong_path_is_an_error_that_says_what_is_right(tmp_path: Path, name: str, message: str) -> None:
    write(tmp_path / "c.docx", "x")
    with pytest.raises(SecateursError, match=message):
        read_corpus(tmp_path / name)


def test_an_empty_file_of_a_folder_is_reported_or_skipped(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "ay")
    write(tmp_path / "b.txt", "\n")
    with pytest.raises(BadDocumentError, match=r"b\.txt: text of 'b\.txt' is empty"):
        list(read_corpus(tmp_path))
    problems: list[str] = []
    assert list(read_corpus(tmp_path, problems.append)) == [Document("a.txt", "ay")]
    assert len(problems) == 1


def test_a_title_alone_is_a_text() -> None:
    assert to_document({"docno": "a", "title": "Fish", "text": ""}).text.strip() == "Fish"


def test_a_document_that_brings_its_embeddings_may_have_no_text() -> None:
    encoded = EncodedText(np.ones((2, 4)), [1, 2], [0, 0])
    assert to_document(Document("a", encoded=encoded)).encoded is encoded
    with pytest.raises(BadDocumentError, match="text of 'a' is empty"):
        to_document(Document("a"))


@pytest.mark.parametrize("encoded", [np.ones((2, 4)), [[1.0]], {"embeddings": [[1.0]]}])
def test_embeddings_of_a_document_that_are_no_encoded_text_are_refused(encoded: object) -> None:
    with pytest.raises(BadDocumentError, match="encoded of 'a' must be an EncodedText, not "):
        to_document(Document("a", "text", encoded=encoded))  # type: ignore[arg-type]


def test_an_index_is_built_without_the_documents_that_have_no_text(tmp_path: Path, encoder: OnnxEncoder) -> None:
    documents = [{"docno": "a", "text": "goldfish grow"}, {"docno": "b", "text": " "}, Document("c")]
    with pytest.raises(BadDocumentError, match="document 2: text of 'b' is empty"):
        Index.build(tmp_path / "x.sec", documents, encoder=encoder)
    problems: list[str] = []
    index = Index.build(tmp_path / "x.sec", documents, encoder=encoder, on_bad=problems.append)
    assert problems == ["document 2: text of 'b' is empty", "document 3: text of 'c' is empty"]
    index.add([{"docno": "b", "text": "\t"}], on_bad=problems.append)
    assert (len(index), len(problems)) == (1, 3)
    with pytest.raises(BadDocumentError, match="text of 'a' is empty"):
        index.update([Document("a", "")])
    assert index.get("a").text == "goldfish grow"


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SecateursError, match=r"no \.txt or \.md files"):
        list(read_corpus(tmp_path))


def test_ir_datasets_without_its_extra_names_the_pip_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ir_datasets", None)
    with pytest.raises(MissingExtraError, match=r'pip install "secateurs\[datasets\]"'):
        list(read_corpus("ir_datasets:vaswani"))


def test_usage_errors_are_value_errors_too() -> None:
    assert issubclass(UsageError, ValueError)


def test_a_file_of_texts_has_one_on_each_line_and_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "found.txt").write_bytes(b"\n one \nt\xff\n\nthree\n")
    problems: list[str] = []
    found = list(read_texts(str(tmp_path / "found.txt"), problems.append))
    assert [(document.docno, document.text) for document in found] == [("2", "one"), ("5", "three")]
    assert [problem.partition(", ")[2] for problem in problems] == ["line 3: not UTF-8 (invalid start byte at byte 1)"]
    with pytest.raises(BadDocumentError, match="line 3: not UTF-8"):
        list(read_texts(str(tmp_path / "found.txt")))
