"""What a build has decided, on disk, so that the same command continues after any interruption.

big.sec/building/
  plan.json                 the settings; written first
  shard-0003/*.npz          encoded pieces, see pieces.py
  scale.json                the int8 scale of all shards, and how many pieces each has; written when all are encoded.
                            No shard is finished before it is there
  shard-0003/finished.json  the shard's index is at its place; its pieces are gone, or can be removed
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import SecateursError
from ...settings import GatherName, StoreName
from ...storage.files import new_folder_name, write_atomically
from ...storage.locks import LOCK
from ...storage.manifest import SHARDS
from ...storage.recipe import Recipe
from ...storage.rounding import Int8Store
from ..layout import Layout, ShardRecord, is_sharded, shard_names

BUILDING = "building"
PLAN, SCALE = "plan.json", "scale.json"
_NAME = r"shard-\d{4,}(-[0-9a-f]{6})?"  # see new_names
OURS = re.compile(rf"{_NAME}|\.{_NAME}\.building-.+|{re.escape(SHARDS)}\.[0-9a-f]{{8}}\.new")
# The file is missing, empty or of another version: its step is done again, and uses the pieces that are there.
_ABSENT = (FileNotFoundError, ValueError, TypeError, KeyError)


@dataclass(frozen=True)
class Plan:
    shards: tuple[ShardRecord, ...]
    encoder: Mapping[str, Any]
    store: StoreName
    gather: tuple[GatherName, ...]
    merge: float | None
    pool: int
    corpus: Sequence[Mapping[str, Any]] | None  # the state of each source; None: a program has the documents
    background: Mapping[str, str] | None = None  # its name, vocabulary and digest
    id: str = field(default_factory=new_folder_name)

    def renewed(self) -> Plan:
        """The same settings under a new id, so that no shard counts as finished."""
        return replace(self, id=new_folder_name())

    @property
    def recipe(self) -> Recipe:
        return Recipe(self.store, self.gather, self.merge, self.pool)

    def write(self, building: Path) -> None:
        _write(building / PLAN, asdict(self))

    @classmethod
    def read(cls, building: Path) -> Plan | None:
        try:
            content = json.loads((building / PLAN).read_bytes())
            shards = tuple(ShardRecord(**shard) for shard in content["shards"])
            return cls(**content | {"shards": shards, "gather": tuple(content["gather"])})
        except _ABSENT:
            return None

    def differences(self, other: Plan) -> list[str]:
        """The names of the settings in which they differ."""
        settings: dict[str, Callable[[Plan], Any]] = {
            "number of shards": lambda plan: len(plan.shards),
            "shards per node or not": lambda plan: plan.shards[0].node is not None,
            "model": lambda plan: plan.encoder.get("fingerprint"),
            "store": lambda plan: plan.store,
            "gather": lambda plan: plan.gather,
            "merge": lambda plan: plan.merge,
            "pool": lambda plan: plan.pool,
            "background": lambda plan: plan.background,
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
    digest: str | None  # of the documents, if a program has given them
    whole: bool = True  # False: a piece was lost since, and all pieces are checked again

    @property
    def int8(self) -> Int8Store | None:
        if self.centre is None or self.step is None:
            return None
        return Int8Store(np.array(self.centre, dtype=np.float32), self.step)

    def write(self, building: Path) -> None:
        _write(building / SCALE, asdict(self))

    @classmethod
    def read(cls, building: Path, plan: Plan) -> Scale | None:
        try:
            scale = cls(**json.loads((building / SCALE).read_bytes()))
        except _ABSENT:
            return None
        return scale if scale.plan == plan.id else None


def check_collection_target(folder: Path, overwrite: bool) -> None:
    """Raise if a collection may not be built at this folder: before any work is done."""
    if is_sharded(folder):
        if not overwrite:
            raise SecateursError(
                f"there is a collection in shards at {folder} already: choose another name, or replace it with "
                "--overwrite (overwrite=True)"
            )
    elif folder.exists() and not (folder.is_dir() and _is_ours(folder)):
        raise SecateursError(
            f"{folder} exists and is not a collection in shards: it is left as it is, choose another name"
        )


def _is_ours(folder: Path) -> bool:
    """Whether the folder has nothing but what an unfinished build has left."""
    names = {path.name for path in folder.iterdir()}
    if not names:
        return True
    building = folder / BUILDING
    if not building.is_dir():
        return False
    begun = (building / PLAN).is_file() or all(
        path.name == LOCK or path.suffix == ".new" for path in building.iterdir()
    )
    return begun and all(name == BUILDING or OURS.fullmatch(name) for name in names)


def has_pieces(folder: Path, plan: Plan) -> bool:
    """Whether a build has encoded anything. On the disks of other machines that is not known, and assumed."""
    return any(record.node is not None for record in plan.shards) or any((folder / BUILDING).glob("*/*"))


def unfinished(folder: Path) -> Plan | None:
    """The plan of a build that was interrupted, if there is one."""
    plan = Plan.read(folder / BUILDING)
    if plan is not None and is_sharded(folder) and Layout.read(folder).shards == plan.shards:
        return None  # finished, but its folder was not removed
    return plan


def new_names(folder: Path, count: int) -> list[str]:
    """Names that no shard of the present collection has, which stays until the new shards are ready."""
    names = shard_names(count)
    if not (folder / SHARDS).exists() and not any((folder / name).exists() for name in names):
        return names
    generation = new_folder_name()[:6]
    return [f"{name}-{generation}" for name in names]


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(content, ensure_ascii=False).encode())
