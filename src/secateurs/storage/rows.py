"""Staged float16 embeddings to the rows that are stored, and what must be known of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.maxsim import whole_dwords
from ..progress import progress_bar
from .codebooks import Learnt
from .codecs.stores import Int8Store, Residuals, Store, encode_residuals, fit_levels
from .file_names import CELLS_OF_EMBEDDINGS
from .files import new_array, open_array

SAMPLE = 200_000  # rows that decide the int8 step, or about so many
UNIT = 0.01  # how far from 1 a length may be
_BLOCK = 65_536  # rows converted at a time
_DOCUMENTS = 8_192  # whose rows are drawn at a time
_STRIDE = np.uint64(0x9E3779B97F4A7C15)  # 2^64 by the golden ratio: its multiples fall evenly everywhere


def store_rows(path: Path, staged: NDArray[np.float16], store: Store, progress: bool | None) -> NDArray[Any]:
    dtype = store.encode(np.empty((0, staged.shape[1]), dtype=np.float32)).dtype
    rows = new_array(path, dtype, staged.shape)
    with progress_bar("storing embeddings", len(staged), "embeddings", progress) as advance:
        for start in range(0, len(staged), _BLOCK):
            block = staged[start : start + _BLOCK].astype(np.float32)
            rows[start : start + len(block)] = store.encode(block)
            advance(len(block))
    return rows


def sample_bound(total: int) -> int:
    """Up to what `sampled_rows` has to draw to get about SAMPLE of so many rows, or all of them if there are fewer."""
    return min(2**64 * SAMPLE // max(total, 1), 2**64 - 1)


def sampled_rows(hashes: NDArray[np.uint64], offsets: NDArray[np.int64], bound: int) -> NDArray[np.int64]:
    """A sample of some documents' rows. Whether a row is in it depends on its docno's hash and its position alone.

    So a collection in shards draws the same rows as one index of it, whatever the order and the number of shards.
    """
    drawn = []
    for first in range(0, len(hashes), _DOCUMENTS):
        edges = offsets[first : first + _DOCUMENTS + 1]
        lengths = np.diff(edges)
        positions = np.arange(edges[0], edges[-1]) - np.repeat(edges[:-1], lengths)
        numbers = np.repeat(hashes[first : first + _DOCUMENTS], lengths) + positions.astype(np.uint64) * _STRIDE
        drawn.append(np.flatnonzero(numbers <= np.uint64(bound)) + edges[0])
    return np.concatenate(drawn) if drawn else np.empty(0, dtype=np.int64)


def share_beyond(rows: NDArray[np.float16], int8: Int8Store) -> float:
    """Which share of the values does not fit the scale; estimated, of very many."""
    sample = rows[:: max(1, len(rows) // SAMPLE)]
    beyond = 0
    for start in range(0, len(sample), _BLOCK):
        away = np.abs(sample[start : start + _BLOCK].astype(np.float32) - int8.centre)
        beyond += int((away > 127.5 * int8.step).sum())
    return beyond / max(sample.size, 1)


def are_of_unit_length(store: Store, rows: Any) -> bool:
    for start in range(0, rows.shape[0], _BLOCK):
        norms = np.linalg.norm(store.decode(rows[start : start + _BLOCK]), axis=1)
        if (np.abs(norms - 1) >= UNIT).any():
            return False
    return True


def store_residuals(
    folder: Path, rows: NDArray[np.int8], codebook: Learnt, progress: bool | None
) -> tuple[Learnt, Residuals]:
    """int8 rows to 4-bit codes around the centroids of their cells, which are there already."""
    centroids = codebook.centroids
    assert centroids is not None
    homes = open_array(folder / CELLS_OF_EMBEDDINGS)
    levels = codebook.levels
    if levels is None:
        sample = slice(None, None, max(1, len(rows) // (SAMPLE // 10)))
        levels = fit_levels(whole_dwords(rows[sample]).astype(np.int16) - centroids[homes[sample]])
    codes = new_array(folder / "embeddings.npy", np.uint8, (len(rows), centroids.shape[1] // 2))
    with progress_bar("coding residuals", len(rows), "embeddings", progress) as advance:
        for start in range(0, len(rows), _BLOCK):
            some = slice(start, start + _BLOCK)
            codes[some] = encode_residuals(whole_dwords(rows[some]), centroids[homes[some]], levels)
            advance(len(codes[some]))
    return codebook._replace(levels=levels), Residuals(codes, homes, centroids, levels, rows.shape[1])


def reach_of(store: Int8Store, rows: Any) -> tuple[float, float]:
    """The longest stored embedding and the largest distance of one from the centre."""
    longest, farthest = 0.0, 0.0
    for start in range(0, rows.shape[0], _BLOCK):
        decoded = store.decode(rows[start : start + _BLOCK])
        longest = max(longest, float(np.linalg.norm(decoded, axis=1).max(initial=0)))
        farthest = max(farthest, float(np.linalg.norm(decoded - store.centre, axis=1).max(initial=0)))
    return longest * (1 + 1e-6), farthest * (1 + 1e-6)
