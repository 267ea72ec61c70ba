"""The paper's first stage: approximate nearest neighbours of each kept query embedding, with FAISS IVFPQ.

    D_i(k') = documents that own one of the k' document embeddings nearest to query embedding i      (Eq. 2)
    D(k')   = union of D_i(k') over the kept query embeddings                                        (Eq. 3 and 4)

An inverted list stores an id per embedding anyway, and here that id is the document's number, so that FAISS itself
does the mapping of Eq. 2.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..records import SearchPlan
from ..storage.file_names import FAISS

_TRAINING_SHARE = 0.05  # of the embeddings, as in the paper; more where that would starve the partitions
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

    `decode` gives the embeddings of some rows as float32; `on_progress` hears how many were added. Embeddings of unit
    length are compared by L2 distance, as in the paper; for others that would not be the order of their dot products.
    """
    import faiss

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
    import faiss

    return faiss.read_index(str(path))


class FaissIVFPQ:
    """Over segments whose documents are numbered one after another: each is (its first number, documents, index)."""

    def __init__(self, segments: Sequence[tuple[int, int, Any]]) -> None:
        self._segments = segments

    def gather(
        self, embeddings: NDArray[np.float32], plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        import faiss

        if len(embeddings) == 0:
            return np.empty(0, dtype=np.int64), 0
        k_prime = int(plan.k_prime)
        near, owners = [], [np.empty((len(embeddings), 0), dtype=np.int64)]
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)  # one query, one thread
        try:
            for first, documents, index in self._segments:
                some = None if allowed is None else allowed[first : first + documents]
                distances, numbers = index.search(embeddings, k_prime, params=_parameters(index, plan.nprobe, some))
                if index.metric_type == faiss.METRIC_L2:  # of unit rows: |q|^2 + 1 - 2 q . row
                    distances = (np.square(embeddings).sum(axis=1, keepdims=True) + 1 - distances) / 2
                # FAISS fills up with -1 when it finds fewer than k'; as an index that would mean the last document.
                near.append(np.where(numbers < 0, -np.inf, distances))
                owners.append(np.where(numbers < 0, -1, numbers + first))
        finally:
            faiss.omp_set_num_threads(threads)
        found = np.concatenate(owners, axis=1)  # (kept, segments * k')
        if len(near) > 1:
            nearest = np.argpartition(-np.concatenate(near, axis=1), k_prime - 1, axis=1)[:, :k_prime]
            found = np.take_along_axis(found, nearest, axis=1)
        found = np.unique(found)
        found = found[np.searchsorted(found, 0) :]
        return found, len(found)


def _parameters(index: Any, nprobe: int, allowed: NDArray[np.bool_] | None) -> Any:
    """Per call, not on the index: other threads may search with other settings."""
    faiss: Any = importlib.import_module("faiss")  # its own type hints know less than it does
    some: dict[str, Any] = {}
    if allowed is not None:
        some["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
    if hasattr(index, "nprobe"):
        return faiss.SearchParametersIVF(nprobe=int(nprobe), **some)
    return faiss.SearchParameters(**some)
