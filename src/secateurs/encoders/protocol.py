"""The protocol that every encoder implements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from ..records import EncodedText

DEFAULT_MODEL = "colbert-small"


@runtime_checkable
class Encoder(Protocol):
    """What the index needs of an encoder."""

    @property
    def dim(self) -> int: ...

    @property
    def spec(self) -> Mapping[str, Any]:
        """What the manifest records: `kind` and `model` to load it again, `fingerprint` to know it again.

        Also `revision`, `settings` and `relevance`, if there are any.
        """

    def encode_query(self, text: str) -> EncodedText: ...

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        """One EncodedText per text, in order, reading no further ahead than it has to.

        It depends on the text and on what `fingerprint` covers: a build that goes on after an interruption gives the
        encoder only texts that were not encoded yet.
        """

    def token_text(self, token_id: int) -> str: ...
