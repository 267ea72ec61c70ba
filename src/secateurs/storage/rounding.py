"""Embeddings to rows of float16 or int8, and back.

Most of an embedding's length is the mean of all of them. Subtracting it changes every document's score for a given
query by the same amount, so no ranking changes, and what is left is small enough for 8 bits:

    float16     row = e                                      q . e  ~  q . row
    int8        row = round((e - centre) / step)             q . e  ~  q . centre  +  step * (q . row)

The query is rounded the same way as the rows, float16 to float16 and int8 to int8 (each query embedding with its own
scale), because that is what the hardware multiplies fast. Only the part relative to the centre is rounded: q . centre
is computed in full. What this loses against float32 is in docs/index-format.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numkong
import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..kernels.maxsim import FloatQuery, PreparedQuery, prepare_int8
from ..kernels.refining import AnyQuery
from ..progress import progress_bar
from . import sampling
from .files import new_array

BLOCK = 65_536  # rows converted at a time


class Store(Protocol):
    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[Any]: ...
    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]: ...
    def prepare(self, query: NDArray[np.float32], positions: NDArray[np.int64] | None = None) -> AnyQuery: ...


@dataclass(frozen=True, slots=True)
class Float16Store:
    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[np.float16]:
        return embeddings.astype(np.float16)

    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return rows.astype(np.float32)

    def prepare(self, query: NDArray[np.float32], positions: NDArray[np.int64] | None = None) -> PreparedQuery:
        if len(query) == 0:  # nothing to multiply, and the packer takes no empty matrix
            return FloatQuery(None, 0)
        if np.abs(query).max() > np.finfo(np.float16).max:
            raise UsageError(
                "the query's embeddings, times their weights, are too large for the store float16: normalise them"
            )
        return FloatQuery(numkong.dots_pack(query.astype(np.float16)), len(query))


@dataclass(frozen=True, slots=True)
class Int8Store:
    centre: NDArray[np.float32]  # (dim,)
    step: float
    reach: tuple[float, float] | None = None  # see maxsim.prepare_int8

    @classmethod
    def fit(cls, centre: NDArray[np.float32], sample: NDArray[np.float32]) -> Int8Store:
        """The step that lets all but one value in ten thousand of the sample fit into -127 to 127."""
        spread = np.abs(sample - centre)
        reach = float(np.quantile(spread, 0.9999)) if spread.size else 0.0
        return cls(centre.astype(np.float32), max(reach, 1e-6) / 127)

    def is_near(self, other: Int8Store) -> bool:
        """Whether either would do in place of the other: about the same step, and centres a few steps apart."""
        apart = float(np.abs(self.centre - other.centre).max(initial=0))
        return 0.8 <= self.step / other.step <= 1.25 and apart <= 8 * self.step

    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[np.int8]:
        steps = np.rint((embeddings - self.centre) * np.float32(1 / self.step))
        rows: NDArray[np.int8] = np.clip(steps, -127, 127).astype(np.int8)
        return rows

    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        decoded: NDArray[np.float32] = rows.astype(np.float32) * np.float32(self.step) + self.centre
        return decoded

    def prepare(self, query: NDArray[np.float32], positions: NDArray[np.int64] | None = None) -> PreparedQuery:
        return prepare_int8(query, self.centre, self.step, positions, self.reach)


def fit_int8(total: NDArray[np.float64], count: int, sample: NDArray[np.float16]) -> Int8Store:
    """From the sum of all embeddings, their number, and a sample of them."""
    return Int8Store.fit((total / max(count, 1)).astype(np.float32), sample.astype(np.float32))


def share_clipped(embeddings: NDArray[Any], int8: Int8Store) -> float:
    """The share of the values that the scale cuts off; of more than SAMPLE rows, estimated from SAMPLE of them."""
    sample = embeddings[:: max(1, len(embeddings) // sampling.SAMPLE)]
    clipped = 0
    for start in range(0, len(sample), BLOCK):
        distances = np.abs(sample[start : start + BLOCK].astype(np.float32) - int8.centre)
        clipped += int((distances > 127.5 * int8.step).sum())
    return clipped / max(sample.size, 1)


def reach_of(store: Int8Store, rows: Any) -> tuple[float, float]:
    """The longest stored embedding, and the largest distance of a stored embedding from the centre."""
    longest, farthest = 0.0, 0.0
    for start in range(0, rows.shape[0], BLOCK):
        decoded = store.decode(rows[start : start + BLOCK])
        longest = max(longest, float(np.linalg.norm(decoded, axis=1).max(initial=0)))
        farthest = max(farthest, float(np.linalg.norm(decoded - store.centre, axis=1).max(initial=0)))
    return longest * (1 + 1e-6), farthest * (1 + 1e-6)


def write_rows(path: Path, embeddings: NDArray[Any], store: Store, progress: bool | None) -> NDArray[Any]:
    """Embeddings, (embeddings, dim), to a file of rows of the same shape, a block at a time."""
    dtype = store.encode(np.empty((0, embeddings.shape[1]), dtype=np.float32)).dtype
    rows = new_array(path, dtype, embeddings.shape)
    with progress_bar("storing embeddings", len(embeddings), "embeddings", progress) as advance:
        for start in range(0, len(embeddings), BLOCK):
            block = embeddings[start : start + BLOCK].astype(np.float32)
            rows[start : start + len(block)] = store.encode(block)
            advance(len(block))
    return rows
