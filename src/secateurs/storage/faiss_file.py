"""The FAISS index of one segment: an IVFPQ as in the paper, trained, filled and written to faiss.index.

An inverted list stores an id per embedding, and here that id is the document's number, so that FAISS itself maps
embeddings to documents (Eq. 2).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import require
from .file_names import FAISS

_TRAINING_SHARE = 0.05  # of the embeddings, as in the paper; more where that is too few for the partitions
_TRAINING_POINTS_PER_LIST = 64
_MOST_TRAINING_POINTS_PER_LIST = 256
_FEWEST_POINTS_PER_LIST = 39
_ITERATIONS = 10
_SMALL = 10_000  # embeddings below which a flat scan beats partitions, and PQ has too little to learn from
_BLOCK = 65_536


def build(
    folder: Path,
    offsets: NDArray[np.int64],
    decode: Callable[[NDArray[np.int64] | slice], NDArray[np.float32]],
    dim: int,
    unit: bool,
    on_progress: Callable[[int], None] = lambda embeddings: None,
) -> None:
    """Train on a seeded sample, add all embeddings a block at a time, write the index.

    `decode` gives the embeddings of rows as float32; `on_progress` is called with the number that were added.
    Embeddings of unit length are compared by L2 distance, as in the paper; for others that would not be the order of
    their dot products.
    """
    faiss: Any = require("faiss", "faiss")
    total = int(offsets[-1])
    metric = faiss.METRIC_L2 if unit else faiss.METRIC_INNER_PRODUCT
    index: Any = faiss.index_factory(dim, _recipe(total, dim), metric)
    if total >= _SMALL:
        wanted = max(int(total * _TRAINING_SHARE), _TRAINING_POINTS_PER_LIST * index.nlist)
        most = _MOST_TRAINING_POINTS_PER_LIST * index.nlist  # FAISS would drop the rest
        sample = np.sort(np.random.default_rng(0).choice(total, min(wanted, most, total), replace=False))
        for clustering in [index.cp] + ([index.pq.cp] if hasattr(index, "pq") else []):
            clustering.niter = _ITERATIONS
        if hasattr(index, "pq"):  # its codebooks have 256 entries of few dimensions: more points only take longer
            index.pq.cp.max_points_per_centroid = _TRAINING_POINTS_PER_LIST
            # Reordering the codes for a filter by Hamming distance takes most of the training, and no search uses it.
            index.do_polysemous_training = False
        index.train(decode(sample))
    for start in range(0, total, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, total))
        owners = np.searchsorted(offsets, rows, side="right") - 1
        index.add_with_ids(decode(slice(start, start + len(rows))), owners)
        on_progress(len(rows))
    faiss.write_index(index, str(folder / FAISS))


def _recipe(total: int, dim: int) -> str:
    if total < _SMALL:
        return "IDMap,Flat"
    lists = 2 ** int(np.log2(min(4 * np.sqrt(total), total / _FEWEST_POINTS_PER_LIST)))  # 4,096 for 3 million
    codes = max(m for m in range(1, 17) if dim % m == 0)  # bytes per embedding: 16 where the dimension allows
    return f"IVF{lists},PQ{codes}x8" if codes >= 4 else f"IVF{lists},Flat"


def read(path: Path) -> Any:
    return require("faiss", "faiss").read_index(str(path))
