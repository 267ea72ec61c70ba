"""Opens the indexes, runs uvicorn, and finishes the requests that run when it stops."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from ..cluster.search.open_index import open_index
from ..contract import AnyIndex
from ..encoders import Encoder
from ..errors import SecateursError, UsageError
from .app import Access, create_app
from .keys import ApiKeys
from .limits import Limits

_SECONDS_TO_FINISH = 30
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def serve(
    paths: Sequence[Path],
    host: str = "127.0.0.1",
    port: int = 8000,
    api_key_file: Path | None = None,
    require_key_for_reads: bool = False,
    allowed_hosts: Iterable[str] = (),
    limits: Limits | None = None,
    ray: str | None = None,
    replicas: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C. `say` prints the address, and what is and is not allowed.

    Collections in shards are served too: by this process, or with `ray`, the address of a cluster, from there.
    """
    limits = limits or Limits()
    if require_key_for_reads and api_key_file is None:
        raise UsageError("--require-key-for-reads needs the keys: give  --api-key-file FILE")
    keys = ApiKeys.read(api_key_file) if api_key_file is not None else None
    listener = listen(host, port)  # before the indexes, which take longer: a port in use is said at once
    try:
        # A search that waits for shards should give up in time to say so.
        indexes = open_indexes(paths, ray=ray, replicas=replicas, seconds=limits.seconds / 2)
        app = create_app(indexes, limits, Access(keys, require_key_for_reads, host_names(host, allowed_hosts)))
        for name, index in indexes.items():
            say(f"{name}: {len(index):,} documents")
        if not is_loopback(host):
            readers = "every client with a key" if require_key_for_reads else "EVERY client, without a key,"
            say(f"WARNING: {host} can be reached from other machines: {readers} can read these indexes.")
        say("Writes need a key." if keys else "Writes are off: give  --api-key-file FILE  to allow them with a key.")
        say(f"Explore:  http://{address_to_open(host)}:{listener.getsockname()[1]}/     (Ctrl-C stops)")
        run_until_stopped(app, listener)
    finally:
        listener.close()


def open_indexes(paths: Sequence[Path], **options: Any) -> dict[str, AnyIndex]:
    """Indexes by the name they are served under, ready for the first request. Equal encoders are loaded once."""
    named: dict[str, Path] = {}
    for path in paths:
        name = path.resolve().stem
        if name in named:
            raise UsageError(f"{named[name]} and {path} would both be served as {name!r}: rename a folder")
        named[name] = path
    encoders: dict[str, Encoder] = {}
    opened: dict[str, AnyIndex] = {}
    for name, path in named.items():
        index = open_index(path, **options)
        if index.has_encoder:
            spec = json.dumps(dict(index.encoder_spec), sort_keys=True)
            if spec in encoders:
                index.use_encoder(encoders[spec])
            encoders[spec] = index.encoder
            index.encode_query("warm up")
        index.load("")
        opened[name] = index
    return opened


def host_names(host: str, allowed: Iterable[str]) -> frozenset[str] | None:
    """The names to answer to; None, which is any, where others may reach it and no names were given."""
    names = frozenset(name.lower() for name in allowed)
    if not names and not is_loopback(host):
        return None
    return names | _LOOPBACK_NAMES | {_in_address(host).lower()}


def address_to_open(host: str) -> str:
    """A browser cannot open 0.0.0.0 or ::, which stand for all addresses: loopback is one of them."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, _in_address(host))


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on. What is wrong with the address or the port is said at once."""
    if not 0 <= port <= 65535:  # the system's functions take it modulo 65536
        raise UsageError(f"--port is a number from 0 to 65535, not {port}")
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # By its protocol asyncio knows that it must turn off Nagle's algorithm. With socket.create_server, which leaves
        # the protocol at 0, every answer waits 40 ms for the client's acknowledgement of its header.
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        try:
            if os.name == "posix":  # elsewhere it would let two servers share a port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(512)
        except BaseException:
            listener.close()
            raise
        return listener
    except socket.gaierror as error:
        raise SecateursError(f"cannot listen on {host} ({error}): --host is an address of this machine") from error
    except OSError as error:
        raise SecateursError(
            f"cannot listen on {host} port {port} ({error}): choose another  --port, 0 for any that is free"
        ) from error


def run_until_stopped(app: object, listener: socket.socket) -> None:
    """Serve an application until SIGTERM or Ctrl-C, and finish the requests that run."""
    logging.basicConfig(format="%(levelname)s: %(message)s")
    config = uvicorn.Config(
        app,  # type: ignore[arg-type]
        access_log=False,  # its lines would hold queries
        log_level="warning",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_SECONDS_TO_FINISH,
        limit_concurrency=1_000,  # connections; admission.py admits fewer requests, and its answer says more
        ws="none",
    )
    # uvicorn raises the signal again after an orderly shutdown; the process should then just end, with code 0.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end_quietly)
    uvicorn.Server(config).run(sockets=[listener])


def _end_quietly(number: int, frame: FrameType | None) -> None:
    """Called after the shutdown is complete."""
