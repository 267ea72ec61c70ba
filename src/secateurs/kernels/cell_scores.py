"""Approximate scores of documents from the cells that they have embeddings in.

For each query embedding, a document gets points for the best probed cell that lists it: the similarity of that cell,
minus the similarity of the nearest cell that was not probed. `add_points` adds them up over query embeddings;
`take_points` turns the sums into sortable keys and clears the sums.

`seen` and `sums` are two views of one (documents, 2) array, so that a document costs one cache line: seen[:, 0] is the
number of the last query embedding that listed the document, sums[:, 1] its points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .simd import compiled


@compiled
def add_points(
    first: int,
    cells: NDArray[np.int32],
    products: NDArray[np.int32],
    nprobe: int,
    unit: NDArray[np.float64],
    offsets: NDArray[np.int64],
    listed: NDArray[np.int32],
    seen: NDArray[np.int32],
    sums: NDArray[np.float32],
    found: NDArray[np.int64],
    count: int,
) -> int:
    """Points of one segment's documents for a batch of query embeddings; `first` embeddings came in batches before.

    cells, products are (query embeddings, nprobe or nprobe + 1), best first. Documents that no earlier embedding listed
    go to found[count:]; gives the new count.
    """
    nothing = np.float32(0)
    for i in range(len(cells)):
        lowest = products[i, products.shape[1] - 1]
        for j in range(nprobe):
            points = np.float32(unit[i] * (products[i, j] - lowest))
            for at in range(offsets[cells[i, j]], offsets[cells[i, j] + 1]):
                document = listed[at]
                last_seen = seen[document, 0]
                # Written always, counted only if it is new: a branch that no CPU can predict would cost more.
                found[count] = document
                count += last_seen == 0
                # Cells come best first: only the first cell of this embedding that lists the document counts.
                sums[document, 1] += points if last_seen != first + i + 1 else nothing
                seen[document, 0] = first + i + 1
    return count


@compiled
def take_points(
    found: NDArray[np.int64], count: int, seen: NDArray[np.int32], allowed: NDArray[np.bool_], last: int
) -> int:
    """Each found[i] becomes a key, (bits of its points, last - document), if the document is allowed; gives how many.

    Bits of positive floats order like the floats. An empty `allowed` allows every document. `seen` and the points are
    left zero.
    """
    allow_all = len(allowed) == 0
    kept = 0
    for i in range(count):
        document = found[i]
        found[kept] = (np.int64(seen[document, 1]) << 32) | (last - document)
        kept += allow_all or allowed[document]
        seen[document, 0] = 0
        seen[document, 1] = 0
    return kept
