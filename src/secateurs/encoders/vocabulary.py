"""What counting tokens needs of an encoder: its tokenizer alone, not its network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class KnowsVocabulary(Protocol):
    """An encoder that can tokenise without encoding. Without it, an index gets no background by itself."""

    @property
    def vocabulary(self) -> str:
        """The fingerprint of its vocabulary: equal if every token has the same id."""

    def word_ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        """The token ids of all texts, end to end, that documents would store as words if there were no limit."""


def fingerprint(vocabulary: Mapping[str, int]) -> str:
    """Of a tokenizer's (token, id) pairs, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(vocabulary.items())).encode()).hexdigest()[:16]
