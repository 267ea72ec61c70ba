"""The paper's own pipeline as this package has it: FAISS IVFPQ for every query embedding, all that it finds scored."""

from __future__ import annotations

import sys

import common
import peer_secateurs
from peer_secateurs import PACKAGE, build, load, positions, prepare, queries, search, tell

__all__ = ["PACKAGE", "build", "load", "positions", "prepare", "queries", "search", "tell"]
peer_secateurs.GATHER = "faiss"
DEFAULT: dict[str, object] = {}
SWEEP: list[dict[str, object]] = [
    {"p": 3},
    {"p": 8},
    {"nprobe": 64},
    {"p": 3, "nprobe": 64},
    {"p": 8, "nprobe": 64},
]

if __name__ == "__main__":
    common.main(sys.modules[__name__])
