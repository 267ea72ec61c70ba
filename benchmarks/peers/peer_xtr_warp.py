"""xtr-warp-rs: WARP in Rust over torch (Scheerer et al., 2025).

Residuals of four bits beside the nearest centroid. A search probes the `nprobe` nearest cells of each query embedding
and scores documents by what it finds there alone; a query embedding that found nothing of a document adds a guess
instead, the score of the centroid at which `t_prime` embeddings have been passed (`bound` centroids are looked at for
that). A query embedding whose best centroid scores less than `centroid_score_threshold` is left out. What a setting
does not name, the library chooses for itself from the size of the index.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import common
import numpy as np

PACKAGE = "xtr-warp-rs"
DEFAULT: dict[str, Any] = {}
SWEEP: list[dict[str, Any]] = [
    {"nprobe": 1},
    {"nprobe": 2},
    {"nprobe": 8},
    {"nprobe": 16},
    {"nprobe": 32},
    # its own t_prime supposes its own few probes: with many, the guess would be above what they have seen
    {"nprobe": 64, "t_prime": 100_000, "centroid_score_threshold": 0.0},
    {"nprobe": 128, "t_prime": 100_000, "centroid_score_threshold": 0.0},
    {"nprobe": 256, "t_prime": 100_000, "centroid_score_threshold": 0.0},
    {"nprobe": 512, "t_prime": 100_000, "centroid_score_threshold": 0.0},
]


def prepare(data: common.Data) -> list[Any]:
    import torch
    import xtr_warp  # noqa: F401 - so that the import is not timed

    rows = torch.from_numpy(data.embeddings)
    return [rows[a:b] for a, b in zip(data.starts.tolist(), data.ends.tolist(), strict=True)]


def build(documents: list[Any], index: Path, **options: Any) -> None:
    from xtr_warp import XTRWarp

    XTRWarp(str(index)).create(documents, device="cpu", show_progress=False, **options)


def load(index: Path) -> Any:
    import torch
    from xtr_warp import XTRWarp

    torch.set_num_threads(1)
    return XTRWarp(str(index)).load(device="cpu")


def as_query(rows: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(rows)[None]


def search(loaded: Any, query: Any, k: int, **setting: Any) -> Any:
    return loaded.search(query, top_k=k, num_threads=1, show_progress=False, **setting)


def positions(result: Any) -> list[int]:
    return [place for place, _ in result[0]]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
