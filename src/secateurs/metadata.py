"""Changes of documents' metadata, by docno: from a program, or from lines of a docno and keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .corpus import (
    DOCNO_FIELDS,
    JSON_LINES,
    STANDARD_INPUT,
    TEXT_FIELDS,
    BadDocumentError,
    check_metadata,
    first_of,
    format_of,
    read_jsonl,
)
from .errors import SecateursError, UsageError
from .records import Document, check_docno


def to_metadata(given: object) -> dict[str, dict[str, Any]]:
    """Checked changes of metadata, by docno."""
    if not isinstance(given, Mapping):
        raise UsageError(f'metadata are given by docno, such as {{"d1": {{"year": 2020}}}}, not {type(given).__name__}')
    for docno, metadata in given.items():
        check_docno(docno)
        check_metadata(docno, metadata)
    return {docno: dict(metadata) for docno, metadata in given.items()}


def read_metadata(source: str | Path) -> dict[str, dict[str, Any]]:
    """Changes of metadata from a jsonl file: a docno and keys on each line, and no text."""
    if source != STANDARD_INPUT and format_of(Path(source)) not in JSON_LINES:
        raise UsageError(f"{source}: changes of metadata are lines of JSON, in a .jsonl file (.gz too)")
    if source != STANDARD_INPUT and not Path(source).is_file():
        raise SecateursError(f"there is no file {source}")
    changes: dict[str, dict[str, Any]] = {}
    for place, item in read_jsonl(source):
        fields = {} if isinstance(item, BadDocumentError | Document) else dict(item)
        docno_field, text_field = first_of(DOCNO_FIELDS, fields), first_of(TEXT_FIELDS, fields)
        docno = fields.pop(docno_field, None) if docno_field else None
        docno = str(docno) if isinstance(docno, int) and not isinstance(docno, bool) else docno
        problem: object = None
        if isinstance(item, BadDocumentError):
            problem = item
        elif not isinstance(docno, str) or not docno:
            problem = f"no docno (one of {', '.join(DOCNO_FIELDS)})"
        elif text_field is not None:
            problem = f"has a text ({text_field}): to replace texts, update without --metadata-only"
        elif docno in changes:
            problem = f"docno {docno!r} is in an earlier line too"
        if problem is not None or not isinstance(docno, str):
            raise BadDocumentError(f"{place}: {problem}")
        changes[docno] = fields
    return changes
