"""The nodes of a Ray cluster, known by their names: a node that comes back has a new id."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ...errors import SecateursError
from ..layout import ShardRecord
from .plan import Plan


def node_ids(ray: ModuleType) -> dict[str, str]:
    """Name -> id of every node that is alive and has a CPU."""
    return {node["NodeName"]: node["NodeID"] for node in _nodes_with_cpu(ray)}


def assign_nodes(ray: ModuleType, shards: int, per_node: bool) -> list[str | None]:
    """Of each shard the name of the node on whose disk it is built; None: on a file system that all nodes see."""
    names = sorted(node["NodeName"] for node in _nodes_with_cpu(ray))
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


def scheduling_strategies(ray: ModuleType, plan: Plan) -> list[Any]:
    """Of each shard where its tasks run: on its node, or spread over all."""
    ids = node_ids(ray)
    for record in plan.shards:
        if record.node is not None and record.node not in ids:
            raise node_gone_error(record)
    return ["SPREAD" if record.node is None else on_node(ids[record.node]) for record in plan.shards]


def on_node(node_id: str) -> Any:
    """A scheduling strategy: on this node and no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id, soft=False)


def node_gone_error(record: ShardRecord) -> SecateursError:
    return SecateursError(
        f"the Ray node {record.node!r}, on whose disk {record.name} is built, is not there: start it again under that "
        "name (ray start --node-name). What is done is kept: give the same command again to go on"
    )


def _nodes_with_cpu(ray: ModuleType) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
