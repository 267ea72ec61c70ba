"""TREC run files: qid, Q0, docno, rank, score, tag on each line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import SecateursError
from ..printing import trec_line
from .measures import Hits
from .topics import columns


def read_run(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    """qid -> (docno, score), best score first; the ranks in the file count for nothing, as in trec_eval."""
    run: dict[str, dict[str, float]] = {}
    for place, (qid, _, docno, _, score, _) in columns(Path(path), 6, "qid, Q0, docno, rank, score, tag"):
        hits = run.setdefault(qid, {})
        if docno in hits:
            raise SecateursError(f"{place}: {docno!r} is in the ranking of {qid!r} twice")
        try:
            hits[docno] = float(score)
        except ValueError as error:
            raise SecateursError(f"{place}: a score is a number, not {score!r}") from error
    if not run:
        raise SecateursError(f"{path} has no rankings in it")
    return {qid: sorted(hits.items(), key=lambda hit: -hit[1]) for qid, hits in run.items()}


def write_run(path: Path, rankings: Iterable[tuple[str, Hits]]) -> None:
    """(qid, hits) pairs to a file."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for qid, hits in rankings:
            for rank, (docno, score) in enumerate(hits, start=1):
                file.write(trec_line(qid, docno, rank, score) + "\n")


def file_name(label: str) -> str:
    """A setting's label as the name of a file."""
    return re.sub(r"[^A-Za-z0-9=._+-]+", "_", label).strip("._") or "run"
