"""Files of queries, plain or gzipped:

    .jsonl, .ndjson, .json   one JSON object a line, as in BEIR: the qid under one of QID_FIELDS, the text under one of
                             TEXT_FIELDS, everything else is ignored
    a folder                 of a BEIR collection: its queries.jsonl
    any other name           qid, tab, text on each line; or a text without a tab on each line, whose qid is the line's
                             number
    ir_datasets:ID           the queries of a dataset of ir_datasets

"-" is standard input. It is read as JSON if its first line is a JSON object. A .csv file is refused, and so are
judgements of BEIR, which are known by their header line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from .corpus import (
    IR_DATASETS,
    JSON_LINES,
    BadDocumentError,
    format_of,
    from_ir_datasets,
    json_object,
    numbered_lines,
    queries_file,
)
from .errors import SecateursError, UsageError

QID_FIELDS = ("qid", "_id", "id", "query_id")
TEXT_FIELDS = ("text", "query")
BEIR_QRELS_HEADER = ["query-id", "corpus-id", "score"]


def read_queries(source: str, named: bool = False) -> list[tuple[str, str]]:
    """(qid, text) of every query. A qid that occurs twice, or a query without text, is an error with its line.

    With `named`, every query must bring its qid: judgements name qids, and the number of a line may be another's qid.
    """
    if source.startswith(IR_DATASETS):
        return [(query.query_id, query.default_text()) for query in from_ir_datasets(source, "queries_iter")]
    source = source if source == "-" else str(queries_file(Path(source)))
    if format_of(Path(source)) == ".csv":
        raise UsageError(f"{source}: queries are lines of qid, tab, text, or JSON objects in a .jsonl file, not .csv")
    lines = read_lines(source)
    first = next(lines, None)
    if first is None:
        raise SecateursError(f"{source} has no queries in it")
    if first[1].split("\t") == BEIR_QRELS_HEADER:
        raise SecateursError(f"{source} has judgements (qrels) in it, not queries")
    is_json = isinstance(json_object(first[1]), dict) if source == "-" else format_of(Path(source)) in JSON_LINES
    lines = chain([first], lines)
    queries: list[tuple[str, str]] = []
    line_of: dict[str, int] = {}
    for number, qid, text in _json_queries(source, lines) if is_json else _tab_queries(source, lines, named):
        if not text:
            raise SecateursError(f"{source}, line {number}: the query {qid!r} has no text")
        if qid in line_of:
            raise SecateursError(f"{source}, line {number}: qid {qid!r} is already that of line {line_of[qid]}")
        line_of[qid] = number
        queries.append((qid, text))
    return queries


def read_lines(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file that are not blank, with their numbers; "-" is standard input."""
    if source != "-" and Path(source).is_dir():
        raise SecateursError(f"{source} is a folder, not a file")
    if source != "-" and not Path(source).exists():
        raise SecateursError(f"there is no file {source}")
    for number, line in numbered_lines(source):
        if isinstance(line, BadDocumentError):
            raise SecateursError(f"{source}, line {number}: {line}")
        yield number, line


def _json_queries(source: str, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    for number, line in lines:
        place, record = f"{source}, line {number}", json_object(line)
        if isinstance(record, BadDocumentError):
            raise SecateursError(f"{place}: {record}")
        qid = next((record[name] for name in QID_FIELDS if name in record), None)
        text = next((record[name] for name in TEXT_FIELDS if name in record), None)
        if isinstance(qid, int) and not isinstance(qid, bool):
            qid = str(qid)
        if not isinstance(qid, str) or not qid.strip():
            raise SecateursError(f"{place}: no qid (a text or a number under one of {', '.join(QID_FIELDS)})")
        if not isinstance(text, str):
            raise SecateursError(f"{place}: no text (under one of {', '.join(TEXT_FIELDS)})")
        yield number, qid.strip(), text.strip()


def _tab_queries(source: str, lines: Iterable[tuple[int, str]], named: bool) -> Iterator[tuple[int, str, str]]:
    with_tab: int | None = None  # the first line of either kind
    without_tab: int | None = None
    for number, line in lines:
        qid, tab, text = line.partition("\t")
        if tab:
            with_tab = with_tab or number
        else:
            without_tab = without_tab or number
        if with_tab and without_tab:
            raise SecateursError(f"{source}: line {with_tab} has a qid and a tab, line {without_tab} has not")
        if tab and not qid.strip():
            raise SecateursError(f"{source}, line {number}: has no qid before the tab")
        if named and not tab:
            raise SecateursError(f"{source}, line {number}: has no qid and tab before the query")
        yield (number, qid.strip(), text.strip()) if tab else (number, str(number), line.strip())
