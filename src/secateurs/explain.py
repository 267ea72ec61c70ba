"""Why a document has its score, and which query embeddings gather it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .cancellation import stop_if_cancelled
from .fusion import Scores
from .gather import gatherer
from .gather.text import score_words
from .html_views import MapRow, Viewed, Viewer, explanation_html
from .importance import word_rarity
from .records import EncodedText, TokenKind
from .relevance import Curve, relevances
from .search import Decision, Searchable, Searched, decide, gather, score
from .settings import SearchSettings, ways
from .storage.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TokenExplanation:
    """A query embedding: its place in the importance order, and its best match in the document."""

    position: int
    token: str
    kind: str  # word, punctuation, cls, marker, sep, mask
    collection_frequency: int
    importance: int  # 1 is the most important
    kept: bool  # used for gathering
    gathers: bool  # it alone gathers this document (False for embeddings that are not kept)
    rarity: float  # between 0, as common as any word, and 1, the rarest word of the query; 0 for special tokens
    weight: float  # what it counts for in the score: 1 in Eq. 1
    similarity: float  # with its best match, without the weight
    match: str  # the document's token with that similarity
    match_positions: tuple[int, ...]  # where it is; more than one if the document's embeddings were merged

    @property
    def is_word(self) -> bool:
        return self.kind in ("word", "punctuation")

    @property
    def name(self) -> str:
        """The token; of a summary what it is, because its token says nothing."""
        return "whole query" if self.kind == "summary" else self.token


@dataclass(frozen=True, slots=True)
class Explanation(Viewed):
    docno: str
    score: float  # exact: the sum of weight * similarity over the tokens, Eq. 1 if all weights are 1
    relevance: float  # as that of a hit
    gathered: bool  # at least one kept embedding gathers it, or with gather="text" a word
    rank: int | None  # among the documents that were scored; None if it was not scored
    documents_scored: int
    tokens: tuple[TokenExplanation, ...]  # in order of importance
    text_score: float | None = None  # BM25 of the query's words, 0 if it has none; None if no text was used

    def __repr__(self) -> str:
        kept = sum(token.kept for token in self.tokens)
        return (
            f"Explanation({self.docno!r}, score={self.score:.3f}, relevance={self.relevance:.2f}, rank={self.rank}: "
            f"{kept} of {len(self.tokens)} embeddings gather)"
        )

    def _repr_html_(self) -> str:
        text = "" if self.viewer is None else self.viewer.text(self.docno)
        marks = () if self.viewer is None else self.viewer.marks(self.docno, text)
        columns, rows = ([], []) if self.viewer is None else self._map(self.viewer)
        words = "" if self.text_score is None else f"BM25 {self.text_score:.3f}, "
        numbers = f"score {self.score:.3f}, relevance {self.relevance:.2f}, {words}"
        finders = ", ".join(token.name for token in self.tokens if token.gathers)
        if not finders:  # with gather="text", it was gathered by a word all the same
            finders = "its words" if self.gathered else "no embedding that was kept"
        place = "not scored" if self.rank is None else f"rank {self.rank:,} of {self.documents_scored:,} scored"
        return explanation_html(self.docno, [numbers + place, f"gathered by {finders}"], text, marks, columns, rows)

    def _map(self, viewer: Viewer) -> tuple[list[str], list[MapRow]]:
        """The words of the query, and what else gathers, against the document's tokens that match them best."""
        document = viewer.document_tokens(self.docno)
        shown = [token for token in self.tokens if (token.is_word or token.kept) and token.match_positions]
        # Of a merged word, its first place stands for all.
        places = sorted({token.match_positions[0] for token in shown if token.match_positions[0] < len(document)})
        rows = [
            MapRow(
                token.name,
                ("yes" if token.gathers else "no") if token.kept else "pruned",
                token.weight,
                [document[place][1][token.position] for place in places],
                [place in token.match_positions for place in places],
            )
            for token in shown
        ]
        return [document[place][0] for place in places], rows


@dataclass(frozen=True, slots=True)
class Evidence:
    """Facts about a document from the index that holds it. Arrays are (query positions,)."""

    score: float
    gathers: NDArray[np.bool_]
    similarity: NDArray[np.float64]  # of the best match, without the weights
    match_positions: tuple[tuple[int, ...], ...]  # of each query position; () in a document without embeddings
    match_token: NDArray[np.int32]  # at the first of them
    text_score: float | None  # BM25; None if no text was used
    gathered_by_text: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of a document among the documents that one index scores."""

    better: int  # documents that rank before it
    scored: int
    is_scored: bool  # whether the document itself is scored
    scores: Scores | None = None  # with fuse, by which `better` counts only documents with the same scores


class Explained(Searched, Protocol):
    """What a search runs over, with what `explain` needs."""

    def evidence(self, decision: Decision, docno: str) -> Evidence: ...

    def standings(
        self, decision: Decision, settings: SearchSettings, score: float, text_score: float | None, docno: str
    ) -> Sequence[Standing]:
        """One for an index, or one for each shard."""


class Explainable(Searchable, Protocol):
    def searched(self) -> Explained: ...

    def token_text(self, token_id: int) -> str: ...


def explain(index: Explainable, query: str | EncodedText, docno: str, settings: SearchSettings) -> Explanation:
    encoded = index.encode_query(query)
    searched = index.searched()
    decision = decide(searched, encoded, settings)
    evidence = searched.evidence(decision, docno)
    standings = searched.standings(decision, settings, evidence.score, evidence.text_score, docno)
    frequency = decision.matching.frequencies.collection_frequency(encoded.token_ids)
    rarity = word_rarity(encoded, decision.matching.frequencies)
    weights = decision.query.all_weights
    kept = set(decision.kept.tolist())
    tokens = []
    for importance, position in enumerate(decision.ordered.tolist(), start=1):
        matches = evidence.match_positions[position]
        tokens.append(
            TokenExplanation(
                position=position,
                token=index.token_text(int(encoded.token_ids[position])),
                kind=TokenKind(encoded.token_kinds[position]).name.lower(),
                collection_frequency=int(frequency[position]),
                importance=importance,
                kept=position in kept,
                gathers=bool(evidence.gathers[position]),
                rarity=float(rarity[position]),
                weight=float(weights[position]),
                similarity=float(evidence.similarity[position]),
                match=index.token_text(int(evidence.match_token[position])) if matches else "",
                match_positions=matches,
            )
        )
    is_scored = any(standing.is_scored for standing in standings)
    better = sum(standing.better for standing in standings)
    among = [standing.scores for standing in standings if standing.scores is not None]
    if among and is_scored:
        better += Scores.of_all(among).better_than(evidence.score, evidence.text_score or 0.0)
    return Explanation(
        docno=docno,
        score=evidence.score,
        relevance=relevances(decision.query, [evidence.score], Curve.of(index.encoder_spec))[0],
        gathered=bool(evidence.gathers.any()) or evidence.gathered_by_text,
        rank=1 + better if is_scored else None,
        documents_scored=sum(standing.scored for standing in standings),
        tokens=tuple(tokens),
        text_score=evidence.text_score,
    )


def find_evidence(snapshot: Snapshot, decision: Decision, docno: str) -> Evidence:
    """The score, and for each query embedding its best match and whether it alone gathers the document."""
    query = decision.query
    number = snapshot.number(docno)
    similarities, tokens = snapshot.similarities(query, docno)  # (document positions, query embeddings), (positions,)
    best = best_matches(similarities)
    every_candidate = replace(decision.plan, candidates=max(len(snapshot), 1))
    by_embeddings = decision.plan.gather.removesuffix("+text")
    gather_with = gatherer(snapshot, by_embeddings)
    gathers = np.zeros(len(query), dtype=bool)
    for i, position in enumerate(decision.kept.tolist() if by_embeddings != "text" else []):
        stop_if_cancelled()
        each = every_candidate.nprobe_each
        as_in_search = replace(every_candidate, nprobe_each=each and each[i : i + 1])
        alone, _ = gather_with.gather(query, np.array([position]), as_in_search, decision.matching.allowed)
        gathers[position] = number in alone
    text_score, allowed = None, decision.matching.allowed
    if decision.plan.words is not None:
        text_score = float(score_words(snapshot.segments, decision.plan.words)[number]) if snapshot.embedded else 0.0
    return Evidence(
        score=float(score(snapshot, query, np.array([number]))[0]),
        gathers=gathers,
        similarity=similarities.max(axis=0) if len(similarities) else np.full(len(query), -np.inf),
        match_positions=tuple(tuple(np.flatnonzero(column).tolist()) for column in best.T),
        match_token=tokens[best.argmax(axis=0)] if len(similarities) else np.zeros(len(query), dtype=np.int32),
        text_score=text_score,
        gathered_by_text="text" in ways(decision.plan.gather)
        and bool(text_score)
        and len(similarities) > 0
        and (allowed is None or bool(allowed[number])),
    )


def best_matches(similarities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a position of the document is the best match of a query embedding, both as in `similarities`.

    Positions whose embeddings were merged have the same similarities, so a query embedding may have several.
    """
    best: NDArray[np.bool_] = similarities == similarities.max(axis=0, initial=-np.inf)
    return best


def find_standing(
    snapshot: Snapshot, decision: Decision, own_score: float, own_text: float | None, docno: str
) -> Standing:
    """Gather and score as `search.find` does, without cutting at k, and count the documents that rank before it."""
    documents, _, plan = gather(snapshot, decision)
    scores = score(snapshot, decision.query, documents, plan=plan)
    documents = documents[: len(scores)]
    better = int((scores > own_score).sum())
    is_equal = scores == own_score
    both = None
    if plan.fuse is not None and plan.words is not None:
        both = Scores.of(snapshot, plan.words, documents, scores)
        better, is_equal = 0, is_equal & (both.text == own_text)
    before = sum(other < docno for other in snapshot.docnos(documents[is_equal]))
    number = snapshot.find(docno)
    return Standing(better + before, len(documents), number is not None and number in documents, both)
