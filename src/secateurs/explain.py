"""Why a document has its score, and how it was found, or why it was not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .records import EncodedText, SearchSettings, TokenKind
from .search import gather, prepare

if TYPE_CHECKING:
    from .index.index import Index


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


def explain(index: Index, query: str | EncodedText, docno: str, settings: SearchSettings) -> Explanation:
    snapshot = index.snapshot
    encoded = index.encode_query(query)
    number = snapshot.number(docno)
    segment, own_number = snapshot.place(number)
    prepared = prepare(snapshot, encoded, settings)
    plan, kept = prepared.plan, prepared.kept
    generous = replace(plan, candidates=max(len(snapshot), 1))  # whoever is found at all

    # The ranking this document is or is not in: the same steps as search.search, without cutting at k.
    query_for_rows = snapshot.store.prepare(encoded.embeddings)
    target = segment.score(query_for_rows, np.array([own_number]))[0]
    documents, _ = gather(snapshot, encoded, prepared)
    is_scored = number in documents
    scores = snapshot.score(query_for_rows, documents) if len(documents) else np.empty(0)
    better = int((scores > target).sum())
    better += sum(other < docno for other in snapshot.docnos(documents[scores == target]))

    similarities = segment.similarities(query_for_rows, own_number)  # (document tokens, query embeddings)
    tokens_of_document = segment.token_ids[segment.offsets[own_number] : segment.offsets[own_number + 1]]
    frequency = prepared.frequencies.collection_frequency(encoded.token_ids)
    gatherer = snapshot.gatherer(plan.gather)
    tokens = []
    for importance, position in enumerate(prepared.ordered.tolist(), start=1):
        is_kept = importance <= len(kept)
        match = int(similarities[:, position].argmax()) if len(similarities) else -1
        alone = gatherer.gather(encoded.embeddings[[position]], generous, prepared.allowed)[0] if is_kept else ()
        tokens.append(
            TokenExplanation(
                position=position,
                token=index.token_text(int(encoded.token_ids[position])),
                kind=TokenKind(encoded.token_kinds[position]).name.lower(),
                collection_frequency=int(frequency[position]),
                importance=importance,
                kept=is_kept,
                gathers=number in alone,
                similarity=float(similarities[match, position]) if len(similarities) else float("-inf"),
                match=index.token_text(int(tokens_of_document[match])) if len(similarities) else "",
                match_position=match,
            )
        )
    gathered = any(token.gathers for token in tokens)
    return Explanation(docno, float(target), gathered, better + 1 if is_scored else None, len(documents), tuple(tokens))
