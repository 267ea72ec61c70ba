"""Ray: the cluster that is there, or one on this machine."""

from __future__ import annotations

import logging
import os
import socket
from types import ModuleType

from ..errors import SecateursError, UsageError, require
from ..threads import usable_cores

LOCAL = "local"
_PATIENCE = 10.0  # seconds for the head to answer


def connect(address: str | None = None) -> ModuleType:
    """The module `ray`, connected. A program that has called ray.init already keeps what it has.

    address   of a cluster's head, such as "10.0.0.1:6379", or "auto" for the cluster that this machine is part of;
              None takes RAY_ADDRESS if that is set, as Ray's own tools do, or else starts Ray on this machine, for as
              long as this process runs
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what Ray will do anyhow; spares a warning
    ray = require("ray", "ray")
    if ray.is_initialized():
        return ray
    wanted = address or os.environ.get("RAY_ADDRESS") or LOCAL
    if wanted.startswith("ray://"):
        raise UsageError(
            f"{wanted!r} is the address of a Ray client server: run this on a machine of the cluster, and give auto "
            "or host:port of its head, such as 10.0.0.1:6379"
        )
    alone = {"num_cpus": usable_cores(), "include_dashboard": False} if wanted == LOCAL else {}
    try:
        _knock(wanted)
        ray.init(address=wanted, log_to_driver=False, logging_level=logging.ERROR, **alone)
    except (OSError, RuntimeError, ValueError) as error:
        raise SecateursError(
            f"there is no Ray cluster at {wanted!r} ({first_line(error)}): start one with  ray start --head  "
            "and name it, or leave the address away to work on this machine alone"
        ) from error
    return ray


def _knock(address: str) -> None:
    """Raise if nobody listens at host:port. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
