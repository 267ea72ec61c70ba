"""What an integration tells about a hit besides its text: score, relevance, and on demand why and where it matched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from ..contract import AnyIndex
from ..errors import UsageError
from ..matches import find_matches
from ..rankings import Hit
from ..records import EncodedText
from ..reranking import RerankedText
from ..settings import SearchSettings

ADDED = ("docno", "score", "relevance", "explanation", "highlights")  # keys of metadata


def check_index(index: object) -> AnyIndex:
    """The index, if it is an open one: a path is a likely mistake."""
    if not isinstance(index, AnyIndex):
        raise UsageError(f"index must be an open index, as Index(path) gives it, not {index!r:.100}")
    return index


def search_with_details(
    index: AnyIndex, query: str | EncodedText, settings: Mapping[str, Any], explanations: bool, highlights: bool
) -> Iterator[tuple[Hit, dict[str, Any]]]:
    """Each hit with what goes into its metadata, where a field of the document with the same name is replaced.

    docno, score, relevance   as in Hit
    explanation               with `explanations`: an Explanation as a dictionary. It costs a search for each hit
    highlights                with `highlights`: pieces of the text that matched, or None if the encoder cannot tell
    """
    settings = vars(SearchSettings.of(settings))
    encoded = index.encode_query(query)
    ranking = index.search(encoded, **settings)
    for hit in ranking:
        details: dict[str, Any] = {"docno": hit.docno, "score": hit.score, "relevance": hit.relevance}
        if explanations:
            details["explanation"] = asdict(index.explain(encoded, hit.docno, **settings))
        if highlights:
            details["highlights"] = _highlights(index, ranking.query, hit)
        yield hit, details


def reranked_details(text: RerankedText) -> dict[str, Any]:
    """The score and the relevance after re-ranking. The score of a blank text is None: JSON has no infinity."""
    return {"score": text.score if text.score > float("-inf") else None, "relevance": text.relevance}


def _highlights(index: AnyIndex, query: EncodedText, hit: Hit) -> list[dict[str, Any]] | None:
    matches = find_matches(index, query, index.frequencies, hit.docno, hit.text)
    if matches is None:
        return None
    return [
        {
            "start": match.start,
            "end": match.end,
            "contribution": match.contribution(query),
            "rarity": match.rarity,
            "strength": match.strength,
        }
        for match in matches
    ]
