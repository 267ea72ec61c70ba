"""A row of an experiment is a system: the index under given settings, a run file, or a baseline (baselines.py).

Each searches a query at a time, and says what documents and time that took.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import SecateursError
from ..index import Index
from ..records import EncodedText
from ..settings import SearchSettings
from .measures import Hits
from .sweeps import plain, plain_word

# Stages that `milliseconds` leaves out: queries are encoded once, and only an evaluation fetches a thousand texts.
UNCOUNTED_STAGES = ("encode", "fetch")

_DECIDED_BY_EFFORT = ("p", "gather", "nprobe", "candidates")  # where they are left open: see effort.py

Settings = Mapping[str, str | int | None]


@dataclass(frozen=True)
class Query:
    qid: str
    text: str
    encoded: EncodedText  # encoded once, for all systems


@dataclass(frozen=True)
class Outcome:
    """The ranking of a query, and what it took. None where a system does not say."""

    hits: Hits
    gathered: int | None = None  # documents found
    scored: int | None = None  # of those, scored exactly
    relevant_scored: int | None = None  # of those, relevant
    embeddings_kept: int | None = None
    kept: tuple[str, ...] = ()  # the tokens that gathered, most important first
    milliseconds: Mapping[str, float] = field(default_factory=dict)  # stage -> time
    used: Mapping[str, str | int | None] = field(default_factory=dict)  # the values of settings that were left open


class System(Protocol):
    @property
    def name(self) -> str:
        """The kind of system: secateurs, bm25, run, ..."""

    @property
    def label(self) -> str:
        """The name of its row. No two rows of an experiment have the same."""

    @property
    def settings(self) -> Settings: ...

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        """Search, timed; then count, untimed, how many of the relevant documents were scored."""


class IndexSystem:
    """The index under given settings."""

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
            used={name: plain_word(name, getattr(ranking.plan, name)) for name in _DECIDED_BY_EFFORT},
        )

    def _relevant_scored(self, query: Query, hits: Hits, scored: int, relevant: set[str]) -> int:
        if scored == len(hits):
            return sum(docno in relevant for docno, _ in hits)
        if scored == len(self._index):
            return sum(docno in self._index for docno in relevant)
        return len(relevant.intersection(self._index.candidates(query.encoded, **vars(self._settings))))


class RunSystem:
    """Rankings that were read from a file."""

    name = "run"

    def __init__(self, label: str, run: Mapping[str, Sequence[tuple[str, float]]]) -> None:
        self.label = label
        self.settings: Settings = {}
        self._run = run

    def lacks(self, qids: Iterable[str]) -> int:
        """How many of these queries the run has no ranking for; an error if it has none of them."""
        lacking = [qid not in self._run for qid in qids]
        if all(lacking):
            raise SecateursError(f"the run {self.label} has none of the queries: is it of another collection?")
        return sum(lacking)

    def search(self, query: Query, relevant: set[str]) -> Outcome:
        return Outcome(hits=self._run.get(query.qid, []))
