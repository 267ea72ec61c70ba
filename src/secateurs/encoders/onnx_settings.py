"""The settings of ONNX encoders: what a checkpoint was trained with, and what a user has chosen instead."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import UsageError
from .protocol import DEFAULT_MODEL

FRAME = 3  # [CLS], marker and [SEP]
MOST_POSITIONS = 512  # of the built-in model
_TEXTS = ("query_marker", "document_marker", "cls", "sep", "mask", "skip")


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """The conventions a checkpoint was trained with. A folder may override them in `secateurs.json`."""

    query_length: int = 32
    query_limit: int = 512
    document_limit: int = 300
    overlap: int | None = None  # wordpieces that windows of a longer document share; None: a longer document is cut
    query_marker: str = "[unused0]"
    document_marker: str = "[unused1]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"
    attend_to_masks: bool = False
    skip: str = string.punctuation  # one-character tokens that documents do not store
    projection: str | None = "auto"  # a file in the folder; None: the ONNX model's output is the embedding
    merge: float | None = None  # documents: cosine above which embeddings of a token are alike; see docs/merging.md
    summary: str | None = None  # "marker" or "cls" if that embedding stands for the whole text; see docs/importance.md
    relevance: tuple[float, float] | None = None  # middle and steepness of its curve; see docs/relevance.md

    def __post_init__(self) -> None:
        for name, least in (("query_length", 0), ("query_limit", FRAME), ("document_limit", FRAME)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        most = self.document_limit - FRAME - 1
        if self.overlap is not None and (type(self.overlap) is not int or not 0 <= self.overlap <= most):
            raise ValueError(f"overlap is a whole number from 0 to {most}, or null, not {self.overlap!r}")
        for name in _TEXTS:
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is a text, not {getattr(self, name)!r}")
        if not isinstance(self.attend_to_masks, bool):
            raise ValueError(f"attend_to_masks is true or false, not {self.attend_to_masks!r}")
        if not isinstance(self.projection, str | None):
            raise ValueError(f"projection is the name of a file, or null, not {self.projection!r}")
        if self.summary not in (None, "marker", "cls"):
            raise ValueError(f'summary is "marker", "cls" or null, not {self.summary!r}')
        if self.merge is not None and not (isinstance(self.merge, float) and 0 < self.merge < 1):
            raise ValueError(f"merge is a cosine between 0 and 1, or null, not {self.merge!r}")
        if self.relevance is not None:
            object.__setattr__(self, "relevance", _checked_curve(self.relevance))


def _checked_curve(given: object) -> tuple[float, float]:
    numbers = list(given) if isinstance(given, list | tuple) else []
    plain = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if len(numbers) != 2 or not plain or not np.isfinite(numbers).all() or numbers[1] <= 0:
        raise ValueError(f"relevance is [middle, steepness], two numbers, the second above 0, or null, not {given!r}")
    return float(numbers[0]), float(numbers[1])


def overridden(settings: OnnxSettings, overrides: Mapping[str, Any]) -> OnnxSettings:
    """The settings, with those that a user has chosen, by name."""
    known = ", ".join(OnnxSettings.__slots__)
    for name in overrides:
        if name not in OnnxSettings.__slots__:
            raise UsageError(f"there is no setting {name!r}. Known settings: {known}")
    try:
        return replace(settings, **overrides)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{error}. Known settings: {known}") from error


def recorded(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """As a manifest has them, and as they are read from it again: a tuple is a list there."""
    as_read: dict[str, Any] = json.loads(json.dumps(dict(overrides)))
    return as_read


def check_built_in(settings: OnnxSettings) -> None:
    """Raise for settings that other models may have, and that the built-in model cannot have."""
    if settings.projection != "auto":
        raise UsageError(f'the linear layer of "{DEFAULT_MODEL}" comes with it: it has no setting "projection"')
    for name in ("query_length", "query_limit", "document_limit"):
        if getattr(settings, name) > MOST_POSITIONS:
            raise UsageError(f'{name} is at most {MOST_POSITIONS} for "{DEFAULT_MODEL}", not {getattr(settings, name)}')
