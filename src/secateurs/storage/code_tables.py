"""What the codes of the store residual4 mean: centroids, each with sixteen levels for the differences from it.

A row is coded once. Its centroid and its codes are copied whenever the index is rewritten, so the table only grows:
what is learnt later is for rows that are added later. Centroids and levels are kept in the embeddings' own numbers and
rounded to the index's int8 scale when they are used. So rows read the same as long as the scale is the same, and on
another scale they are rounded once, from the table and not from rows that were rounded before.

The levels of a centroid are as wide as its rows spread. A row that is farther away, as words are that the table was not
learnt from, takes them twice as wide.

    number of a row = 2 * centroid + whether its levels are twice as wide
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernels.clustering import assign, cluster
from ..kernels.decoding import OFFSETS
from ..kernels.maxsim import whole_dwords
from .rounding import Int8Store

_MOST = 1 << 15  # centroids: a number has two bytes, and says which centroid and which levels
_MOST_AT_ONCE = 2048  # their lines, about 450 KB for 96 dimensions, stay in the second-level cache
_ROWS_PER_CENTROID = 32
_SAMPLE = 48  # rows per centroid that it is learnt from
_PRIOR = 4  # rows of average spread that every centroid has beside its rows
_WIDE = 2  # how much wider
# The share of rows that may take wide levels. Of new texts of the same kind 9 to 24 in a hundred do, of another
# collection's 24 to 65.
_FAR = 0.3


class CodeTable(NamedTuple):
    centroids: NDArray[np.float16]  # (centroids, dim)
    levels: NDArray[np.float16]  # (centroids, 16), ascending
    newest: int = 0  # the first centroid that was learnt last

    def rounded(self, int8: Int8Store) -> NDArray[np.int8]:
        """As kernels/decoding.py takes it, a line per number: (2 * centroids, width + 16)."""
        levels = np.repeat(self.levels, 2, axis=0).astype(np.float64) / int8.step
        levels[1::2] *= _WIDE
        offsets = np.clip(np.rint(levels), -128, 127).astype(np.int8)
        return np.concatenate([np.repeat(self._rounded_centroids(int8), 2, axis=0), offsets], axis=1)

    def _rounded_centroids(self, int8: Int8Store) -> NDArray[np.int8]:
        return whole_dwords(int8.encode(self.centroids.astype(np.float32)))  # (centroids, width)

    def nearest(self, int8_rows: NDArray[np.int8], int8: Int8Store) -> NDArray[np.uint16]:
        """The number of each row, (rows,), with the narrow levels of its nearest centroid."""
        centroids = self._rounded_centroids(int8)
        nearest = assign(lambda rows: whole_dwords(int8_rows[rows]), np.arange(len(int8_rows)), centroids, None)
        return (2 * nearest).astype(np.uint16)

    def extended(self, int8_rows: Any, int8: Int8Store) -> CodeTable:
        """With centroids and levels for rows like these."""
        learnt = learn_table(int8_rows, int8)
        if len(self.centroids) + len(learnt.centroids) > _MOST:
            return self
        return CodeTable(
            np.concatenate([self.centroids, learnt.centroids]),
            np.concatenate([self.levels, learnt.levels]),
            newest=len(self.centroids),
        )

    def is_outgrown(self, numbers: NDArray[np.uint16], rows: int) -> bool:
        """Whether an index of so many rows should learn more, given the numbers of those that are coded."""
        if centroids_for(rows) >= 2 * len(self.centroids):
            return True
        latest = numbers[numbers >= 2 * self.newest]
        return 4 * len(latest) >= rows and int((latest & 1).sum()) > _FAR * len(latest)


def centroids_for(rows: int) -> int:
    return min(max(rows // _ROWS_PER_CENTROID, 1), _MOST_AT_ONCE)


def learn_table(int8_rows: Any, int8: Int8Store) -> CodeTable:
    """From rows, (rows, dim) int8, or from a sample of them. The result is the same on any machine."""
    total, dim = int8_rows.shape
    if total == 0:
        return CodeTable(np.zeros((0, dim), np.float16), np.zeros((0, OFFSETS), np.float16))
    wanted = min(total, centroids_for(total) * _SAMPLE)
    sample = whole_dwords(np.asarray(int8_rows[np.arange(wanted) * total // wanted]))
    no_tokens = np.zeros(wanted, dtype=np.int32)  # one clustering of everything
    parts = list(cluster(lambda rows: sample[rows], no_tokens, cells=centroids_for(total)))
    centroids = np.concatenate([part.centroids for part in parts])
    sizes = np.concatenate([part.sizes for part in parts])
    home = np.repeat(np.arange(len(sizes)), sizes)
    differences = sample[np.concatenate([part.rows for part in parts])].astype(np.int16) - centroids[home]
    differences = differences[:, :dim]
    squared = np.bincount(home, (differences.astype(np.int64) ** 2).sum(axis=1)) / dim
    average = max(float(squared.sum()) / wanted, 1e-3)
    spread = np.sqrt((squared + _PRIOR * average) / (sizes + _PRIOR))  # (centroids,)
    fitted = slice(None, None, max(1, wanted // 20_000))
    levels = fit_levels(differences[fitted] / spread[home[fitted], None]) * spread[:, None]
    return CodeTable(int8.decode(centroids[:, :dim]).astype(np.float16), (levels * int8.step).astype(np.float16))


def fit_levels(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sixteen levels for the values of a sample, by Lloyd's algorithm from their quantiles."""
    values = np.sort(values, axis=None).astype(np.float64)
    levels = np.quantile(values, (np.arange(OFFSETS) + 0.5) / OFFSETS)
    totals = np.concatenate([[0], np.cumsum(values)])
    for _ in range(30):
        edges = np.searchsorted(values, [-np.inf, *((levels[1:] + levels[:-1]) / 2), np.inf])
        counts = np.diff(edges)
        levels = np.where(counts > 0, np.diff(totals[edges]) / np.maximum(counts, 1), levels)
    return levels
