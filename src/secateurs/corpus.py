"""Files to documents, one at a time: jsonl, tsv, csv, a folder, standard input, or an ir_datasets id.

    jsonl   one JSON object a line; docno and text under their usual names (DOCNO_FIELDS, TEXT_FIELDS), a "title" goes
            in front of the text, everything else is metadata. A text under "full_text" is the whole text, and no title
            goes in front of it
    tsv     docno, tab, text
    csv     a header line, then as jsonl. Metadata that reads as a JSON number is that number (2020, -1.5, 1e3);
            everything else is text (007, true, NaN); an empty cell is no metadata, and an empty docno is an error
    folder  that of a BEIR collection (corpus.jsonl, and queries.jsonl or qrels/): its corpus.jsonl. Otherwise every
            .txt and .md file below it; the docno is the path inside the folder
    -       standard input, as jsonl

Plain or gzipped. A bad line raises, with its line number, or is handed to `on_bad` and skipped.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import IO, Any

from .errors import SecateursError, UsageError, require
from .records import Document, EncodedText, is_blank

DOCNO_FIELDS = ("docno", "_id", "id", "doc_id", "docid", "pid")
FULL_TEXT = "full_text"
TEXT_FIELDS = ("text", "contents", "body", "passage", FULL_TEXT)
STANDARD_INPUT = "-"
TEXT_SUFFIXES = (".txt", ".md")
JSON_LINES = (".jsonl", ".ndjson", ".json")
IR_DATASETS = "ir_datasets:"
_ALWAYS_TEXT = {*DOCNO_FIELDS, *TEXT_FIELDS, "title"}
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 300  # digits; Python refuses to read much longer whole numbers
_DEEPEST = 100  # levels of metadata, so that reading them recursively does not run out of stack
BROKEN_FILE = (OSError, EOFError, zlib.error)

OnBad = Callable[[str], None]


class BadDocumentError(SecateursError):
    """One document cannot be used. The message names the place and the reason."""


def to_document(item: Document | Mapping[str, Any]) -> Document:
    """A document from a mapping with a docno, a text and anything else as metadata, or BadDocumentError.

    The text must not be blank (`is_blank`), unless the document brings its embeddings (`encoded`).
    """
    if isinstance(item, Document):
        document = item
    elif isinstance(item, Mapping):
        fields = dict(item)
        docno_field, text_field = first_of(DOCNO_FIELDS, fields), first_of(TEXT_FIELDS, fields)
        if docno_field is None:
            raise BadDocumentError(f"no docno (one of {', '.join(DOCNO_FIELDS)})")
        if text_field is None:
            raise BadDocumentError(f"no text (one of {', '.join(TEXT_FIELDS)})")
        docno, text = fields.pop(docno_field), fields.pop(text_field)
        if isinstance(docno, int) and not isinstance(docno, bool):
            docno = str(docno)
        title = fields.get("title")
        if isinstance(text, str) and text_field != FULL_TEXT:
            text = title_before(title) + text
        document = Document(docno, text, fields)
    else:
        raise BadDocumentError(f"a document is a mapping or a Document, not {type(item).__name__}")
    if not isinstance(document.docno, str) or not document.docno:
        raise BadDocumentError(f"docno is not a non-empty string: {document.docno!r}")
    if not isinstance(document.text, str):
        raise BadDocumentError(f"text of {document.docno!r} is not a string: {document.text!r:.60}")
    if document.encoded is not None and not isinstance(document.encoded, EncodedText):
        raise BadDocumentError(
            f"encoded of {document.docno!r} must be an EncodedText, not {type(document.encoded).__name__}"
        )
    for what, string in (("docno", document.docno), ("text", document.text)):
        try:
            string.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadDocumentError(f"{what} of {document.docno!r} is not valid Unicode ({error.reason})") from error
    if document.encoded is None and is_blank(document.text):
        raise BadDocumentError(f"text of {document.docno!r} is empty")
    check_metadata(document.docno, document.metadata)
    return document


def check_metadata(docno: str, metadata: object) -> None:
    """BadDocumentError unless it can be stored: a JSON object that is not nested too deep."""
    if not isinstance(metadata, Mapping):
        raise BadDocumentError(f"metadata of {docno!r} is not a mapping: {metadata!r:.60}")
    for key in metadata:
        if not isinstance(key, str):  # JSON would store 1 as "1", a key that may be there beside it
            raise BadDocumentError(f"metadata of {docno!r} has the key {key!r:.60}: keys are texts")
    try:
        packed = json.dumps(dict(metadata), ensure_ascii=False, allow_nan=False)
        packed.encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadDocumentError(f"metadata of {docno!r} is not JSON ({error})") from error
    if packed.count("{") + packed.count("[") > _DEEPEST and _depth(metadata) > _DEEPEST:
        raise BadDocumentError(f"metadata of {docno!r} is nested more than {_DEEPEST} deep")


def title_before(title: object) -> str:
    """What goes in front of the text of a document with this title."""
    return f"{title.strip()} " if isinstance(title, str) and title.strip() else ""


def first_of(names: Iterable[str], fields: Collection[str]) -> str | None:
    return next((name for name in names if name in fields), None)


def _depth(value: Any) -> int:
    if isinstance(value, Mapping):
        value = list(value.values())
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list | tuple) else 0


def read_corpus(source: str | Path, on_bad: OnBad | None = None) -> Iterator[Document]:
    """The documents of a file, a folder, "-" (standard input) or "ir_datasets:ID", streamed."""
    return (document for _, document in read_places(source, on_bad))


def read_places(source: str | Path, on_bad: OnBad | None = None) -> Iterator[tuple[str, Document]]:
    """The same, each with the place that it was read from, for error messages."""
    if str(source).startswith(IR_DATASETS):
        return checked(_ir_dataset(str(source)), on_bad)
    if source == STANDARD_INPUT:
        return checked(read_jsonl(source), on_bad)
    path = corpus_file(Path(source))
    if path.is_dir():
        return checked(_folder(path), on_bad)
    if not path.exists():
        raise SecateursError(f"there is no file or folder {path}")
    if format_of(path) not in _READERS:
        raise UsageError(f"{path}: a corpus ends in .jsonl, .tsv or .csv (and .gz if gzipped), or is a folder")
    return checked(_READERS[format_of(path)](path), on_bad)


def read_texts(source: str, on_bad: OnBad | None = None) -> Iterator[Document]:
    """What `read_corpus` reads; and of a file with any other ending a text on each line, by the number of the line.

    "-" is standard input: JSON objects as in a .jsonl file if its first line is one, otherwise a text on each line.
    """
    path = Path(source)
    if source != STANDARD_INPUT and (not path.is_file() or format_of(path) in _READERS):
        return read_corpus(source, on_bad)
    lines = numbered_lines(source)
    first = next(lines, None)
    if first is None:
        return iter(())
    is_json = source == STANDARD_INPUT and isinstance(first[1], str) and isinstance(json_object(first[1]), dict)

    def parsed() -> Iterator[tuple[_Place, _Parsed]]:
        for number, line in chain([first], lines):
            place = f"{source}, line {number}"
            if isinstance(line, BadDocumentError):
                yield place, line
            else:
                yield place, json_object(line) if is_json else Document(str(number), line.strip())

    return (document for _, document in checked(parsed(), on_bad))


def corpus_file(path: Path) -> Path:
    """The corpus.jsonl of a BEIR collection's folder; any other path as it is."""
    if path.is_dir() and (_in_folder(path, "queries.jsonl") or (path / "qrels").is_dir()):
        return _in_folder(path, "corpus.jsonl") or path
    return path


def queries_file(path: Path) -> Path:
    """The same for its queries.jsonl."""
    return (_in_folder(path, "queries.jsonl") or path) if path.is_dir() else path


def _in_folder(folder: Path, name: str) -> Path | None:
    return next((folder / f"{name}{gz}" for gz in ("", ".gz") if (folder / f"{name}{gz}").is_file()), None)


def with_places(
    documents: str | Path | Iterable[Document | Mapping[str, Any]], on_bad: OnBad | None
) -> tuple[Iterator[tuple[str, Document | Mapping[str, Any]]], int | None]:
    """Documents in any form that can be given, as (place, document) pairs, and how many to expect."""
    if isinstance(documents, str | Path):
        return read_places(documents, on_bad), count_documents(documents)
    if isinstance(documents, Mapping | Document) or not isinstance(documents, Iterable):
        raise UsageError(
            "documents are a list of mappings or of Document records, or the path of a corpus, "
            f"not {type(documents).__name__}"
        )
    total = len(documents) if isinstance(documents, Sequence) else None
    return ((f"document {i}", document) for i, document in enumerate(documents, start=1)), total


def count_documents(source: str | Path) -> int | None:
    """How many documents to expect, for a progress bar; None if counting would be as long as reading."""
    path = corpus_file(Path(source))
    if path.is_dir():
        return sum(1 for _ in text_files(path))
    if not path.is_file() or format_of(path) == ".csv":
        return None  # a csv record may span lines
    with open_file(path) as file:
        try:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))
        except BROKEN_FILE:
            return None  # a broken gzip file is reported by the reader, with its place


_Place = str
_Parsed = Document | Mapping[str, Any] | BadDocumentError


def checked(items: Iterable[tuple[_Place, _Parsed]], on_bad: OnBad | None) -> Iterator[tuple[_Place, Document]]:
    """Items as documents; an item that cannot be used raises, with its place, or goes to `on_bad`."""
    for place, item in items:
        try:
            if isinstance(item, BadDocumentError):
                raise item
            document = to_document(item)
        except BadDocumentError as error:
            if on_bad is None:
                raise BadDocumentError(f"{place}: {error}") from error
            on_bad(f"{place}: {error}")
        else:
            yield place, document


def open_file(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def format_of(path: Path) -> str:
    """The ending that says what is in a file: that before .gz, if it is gzipped."""
    return path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix


def numbered_lines(source: str | Path) -> Iterator[tuple[int, str | BadDocumentError]]:
    """The lines of a UTF-8 file that are not blank, with their numbers; "-" is standard input.

    Lines are split as bytes, so that a broken character spoils one line and not the file.
    """
    with nullcontext(sys.stdin.buffer) if source == STANDARD_INPUT else open_file(Path(source)) as file:
        number = 0
        try:
            for number, line in enumerate(file, start=1):
                try:
                    text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                except UnicodeDecodeError as error:
                    yield number, BadDocumentError(f"not UTF-8 ({error.reason} at byte {error.start})")
                    continue
                if text.strip():
                    yield number, text
        except BROKEN_FILE as error:
            raise SecateursError(f"{source}, after line {number}: cannot be read further ({error})") from error


def json_object(line: str) -> dict[str, Any] | BadDocumentError:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadDocumentError(f"not JSON ({error})")
    return value if isinstance(value, dict) else BadDocumentError("not a JSON object")


def read_jsonl(source: str | Path) -> Iterator[tuple[_Place, _Parsed]]:
    name = "standard input" if source == STANDARD_INPUT else source
    for number, line in numbered_lines(source):
        yield f"{name}, line {number}", json_object(line) if isinstance(line, str) else line


def _tsv(path: Path) -> Iterator[tuple[_Place, _Parsed]]:
    for number, line in numbered_lines(path):
        yield f"{path}, line {number}", _tab_separated(line) if isinstance(line, str) else line


def _tab_separated(line: str) -> Document | BadDocumentError:
    docno, tab, text = line.partition("\t")
    return Document(docno, text) if tab else BadDocumentError("no tab between docno and text")


def _csv(path: Path) -> Iterator[tuple[_Place, _Parsed]]:
    csv.field_size_limit(1 << 30)
    with open_file(path) as file:
        # surrogateescape carries broken bytes through the parser, so that only the record with them is bad
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(text, strict=True)  # an open quote must not swallow the rest of the file
        try:
            header = next((row for row in rows if row), [])
            for what, names in (("docno", DOCNO_FIELDS), ("text", TEXT_FIELDS)):
                if header and first_of(names, header) is None:
                    raise SecateursError(
                        f"{path}: no column for the {what} (one of {', '.join(names)}); "
                        f"the columns are: {', '.join(map(repr, header))}"
                    )
            for row in rows:
                place = f"{path}, line {rows.line_num}"
                if len(row) == len(header):
                    yield place, _typed(dict(zip(header, row, strict=True)))
                elif row:  # an empty line is no record
                    columns = f"{len(row)} column{'' if len(row) == 1 else 's'}"
                    yield place, BadDocumentError(f"has {columns}, the header has {len(header)}")
        except (csv.Error, *BROKEN_FILE) as error:
            raise SecateursError(f"{path}, line {rows.line_num}: cannot be read further ({error})") from error


_READERS = {**dict.fromkeys(JSON_LINES, read_jsonl), ".tsv": _tsv, ".csv": _csv}


def _typed(row: Mapping[str, str]) -> dict[str, Any]:
    """A row whose metadata are numbers where a cell reads as a JSON number; an empty cell is left out.

    What names and makes the document stays text, and so does what JSON does not call a number: 007, +1, NaN. The cells
    that to_document takes as docno and text stay even if they are empty, so that it refuses the row.
    """
    required = (first_of(DOCNO_FIELDS, row), first_of(TEXT_FIELDS, row))
    return {
        name: (cell if name in _ALWAYS_TEXT else _number_or_text(cell)) if cell.strip() else ""
        for name, cell in row.items()
        if name in required or cell.strip()
    }


def _number_or_text(cell: str) -> int | float | str:
    stripped = cell.strip()
    if len(cell) > _LONGEST_NUMBER or not _JSON_NUMBER.fullmatch(stripped):
        return cell
    value: int | float = json.loads(stripped)  # json.loads alone would refuse a no-break space
    return value if math.isfinite(value) else cell


def text_files(folder: Path) -> Iterator[Path]:
    """The files of a folder that are documents."""
    return (path for path in sorted(folder.rglob("*")) if path.suffix in TEXT_SUFFIXES and path.is_file())


def _folder(folder: Path) -> Iterator[tuple[_Place, _Parsed]]:
    empty = True
    for path in text_files(folder):
        empty = False
        try:
            yield str(path), Document(path.relative_to(folder).as_posix(), path.read_text("utf-8"))
        except UnicodeDecodeError as error:
            yield str(path), BadDocumentError(f"not UTF-8 ({error.reason} at byte {error.start})")
    if empty:
        raise SecateursError(f"{folder} has no {' or '.join(TEXT_SUFFIXES)} files")


def _ir_dataset(source: str) -> Iterator[tuple[_Place, _Parsed]]:
    for number, document in enumerate(from_ir_datasets(source, "docs_iter"), start=1):
        name = source.removeprefix(IR_DATASETS)
        yield f"{name}, document {number}", Document(document.doc_id, document.default_text())


def from_ir_datasets(source: str, method: str) -> Iterator[Any]:
    """What a dataset of "ir_datasets:ID" gives by docs_iter, queries_iter or qrels_iter."""
    name = source.removeprefix(IR_DATASETS)
    library = require("ir_datasets", "datasets")
    contents = {"docs_iter": "documents", "queries_iter": "queries", "qrels_iter": "judgements"}[method]
    try:
        yield from getattr(library.load(name), method)()
    except (KeyError, AttributeError) as error:
        raise SecateursError(f"ir_datasets has no {name!r} with {contents}") from error
    except (RuntimeError, OSError) as error:
        raise SecateursError(
            f"ir_datasets cannot download {name!r}: is there a network? Files work without one"
        ) from error
