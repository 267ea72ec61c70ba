"""Text to embeddings. Every encoder implements the protocol `Encoder`, and labels each position by kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from .built_in import earlier_layer
from .protocol import DEFAULT_MODEL, Encoder

__all__ = ["DEFAULT_MODEL", "LOADED_BY_NAME", "Encoder", "load_encoder", "load_recorded"]

LOADED_BY_NAME = ("onnx", "st")  # kinds of encoders


def load_encoder(
    model: str = DEFAULT_MODEL,
    kind: str = "onnx",
    revision: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Encoder:
    """An encoder by the words that an index's manifest records.

    kind "onnx": the built-in "colbert-small", a folder or a hub name with an ONNX model, no torch.
    kind "st": any sentence-transformers multi-vector model, by folder or hub name.
    revision: the commit of a hub model; None is the newest, and the encoder's spec says which that was.
    settings: what differs from the model's settings, by name, such as {"document_limit": 200}; for kind "onnx" only.
    The encoder's spec has them, so that an index loads its encoder again with them: docs/encoders.md lists them.
    """
    if kind == "onnx":
        from .onnx import OnnxEncoder

        return OnnxEncoder.load(model, settings or None, revision=revision)
    if kind == "st":
        if settings:
            raise UsageError(
                f"{', '.join(map(str, settings))}: a sentence-transformers model has its own settings, in its folder; "
                'settings are for encoders of kind "onnx"'
            )
        from .sentence_transformers import SentenceTransformersEncoder

        return SentenceTransformersEncoder(model, revision=revision)
    raise UsageError(f'encoder kind is "onnx" or "st", not {kind!r}')


def load_recorded(spec: Mapping[str, Any]) -> Encoder:
    """The encoder that has this spec, if it is of a kind that is loaded by name. Compare the fingerprints."""
    model = earlier_layer(spec) or spec["model"]
    return load_encoder(model, spec["kind"], spec.get("revision"), spec.get("settings"))
