"""Approximate scores of documents from the cells that they have embeddings in."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .simd import compiled


@compiled
def add_up(
    cells: NDArray[np.int32],
    products: NDArray[np.int32],
    nprobe: int,
    unit: NDArray[np.float64],
    offsets: NDArray[np.int64],
    listed: NDArray[np.int32],
    seen: NDArray[np.int32],
    sums: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    last: int,
    found: NDArray[np.int64],
) -> int:
    """Approximate scores of one segment's documents; found[i] becomes (score's bits, last - document).

    `seen` and `sums` are two views of one (documents, 2) array, so that a document costs one cache line: in seen[:, 0]
    the last query embedding that saw the document, in sums[:, 1] its score above that of a document nobody saw. Bits
    of positive floats order like the floats. Both are left zero. An empty `allowed` allows every document.
    """
    count = 0
    nothing = np.float32(0)
    for i in range(len(cells)):
        lowest = products[i, products.shape[1] - 1]
        for j in range(nprobe):
            gain = np.float32(unit[i] * (products[i, j] - lowest))
            for at in range(offsets[cells[i, j]], offsets[cells[i, j] + 1]):
                document = listed[at]
                last_seen = seen[document, 0]
                found[count] = document  # kept only if it is new: nothing here branches on what no CPU can guess
                count += last_seen == 0
                sums[document, 1] += gain if last_seen != i + 1 else nothing  # cells come best first: the first counts
                seen[document, 0] = i + 1
    everyone = len(allowed) == 0
    kept = 0
    for i in range(count):
        document = found[i]
        found[kept] = (np.int64(seen[document, 1]) << 32) | (last - document)
        kept += everyone or allowed[document]
        seen[document, 0] = 0
        seen[document, 1] = 0
    return kept
