"""The plan that a build follows: that of an interrupted build, or a new one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...corpus import OnBad
from ...errors import SecateursError
from ...records import Document
from .piece_stream import digest_of_all
from .plan import BUILDING, Plan, Scale, has_pieces, unfinished


def choose_plan(
    folder: Path,
    new_plan: Plan,
    overwrite: bool,
    documents: Iterable[Document | Mapping[str, Any]],
    on_bad: OnBad | None,
) -> Plan:
    """The plan of an interrupted build if it has the same settings and documents, or else the new one, written down."""
    building = folder / BUILDING
    earlier = unfinished(folder)
    plan = new_plan
    if earlier is not None:
        differences = earlier.differences(new_plan)
        scale = Scale.read(building, earlier)
        if not differences and scale is not None:
            if (
                new_plan.corpus is not None
                or not scale.whole
                or _were_encoded(scale, documents, len(new_plan.shards), overwrite, on_bad)
            ):
                return earlier
            differences = ["documents"]
        if differences and not overwrite and (scale is not None or has_pieces(folder, earlier)):
            raise SecateursError(
                f"{folder} has an unfinished build with other settings ({', '.join(differences)}): give those again to "
                "go on with it, or --overwrite (overwrite=True) to begin anew"
            )
        if not differences:
            plan = earlier.renewed()
    plan.write(building)
    return plan


def _were_encoded(
    scale: Scale,
    documents: Iterable[Document | Mapping[str, Any]],
    shards: int,
    overwrite: bool,
    on_bad: OnBad | None,
) -> bool:
    """Whether these documents of a program are those that the interrupted build has encoded."""
    if overwrite and isinstance(documents, Iterator):
        return False  # it can be read only once: to compare it, or to build from it
    problems: list[str] = []
    same = scale.digest == digest_of_all(documents, shards, problems.append if on_bad is not None else None)
    if same and on_bad is not None:
        for problem in problems:
            on_bad(problem)
    return same
