"""The network of an encoder, token ids to states: by onnxruntime, or by the kernels of this package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, require
from ..kernels.simd import HAS_AVX2
from .bert import Bert, Input

# Without vectors of integers and fused products the kernels are slow: then onnxruntime is used, which has code for many
# CPUs.
KERNELS_ARE_FAST = HAS_AVX2


class Network(Protocol):
    @property
    def width(self) -> int | None:
        """Dimensions of a state, if the model says so."""

    def states(self, texts: Sequence[Input]) -> list[NDArray[np.float32]]:
        """(positions, width) for each text."""


class OnnxRuntime:
    """Each text runs by itself: an int8 model scales its activations over all that it is given at once."""

    def __init__(self, path: Path) -> None:
        onnxruntime = require("onnxruntime", "model")
        options = onnxruntime.SessionOptions()
        # One thread per text: a query that waits for a second, busy core is slower, and bulk encoding keeps
        # the cores busy with different documents instead.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises types of its own
            raise SecateursError(f"{path} is not a model that can be loaded: {error}") from error
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0]

    @property
    def width(self) -> int | None:
        width = self._output.shape[-1]
        return width if isinstance(width, int) else None

    def states(self, texts: Sequence[Input]) -> list[NDArray[np.float32]]:
        return [self._run(text) for text in texts]

    def _run(self, text: Input) -> NDArray[np.float32]:
        """The model numbers the positions itself: those between the places of a text are computed and left out."""
        token_ids, attended, places = text
        if places is not None:
            filled = np.full(places[-1] + 1, token_ids[-1])
            filled[places] = token_ids
            token_ids = filled
        feed = {
            "input_ids": token_ids[None],
            "attention_mask": (np.arange(len(token_ids)) < attended).astype(np.int64)[None],
            "token_type_ids": np.zeros_like(token_ids)[None],
        }
        feed = {name: array for name, array in feed.items() if name in self._inputs}
        states: NDArray[np.float32] = self._session.run([self._output.name], feed)[0][0]
        return states if places is None else states[places]


def load_network(path: Path, kernels: bool) -> Network:
    """`kernels` is for an int8 BERT only."""
    return Bert(path) if kernels else OnnxRuntime(path)
