"""The k largest values so far: a heap in an array, with the lowest of them in front."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from .simd import compiled


@compiled
def replace_lowest(heap: NDArray[Any], value: Any) -> None:
    """Put the value in the place of heap[0], and move it down until no child is lower than its parent."""
    place = 0
    while True:
        child = 2 * place + 1
        if child + 1 < len(heap) and heap[child + 1] < heap[child]:
            child += 1
        if child >= len(heap) or heap[child] >= value:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = value
