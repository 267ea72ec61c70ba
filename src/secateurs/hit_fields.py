"""What of a hit is told, by name, where it is sent or printed as JSON."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .rankings import Hit


def chosen_fields(hit: Hit, names: Collection[str] | None) -> dict[str, Any]:
    """Its docno, scores and relevance; and of its text and its metadata what is named, None: everything.

    A name is "text", "metadata" for all of it, or a key of the metadata.
    """
    content: dict[str, Any] = {"docno": hit.docno, "score": hit.score, "relevance": hit.relevance}
    if hit.exact_score is not None:  # with fuse, where the score is the fused score
        content |= {"exact_score": hit.exact_score, "text_score": hit.text_score}
    if names is None or "text" in names:
        content["text"] = hit.text
    everything = names is None or "metadata" in names
    kept = {key: value for key, value in hit.metadata.items() if everything or key in (names or ())}
    return content | {"metadata": kept}
