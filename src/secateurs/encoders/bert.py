"""BERT from an int8 ONNX file, on the kernels of this package.

It reads the weights of a BERT that onnxruntime's dynamic quantisation wrote (int8 weights with a scale each, uint8
embedding tables) and computes what that graph describes, with one difference: activations are rounded per token, not
over the whole input. That is nearer to the network without rounding, and independent of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import local
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, UsageError
from ..kernels.products import WIDTHS, pack_weights, tiles_allowed
from ..kernels.self_attention import HEAD
from ..kernels.transformer import Product, Room, Weights, forward, make_room
from .onnx_file import OnnxFile

_FOLD = np.float32(np.log2(np.e) / np.sqrt(HEAD))  # of attention's logits, which are powers of two here

_TOKEN_TYPES = 2  # the table of places is there once for each
# What a layer consists of, and the names of that in an ONNX file.
_PRODUCTS = {
    "attention": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "mixing": ("attention.output.dense",),
    "inner": ("intermediate.dense",),
    "outer": ("output.dense",),
}
_NORMS = {"mixing_norm": "attention.output.LayerNorm", "outer_norm": "output.LayerNorm"}


class Input(NamedTuple):
    """A text as a network reads it."""

    token_ids: NDArray[np.int64]  # (positions,)
    attended: int  # so many positions, the first, are attended to
    places: NDArray[np.int64] | None = None  # (positions,): where in the text each position is; None: in order


class Bert:
    """Token ids to states. Threads may share it: each has a work space of its own."""

    def __init__(self, path: Path, layers: Path | None = None) -> None:
        """`layers` is a file of layers (see `read_layers`) that are computed instead of those in the ONNX file.

        No model of the package has such a file: training/ measures other networks with it, by the same kernels.
        """
        self._weights = read_weights(OnnxFile(path), layers)
        self._local = local()

    @property
    def width(self) -> int:
        return int(self._weights.places.shape[1])

    def states(
        self, texts: Sequence[Input], types: Sequence[NDArray[np.int64]] | None = None
    ) -> list[NDArray[np.float32]]:
        """The last layer's states of each text, (positions, width).

        `types` are the token types of each text, 0 everywhere if not given.
        """
        lengths = np.array([len(text.token_ids) for text in texts], dtype=np.int64)
        attended = np.array([text.attended for text in texts], dtype=np.int64)
        starts = np.cumsum(lengths) - lengths
        places = np.concatenate(
            [np.arange(len(text.token_ids)) if text.places is None else text.places for text in texts]
        )
        token_ids = np.concatenate([text.token_ids for text in texts])
        self._check(token_ids, places)  # the kernels do not: they would read what is behind the tables
        if types is not None:
            places = places + np.concatenate(list(types)) * self._most_positions
        room = self._room(len(token_ids))
        forward(token_ids, places, starts, lengths, attended, self._weights, room, tiles_allowed())
        return [room.states[start : start + length].copy() for start, length in zip(starts, lengths, strict=True)]

    @property
    def _most_positions(self) -> int:
        return len(self._weights.places) // _TOKEN_TYPES

    def _check(self, token_ids: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        if places.min() < 0 or places.max() >= self._most_positions:
            raise UsageError(f"the network takes texts of at most {self._most_positions} positions")
        if token_ids.min() < 0 or token_ids.max() >= len(self._weights.words):
            raise UsageError(f"the network knows the token ids below {len(self._weights.words):,}")

    def _room(self, positions: int) -> Room:
        room: Room | None = getattr(self._local, "room", None)
        if room is None or len(room.states) < positions:
            room = self._local.room = make_room(self._weights, max(positions, 128))
        return room


def read_weights(file: OnnxFile, layers_file: Path | None = None) -> Weights:
    """The weights of the file, or an error that says why it is not a BERT that can be computed here.

    With a file of layers these are computed instead of its own; its words and places stay.
    """
    bert = _prefix(file)
    embeddings = f"{bert}embeddings."
    words = f"{embeddings}word_embeddings.weight"
    try:
        layers = read_layers(file) if layers_file is None else dict(np.load(layers_file))
        kinds, places = (file.unrounded(f"{embeddings}{name}_embeddings.weight") for name in ("token_type", "position"))
        scale, zero = (file.arrays[f"{words}_{name}"] for name in ("scale", "zero_point"))
        weights = Weights(
            words=file.arrays[f"{words}_quantized"],
            word_scale=np.array([scale, zero], dtype=np.float32).reshape(2),
            places=np.concatenate([places + kind for kind in kinds]),
            first_norm=_norm(file, f"{embeddings}LayerNorm"),
            attention=_product(layers, "attention"),
            mixing=_product(layers, "mixing"),
            mixing_norm=layers["mixing_norm"],
            inner=_product(layers, "inner"),
            outer=_product(layers, "outer"),
            outer_norm=layers["outer_norm"],
        )
    except KeyError as error:
        raise SecateursError(f"{file.path} is not an int8 BERT: it has no {error.args[0]}") from error
    width, inner = weights.places.shape[1], weights.inner.scale.shape[1]
    if width % WIDTHS or inner % WIDTHS:
        raise SecateursError(f"{file.path} is a BERT of {width} and {inner} dimensions: not multiples of {WIDTHS}")
    if weights.words.dtype != np.uint8 or len(kinds) != _TOKEN_TYPES:
        raise SecateursError(
            f"{file.path} is not an int8 BERT with uint8 word embeddings and {_TOKEN_TYPES} token types"
        )
    weights.attention.scale[:, :width] *= _FOLD
    weights.attention.sums[:, :width] *= _FOLD
    weights.attention.bias[:, :width] *= _FOLD
    return weights


def read_layers(file: OnnxFile) -> dict[str, NDArray[Any]]:
    """The arrays of a file of layers. Of each product, for all layers:

    NAME.weight  (layers, depth, columns) int8
    NAME.scale   (layers, columns) float32: of the columns of the weight
    NAME.bias    (layers, columns) float32

    and mixing_norm and outer_norm, (layers, 2, width) float32: gain and shift.
    """
    bert = _prefix(file)
    layers = sum(name.endswith("intermediate.dense.bias") for name in file.arrays)
    prefixes = [f"{bert}encoder.layer.{layer}." for layer in range(max(layers, 1))]  # without layers: name the first
    found: dict[str, NDArray[Any]] = {}
    for product, names in _PRODUCTS.items():  # side by side
        rows = [
            [(*file.factor(prefix + name), file.arrays[f"{prefix}{name}.bias"]) for name in names]
            for prefix in prefixes
        ]
        for i, part in enumerate(("weight", "scale", "bias")):
            arrays = [np.concatenate([row[i] for row in layer], axis=-1) for layer in rows]
            found[f"{product}.{part}"] = np.stack(arrays)
    for norm, name in _NORMS.items():
        found[norm] = np.stack([_norm(file, prefix + name) for prefix in prefixes])
    return found


def _prefix(file: OnnxFile) -> str:
    return "bert." if "bert.embeddings.LayerNorm.weight" in file.arrays else ""


def _product(layers: Mapping[str, NDArray[Any]], name: str) -> Product:
    weight, scale, bias = (layers[f"{name}.{part}"] for part in ("weight", "scale", "bias"))
    sums = weight.sum(axis=1, dtype=np.int64) * scale
    packed = np.stack([pack_weights(layer) for layer in weight])
    return Product(packed, *(numbers.astype(np.float32) for numbers in (scale, sums, bias)))


def _norm(file: OnnxFile, name: str) -> NDArray[np.float32]:
    return np.stack([file.arrays[f"{name}.weight"], file.arrays[f"{name}.bias"]])
