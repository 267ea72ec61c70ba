"""TACHIOM: k-means per token type, a graph over the centroids, product quantisation to score (Martinico et al., 2026).

Its index is one file, held in memory. A search takes the `k_centroids` nearest centroids of each query embedding (a
graph search as wide as `ef_search`), adds up the centroids' scores per document, and scores the best `k_docs_to_score`
again with the quantised embeddings; documents that score less than (1 - alpha) of the k-th are left out before that.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import common
import numpy as np

PACKAGE = "tachiom"
DEFAULT = {"k_centroids": 20, "ef_search": 30, "k_docs_to_score": 500, "alpha": 0.45}
SWEEP = [
    {"k_centroids": 4, "ef_search": 8, "k_docs_to_score": 50, "alpha": 0.3},
    {"k_centroids": 10, "ef_search": 15, "k_docs_to_score": 100, "alpha": 0.35},
    # the three settings that the authors report for MS MARCO
    {"k_centroids": 20, "ef_search": 30, "k_docs_to_score": 250, "alpha": 0.45},
    {"k_centroids": 30, "ef_search": 45, "k_docs_to_score": 250, "alpha": 0.35},
    {"k_centroids": 40, "ef_search": 60, "k_docs_to_score": 500, "alpha": 0.35},
    {"k_centroids": 80, "ef_search": 120, "k_docs_to_score": 1000, "alpha": None},
    {"k_centroids": 160, "ef_search": 240, "k_docs_to_score": 2000, "alpha": None},
    {"k_centroids": 320, "ef_search": 480, "k_docs_to_score": 4000, "alpha": None},
]


def prepare(data: common.Data) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    import tachiom  # noqa: F401 - so that the import is not timed

    lengths = (data.ends - data.starts).astype(np.int32)
    return data.embeddings.view(np.uint16), data.token_ids.astype(np.uint32), lengths


def build(documents: tuple[np.ndarray, np.ndarray, np.ndarray], index: Path, **options: Any) -> None:
    import tachiom

    tachiom.Tachiom.build_from_arrays(*documents, **options).save(str(index / "index.bin"))


def load(index: Path) -> Any:
    import tachiom

    return tachiom.Tachiom.load(str(index / "index.bin"))


def as_query(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows)


def search(loaded: Any, query: np.ndarray, k: int, **setting: Any) -> Any:
    return loaded.search(query, k, **setting)


def positions(result: Any) -> np.ndarray:
    scores, places = result
    return places[np.isfinite(scores)]  # an answer of fewer than k is filled up with minus infinity


if __name__ == "__main__":
    common.main(sys.modules[__name__])
