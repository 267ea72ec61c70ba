"""What a row of an experiment is: an index under some settings, a run file, or a baseline (baselines.py).

They all answer the same question, a query at a time, and tell what it took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import SecateursError
from ..index import Index
from ..records import EncodedText, SearchSettings
from .measures import Hits
from .sweeps import plain, plain_word

UNCOUNTED = ("encode", "fetch")  # queries are encoded once; a thousand texts are fetched because an evaluation is deep

_LEFT_OPEN = ("p", "gather", "nprobe", "candidates")  # effort.py decides these

Settings = Mapping[str, str | int | None]


@dataclass(frozen=True)
class Query:
    qid: str
    text: str
    encoded: EncodedText  # once, for all systems


@dataclass(frozen=True)
class Outcome:
    """One query's ranking, and what it took. None where a system does not tell."""

    hits: Hits
    gathered: int | None = None  # documents found
    scored: int | None = None  # of those, scored exactly
    relevant_scored: int | None = None  # of those, relevant
    embeddings_kept: int | None = None
    kept: tuple[str, ...] = ()  # the tokens that gathered, most important first
    milliseconds: Mapping[str, float] = field(default_factory=dict)  # stage -> time
    used: Mapping[str, str | int | None] = field(default_factory=dict)  # what settings that were left open became


class System(Protocol):
    @property
    def name(self) -> str:
        """What it is: secateurs, bm25, run, ..."""

    @property
    def label(self) -> str:
        """What its row is called: no two rows of an experiment have the same."""

    @property
    def settings(self) -> Settings: ...

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        """Search, timed; then look, untimed, how many of the relevant documents were scored."""


class IndexSystem:
    """The index under some settings."""

    name = "secateurs"

    def __init__(self, index: Index, settings: SearchSettings, label: str) -> None:
        self.label = label
        self._index = index
        self._settings = settings
        self.settings: Settings = plain(settings)

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        ranking = self._index.search(query.encoded, **vars(self._settings))
        stats = ranking.stats
        hits = [(hit.docno, hit.score) for hit in ranking]
        tokens = ranking.query.token_ids[list(ranking.kept)].tolist()
        return Outcome(
            hits=hits,
            gathered=stats.documents_gathered,
            scored=stats.documents_scored,
            relevant_scored=self._relevant_scored(query, hits, stats.documents_scored, relevant),
            embeddings_kept=stats.embeddings_kept,
            kept=tuple(self._index.token_text(token) for token in tokens),
            milliseconds={stage: spent for stage, spent in stats.milliseconds.items() if stage != "encode"},
            used={name: plain_word(name, getattr(ranking.plan, name)) for name in _LEFT_OPEN},
        )

    def _relevant_scored(self, query: Query, hits: Hits, scored: int, relevant: set[str]) -> int:
        if scored == len(hits):
            return sum(docno in relevant for docno, _ in hits)
        if scored == len(self._index):
            return sum(docno in self._index for docno in relevant)
        return len(relevant.intersection(self._index.candidates(query.encoded, **vars(self._settings))))


class RunSystem:
    """Rankings that somebody else made."""

    name = "run"

    def __init__(self, label: str, run: Mapping[str, Sequence[tuple[str, float]]]) -> None:
        self.label = label
        self.settings: Settings = {}
        self._run = run

    def lacks(self, qids: Iterable[str]) -> int:
        """How many of these queries it has no ranking for; if it is all of them, it is a run of something else."""
        lacking = [qid not in self._run for qid in qids]
        if all(lacking):
            raise SecateursError(f"the run {self.label} has none of the queries: is it of another collection?")
        return sum(lacking)

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        return Outcome(hits=self._run.get(query.qid, []))
