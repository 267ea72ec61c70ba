"""What a build has decided, on disk, so that the same command goes on after whatever has happened.

big.sec/building/
  plan.json                 the settings; written first
  shard-0003/*.npz          encoded pieces, see pieces.py
  scale.json                the int8 scale of all shards, and how many pieces each has; written when all are encoded
  shard-0003/finished.json  the shard's index is at its place; its pieces are gone, or can go
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SecateursError
from ..index.building import Recipe
from ..index.storage import write_whole
from ..index.stores import Int8Store
from .layout import SHARDS, Layout, ShardRecord, is_sharded, shard_names

BUILDING = "building"
PLAN, SCALE = "plan.json", "scale.json"


@dataclass(frozen=True)
class Plan:
    shards: tuple[ShardRecord, ...]
    encoder: Mapping[str, Any]
    store: str
    gather: tuple[str, ...]
    corpus: Sequence[Mapping[str, Any]] | None  # sources as they were; None: documents that a program hands over
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.store, self.gather)

    def write(self, building: Path) -> None:
        _write(building / PLAN, asdict(self))

    @classmethod
    def read(cls, building: Path) -> Plan | None:
        content = _read(building / PLAN)
        if content is None:
            return None
        shards = tuple(ShardRecord(**shard) for shard in content["shards"])
        return cls(**content | {"shards": shards, "gather": tuple(content["gather"])})

    def differences(self, other: Plan) -> list[str]:
        """The settings in which they differ, in words."""
        settings: dict[str, Callable[[Plan], Any]] = {
            "number of shards": lambda plan: len(plan.shards),
            "shards per node or not": lambda plan: plan.shards[0].node is not None,
            "model": lambda plan: plan.encoder.get("fingerprint"),
            "store": lambda plan: plan.store,
            "gather": lambda plan: plan.gather,
            "corpus": lambda plan: plan.corpus,
        }
        return [name for name, value in settings.items() if value(self) != value(other)]


@dataclass(frozen=True)
class Scale:
    plan: str  # its id
    pieces: Sequence[Sequence[int]]  # of each shard, of each source, how many
    embeddings: Sequence[int]  # of each shard
    unit: Sequence[bool]  # of each shard, whether all embeddings have length 1
    dim: int
    centre: Sequence[float] | None  # None where nothing is int8
    step: float | None
    digest: str | None  # of documents that a program handed over

    @property
    def int8(self) -> Int8Store | None:
        if self.centre is None or self.step is None:
            return None
        return Int8Store(np.array(self.centre, dtype=np.float32), self.step)

    def write(self, building: Path) -> None:
        _write(building / SCALE, asdict(self))

    @classmethod
    def read(cls, building: Path, plan: Plan) -> Scale | None:
        content = _read(building / SCALE)
        return cls(**content) if content is not None and content["plan"] == plan.id else None


def check_collection_target(folder: Path, overwrite: bool) -> None:
    """Raise if a collection may not be made there: before any work is done."""
    if is_sharded(folder):
        if not overwrite:
            raise SecateursError(
                f"there is a collection in shards at {folder} already: choose another name, or allow overwriting"
            )
    elif folder.exists() and not (folder / BUILDING).is_dir() and (not folder.is_dir() or any(folder.iterdir())):
        raise SecateursError(
            f"{folder} exists and is not a collection in shards: it is left as it is, choose another name"
        )


def unfinished(folder: Path) -> Plan | None:
    """The plan of a build that was interrupted, if there is one."""
    plan = Plan.read(folder / BUILDING)
    if plan is not None and is_sharded(folder) and Layout.read(folder).shards == plan.shards:
        return None  # finished, only not tidied up
    return plan


def new_names(folder: Path, count: int) -> list[str]:
    """Names for shards beside which those of the present collection can stay until the new ones are ready."""
    names = shard_names(count)
    if not (folder / SHARDS).exists() and not any((folder / name).exists() for name in names):
        return names
    generation = uuid.uuid4().hex[:6]
    return [f"{name}-{generation}" for name in names]


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(content, ensure_ascii=False).encode())


def _read(path: Path) -> Any:
    """None if it is not there, or says nothing: then its step is done again, and finds the pieces that are there."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
