"""Shards on Ray: an actor for each replica of each, and what happens when one of them is gone.

A call goes to the replica with the least to do. If its actor or node dies, or it says nothing for a while, the call
goes to another replica. A replica that failed is not asked again until it has answered a probe; Ray starts its actor
anew meanwhile, on a node that lives, and the actor opens its shard by itself.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from ...errors import ShardsMissingError, UsageError, require
from ..layout import Layout, ShardRecord
from ..ray_connection import connect, first_line
from .local_shards import LOG, Arguments, Commits
from .shard import Shard

_THREADS = 8  # calls that an actor works on at once
_PATIENCE = 1.0  # seconds after which another replica is asked too
_GRACE = 1.0  # seconds for which a replica that has just failed is waited for, even by those who take a part
_PAUSE = 0.02
_SECONDS_TO_START = 60.0
_SECONDS_TO_COME_BACK = 60.0  # that a write waits for a replica; one that runs has all the time it needs
_SECONDS_BETWEEN_STARTS = 1.0


class ShardActor:
    """A process with one shard. If it cannot be opened, the next call tries again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = Lock()
        self._shard: Shard | None = None

    def call(self, method: str, commit: int, arguments: bytes) -> Any:
        return getattr(self._opened(), method)(commit, *pickle.loads(arguments))

    def probe(self) -> None:
        self._opened()

    def _opened(self) -> Shard:
        with self._lock:
            if self._shard is None:
                self._shard = Shard(self._path)
            return self._shard


@dataclass(slots=True, eq=False)
class _Replica:
    record: ShardRecord
    number: int  # which of the shard's replicas, and where on the round of nodes it begins
    actor: Any = None
    started: float = -_SECONDS_BETWEEN_STARTS
    waiting: set[Any] = field(default_factory=set)  # calls that have not come back; adding to a set needs no lock
    suspect: bool = False
    since: float = 0.0
    probe: Any = None


@dataclass(slots=True, eq=False)
class _Call:
    """One method on one shard, until some replica has answered."""

    shard: int
    commit: int
    arguments: bytes
    sent: dict[_Replica, float] = field(default_factory=dict)  # to whom that has it now, or refused it, and when
    running: int = 0
    refusal: BaseException | None = None


class RayFleet:
    def __init__(self, path: Path, layout: Layout, address: str, replicas: int, seconds: float) -> None:
        connect(address)
        self._ray = require("ray", "ray")
        self._path, self._layout, self._seconds = path, layout, seconds
        self._starting = Lock()
        self._replicas = [
            [_Replica(record, shard + number) for number in range(replicas)]
            for shard, record in enumerate(layout.shards)
        ]
        everybody = [replica for some in self._replicas for replica in some]
        for replica in everybody:
            self._start(replica)
            replica.suspect, replica.probe = True, replica.actor and replica.actor.probe.remote()
        probes = [replica.probe for replica in everybody if replica.probe is not None]
        if probes:
            self._ray.wait(probes, num_returns=len(probes), timeout=_SECONDS_TO_START)

    def close(self) -> None:
        for replica in (replica for some in self._replicas for replica in some):
            if replica.actor is not None and self._ray.is_initialized():
                self._ray.kill(replica.actor)

    def ask(self, method: str, commits: Commits, arguments: Arguments, partial: bool) -> dict[int, Any]:
        deadline = time.monotonic() + self._seconds
        different = {id(given): given for given in arguments.values()}  # mostly one, which all are asked
        packed = {key: pickle.dumps(given) for key, given in different.items()}
        calls = {shard: _Call(shard, commits[shard], packed[id(given)]) for shard, given in arguments.items()}
        running: dict[Any, tuple[_Call, _Replica]] = {}
        answers: dict[int, Any] = {}
        try:
            while calls:
                for call in list(calls.values()):
                    self._send(method, call, running)
                    if call.running == 0 and (call.refusal is not None or (partial and self._is_lost(call.shard))):
                        self._give_up(call, partial)
                        del calls[call.shard]
                if running:
                    wait = min(_PATIENCE, max(deadline - time.monotonic(), 0))
                    most = min(len(calls), len(running))
                    ready, _ = self._ray.wait(list(running), num_returns=most, timeout=wait)
                    for reference in ready:
                        call, replica = running.pop(reference)
                        if self._take(reference, call, replica, answers):
                            calls.pop(call.shard, None)
                elif calls:
                    time.sleep(_PAUSE)
                if calls and time.monotonic() > deadline:
                    for call in calls.values():
                        self._give_up(call, partial)
                    break
            for call, replica in running.values():  # another was faster, or nobody answered in time
                if time.monotonic() - call.sent[replica] > min(_PATIENCE, self._seconds):
                    self._suspect(replica)
        finally:
            for reference, (_, replica) in running.items():
                replica.waiting.discard(reference)
        return answers

    def work(self, method: str, shard: int, commit: int, arguments: tuple[Any, ...]) -> Any:
        deadline = time.monotonic() + _SECONDS_TO_COME_BACK
        packed = pickle.dumps(arguments)
        while True:
            call = _Call(shard, commit, packed)
            running: dict[Any, tuple[_Call, _Replica]] = {}
            self._send(method, call, running)
            answers: dict[int, Any] = {}
            for reference, (_, replica) in running.items():
                if self._take(reference, call, replica, answers):
                    return answers[shard]
                if call.refusal is not None:
                    raise call.refusal
            if time.monotonic() > deadline:
                self._give_up(call, partial=False)
            time.sleep(_PAUSE)

    def _send(self, method: str, call: _Call, running: dict[Any, tuple[_Call, _Replica]]) -> None:
        """To the replica with the least to do, unless one has it and is still in time."""
        now = time.monotonic()
        if call.running and now - max(call.sent.values()) < _PATIENCE:
            return
        free = [one for one in self._replicas[call.shard] if one not in call.sent and self._is_well(one)]
        if free:
            replica = min(free, key=lambda one: len(one.waiting))
            actor = replica.actor
            if actor is None:  # another thread has found out just now
                return
            reference = actor.call.remote(method, call.commit, call.arguments)
            replica.waiting.add(reference)
            call.sent[replica] = now
            call.running += 1
            running[reference] = (call, replica)

    def _take(self, reference: Any, call: _Call, replica: _Replica, answers: dict[int, Any]) -> bool:
        """What came back; False if it is no answer, and another replica must be asked."""
        replica.waiting.discard(reference)
        call.running -= 1
        try:
            answers.setdefault(call.shard, self._ray.get(reference))
            return True
        except self._ray.exceptions.RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UsageError):  # no other replica will like it better
                raise cause from None
            call.refusal = cause
            LOG.warning("%s: %s", self._layout.shards[call.shard].name, cause)
        except self._ray.exceptions.RayError as error:
            LOG.warning("%s: a replica is lost (%s)", self._layout.shards[call.shard].name, type(error).__name__)
            self._suspect(replica)
            del call.sent[replica]  # when it is back, it may be asked again
        return False

    def _give_up(self, call: _Call, partial: bool) -> None:
        record = self._layout.shards[call.shard]
        if partial:
            return
        if call.refusal is not None:
            raise call.refusal
        where = f" (on node {record.node!r})" if record.node is not None else ""
        raise ShardsMissingError(
            f"{record.name} of {self._path}{where} cannot be reached: try again. A search can do without it, with  "
            "partial=True  (--partial)"
        )

    def _suspect(self, replica: _Replica) -> None:
        if not replica.suspect:  # else a probe is on its way already
            replica.since = time.monotonic()
        replica.suspect = True

    def _is_lost(self, shard: int) -> bool:
        """No replica has answered for a while."""
        return all(one.suspect and time.monotonic() - one.since > _GRACE for one in self._replicas[shard])

    def _is_well(self, replica: _Replica) -> bool:
        """One that failed must answer a probe first."""
        if not replica.suspect:
            return True
        exceptions = self._ray.exceptions
        with self._starting:
            if not replica.suspect:
                return True
            if replica.probe is not None and self._ray.wait([replica.probe], timeout=0)[0]:
                try:
                    self._ray.get(replica.probe)
                    replica.suspect = False
                except exceptions.RayTaskError:
                    replica.suspect = False  # it lives; what is wrong with its shard is told to whoever asks
                except exceptions.ActorUnavailableError:
                    pass  # it is being started anew
                except exceptions.RayError as error:
                    LOG.warning("%s: a replica cannot be started (%s)", replica.record.name, first_line(error))
                    replica.actor = None
                replica.probe = None
            if replica.suspect and replica.probe is None:
                if replica.actor is None:
                    self._start(replica)
                if replica.actor is not None:
                    replica.probe = replica.actor.probe.remote()
            return not replica.suspect

    def _start(self, replica: _Replica) -> None:
        """An actor on the replica's own node if the shard is on that node's disk, else preferably on the next one."""
        if time.monotonic() - replica.started < _SECONDS_BETWEEN_STARTS:
            return
        replica.started = time.monotonic()
        nodes = sorted(
            (node["NodeName"], node["NodeID"])
            for node in self._ray.nodes()
            if node["Alive"] and (node["Resources"].get("CPU") or node["NodeName"] == replica.record.node)
        )
        if replica.record.node is not None:
            nodes = [node for node in nodes if node[0] == replica.record.node]
        if not nodes:
            return
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        _, node_id = nodes[replica.number % len(nodes)]
        replica.actor = (
            self._ray.remote(ShardActor)
            .options(
                num_cpus=0,
                memory=1,  # a byte: of an actor that needs nothing at all, Ray does not care which node it prefers
                max_restarts=-1,
                max_concurrency=_THREADS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=replica.record.node is None),
            )
            .remote(str(self._path / replica.record.name))
        )
