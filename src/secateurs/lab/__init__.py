"""The lab: everything the paper reports, rerun with one command, on any collection; docs/lab.md shows it.

    topics + index  ->  sweep  ->  evaluate  ->  results (one tidy table)  ->  summary, significance, figures, report

Needs  pip install "secateurs[lab]";  the libraries themselves are imported when they are first used.
"""

from .baselines import baseline_systems
from .experiment import evaluate
from .figures import figures, save_figures
from .report import report
from .reproduction import Reproduction, find_reproduction, reproduce, reproductions
from .results import Results
from .runs import read_run, write_run
from .significance import Comparison, compare, correct
from .summary import summarise
from .sweeps import parse_settings, sweep
from .systems import Outcome, Query, System
from .topics import Topics, read_topics

__all__ = [
    "Comparison",
    "Outcome",
    "Query",
    "Reproduction",
    "Results",
    "System",
    "Topics",
    "baseline_systems",
    "compare",
    "correct",
    "evaluate",
    "figures",
    "find_reproduction",
    "parse_settings",
    "read_run",
    "read_topics",
    "report",
    "reproduce",
    "reproductions",
    "save_figures",
    "summarise",
    "sweep",
    "write_run",
]
