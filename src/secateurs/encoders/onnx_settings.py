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

LEAST_LIMIT = 3  # room for [CLS], marker and [SEP]
MOST_POSITIONS = 512  # of the built-in model


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """The conventions a checkpoint was trained with. A folder may override them in `secateurs.json`.

    The special tokens around a text are those that the tokenizer adds.
    """

    query_length: int = 32  # MASKs pad a query up to here; 0: there are none
    query_limit: int = 512
    expansion: int | str = "all"  # how many of these MASKs are embedded, with the weight of all; "all": each by itself
    document_limit: int = 300
    overlap: int | None = None  # wordpieces that windows of a longer document share; None: a longer document is cut
    query_marker: str | int | None = "[unused0]"  # the token at the second position, or its id; None: there is none
    document_marker: str | int | None = "[unused1]"
    mask: str | int | None = "[MASK]"  # None if no query is padded
    attend_to_masks: bool = False
    skip: str | tuple[str, ...] = string.punctuation  # tokens (or characters) that documents do not store
    lower_case: bool = False  # before the tokenizer, which may do so itself
    model_file: str | None = None  # such as "model_int8.onnx"; None: see model_folder.MODEL_FILES
    projection: str | None = "auto"  # a file in the folder; None: the ONNX model's output is the embedding
    merge: float | None = None  # documents: cosine above which embeddings of a token are alike; see docs/merging.md
    summary: str | None = None  # "marker" or "cls" if that embedding stands for the whole text; see docs/importance.md
    relevance: tuple[float, float] | None = None  # middle and steepness of its curve; see docs/relevance.md

    def __post_init__(self) -> None:
        for name, least in (("query_length", 0), ("query_limit", LEAST_LIMIT), ("document_limit", LEAST_LIMIT)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        most = self.document_limit - LEAST_LIMIT - 1
        if self.overlap is not None and (type(self.overlap) is not int or not 0 <= self.overlap <= most):
            raise ValueError(f"overlap is a whole number from 0 to {most}, or null, not {self.overlap!r}")
        if self.expansion != "all" and (type(self.expansion) is not int or self.expansion < 0):
            raise ValueError(f'expansion is a whole number of at least 0, or "all", not {self.expansion!r}')
        if self.expansion != "all" and self.attend_to_masks:
            raise ValueError(
                'MASKs that are attended to are all needed: attend_to_masks goes with expansion "all" only'
            )
        for name in ("query_marker", "document_marker", "mask"):
            token = getattr(self, name)
            is_id = type(token) is int and token >= 0
            if not (is_id or isinstance(token, str | None)):
                raise ValueError(f"{name} is a token, its id, or null, not {token!r}")
        if self.mask is None and self.query_length:
            raise ValueError('a query_length above 0 needs a "mask"')
        if not isinstance(self.skip, str):
            object.__setattr__(self, "skip", _checked_words(self.skip))
        for name in ("attend_to_masks", "lower_case"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is true or false, not {getattr(self, name)!r}")
        for name in ("projection", "model_file"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name} is the name of a file, or null, not {getattr(self, name)!r}")
        if self.summary not in (None, "marker", "cls"):
            raise ValueError(f'summary is "marker", "cls" or null, not {self.summary!r}')
        if self.merge is not None and not (isinstance(self.merge, float) and 0 < self.merge < 1):
            raise ValueError(f"merge is a cosine between 0 and 1, or null, not {self.merge!r}")
        if self.relevance is not None:
            object.__setattr__(self, "relevance", _checked_curve(self.relevance))


def _checked_words(given: object) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not all(isinstance(word, str) for word in given):
        raise ValueError(f"skip is a list of tokens, or a text with one-character tokens, not {given!r}")
    return tuple(given)


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
    for name in ("projection", "model_file"):
        if getattr(settings, name) != getattr(OnnxSettings(), name):
            raise UsageError(f'the files of "{DEFAULT_MODEL}" come with it: it has no setting "{name}"')
    for name in ("query_length", "query_limit", "document_limit"):
        if getattr(settings, name) > MOST_POSITIONS:
            raise UsageError(f'{name} is at most {MOST_POSITIONS} for "{DEFAULT_MODEL}", not {getattr(settings, name)}')
