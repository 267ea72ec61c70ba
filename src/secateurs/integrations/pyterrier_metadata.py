"""Tells PyTerrier which folders are Secateurs indexes, so that `pt.Artifact.load` needs no file of PyTerrier in them.

Apart from pyterrier.py because PyTerrier calls this for every folder that it loads, and this file is quick to import.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path


def metadata(path: str, listing: Sequence[str]) -> dict[str, str] | None:
    """The type and format of the artifact at `path`, or None if it is something else."""
    if "manifest.json" not in listing:
        return None
    try:
        manifest = json.loads((Path(path) / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or manifest.get("format") != "secateurs-index":
        return None
    return {"type": "multivector_index", "format": "secateurs", "package_hint": "secateurs[pyterrier]"}
