"""Why a document has its score, and how it was found, or why it was not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .frequencies import Frequencies
from .importance import Positions
from .records import EncodedText, SearchSettings, TokenKind
from .search import Prepared, gather, prepare

if TYPE_CHECKING:
    from .contract import EncodesQueries
    from .index import Index
    from .storage.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class TokenExplanation:
    """One query embedding: its place in the importance order, and its best match in the document."""

    position: int
    token: str
    kind: str  # word, punctuation, cls, marker, sep, mask
    collection_frequency: int
    importance: int  # 1 is the most important
    kept: bool  # used for gathering
    gathers: bool  # on its own, it gathers this document (only kept embeddings are asked)
    similarity: float  # its share of the score, Eq. 1
    match: str  # the document's token with that similarity
    match_position: int


@dataclass(frozen=True, slots=True)
class Explanation:
    docno: str
    score: float
    gathered: bool  # some kept embedding finds it
    rank: int | None  # among the documents that were scored; None if others looked better, or it was not gathered
    documents_scored: int
    tokens: tuple[TokenExplanation, ...]  # in order of importance


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the index that holds a document knows about it. Arrays go by position in the query."""

    score: float
    gathers: NDArray[np.bool_]
    similarity: NDArray[np.float64]
    match_position: NDArray[np.int64]  # -1 in a document without embeddings
    match_token: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Standing:
    """How a document does among those that one index would score."""

    better: int  # so many come before it
    scored: int
    is_scored: bool  # it is one of them


def explain(index: Index, query: str | EncodedText, docno: str, settings: SearchSettings) -> Explanation:
    snapshot = index.snapshot
    encoded = index.encode_query(query)
    prepared = prepare(snapshot, encoded, settings)
    evidence = find_evidence(snapshot, encoded, prepared, docno)
    standing = find_standing(snapshot, encoded, prepared, evidence.score, docno)
    return assemble(
        docno, encoded, prepared.ordered, prepared.plan.p, prepared.frequencies, evidence, [standing], index
    )


def find_evidence(snapshot: Snapshot, query: EncodedText, prepared: Prepared, docno: str) -> Evidence:
    """Its score, and for each query embedding the best match and whether it gathers the document alone."""
    number = snapshot.number(docno)
    segment, own_number = snapshot.place(number)
    query_for_rows = snapshot.store.prepare(query.embeddings)
    similarities = segment.similarities(query_for_rows, own_number)  # (document tokens, query embeddings)
    matches = similarities.argmax(axis=0) if len(similarities) else np.full(len(query), -1)
    tokens = segment.token_ids[segment.offsets[own_number] : segment.offsets[own_number + 1]]
    generous = replace(prepared.plan, candidates=max(len(snapshot), 1))  # whoever is found at all
    gatherer = snapshot.gatherer(prepared.plan.gather)
    gathers = np.zeros(len(query), dtype=bool)
    for position in prepared.kept.tolist():
        alone, _ = gatherer.gather(query.embeddings[[position]], generous, prepared.allowed)
        gathers[position] = number in alone
    return Evidence(
        score=float(segment.score(query_for_rows, np.array([own_number]))[0]),
        gathers=gathers,
        similarity=similarities.max(axis=0) if len(similarities) else np.full(len(query), -np.inf),
        match_position=matches,
        match_token=tokens[matches] if len(similarities) else np.zeros(len(query), dtype=np.int32),
    )


def find_standing(snapshot: Snapshot, query: EncodedText, prepared: Prepared, score: float, docno: str) -> Standing:
    """In the ranking that the document is or is not in: the same steps as search.search, without cutting at k."""
    documents, _ = gather(snapshot, query, prepared)
    scores = np.empty(0)
    if len(documents):
        scores = snapshot.score(snapshot.store.prepare(query.embeddings), documents)
    better = int((scores > score).sum())
    equal = snapshot.docnos(documents[scores == score])
    number = snapshot.find(docno)
    return Standing(
        better + sum(other < docno for other in equal), len(documents), number is not None and number in documents
    )


def assemble(
    docno: str,
    query: EncodedText,
    ordered: Positions,
    p: int | None,
    frequencies: Frequencies,
    evidence: Evidence,
    standings: Sequence[Standing],
    encoder: EncodesQueries,
) -> Explanation:
    """One explanation from what is known where the document is, and from how it stands everywhere."""
    kept = set(ordered[:p].tolist())
    frequency = frequencies.collection_frequency(query.token_ids)
    tokens = []
    for importance, position in enumerate(ordered.tolist(), start=1):
        match = int(evidence.match_position[position])
        tokens.append(
            TokenExplanation(
                position=position,
                token=encoder.token_text(int(query.token_ids[position])),
                kind=TokenKind(query.token_kinds[position]).name.lower(),
                collection_frequency=int(frequency[position]),
                importance=importance,
                kept=position in kept,
                gathers=bool(evidence.gathers[position]),
                similarity=float(evidence.similarity[position]),
                match=encoder.token_text(int(evidence.match_token[position])) if match >= 0 else "",
                match_position=match,
            )
        )
    is_scored = any(standing.is_scored for standing in standings)
    return Explanation(
        docno=docno,
        score=evidence.score,
        gathered=bool(evidence.gathers.any()),
        rank=1 + sum(standing.better for standing in standings) if is_scored else None,
        documents_scored=sum(standing.scored for standing in standings),
        tokens=tuple(tokens),
    )
