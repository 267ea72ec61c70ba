"""Store residual4: per dimension one of 16 levels, for the difference between an int8 row and its cell's centroid.

    code = nearest of 16 levels to row - centroid          row  ~  centroid + level[code], then as int8

Two codes share a byte: dimension d is the low half, dimension d + width / 2 the high half of byte d, where width is dim
rounded up to a multiple of four.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.decoding import decode_residuals
from ...kernels.maxsim import whole_dwords
from ...progress import progress_bar
from .. import sampling
from ..codebooks import AnyCodebook, CodebookContent
from ..file_names import CELL_CENTROIDS, CENTRE, EMBEDDING_CELLS, EMBEDDINGS, LEVELS
from ..files import new_array, open_array
from ..rounding import BLOCK
from .int8 import Int8


class Residual4(Int8):
    needs_cells = True
    int8_file = "staged.int8.npy"
    codebook_files: tuple[str, ...] = (CENTRE, CELL_CENTROIDS, LEVELS)

    def arrays(self, dim: int) -> Mapping[str, tuple[type[np.generic], tuple[int, ...]]]:
        return {EMBEDDINGS: (np.uint8, (-(-dim // 4) * 2,)), EMBEDDING_CELLS: (np.uint32, ())}

    def write(
        self,
        folder: Path,
        embeddings: NDArray[np.float16],
        int8_rows: NDArray[np.int8] | None,
        codebook: CodebookContent,
        progress: bool | None,
    ) -> tuple[Any, CodebookContent]:
        centroids, levels = codebook.centroids, codebook.levels
        assert int8_rows is not None
        assert centroids is not None
        cells = open_array(folder / EMBEDDING_CELLS)  # written when the cells were made
        if levels is None:
            sample = slice(None, None, max(1, len(int8_rows) // (sampling.SAMPLE // 10)))
            levels = fit_levels(whole_dwords(int8_rows[sample]).astype(np.int16) - centroids[cells[sample]])
        codes = new_array(folder / EMBEDDINGS, np.uint8, (len(int8_rows), centroids.shape[1] // 2))
        with progress_bar("coding residuals", len(int8_rows), "embeddings", progress) as advance:
            for start in range(0, len(int8_rows), BLOCK):
                block = slice(start, start + BLOCK)
                codes[block] = encode_residuals(whole_dwords(int8_rows[block]), centroids[cells[block]], levels)
                advance(len(codes[block]))
        codebook = codebook._replace(levels=levels)
        return self.rows({EMBEDDINGS: codes, EMBEDDING_CELLS: cells}, codebook), codebook

    def rows(self, arrays: Mapping[str, NDArray[Any]], codebook: AnyCodebook) -> Residuals:
        assert codebook.int8 is not None
        assert codebook.centroids is not None
        assert codebook.levels is not None
        codes, cells = arrays[EMBEDDINGS], arrays[EMBEDDING_CELLS]
        return Residuals(codes, cells, codebook.centroids, codebook.levels, len(codebook.int8.centre))


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
    """The codes of rows, (rows, width); `centroids` has a line per row."""
    possible = np.arange(-254, 255)
    nearest = np.abs(possible[:, None] - levels.astype(np.int64)).argmin(axis=1).astype(np.uint8)
    codes: NDArray[np.uint8] = nearest[rows.astype(np.int16) - centroids + 254]
    half = rows.shape[1] // 2
    packed: NDArray[np.uint8] = codes[:, :half] | (codes[:, half:] << np.uint8(4))
    return packed
