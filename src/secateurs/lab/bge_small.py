"""bge-small-en-v1.5 (BAAI, MIT licence): a single vector for each text, no torch. It comes with the built-in model.

The vector is the state of [CLS]. A query starts with an instruction and a document does not, as the model's card says.
Texts are cut at 512 tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..encoders.bert import Input
from ..encoders.model_folder import wheel_folder
from ..encoders.networks import KERNELS_ARE_FAST, load_network
from ..errors import require
from ..threads import in_order

NAME = "bge-small"
INSTRUCTION = "Represent this sentence for searching relevant passages: "
_LIMIT = 512


class BgeSmall:
    """Text to the state of [CLS], whose length is not 1: it is compared by cosine."""

    def __init__(self) -> None:
        tokenizers = require("tokenizers", "model")
        folder = wheel_folder(NAME, "bge_small_en")
        self._network = load_network(folder / "model.onnx", KERNELS_ARE_FAST)
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(_LIMIT)
        self._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text

    def encode_query(self, text: str) -> NDArray[np.float32]:
        return self.encode(INSTRUCTION + text)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[NDArray[np.float32]]:
        return in_order(self.encode, ((text,) for text in texts))

    def encode(self, text: str) -> NDArray[np.float32]:
        token_ids = np.array(self._tokenizer.encode(text).ids, dtype=np.int64)
        (states,) = self._network.states([Input(token_ids, len(token_ids))])
        vector: NDArray[np.float32] = states[0]
        return vector  # (384,)
