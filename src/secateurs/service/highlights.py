"""Which words of a document matched, and how much each adds to its score, as the service answers it."""

from __future__ import annotations

from ..contract import AnyIndex
from ..frequencies import Frequencies
from ..matches import find_matches, spans_of
from ..records import EncodedText
from .answers import DocumentToken, Highlight, SimilarityMap
from .problems import Problem

_LARGEST_MAP = 200_000  # similarities, about 2 MB of JSON: 6,250 tokens of a document for a query of 32 embeddings


def highlights(
    index: AnyIndex, query: EncodedText, frequencies: Frequencies, docno: str, text: str
) -> list[Highlight] | None:
    """The matched pieces in the order of the text, or None where the encoder cannot tell."""
    matches = find_matches(index, query, frequencies, docno, text)
    if matches is None:
        return None
    return [
        Highlight(
            start=match.start,
            end=match.end,
            contribution=match.contribution(query),
            positions=match.positions.tolist(),
            similarities=match.similarities.tolist(),
            rarity=match.rarity,
        )
        for match in matches
    ]


def similarity_map(index: AnyIndex, query: EncodedText, docno: str) -> SimilarityMap:
    similarities, token_ids = index.similarities(query, docno)
    if similarities.size > _LARGEST_MAP:
        raise Problem.of_field(
            "map",
            f"the document has {len(token_ids):,} tokens, and a map for this query has at most "
            f"{_LARGEST_MAP // len(query):,}: ask without it",
        )
    text = index.get(docno).text
    spans = spans_of(index, text, token_ids) or [None] * len(token_ids)
    return SimilarityMap(
        text=text,
        document_tokens=[
            DocumentToken(
                token=index.token_text(token_id), start=span[0] if span else None, end=span[1] if span else None
            )
            for token_id, span in zip(token_ids.tolist(), spans, strict=True)
        ],
        similarities=similarities.round(4).tolist(),
    )
