"""Text to embeddings. Every encoder answers to the same five names, and labels each position by kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from ..errors import UsageError
from ..records import EncodedText

DEFAULT_MODEL = "colbert-small"


@runtime_checkable
class Encoder(Protocol):
    """What the index needs of an encoder."""

    @property
    def dim(self) -> int: ...

    @property
    def spec(self) -> Mapping[str, Any]:
        """What the manifest records: `kind` and `model` to load it again, `fingerprint` to know it again."""

    def encode_query(self, text: str) -> EncodedText: ...

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        """One EncodedText per text, in order, reading no further ahead than it has to."""

    def token_text(self, token_id: int) -> str: ...


def load_encoder(model: str = DEFAULT_MODEL, kind: str = "onnx") -> Encoder:
    """An encoder by the words that an index's manifest records.

    kind "onnx": the built-in "colbert-small", a folder or a hub name with an ONNX model, no torch.
    kind "st": any sentence-transformers multi-vector model, by folder or hub name.
    """
    if kind == "onnx":
        from .onnx import OnnxEncoder

        return OnnxEncoder.load(model)
    if kind == "st":
        from .sentence_transformers import SentenceTransformersEncoder

        return SentenceTransformersEncoder(model)
    raise UsageError(f'encoder kind is "onnx" or "st", not {kind!r}')
