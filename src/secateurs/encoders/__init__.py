"""Text to embeddings. Every encoder implements the protocol `Encoder`, and labels each position by kind."""

from __future__ import annotations

from ..errors import UsageError
from .protocol import DEFAULT_MODEL, Encoder

__all__ = ["DEFAULT_MODEL", "Encoder", "load_encoder"]


def load_encoder(model: str = DEFAULT_MODEL, kind: str = "onnx", revision: str | None = None) -> Encoder:
    """An encoder by the words that an index's manifest records.

    kind "onnx": the built-in "colbert-small", a folder or a hub name with an ONNX model, no torch.
    kind "st": any sentence-transformers multi-vector model, by folder or hub name.
    revision: the commit of a hub model; None is the newest, and the encoder's spec says which that was.
    """
    if kind == "onnx":
        from .onnx import OnnxEncoder

        return OnnxEncoder.load(model, revision=revision)
    if kind == "st":
        from .sentence_transformers import SentenceTransformersEncoder

        return SentenceTransformersEncoder(model, revision=revision)
    raise UsageError(f'encoder kind is "onnx" or "st", not {kind!r}')
