"""How an embedding is kept: `float16`, `int8` around the collection's mean, or `residual4` around its cell's centroid.

Most of an embedding's length is the mean of all of them. Taking it away moves every document's score for a given query
by the same amount, so no ranking changes, and what is left is small enough for 8 bits:

    float16     row = e                                      q . e  ~  q . row
    int8        row = round((e - centre) / step)             q . e  ~  q . centre  +  step * (q . row)
    residual4   code = nearest of 16 levels to row - cell    row  ~  cell + level[code], then as int8

Two codes share a byte: dimension d is the low half, dimension d + dim / 2 the high half of byte d.

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

from ...kernels.decoding import decode_residuals
from ...kernels.maxsim import Float16Query, PreparedQuery, prepare_int8


class Store(Protocol):
    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[Any]: ...
    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]: ...
    def prepare(self, query: NDArray[np.float32], positions: NDArray[np.int64] | None = None) -> PreparedQuery: ...


@dataclass(frozen=True, slots=True)
class Float16Store:
    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[np.float16]:
        return embeddings.astype(np.float16)

    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        return rows.astype(np.float32)

    def prepare(self, query: NDArray[np.float32], positions: NDArray[np.int64] | None = None) -> PreparedQuery:
        if len(query) == 0:  # nothing to multiply, and the packer takes no empty matrix
            return Float16Query(None, 0)
        return Float16Query(numkong.dots_pack(query.astype(np.float16)), len(query))


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


class Residuals:
    """Rows of the store residual4, which read like an array of int8 rows."""

    def __init__(
        self,
        codes: NDArray[np.uint8],  # (embeddings, width / 2)
        cells: NDArray[np.uint32],  # (embeddings,)
        centroids: NDArray[np.int8],  # (cells, width)
        levels: NDArray[np.int8],  # (16,)
        dim: int,  # without the zeros that make it a multiple of four
    ) -> None:
        self._parts = codes, cells, centroids, levels
        self.shape = (len(codes), dim)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.int8]:
        codes, cells, centroids, levels = self._parts
        decoded = np.empty((len(cells[rows]), centroids.shape[1]), dtype=np.int8)
        decode_residuals(np.asarray(codes[rows]), np.asarray(cells[rows]), centroids, levels, decoded)
        return decoded[:, : self.shape[1]]


def fit_levels(differences: NDArray[np.int16]) -> NDArray[np.int8]:
    """Sixteen levels for the values of a sample, by Lloyd's algorithm from their quantiles."""
    values = np.sort(differences, axis=None).astype(np.float64)
    if values.size == 0:
        return np.zeros(16, dtype=np.int8)
    levels = np.quantile(values, (np.arange(16) + 0.5) / 16)
    totals = np.concatenate([[0], np.cumsum(values)])
    for _ in range(30):
        edges = np.searchsorted(values, [-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf])
        counts = np.diff(edges)
        levels = np.where(counts > 0, np.diff(totals[edges]) / np.maximum(counts, 1), levels)
    return np.rint(np.clip(levels, -127, 127)).astype(np.int8)


def encode_residuals(
    rows: NDArray[np.int8], centroids: NDArray[np.int8], levels: NDArray[np.int8]
) -> NDArray[np.uint8]:
    """The codes of some rows; `centroids` has one line per row."""
    possible = np.arange(-254, 255)
    nearest = np.abs(possible[:, None] - levels.astype(np.int64)).argmin(axis=1).astype(np.uint8)
    codes: NDArray[np.uint8] = nearest[rows.astype(np.int16) - centroids + 254]
    half = rows.shape[1] // 2
    packed: NDArray[np.uint8] = codes[:, :half] | (codes[:, half:] << np.uint8(4))
    return packed
