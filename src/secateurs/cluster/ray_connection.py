"""A connection to a Ray cluster, or to Ray started on this machine."""

from __future__ import annotations

import logging
import os
import socket
from types import ModuleType

from ..errors import SecateursError, UsageError, require
from ..threads import usable_cores

LOCAL = "local"
_SECONDS_TO_CONNECT = 10.0  # for the head to accept a connection


def connect(address: str | None = None) -> ModuleType:
    """The module `ray`, connected. If the program has called ray.init already, that connection is used.

    address   of a cluster's head, such as "10.0.0.1:6379", or "auto" for the cluster that this machine is part of;
              None takes RAY_ADDRESS if that is set, as Ray's own tools do, or else starts Ray on this machine, until
              this process ends
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray's future default; avoids a warning
    ray = require("ray", "ray")
    if ray.is_initialized():
        return ray
    address = address or os.environ.get("RAY_ADDRESS") or LOCAL
    if address.startswith("ray://"):
        raise UsageError(
            f"{address!r} is the address of a Ray client server: run this on a machine of the cluster, and give auto "
            "or host:port of its head, such as 10.0.0.1:6379"
        )
    options = {"num_cpus": usable_cores(), "include_dashboard": False} if address == LOCAL else {}
    try:
        _check_listening(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError) as error:
        raise SecateursError(
            f"there is no Ray cluster at {address!r} ({first_line(error)}): start one with  ray start --head  "
            "and give its address, or give no address to work on this machine alone"
        ) from error
    return ray


def _check_listening(address: str) -> None:
    """Raise if nothing listens at host:port. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_SECONDS_TO_CONNECT).close()


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
