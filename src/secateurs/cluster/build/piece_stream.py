"""The pieces of a corpus as a stream of (source, head, piece): the piece itself stays in Ray's memory."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from ...corpus import OnBad, checked
from ...records import Document
from ...threads import usable_cores
from . import tasks
from .pieces import Placed, digest_of, split
from .ray_nodes import on_node
from .sources import Source

_AHEAD = 2  # objects that a reader may be ahead of the stream's consumer: a piece and its head

Stream = Generator[tuple[int, tasks.Head, Any], None, None]


def pieces_of_sources(
    ray: ModuleType, sources: Sequence[Source], shards: int, on_bad: OnBad | None, get: Callable[[Any, str], Any]
) -> Stream:
    """The pieces of several sources in turn, each read by a task; `get` gives the result of a task.

    The tasks run on this machine, because the corpus may be nowhere else. One core reads fast enough for hundreds of
    encoding cores.
    """
    reader = ray.remote(tasks.read_source).options(
        num_returns="streaming",
        num_cpus=0,  # readers wait most of the time, and must not take a core from the encoders
        max_retries=tasks.RETRIES,
        scheduling_strategy=on_node(ray.get_runtime_context().get_node_id()),
        _generator_backpressure_num_objects=_AHEAD,
    )
    waiting = deque(enumerate(sources))
    active: deque[tuple[int, Any]] = deque()
    try:
        while waiting or active:
            while waiting and len(active) < usable_cores():
                number, source = waiting.popleft()
                active.append((number, reader.remote(source, shards, on_bad is not None)))
            number, stream = active[0]
            head = get(next(stream), f"reading {sources[number].given}")
            problems = head.problems if isinstance(head, tasks.Head) else head
            for problem in problems:
                assert on_bad is not None
                on_bad(problem)
            if isinstance(head, tasks.Head):
                yield number, head, next(stream)
                active.rotate(-1)
            else:
                active.popleft()
    finally:
        for _, stream in active:
            ray.cancel(stream)


def pieces_of_documents(
    ray: ModuleType, documents: Iterable[Document | Mapping[str, Any]], shards: int, on_bad: OnBad | None
) -> Stream:
    """The pieces of documents that a program has, as if they were one source."""
    for piece in split(_with_places(documents, on_bad), shards):
        head = tasks.Head(piece.shard, piece.number, len(piece.documents), digest_of(piece.documents), [])
        yield 0, head, ray.put(piece.documents)


def digest_of_all(documents: Iterable[Document | Mapping[str, Any]], shards: int, on_bad: OnBad | None) -> str:
    """Tells whether a program has given the same documents again."""
    pieces = split(_with_places(documents, on_bad), shards)
    return joint_digest(digest_of(piece.documents) for piece in pieces)


def joint_digest(digests: Iterable[str]) -> str:
    return hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()


def _with_places(documents: Iterable[Document | Mapping[str, Any]], on_bad: OnBad | None) -> Iterator[Placed]:
    return checked(((f"document {i}", item) for i, item in enumerate(documents, start=1)), on_bad)
