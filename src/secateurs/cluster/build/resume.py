"""What a build goes by: the plan of an interrupted one or a new one, and an encoder that other processes can have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from pickle import PicklingError
from types import ModuleType
from typing import Any

from ...corpus import OnBad
from ...encoders import Encoder, load_encoder
from ...errors import SecateursError, UsageError
from ...records import Document
from ..ray_connection import first_line
from .piece_stream import digest_of_all
from .plan import BUILDING, Plan, Scale, has_pieces, unfinished

_BY_NAME = ("onnx", "st")  # kinds of encoders that a task can load by the model's name


def to_send(ray: ModuleType, encoder: Encoder | None, by_name: bool) -> Any:
    """An encoder in Ray's memory; None if there is none, or if tasks can load it by its name."""
    if encoder is None or by_name:
        return None
    kind, model = encoder.spec["kind"], encoder.spec["model"]
    if kind not in _BY_NAME:
        try:
            return ray.put(encoder)
        except (TypeError, AttributeError, PicklingError) as error:
            raise UsageError(
                f"this encoder cannot be sent to other processes ({first_line(error)}): name a model"
            ) from error
    with suppress(SecateursError):
        if load_encoder(model, kind).spec["fingerprint"] == encoder.spec["fingerprint"]:
            return None
    raise UsageError(
        f"this encoder is not what other processes load as {model!r}: if it has settings or a linear layer of its own, "
        "save them in a model folder, and name that"
    )


def begin(
    folder: Path,
    wanted: Plan,
    overwrite: bool,
    documents: Iterable[Document | Mapping[str, Any]],
    on_bad: OnBad | None,
) -> Plan:
    """The plan of an interrupted build, if it is the same, or this one."""
    building = folder / BUILDING
    earlier = unfinished(folder)
    plan = wanted
    if earlier is not None:
        differences = earlier.differences(wanted)
        scale = Scale.read(building, earlier)
        if not differences and scale is not None:
            if (
                wanted.corpus is not None
                or not scale.whole
                or _is_of(scale, documents, len(wanted.shards), overwrite, on_bad)
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


def _is_of(
    scale: Scale,
    documents: Iterable[Document | Mapping[str, Any]],
    shards: int,
    overwrite: bool,
    on_bad: OnBad | None,
) -> bool:
    """Whether these documents of a program are those that have been encoded."""
    if overwrite and isinstance(documents, Iterator):
        return False  # it can be read once only: to compare it, or to build it
    told: list[str] = []
    same = scale.digest == digest_of_all(documents, shards, told.append if on_bad is not None else None)
    if same and on_bad is not None:
        for problem in told:
            on_bad(problem)
    return same
