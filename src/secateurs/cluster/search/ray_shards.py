"""Shards on Ray: an actor for each replica of each shard, and what is done when one of them is gone.

A call goes to the replica with the fewest calls. If its actor or node dies, or it does not answer for a second, the
call goes to another replica. A replica that failed gets no call until it has answered a probe. Meanwhile Ray starts its
actor again, on a node that is alive, and the actor opens its shard by itself.
"""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from ...cancellation import stop_if_cancelled
from ...errors import DuplicateDocumentError, ShardsMissingError, UsageError, require
from ..layout import Layout, ShardRecord
from ..ray_connection import connect, first_line
from .backend import LOG, Arguments, Commits
from .shard import Shard

_READ_THREADS = 8  # searches that an actor runs at the same time
_WORK_THREADS = 2  # writes and checks that an actor runs beside them
_WORK = "work"  # the name of their group of threads
_SECONDS_TO_ANSWER = 1.0  # after which another replica is called too
_SECONDS_OF_GRACE = 1.0  # for which a replica that has just failed is waited for, even if `partial`
_PAUSE = 0.02
_PICKLE = pickle.HIGHEST_PROTOCOL
_SECONDS_TO_START = 60.0  # without another actor that has started: many on one machine start one after the other
_SECONDS_TO_COME_BACK = 60.0  # that a write waits for a replica; once it runs it has no limit
_SECONDS_BETWEEN_STARTS = 1.0
# The fault of the call itself, which every replica would find.
_CALLERS_FAULT = (UsageError, DuplicateDocumentError)


class ShardActor:
    """A process with one shard. If the shard cannot be opened, the next call tries again."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = Lock()
        self._shard: Shard | None = None

    def call(self, request: bytes) -> bytes:
        """A method of the shard. Bytes both ways: Ray passes them on, and takes longer to serialize anything else."""
        method, commit, arguments = pickle.loads(request)
        return pickle.dumps(getattr(self._open_shard(), method)(commit, *pickle.loads(arguments)), _PICKLE)

    def probe(self) -> None:
        self._open_shard()

    def _open_shard(self) -> Shard:
        with self._lock:
            if self._shard is None:
                self._shard = Shard(self._path)
            return self._shard


@dataclass(slots=True, eq=False)
class _Replica:
    record: ShardRecord
    place: int  # its node is that of this number, counted round all nodes
    actor: Any = None
    started: float = -_SECONDS_BETWEEN_STARTS
    unanswered: set[Any] = field(default_factory=set)  # calls; adding to a set needs no lock
    suspect: bool = False  # failed, and has not answered a probe since
    suspect_since: float = 0.0
    probe: Any = None


@dataclass(slots=True, eq=False)
class _Call:
    """A method on a shard, until a replica has answered."""

    shard: int
    commit: int
    arguments: bytes
    sent: dict[_Replica, float] = field(default_factory=dict)  # replicas that have it now or refused it: since when
    running: int = 0
    refusal: BaseException | None = None


class RayShards:
    def __init__(self, path: Path, layout: Layout, address: str, replicas: int, seconds: float) -> None:
        connect(address)
        self._ray = require("ray", "ray")
        self._path, self._layout, self._seconds = path, layout, seconds
        self._starting = Lock()
        self._replicas = [
            [_Replica(record, shard + number) for number in range(replicas)]
            for shard, record in enumerate(layout.shards)
        ]
        for replica in self.replicas:
            self._start(replica)
            replica.suspect, replica.probe = True, replica.actor and replica.actor.probe.remote()
        starting = [replica.probe for replica in self.replicas if replica.probe is not None]
        started = starting
        while starting and started:
            started, starting = self._ray.wait(starting, timeout=_SECONDS_TO_START)

    @property
    def replicas(self) -> list[_Replica]:
        """Those of all shards."""
        return [replica for replicas in self._replicas for replica in replicas]

    def close(self) -> None:
        for replica in self.replicas:
            if replica.actor is not None and self._ray.is_initialized():
                self._ray.kill(replica.actor)

    def read(self, method: str, commits: Commits, arguments: Arguments, partial: bool) -> dict[int, Any]:
        deadline = time.monotonic() + self._seconds
        different = {id(values): values for values in arguments.values()}  # often the same for all shards
        packed = {key: pickle.dumps(values, _PICKLE) for key, values in different.items()}
        calls = {shard: _Call(shard, commits[shard], packed[id(values)]) for shard, values in arguments.items()}
        running: dict[Any, tuple[_Call, _Replica]] = {}
        answers: dict[int, Any] = {}
        try:
            while calls:
                stop_if_cancelled()
                for call in list(calls.values()):
                    self._send(method, call, running)
                    if call.running == 0 and (call.refusal is not None or (partial and self._is_lost(call.shard))):
                        self._give_up(call, partial)
                        del calls[call.shard]
                if running:
                    wait = min(_SECONDS_TO_ANSWER, max(deadline - time.monotonic(), 0))
                    expected = min(len(calls), len(running))
                    ready, _ = self._ray.wait(list(running), num_returns=expected, timeout=wait)
                    for reference, came_back in zip(ready, self._get(ready), strict=True):
                        call, replica = running.pop(reference)
                        if self._take(reference, came_back, call, replica, answers):
                            calls.pop(call.shard, None)
                elif calls:
                    time.sleep(_PAUSE)
                if calls and time.monotonic() > deadline:
                    for call in calls.values():
                        self._give_up(call, partial)
                    break
            for call, replica in running.values():  # another was faster, or none answered in time
                if time.monotonic() - call.sent[replica] > min(_SECONDS_TO_ANSWER, self._seconds):
                    self._suspect(replica)
        finally:
            for reference, (_, replica) in running.items():
                replica.unanswered.discard(reference)
        return answers

    def work(self, method: str, shard: int, commit: int, arguments: tuple[Any, ...]) -> Any:
        deadline = time.monotonic() + _SECONDS_TO_COME_BACK
        packed = pickle.dumps(arguments, _PICKLE)
        while True:
            call = _Call(shard, commit, packed)
            running: dict[Any, tuple[_Call, _Replica]] = {}
            self._send(method, call, running, _WORK)
            answers: dict[int, Any] = {}
            for reference, (_, replica) in running.items():
                if self._take(reference, self._get([reference])[0], call, replica, answers):
                    return answers[shard]
                if call.refusal is not None:
                    raise call.refusal
            if running:  # it ran until its actor died: from now on a replica has the whole time again to come back
                deadline = time.monotonic() + _SECONDS_TO_COME_BACK
            if time.monotonic() > deadline:
                self._give_up(call, partial=False)
            time.sleep(_PAUSE)

    def _send(
        self, method: str, call: _Call, running: dict[Any, tuple[_Call, _Replica]], group: str | None = None
    ) -> None:
        """To the replica with the fewest calls, unless a replica has it and may still answer in time."""
        now = time.monotonic()
        if call.running and now - max(call.sent.values()) < _SECONDS_TO_ANSWER:
            return
        free = [
            replica
            for replica in self._replicas[call.shard]
            if replica not in call.sent and self._is_reachable(replica)
        ]
        if free:
            replica = min(free, key=lambda replica: len(replica.unanswered))
            actor = replica.actor
            if actor is None:  # another thread has just found that it is gone
                return
            remote = actor.call if group is None else actor.call.options(concurrency_group=group)
            reference = remote.remote(pickle.dumps((method, call.commit, call.arguments), _PICKLE))
            replica.unanswered.add(reference)
            call.sent[replica] = now
            call.running += 1
            running[reference] = (call, replica)

    def _get(self, references: list[Any]) -> list[bytes | Exception]:
        """What came back for each: an answer, or an error. All at once if they are answers, which costs less."""
        try:
            answers: list[bytes | Exception] = self._ray.get(references)
            return answers
        except self._ray.exceptions.RayError as error:
            if len(references) == 1:
                return [error]
        return [came_back for reference in references for came_back in self._get([reference])]

    def _take(
        self, reference: Any, came_back: bytes | Exception, call: _Call, replica: _Replica, answers: dict[int, Any]
    ) -> bool:
        """Take what came back; False if it is no answer, and another replica must be called."""
        replica.unanswered.discard(reference)
        call.running -= 1
        name = self._layout.shards[call.shard].name
        if isinstance(came_back, bytes):
            if call.shard not in answers:
                answers[call.shard] = pickle.loads(came_back)
            return True
        if isinstance(came_back, self._ray.exceptions.RayTaskError):
            cause = came_back.cause
            if isinstance(cause, _CALLERS_FAULT):
                raise cause from None
            call.refusal = cause
            LOG.warning("%s: %s", name, cause)
        else:
            LOG.warning("%s: a replica is lost (%s)", name, type(came_back).__name__)
            self._suspect(replica)
            del call.sent[replica]  # when it is back, it may be called again
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
            replica.suspect_since = time.monotonic()
        replica.suspect = True

    def _is_lost(self, shard: int) -> bool:
        """No replica has answered for a while."""
        latest = time.monotonic() - _SECONDS_OF_GRACE
        return all(replica.suspect and replica.suspect_since < latest for replica in self._replicas[shard])

    def _is_reachable(self, replica: _Replica) -> bool:
        """A replica that failed must answer a probe first."""
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
                    replica.suspect = False  # it is alive; a call raises what is wrong with its shard
                except exceptions.ActorUnavailableError:
                    pass  # it is being started again
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
        """An actor on the node that has the shard on its disk, else preferably on the node of the replica's place."""
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

        _, node_id = nodes[replica.place % len(nodes)]
        replica.actor = (
            self._ray.remote(concurrency_groups={_WORK: _WORK_THREADS})(ShardActor)
            .options(
                num_cpus=0,
                memory=1,  # a byte: for an actor that needs nothing at all, Ray ignores which node it should be on
                max_restarts=-1,
                max_concurrency=_READ_THREADS,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=replica.record.node is None),
            )
            .remote(str(self._path / replica.record.name))
        )
