"""The built-in models: the backbone in the wheel, each with a linear layer of this package.

A layer that was replaced stays, under the name of the model with a number: indexes that were made with it are searched
with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .onnx_settings import OnnxSettings
from .protocol import DEFAULT_MODEL

EXPANSION = 3  # MASKs of a query: measured by benchmarks/expansion.py


class Layer(NamedTuple):
    """A linear layer, and what belongs to the similarities that it makes."""

    file: str  # (384, dim) float32: docs/model-card.md
    merge: float  # measured by benchmarks/merging.py
    relevance: tuple[float, float]  # fitted by benchmarks/relevance.py

    def projection(self) -> NDArray[np.float32]:
        loaded: NDArray[np.float32] = np.load(Path(__file__).parent / self.file)
        return loaded


LAYERS = {
    DEFAULT_MODEL: Layer("colbert_small_2.npy", 0.97, (0.9275, 95.4)),
    "colbert-small-1": Layer("colbert_small_1.npy", 0.95, (0.9022, 106.2)),
}
# Indexes of DEFAULT_MODEL with these fingerprints were made when it had an earlier layer.
EARLIER = {"1d49497e7d628b61": "colbert-small-1"}


def built_in_settings(model: str, is_our_layer: bool) -> OnnxSettings:
    """The settings of a built-in model; another linear layer makes other similarities."""
    layer = LAYERS[model]
    return OnnxSettings(
        expansion=EXPANSION,
        summary="marker",
        merge=layer.merge if is_our_layer else None,
        relevance=layer.relevance if is_our_layer else None,
    )


def earlier_layer(spec: Mapping[str, Any]) -> str | None:
    """The name of the layer that an index with this spec was made with, if it is not the present one any more."""
    return EARLIER.get(spec.get("fingerprint", "")) if spec.get("model") == DEFAULT_MODEL else None
