"""The documents of an index to a file, one after the other.

    jsonl     what  secateurs index  reads: docno, text and metadata in one object a line. A title in front of the text
              is taken off it, because reading puts it there; a text without its title in front is under "full_text"
    trec      <DOC>, <DOCNO> and <TEXT>, as TREC collections have them; without metadata. &, < and > are written as
              entities
    parquet   docno, text, metadata and embeddings, which  secateurs import  reads: see exported_table.py

jsonl and trec may be gzipped, or go to standard output. A file gets its name when it is complete.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from html import escape
from pathlib import Path
from typing import IO, Any

from ..corpus import FULL_TEXT, TEXT_FIELDS, format_of, title_before
from ..errors import SecateursError, UsageError
from ..progress import progress_bar
from ..records import Document
from ..settings import check_choice
from ..storage.files import write_atomically
from ..storage.origin import Origin
from .exported_table import write_table

STANDARD_OUTPUT = "-"
FORMATS = ("jsonl", "parquet", "trec")
_BY_ENDING = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".trec": "trec", ".parquet": "parquet"}


def export(
    documents: Callable[..., Iterator[Document]],
    total: int,
    origin: Callable[[], Origin],
    file: str | Path,
    format: str | None,
    overwrite: bool,
    progress: bool | None,
) -> int:
    """`documents` and `origin` are those of an index; give how many documents were written."""
    format = _format(file, format)
    path = Path(file)
    if file == STANDARD_OUTPUT:
        return _write(sys.stdout.buffer, documents(embeddings=False), total, format, progress)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file")
    if path.exists() and not overwrite:
        raise SecateursError(f"there is a file {path} already: choose another name, or replace it with --overwrite")
    if not path.parent.is_dir():
        raise SecateursError(f"there is no folder {path.parent}")
    count = 0

    def write(new: Path) -> None:
        nonlocal count
        if format == "parquet":
            with progress_bar("exporting documents", total, "documents", progress) as advance:
                count = write_table(new, documents(), origin(), advance)
            return
        # No name and no time in the header, so that the same documents are the same bytes.
        with new.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as zipped:
                    count = _write(zipped, documents(embeddings=False), total, format, progress)
            else:
                count = _write(raw, documents(embeddings=False), total, format, progress)

    write_atomically(path, write)
    return count


def _format(file: str | Path, given: str | None) -> str:
    if given is not None:
        check_choice("format", given, FORMATS)
    by_name = _BY_ENDING.get(format_of(Path(file)))
    found = given or by_name or ("jsonl" if file == STANDARD_OUTPUT else None)
    if found is None:
        raise UsageError(f"{file}: end the name in .jsonl, .trec (and .gz if gzipped) or .parquet, or give a format")
    if found == "parquet" and (file == STANDARD_OUTPUT or Path(file).suffix == ".gz"):
        raise UsageError("parquet goes to a file, and is compressed already: end the name in .parquet")
    return found


def _write(
    file: IO[bytes] | gzip.GzipFile, documents: Iterable[Document], total: int, format: str, progress: bool | None
) -> int:
    line_of = json_line if format == "jsonl" else _trec
    count = 0
    with progress_bar("exporting documents", total, "documents", progress) as advance:
        for document in documents:
            file.write(line_of(document).encode())
            count += 1
            advance(1)
    file.flush()
    return count


def json_line(document: Document) -> str:
    """A line that  secateurs index  reads as the same document."""
    metadata = dict(document.metadata)
    field, text, before = "text", document.text, title_before(metadata.get("title"))
    if before and text.startswith(before):
        text = text.removeprefix(before)
    elif before:
        field = FULL_TEXT
    # Of several fields for the text, the first is read.
    taken = {"docno", *TEXT_FIELDS[: TEXT_FIELDS.index(field) + 1]}
    for name in sorted(taken & metadata.keys()):
        raise SecateursError(
            f"document {document.docno!r} has {name!r} in its metadata, which a line of jsonl has no room for: export "
            "it as .parquet, or remove that key"
        )
    fields: dict[str, Any] = {"docno": document.docno, field: text, **metadata}
    return json.dumps(fields, ensure_ascii=False) + "\n"


def _trec(document: Document) -> str:
    docno, text = escape(document.docno, quote=False), escape(document.text, quote=False)
    return f"<DOC>\n<DOCNO>{docno}</DOCNO>\n<TEXT>\n{text}\n</TEXT>\n</DOC>\n"
