"""The machines of a Ray cluster, known by their names: a node that comes back has a new id."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...errors import SecateursError
from ..layout import ShardRecord
from .plan import Plan


def alive(ray: ModuleType) -> dict[str, str]:
    """Name to id of every node that does work."""
    return {node["NodeName"]: node["NodeID"] for node in _working(ray)}


def nodes_for(ray: ModuleType, shards: int, per_node: bool) -> list[str | None]:
    """The names of the nodes on whose disks the shards go, one after another; None for a disk that all of them see."""
    names = sorted(node["NodeName"] for node in _working(ray))
    if not names:
        raise SecateursError(
            "no machine of the Ray cluster has a CPU to build with: start one with  ray start --num-cpus N"
        )
    if not per_node:
        return [None] * shards
    if len(set(names)) < len(names):
        raise SecateursError(
            "two Ray nodes have the same name, by which the shard on a node's disk is found again: start each with  "
            "ray start --node-name NAME"
        )
    return [names[shard % len(names)] for shard in range(shards)]


def strategies(ray: ModuleType, plan: Plan) -> list[Any]:
    """Where the tasks of each shard are to run."""
    ids = alive(ray)
    for record in plan.shards:
        if record.node is not None and record.node not in ids:
            raise is_gone(record)
    return ["SPREAD" if record.node is None else pinned(ids[record.node]) for record in plan.shards]


def pinned(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def is_gone(record: ShardRecord) -> SecateursError:
    return SecateursError(
        f"the Ray node {record.node!r}, on whose disk {record.name} is built, is not there: start it again under that "
        "name (ray start --node-name). What is done is kept: give the same command again to go on"
    )


def _working(ray: ModuleType) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
