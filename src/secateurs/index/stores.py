"""How an embedding is kept: `float16`, or `int8` around the collection's mean.

Most of an embedding's length is the mean of all of them. Taking it away moves every document's score for a given query
by the same amount, so no ranking changes, and what is left is small enough for 8 bits:

    float16   row = e                                   q . e  ~  q . row
    int8      row = round((e - centre) / step)          q . e  ~  q . centre  +  step * (q . row)

The query is rounded the same way as the rows, float16 to float16 and int8 to int8 (each query embedding with a scale of
its own), because that is what the hardware multiplies fast. Only the part relative to the centre is rounded: q . centre
is computed in full. What all this loses against float32 is in docs/index-format.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numkong
import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

DEFAULT_STORE = "int8"


@dataclass(frozen=True, slots=True)
class PreparedQuery:
    """A query in the form that `maxsim.score` multiplies with stored rows.

    The similarity of query embedding i with a row is  bias[i] + scale[i] * (packed row i . row).
    """

    packed: Any  # numkong.PackedMatrix, (query embeddings, dim) in the store's own type; None for an empty query
    scale: NDArray[np.float64]  # (query embeddings,)
    bias: NDArray[np.float64]  # (query embeddings,)


class Store(Protocol):
    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[Any]: ...
    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]: ...
    def prepare(self, query: NDArray[np.float32]) -> PreparedQuery: ...


@dataclass(frozen=True, slots=True)
class Float16Store:
    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[np.float16]:
        return embeddings.astype(np.float16)

    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return rows.astype(np.float32)

    def prepare(self, query: NDArray[np.float32]) -> PreparedQuery:
        return PreparedQuery(_pack(query.astype(np.float16)), np.ones(len(query)), np.zeros(len(query)))


@dataclass(frozen=True, slots=True)
class Int8Store:
    centre: NDArray[np.float32]  # (dim,)
    step: float

    @classmethod
    def fit(cls, centre: NDArray[np.float32], sample: NDArray[np.float32]) -> Int8Store:
        """The step that lets all but one value in ten thousand of the sample fit into -127 to 127."""
        spread = np.abs(sample - centre)
        reach = float(np.quantile(spread, 0.9999)) if spread.size else 0.0
        return cls(centre.astype(np.float32), max(reach, 1e-6) / 127)

    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[np.int8]:
        steps = np.rint((embeddings - self.centre) / self.step)
        rows: NDArray[np.int8] = np.clip(steps, -127, 127).astype(np.int8)
        return rows

    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        decoded: NDArray[np.float32] = rows.astype(np.float32) * np.float32(self.step) + self.centre
        return decoded

    def prepare(self, query: NDArray[np.float32]) -> PreparedQuery:
        reach = np.abs(query).max(axis=1, initial=1e-12)  # (query embeddings,)
        rounded = np.rint(query / reach[:, None] * 127).astype(np.int8)
        return PreparedQuery(
            _pack(rounded), reach.astype(np.float64) / 127 * self.step, query.astype(np.float64) @ self.centre
        )


def _pack(query: NDArray[Any]) -> Any:
    if len(query) == 0:  # nothing to multiply, and the packer takes no empty matrix
        return None
    return numkong.dots_pack(np.ascontiguousarray(query))


def make_store(name: str, centre: NDArray[np.float32] | None = None, step: float | None = None) -> Store:
    if name == "float16":
        return Float16Store()
    if name == "int8" and centre is not None and step is not None:
        return Int8Store(centre, step)
    raise UsageError(f'store is "int8" or "float16", not {name!r}')
