"""The largest products of a document's rows with sixteen or thirty-two query embeddings: the inner loops of MaxSim.

Rows are int8, or uint8 with 128 added.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .simd import LANES, compiled, fill, larger, load, multiply_add, prefetch, splat, store


@compiled
def thirty_two_maxima(
    rows: NDArray[Any],
    begin: int,
    end: int,
    following: int,
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    block: int,
    products: NDArray[np.int32],
) -> None:
    """Over rows begin to end, the largest product with each lane of two blocks. Six rows at a time.

    After the last row the last row is taken again: it changes no maximum. The next document begins at row `following`;
    its cache lines are prefetched, because documents are anywhere in memory. -1: there is nothing to prefetch.
    """
    dim = rows.shape[1]
    groups = dim // 4
    size = 4 * LANES
    last = end - 1
    lowest = fill(np.int32(-(2**31)))
    maxima0, maxima1 = lowest, lowest
    first0, second0 = load(start, block * size), load(start, (block + 1) * size)
    for row in range(begin, end, 6):
        for line in range(0, 6 * dim if following >= 0 else 0, 64):
            prefetch(rows, (following + row - begin) * dim + line)
        at0, at1, at2 = row * dim, min(row + 1, last) * dim, min(row + 2, last) * dim
        at3, at4, at5 = min(row + 3, last) * dim, min(row + 4, last) * dim, min(row + 5, last) * dim
        sum0, sum1, sum2, sum3, sum4, sum5 = first0, first0, first0, first0, first0, first0
        sum6, sum7, sum8, sum9, sum10, sum11 = second0, second0, second0, second0, second0, second0
        for group in range(groups):
            first = load(packed, (block * groups + group) * size)
            second = load(packed, ((block + 1) * groups + group) * size)
            row0, row1 = splat(rows, at0 + 4 * group), splat(rows, at1 + 4 * group)
            row2, row3 = splat(rows, at2 + 4 * group), splat(rows, at3 + 4 * group)
            row4, row5 = splat(rows, at4 + 4 * group), splat(rows, at5 + 4 * group)
            sum0 = multiply_add(sum0, row0, first)
            sum1 = multiply_add(sum1, row1, first)
            sum2 = multiply_add(sum2, row2, first)
            sum3 = multiply_add(sum3, row3, first)
            sum4 = multiply_add(sum4, row4, first)
            sum5 = multiply_add(sum5, row5, first)
            sum6 = multiply_add(sum6, row0, second)
            sum7 = multiply_add(sum7, row1, second)
            sum8 = multiply_add(sum8, row2, second)
            sum9 = multiply_add(sum9, row3, second)
            sum10 = multiply_add(sum10, row4, second)
            sum11 = multiply_add(sum11, row5, second)
        maxima0 = larger(maxima0, larger(larger(larger(sum0, sum1), larger(sum2, sum3)), larger(sum4, sum5)))
        maxima1 = larger(maxima1, larger(larger(larger(sum6, sum7), larger(sum8, sum9)), larger(sum10, sum11)))
    store(products, block * size, maxima0)
    store(products, (block + 1) * size, maxima1)


@compiled
def sixteen_maxima(
    rows: NDArray[Any],
    begin: int,
    end: int,
    following: int,
    packed: NDArray[np.int8],
    start: NDArray[np.int32],
    block: int,
    products: NDArray[np.int32],
) -> None:
    """The same for one block. Eight rows at a time, because as many sums hide how long one addition takes."""
    dim = rows.shape[1]
    groups = dim // 4
    size = 4 * LANES
    last = end - 1
    maxima = fill(np.int32(-(2**31)))
    start0 = load(start, block * size)
    for row in range(begin, end, 8):
        for line in range(0, 8 * dim if block == 0 and following >= 0 else 0, 64):
            prefetch(rows, (following + row - begin) * dim + line)
        at0, at1 = row * dim, min(row + 1, last) * dim
        at2, at3 = min(row + 2, last) * dim, min(row + 3, last) * dim
        at4, at5 = min(row + 4, last) * dim, min(row + 5, last) * dim
        at6, at7 = min(row + 6, last) * dim, min(row + 7, last) * dim
        sum0, sum1, sum2, sum3 = start0, start0, start0, start0
        sum4, sum5, sum6, sum7 = start0, start0, start0, start0
        for group in range(groups):
            query = load(packed, (block * groups + group) * size)
            sum0 = multiply_add(sum0, splat(rows, at0 + 4 * group), query)
            sum1 = multiply_add(sum1, splat(rows, at1 + 4 * group), query)
            sum2 = multiply_add(sum2, splat(rows, at2 + 4 * group), query)
            sum3 = multiply_add(sum3, splat(rows, at3 + 4 * group), query)
            sum4 = multiply_add(sum4, splat(rows, at4 + 4 * group), query)
            sum5 = multiply_add(sum5, splat(rows, at5 + 4 * group), query)
            sum6 = multiply_add(sum6, splat(rows, at6 + 4 * group), query)
            sum7 = multiply_add(sum7, splat(rows, at7 + 4 * group), query)
        maxima = larger(maxima, larger(larger(sum0, sum1), larger(sum2, sum3)))
        maxima = larger(maxima, larger(larger(sum4, sum5), larger(sum6, sum7)))
    store(products, block * size, maxima)
