"""Whether all rows that a search is about to read have been compared with their checksums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .simd import compiled


@compiled
def all_checked(
    starts: NDArray[np.int64], ends: NDArray[np.int64], block_rows: int, unchecked: NDArray[np.bool_]
) -> bool:
    """Whether no block of these rows is still to be checked: nearly always so, and asked by every search."""
    for i in range(len(starts)):
        if starts[i] < ends[i]:
            for block in range(starts[i] // block_rows, (ends[i] - 1) // block_rows + 1):
                if unchecked[block]:
                    return False
    return True
