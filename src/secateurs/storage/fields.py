"""Which keys the metadata of an index has, and what kinds of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..cancellation import stop_if_cancelled
from ..records import Field
from .documents import NESTED, NUMBER, TEXT, TRUTH, values_of
from .segments import Segment
from .snapshot import Snapshot

_TYPES = {NUMBER: "number", TEXT: "text", TRUTH: "boolean", NESTED: "nested"}
_LONGEST_EXAMPLE = 100  # characters


def fields_of(snapshot: Snapshot) -> dict[str, Field]:
    """Of the live documents, in the order of the alphabet. A key that has only null as its value is left out."""
    parts = []
    for first, segment in zip(snapshot.firsts.tolist(), snapshot.segments, strict=False):
        live = None if snapshot.live is None else snapshot.live[first : first + len(segment)]
        parts.append({key: field for key in segment.documents.all_keys() if (field := _field(segment, key, live))})
    return merged_fields(parts)


def merged_fields(parts: Iterable[Mapping[str, Field]]) -> dict[str, Field]:
    """Of several segments or shards together."""
    merged: dict[str, Field] = {}
    for part in parts:
        for key, field in part.items():
            earlier = merged.get(key, replace(field, documents=0))
            merged[key] = Field(
                tuple(name for name in _TYPES.values() if name in (*earlier.types, *field.types)),
                earlier.documents + field.documents,
                field.example if earlier.example is None else earlier.example,
            )
    return dict(sorted(merged.items()))


def _field(segment: Segment, key: str, live: np.ndarray[Any, np.dtype[np.bool_]] | None) -> Field | None:
    """None if no live document has a value."""
    stop_if_cancelled()
    has_value = np.zeros(len(segment), dtype=bool)
    types, first = [], None
    for kind, name in _TYPES.items():
        numbers = segment.documents.numbers_of_kind(key, kind)
        if live is not None:
            numbers = numbers[live[numbers]]
        if len(numbers):
            has_value[numbers] = True
            types.append(name)
            first = int(numbers.min()) if first is None else first
    return None if first is None else Field(tuple(types), int(has_value.sum()), _example(segment, key, first))


def _example(segment: Segment, key: str, number: int) -> str | int | float | bool | None:
    (document,) = segment.documents.get([number])
    found = (value for name, value in values_of(document.metadata) if name == key)
    value = next((value for value in found if value is not None and not isinstance(value, bytes)), None)
    if isinstance(value, str) and len(value) > _LONGEST_EXAMPLE:
        return f"{value[:_LONGEST_EXAMPLE]}…"
    return value
