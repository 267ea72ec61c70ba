"""fast-plaid: PLAID in Rust over torch (Santhanam et al., 2022).

Residuals of four bits beside the nearest centroid. A search probes the `n_ivf_probe` nearest cells of each query
embedding, scores the documents it finds by centroids alone, and decompresses and scores a quarter of `n_full_scores`
of them, the best.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import common
import numpy as np

PACKAGE = "fast-plaid"
DEFAULT = {"n_ivf_probe": 8, "n_full_scores": 4096}
SWEEP = [
    {"n_ivf_probe": 1, "n_full_scores": 64},
    {"n_ivf_probe": 1, "n_full_scores": 256},
    {"n_ivf_probe": 2, "n_full_scores": 512},
    {"n_ivf_probe": 4, "n_full_scores": 1024},
    {"n_ivf_probe": 8, "n_full_scores": 2048},
    {"n_ivf_probe": 16, "n_full_scores": 4096},
    {"n_ivf_probe": 32, "n_full_scores": 8192},
]


def prepare(data: common.Data) -> list[Any]:
    import fast_plaid.search  # noqa: F401 - so that the import is not timed
    import torch

    rows = torch.from_numpy(data.embeddings)
    return [rows[a:b] for a, b in zip(data.starts.tolist(), data.ends.tolist(), strict=True)]


def build(documents: list[Any], index: Path, **options: Any) -> None:
    from fast_plaid.search import FastPlaid

    FastPlaid(str(index), device="cpu").create(documents, **options)


def load(index: Path) -> Any:
    import torch
    from fast_plaid.search import FastPlaid

    torch.set_num_threads(1)
    return FastPlaid(str(index), device="cpu")


def as_query(rows: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(rows).half()  # fast-plaid searches with float16, whatever it is given


def search(loaded: Any, query: Any, k: int, **setting: Any) -> Any:
    return loaded.search(query, top_k=k, show_progress=False, n_processes=1, **setting)


def positions(result: Any) -> list[int]:
    return [place for place, _ in result[0]]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
