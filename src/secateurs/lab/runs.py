"""TREC run files: qid, Q0, docno, rank, score, tag on each line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..errors import SecateursError
from ..queries import read_lines
from ..storage.files import write_atomically
from ..trec import trec_line
from .measures import Hits
from .topics import check_columns

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)


def read_run(path: str | Path) -> dict[str, list[tuple[str, float]]]:
    """qid -> (docno, score), best first. As in trec_eval, ranks are ignored, and a larger docno wins a tie."""
    run: dict[str, dict[str, float]] = {}
    for number, line in read_lines(str(path)):
        place, words = f"{path}, line {number}", line.split()
        check_columns(place, words, ("qid", "Q0", "docno", "rank", "score", "tag"))
        qid, _, docno, _, score, _ = words
        hits = run.setdefault(qid, {})
        if docno in hits:
            raise SecateursError(f"{place}: {docno!r} is in the ranking of {qid!r} twice")
        if not _NUMBER.fullmatch(score) or not math.isfinite(float(score)):
            raise SecateursError(f"{place}: a score is a number, not {score!r}")
        hits[docno] = float(score)
    if not run:
        raise SecateursError(f"{path} has no rankings in it")
    return {qid: sorted(hits.items(), key=lambda hit: (hit[1], hit[0]), reverse=True) for qid, hits in run.items()}


def write_run(path: Path, rankings: Iterable[tuple[str, Hits]]) -> None:
    """(qid, hits) pairs to a file, which is written whole or not at all."""

    def write(new: Path) -> None:
        with new.open("w", encoding="utf-8", newline="\n") as file:
            for qid, hits in rankings:
                for rank, (docno, score) in enumerate(hits, start=1):
                    file.write(trec_line(qid, docno, rank, score) + "\n")

    write_atomically(path, write)


def run_files(folder: Path, labels: Sequence[str]) -> list[Path]:
    """Where the run of each row goes."""
    paths = [folder / f"{file_name(label)}.run" for label in labels]
    if len(set(paths)) < len(paths):
        raise SecateursError("two rows would have the same run file: give them clearer names")
    return paths


def file_name(label: str) -> str:
    """A setting's label as the name of a file."""
    return re.sub(r"[^A-Za-z0-9=._+-]+", "_", label).strip("._") or "run"
