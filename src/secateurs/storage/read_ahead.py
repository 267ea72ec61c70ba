"""Rows of a file that is mapped into memory, asked for in one go before they are read.

A search reads a few hundred documents from places all over a file. If they are not in memory, the system fetches them
one after the other, each when it is first touched, and with each far more of the file than is wanted. A disk answers
many requests at once much sooner: benchmarks/cold_start.py has how much.
"""

from __future__ import annotations

import mmap
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_MOST_BYTES = 64 << 20  # beyond, for instance when everything is scored, the system's own way is as good
_CAN_ASK = hasattr(mmap.mmap, "madvise") and hasattr(mmap, "MADV_WILLNEED")


class ReadAhead:
    def __init__(self, rows: NDArray[np.generic]) -> None:
        """`rows` is an array that `open_array` has opened."""
        self._mapping = _mapping_of(rows)
        self._row_bytes = rows.strides[0] if len(rows) else 0
        self._first_byte = 0
        if self._mapping is not None:
            whole = np.frombuffer(self._mapping, dtype=np.uint8)
            self._first_byte = rows.ctypes.data - whole.ctypes.data

    def ask(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Ask for the rows starts[i] to ends[i], for every i. It does not wait for them."""
        if self._mapping is None or not _CAN_ASK or (ends - starts).sum() * self._row_bytes > _MOST_BYTES:
            return
        first = self._first_byte + starts * self._row_bytes
        last = self._first_byte + ends * self._row_bytes
        first -= first % mmap.PAGESIZE  # the system wants the beginning of a page
        with suppress(OSError):  # some systems refuse it; the rows are read without it too
            for start, length in zip(first.tolist(), (last - first).tolist(), strict=True):
                self._mapping.madvise(mmap.MADV_WILLNEED, start, length)


def disk_reads() -> int:
    """How much this thread has read from disk so far, in any unit; always 0 where the system does not say."""
    if resource is None or not hasattr(resource, "RUSAGE_THREAD"):
        return 0
    return int(resource.getrusage(resource.RUSAGE_THREAD).ru_inblock)


def _mapping_of(array: NDArray[np.generic]) -> mmap.mmap | None:
    """The mapping that an array shows, None if the array is in memory."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, mmap.mmap) else None
