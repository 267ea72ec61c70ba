"""Approximate scores of documents from the cells that they have embeddings in.

For each query embedding, a document gets points for the best probed cell that lists it: the similarity of that cell,
minus the similarity of the nearest cell that was not probed. `add_points` adds them up over query embeddings;
`add_summary_points` adds the exact similarity of the query's summary with that of each document that was found;
`take_points` turns the sums into sortable keys and clears the sums.

`seen` and `sums` are two views of one (documents, 2) array, so that a document costs one cache line: seen[:, 0] is the
number of the last query embedding that listed the document, sums[:, 1] its points.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .simd import LANES, compiled, fill, load, multiply_add, prefetch, store

_BYTES_AT_ONCE = 4 * LANES
_ROWS_AHEAD = 8  # that are brought near before they are read


@compiled
def add_points(
    first: int,
    cells: NDArray[np.int32],
    products: NDArray[np.int32],
    nprobe: NDArray[np.int64],
    unit: NDArray[np.float64],
    offsets: NDArray[np.int64],
    listed: NDArray[np.int32],
    seen: NDArray[np.int32],
    sums: NDArray[np.float32],
    found: NDArray[np.int64],
    count: int,
) -> int:
    """Points of one segment's documents for a batch of query embeddings; `first` embeddings came in batches before.

    cells, products are (query embeddings, the largest nprobe + 1 or fewer), best first; nprobe is (query embeddings,).
    Documents that no earlier embedding listed go to found[count:]; gives the new count.
    """
    nothing = np.float32(0)
    for i in range(len(cells)):
        lowest = products[i, min(nprobe[i], products.shape[1] - 1)]
        for j in range(nprobe[i]):
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


def pack_summaries(rows: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Rows, (count, dim), as `add_summary_points` reads them: 128 added, and filled up with zeros to whole lanes."""
    packed = np.zeros((len(rows), packed_width(rows.shape[1])), dtype=np.uint8)
    packed[:, : rows.shape[1]] = rows.view(np.uint8) ^ 128
    return packed


def packed_width(dim: int) -> int:
    return -(-dim // _BYTES_AT_ONCE) * _BYTES_AT_ONCE


@compiled
def add_summary_points(
    found: NDArray[np.int64],
    count: int,
    summaries: NDArray[np.uint8],
    summary: NDArray[np.int8],
    unit: float,
    sums: NDArray[np.float32],
) -> None:
    """For each found document, `unit` times the product of its row of `summaries` with `summary`, (width,).

    Rows are packed, so that each product is larger by 128 times the sum of `summary`. The least that a product can be
    is subtracted from all of them, because points must not be negative.
    """
    width = summaries.shape[1]
    least = np.int64(0)
    for d in range(width):
        least += 128 * (np.int64(summary[d]) - abs(np.int64(summary[d])))
    sixteen = np.empty(LANES, dtype=np.int32)
    last = count - 1
    for i in range(count):
        ahead = found[min(i + _ROWS_AHEAD, last)] * width
        for at in range(0, width, _BYTES_AT_ONCE):
            prefetch(summaries, ahead + at)
        lanes = fill(np.int32(0))
        for at in range(0, width, _BYTES_AT_ONCE):
            lanes = multiply_add(lanes, load(summaries, found[i] * width + at), load(summary, at))
        store(sixteen, 0, lanes)
        product = np.int64(0)
        for lane in range(LANES):
            product += sixteen[lane]
        sums[found[i], 1] += np.float32(unit * (product - least))


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
