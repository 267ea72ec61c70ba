"""The paper's first stage: approximate nearest neighbours of each kept query embedding, with FAISS IVFPQ.

    D_i(k') = documents that own one of the k' document embeddings nearest to query embedding i      (Eq. 2)
    D(k')   = union of D_i(k') over the kept query embeddings                                        (Eq. 3 and 4)

The ids in the inverted lists are numbers of documents, so that FAISS itself does the mapping of Eq. 2. How the index is
trained and filled is in storage/faiss_file.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..errors import require
from ..records import EncodedText, Positions
from ..settings import SearchPlan
from ..storage.snapshot import Snapshot


class FaissGatherer:
    """Over segments whose documents are numbered one after another: each is (its first number, documents, index)."""

    def __init__(self, segments: Sequence[tuple[int, int, Any]]) -> None:
        self._segments = segments

    @classmethod
    def over(cls, snapshot: Snapshot) -> FaissGatherer:
        return cls([(first, len(segment), segment.faiss) for first, segment in snapshot.embedded])

    def gather(
        self, query: EncodedText, kept: Positions, plan: SearchPlan, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[NDArray[np.int64], int]:
        faiss: Any = require("faiss", "faiss")
        if len(kept) == 0:
            return np.empty(0, dtype=np.int64), 0
        embeddings = query.embeddings[kept]  # without weights, which do not change what is nearest
        k_prime = int(plan.k_prime)
        near, owners = [], [np.empty((len(embeddings), 0), dtype=np.int64)]
        threads = faiss.omp_get_max_threads()
        faiss.omp_set_num_threads(1)  # one query, one thread
        try:
            for first, documents, index in self._segments:
                stop_if_cancelled()
                allowed_here = None if allowed is None else allowed[first : first + documents]
                parameters = _parameters(index, plan.nprobe, allowed_here)
                distances, numbers = index.search(embeddings, k_prime, params=parameters)
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
    faiss: Any = require("faiss", "faiss")
    filtered: dict[str, Any] = {}
    if allowed is not None:
        filtered["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
    if hasattr(index, "nprobe"):
        return faiss.SearchParametersIVF(nprobe=int(nprobe), **filtered)
    return faiss.SearchParameters(**filtered)
