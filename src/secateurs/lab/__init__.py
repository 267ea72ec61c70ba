"""The lab: everything the paper reports, rerun with one command, on any collection; docs/lab.md shows it.

    topics + index  ->  sweep  ->  evaluate  ->  results (one tidy table)  ->  summary, significance, figures, report

Needs  pip install "secateurs[lab]".  Public names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .baselines import baseline_systems
    from .drawing import figures, save_figures
    from .experiment import evaluate
    from .page import report
    from .reproducing import Reproduction, find_reproduction, reproduce, reproductions
    from .results import Results
    from .runs import read_run, write_run
    from .significance import Comparison, compare, correct
    from .summary import summarise
    from .sweeps import parse_settings, sweep
    from .systems import Outcome, Query, System
    from .topics import Topics, read_topics

_HOME = {
    "Comparison": ".significance",
    "Outcome": ".systems",
    "Query": ".systems",
    "Reproduction": ".reproducing",
    "Results": ".results",
    "System": ".systems",
    "Topics": ".topics",
    "baseline_systems": ".baselines",
    "compare": ".significance",
    "correct": ".significance",
    "evaluate": ".experiment",
    "figures": ".drawing",
    "find_reproduction": ".reproducing",
    "parse_settings": ".sweeps",
    "read_run": ".runs",
    "read_topics": ".topics",
    "report": ".page",
    "reproduce": ".reproducing",
    "reproductions": ".reproducing",
    "save_figures": ".drawing",
    "summarise": ".summary",
    "sweep": ".sweeps",
    "write_run": ".runs",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'secateurs.lab' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
