"""Facets: of a key of the metadata, how many documents have each of its values.

Counted are the documents that match the filter; without a filter, all documents. In late interaction every document has
a score, so that there is no other set of documents that a query matches. Of a list each different entry counts, once
for its document. Null, and a list or an object itself, are no values.

A key may have up to MOST_VALUES different values among these documents. All of them are counted and none is left out
as rare, so that the counts of shards can be added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .conditions import Both, Has
from .documents import NUMBER, TEXT, TRUTH, Stored, Value, kind_of
from .filters import Filter, KnownKeys, check_keys
from .snapshot import Snapshot

MOST_VALUES = 1_000
_KINDS = (NUMBER, TEXT, TRUTH)  # the order of values that equally many documents have

Counts: TypeAlias = Mapping[Stored, int]  # values as they are stored, because True and 1 are equal in Python


def count_facets(snapshot: Snapshot, keys: Sequence[str], allowed: NDArray[np.bool_] | None) -> dict[str, Counts]:
    """Of the documents that `allowed` marks, (documents,); None: of all."""
    return {key: _added(key, _counts_of_segments(snapshot, key, allowed)) for key in keys}


def _counts_of_segments(
    snapshot: Snapshot, key: str, allowed: NDArray[np.bool_] | None
) -> Iterable[Iterable[tuple[Stored, int]]]:
    for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False):
        part = None if allowed is None else allowed[first : first + len(segment)]
        yield segment.documents.value_counts(key, part)


def _added(key: str, parts: Iterable[Iterable[tuple[Stored, int]]]) -> Counts:
    total: dict[Stored, int] = {}
    for part in parts:
        for value, documents in part:
            total[value] = total.get(value, 0) + documents
            if len(total) > MOST_VALUES:
                raise UsageError(
                    f"facets: {key!r} has more than {MOST_VALUES:,} different values: facets are for keys with few"
                )
    return total


def merge_facets(keys: Sequence[str], parts: Sequence[Mapping[str, Counts]]) -> dict[str, Counts]:
    """Of several shards."""
    return {key: _added(key, (part[key].items() for part in parts)) for key in keys}


def known_facets(snapshot: Snapshot, keys: Sequence[str]) -> KnownKeys:
    return KnownKeys.of(_keys_as_filter(keys), [segment.documents for segment in snapshot.segments], len(snapshot))


def check_facets(keys: Sequence[str], known: KnownKeys) -> None:
    """Raise if no document has one of the keys: it is misspelt."""
    check_keys(_keys_as_filter(keys), known, "facets")


def _keys_as_filter(keys: Sequence[str]) -> Filter:
    return Filter(Both([Has(key) for key in keys]))


def ranked_facets(counted: Mapping[str, Counts]) -> dict[str, list[tuple[Value, int]]]:
    """The values that most documents have first; equally frequent ones in their order, numbers before texts."""
    return {
        key: [
            (value == b"\x01" if isinstance(value, bytes) else value, documents)
            for value, documents in sorted(counts.items(), key=_rank)
        ]
        for key, counts in counted.items()
    }


def _rank(counted: tuple[Stored, int]) -> tuple[int, int, Any]:
    value, documents = counted
    return -documents, _KINDS.index(kind_of(value)), value
