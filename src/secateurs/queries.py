"""Files of queries: qid, tab, text on each line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from .errors import SecateursError


def read_lines(source: str) -> Iterator[str]:
    """The lines of a UTF-8 file; "-" is standard input."""
    if source != "-" and not Path(source).is_file():
        raise SecateursError(f"there is no file {source}")
    lines = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    for number, line in enumerate(lines.splitlines(), start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise SecateursError(f"{source}, line {number}: not UTF-8 ({error.reason})") from error


def read_queries(source: str, named: bool = False) -> Iterator[tuple[str, str]]:
    """(qid, text) pairs; "-" is standard input.

    A line without a tab is a query whose qid is its line number. If they must be `named`, it is an error: judgements
    are of qids, and the number of a line may be the qid of another query.
    """
    for number, text in enumerate(read_lines(source), start=1):
        if text.strip():
            qid, tab, rest = text.partition("\t")
            if named and not (tab and qid.strip()):
                raise SecateursError(f"{source}, line {number}: has no qid and tab before the query")
            yield (qid.strip(), rest.strip()) if tab else (str(number), text.strip())
