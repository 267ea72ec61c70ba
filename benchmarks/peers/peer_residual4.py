"""Secateurs with the store residual4, which keeps four bits for each value."""

from __future__ import annotations

import sys

import common
import peer_secateurs
from peer_secateurs import PACKAGE, build, load, positions, prepare, queries, search, tell

__all__ = ["PACKAGE", "build", "load", "positions", "prepare", "queries", "search", "tell"]
peer_secateurs.STORE = "residual4"
DEFAULT: dict[str, object] = {}
SWEEP: list[dict[str, object]] = [{"effort": "fast"}, {"p": 3}, {"effort": "exact"}]

if __name__ == "__main__":
    common.main(sys.modules[__name__])
