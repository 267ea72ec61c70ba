"""Residual codes back to int8 rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .simd import compiled


@compiled
def decode_residuals(
    codes: NDArray[np.uint8],
    cells: NDArray[np.uint32],
    centroids: NDArray[np.int8],
    levels: NDArray[np.int8],
    decoded: NDArray[np.int8],
) -> None:
    half = codes.shape[1]
    for i in range(len(codes)):
        cell = cells[i]
        for d in range(half):
            low = np.int16(centroids[cell, d]) + levels[codes[i, d] & 15]
            high = np.int16(centroids[cell, half + d]) + levels[codes[i, d] >> 4]
            decoded[i, d] = min(max(low, -127), 127)
            decoded[i, half + d] = min(max(high, -127), 127)
