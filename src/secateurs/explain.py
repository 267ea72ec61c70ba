"""Why a document has its score, and how it was found, or why it was not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .effort import plan as make_plan
from .importance import order_positions
from .records import EncodedText, SearchSettings, TokenKind

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
    encoded = index.encode_query(query)
    segment, number = index.locate(docno)
    plan = make_plan(settings, encoded, index.prepared, len(index))
    ordered = order_positions(plan.order, encoded, index.frequencies)
    kept = ordered[: plan.p]
    generous = replace(plan, candidates=max(len(index), 1))  # whoever is found at all

    # The ranking this document is or is not in: the same steps as search.search, without cutting at k.
    prepared = segment.store.prepare(encoded.embeddings)
    target = segment.score(prepared, np.array([number]))[0]
    is_scored, better, scored = False, 0, 0
    for part in index.segments:
        documents, _ = part.gatherer(plan.gather).gather(encoded.embeddings[kept], plan)
        scores = part.score(part.store.prepare(encoded.embeddings), documents)
        is_scored |= part is segment and number in documents
        scored += len(documents)
        better += int((scores > target).sum())
        ties = documents[scores == target].tolist()
        better += sum(other < docno for other in part.documents.docnos(ties))

    similarities = segment.similarities(prepared, number)  # (document tokens, query embeddings)
    tokens_of_document = segment.token_ids[segment.offsets[number] : segment.offsets[number + 1]]
    frequency = index.frequencies.collection_frequency(encoded.token_ids)
    gatherer = segment.gatherer(plan.gather)
    tokens = []
    for importance, position in enumerate(ordered.tolist(), start=1):
        is_kept = importance <= len(kept)
        match = int(similarities[:, position].argmax()) if len(similarities) else -1
        alone = gatherer.gather(encoded.embeddings[[position]], generous)[0] if is_kept else ()
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
    return Explanation(docno, float(target), gathered, better + 1 if is_scored else None, scored, tuple(tokens))
