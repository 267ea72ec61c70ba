"""A line of a TREC run: qid, Q0, docno, rank, score, tag."""

from __future__ import annotations

from .errors import SecateursError


def trec_line(qid: str, docno: str, rank: int, score: float) -> str:
    for name, value in (("qid", qid), ("docno", docno)):
        if len(value.split()) != 1:
            raise SecateursError(f"{name} {value!r} has white space in it, which a TREC run cannot hold: JSON can")
    return f"{qid} Q0 {docno} {rank} {score:.6f} secateurs"
