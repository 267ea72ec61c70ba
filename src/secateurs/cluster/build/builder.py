"""A corpus to a collection in shards, on all machines of a Ray cluster.

    read      one task per source splits it into pieces: some hundred documents of one shard
    encode    one task per piece writes its embeddings to a file; a piece whose file is there is done
    survey    one task per shard finds docnos that occur twice, and sums up; together that is the int8 scale of all
    finish    one task per shard makes an index of its pieces
    commit    shards.json is written

What a task has finished is on disk, so nothing of it is lost with a worker, a machine or this process: Ray starts a
lost task again, and the same command goes on where an interrupted one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...corpus import OnBad
from ...encoders import DEFAULT_MODEL, Encoder, load_encoder
from ...errors import DuplicateDocumentError, LockedIndexError, SecateursError, UsageError
from ...progress import progress_bar
from ...records import DEFAULT_STORE, Document, GatherName, StoreName
from ...storage.locks import write_lock
from ...storage.new_index import PRECOMPUTED
from ...storage.recipe import Recipe
from ...storage.rounding import fit_int8
from ...storage.sampling import sample_bound
from ...version import __version__
from ..layout import Layout, ShardRecord, is_sharded, shard_names
from ..ray_connection import connect, first_line
from . import tasks
from .nodes import alive, is_gone, nodes_for, pinned, strategies
from .piece_stream import hand_over, joint_digest, read_sources
from .pieces import PieceLostError, Survey
from .plan import BUILDING, Plan, Scale, check_collection_target, new_names
from .resume import begin, to_send
from .sources import Source, expected, sources_of


def build_shards(
    path: str | Path,
    documents: str | Path | Sequence[str | Path] | Iterable[Document | Mapping[str, Any]],
    *,
    shards: int,
    encoder: Encoder | str | None = DEFAULT_MODEL,
    encoder_kind: str = "onnx",
    store: StoreName = DEFAULT_STORE,
    gather: GatherName | Sequence[GatherName] = ("cells",),
    overwrite: bool = False,
    per_node: bool = False,
    ray_address: str | None = None,
    progress: bool | None = None,
    on_bad: OnBad | None = None,
) -> dict[str, int]:
    """Make a collection in shards at `path`, on the Ray cluster that this process is connected to, or on this machine.

    documents   one corpus or a list of them (see secateurs.corpus); or mappings or Document records, as Index.build has
    shards      how many
    encoder     a model's name or folder, of `encoder_kind`; an Encoder that can be pickled; or None if every Document
                brings its embeddings
    overwrite   replace a collection, which stays as it is until the new one is ready; or an unfinished build with other
                settings, or of other documents
    per_node    each shard on the own disk of one machine, in turn, under the same path; otherwise `path` is on a file
                system that all machines see
    ray_address of the cluster, if this process is not connected yet: see ray_connection.connect

    The rest as in Index.build. The same call after an interruption goes on with what is missing. Gives how many shards,
    documents, embeddings, cut documents and bytes there are.
    """
    recipe = Recipe(store, (gather,) if isinstance(gather, str) else tuple(dict.fromkeys(gather)))
    recipe.check()
    shard_names(shards)
    folder = Path(path).absolute()
    check_collection_target(folder, overwrite)
    sources = sources_of(documents)
    loaded = load_encoder(encoder, encoder_kind) if isinstance(encoder, str) else encoder
    ray = connect(ray_address)
    nodes = nodes_for(ray, shards, per_node)
    given = to_send(ray, loaded, isinstance(encoder, str))
    building = folder / BUILDING
    building.mkdir(parents=True, exist_ok=True)
    try:
        with write_lock(building, patience=0):
            check_collection_target(folder, overwrite)  # somebody may have been first
            wanted = Plan(
                tuple(map(ShardRecord, new_names(folder, shards), nodes)),
                dict(loaded.spec if loaded is not None else PRECOMPUTED),
                *recipe,
                None if sources is None else [source.state() for source in sources],
            )
            items: Any = documents  # paths, if there are sources
            plan = begin(folder, wanted, overwrite, items, on_bad)
            return _Build(ray, folder, plan, loaded, given, progress, on_bad).run(sources, items)
    except LockedIndexError as error:
        raise LockedIndexError(f"another process is building {path}: wait for it, or stop it") from error


class _Build:
    """The tasks of one build, and what is known between them."""

    def __init__(
        self,
        ray: ModuleType,
        folder: Path,
        plan: Plan,
        encoder: Encoder | None,
        given: Any,
        progress: bool | None,
        on_bad: OnBad | None,
    ) -> None:
        self._ray = ray
        self._folder = folder
        self._plan = plan
        self._sent_plan = ray.put(plan)  # once, not with every task
        self._dim = encoder.dim if encoder is not None else 0
        self._progress = progress
        self._on_bad = on_bad
        self._strategies = strategies(ray, plan)
        self._given = given

    def run(self, sources: list[Source] | None, documents: Iterable[Document | Mapping[str, Any]]) -> dict[str, int]:
        building = self._folder / BUILDING
        scale = Scale.read(building, self._plan)
        if scale is None or not scale.whole:
            pieces, digest = self._encode(sources, documents)
            if sources is not None and [source.state() for source in sources] != self._plan.corpus:
                raise SecateursError(
                    "the corpus has changed while it was read: give the same command with --overwrite, which encodes "
                    "only what is new"
                )
            if scale is None:
                scale = self._fit(pieces, digest)
            elif (scale.pieces, scale.digest) != (pieces, digest):
                self._plan.renewed().write(building)
                raise SecateursError(
                    "these documents are not those that were encoded before: give the same command again to build these"
                )
            scale = replace(scale, whole=True)
            scale.write(building)
        sent = self._ray.put(scale)
        try:
            with progress_bar("finishing shards", len(self._plan.shards), "shards", self._progress) as advance:
                made = self._each_shard(tasks.finish_shard, [(sent,)] * len(self._plan.shards), advance)
        except PieceLostError:
            replace(scale, whole=False).write(building)
            raise
        self._commit()
        return {"shards": len(made)} | {name: sum(facts[name] for facts in made) for name in made[0]}

    def _encode(
        self, sources: list[Source] | None, documents: Iterable[Document | Mapping[str, Any]]
    ) -> tuple[list[list[int]], str | None]:
        """Of each shard, of each source, how many pieces; and a digest of documents that no source has."""
        shards = len(self._plan.shards)
        counts = [[0] * (1 if sources is None else len(sources)) for _ in range(shards)]
        digests: list[str] = []
        encode = self._ray.remote(tasks.encode_piece)
        running: dict[Any, int] = {}
        if sources is None:
            pieces = hand_over(self._ray, documents, shards, self._on_bad)
        else:
            pieces = read_sources(self._ray, sources, shards, self._on_bad, self._get)
        total = expected(sources, documents)
        with closing(pieces), progress_bar("encoding documents", total, "passages", self._progress) as advance:
            try:
                for source, head, piece in pieces:
                    counts[head.shard][source] += 1
                    if sources is None:
                        digests.append(head.digest)
                    advance(len(head.problems))
                    start = encode.options(**self._options(head.shard)).remote
                    running[start(self._folder, self._sent_plan, head.shard, source, head, piece, self._given)] = (
                        head.shard
                    )
                    while len(running) >= self._at_once():
                        advance(self._next(running)[1])
                while running:
                    advance(self._next(running)[1])
            finally:
                self._cancel(running)
        return counts, joint_digest(digests) if sources is None else None

    def _at_once(self) -> int:
        """So many pieces that no core waits for the next; asked again each time, since machines come and go."""
        return 2 + 2 * int(self._ray.cluster_resources().get("CPU", 1))

    def _fit(self, pieces: list[list[int]], digest: str | None) -> Scale:
        """The scale that one index of all documents would have, bit for bit."""
        surveys: list[Survey] = self._each_shard(tasks.survey_shard, [(counts,) for counts in pieces])
        repeated = [told for survey in surveys for told in survey.repeated]
        if repeated and self._on_bad is None:
            raise DuplicateDocumentError(
                f"{repeated[0]}. Nothing that was encoded is lost: the same command with --skip-bad (on_bad=...) keeps "
                "the first of each docno and finishes"
            )
        for told in repeated:
            assert self._on_bad is not None
            self._on_bad(told)
        dims = {len(survey.total) for survey in surveys if survey.embeddings}
        dims = dims or {len(survey.total) for survey in surveys if len(survey.total)} or {self._dim}
        if len(dims) > 1:
            raise UsageError(f"some documents have embeddings of {min(dims)} dimensions, others of {max(dims)}")
        (dim,) = dims
        total = sum((survey.total for survey in surveys if survey.embeddings), start=np.zeros(dim))
        count = sum(survey.embeddings for survey in surveys)
        int8 = None
        if self._plan.recipe.has_int8:
            bound = sample_bound(count)
            samples = self._each_shard(tasks.sample_shard, [(counts, bound) for counts in pieces])
            kept = [sample for sample in samples if len(sample)]
            int8 = fit_int8(total, count, np.concatenate(kept) if kept else np.empty((0, dim), np.float16))
        return Scale(
            plan=self._plan.id,
            pieces=pieces,
            embeddings=[survey.embeddings for survey in surveys],
            unit=[survey.unit for survey in surveys],
            dim=dim,
            centre=None if int8 is None else int8.centre.tolist(),
            step=None if int8 is None else int8.step,
            digest=digest,
        )

    def _commit(self) -> None:
        before = Layout.read(self._folder).shards if is_sharded(self._folder) else ()
        Layout(self._plan.shards, f"secateurs {__version__}").write(self._folder)
        names = [record.name for record in self._plan.shards]
        owners = {record.node for record in (*before, *self._plan.shards)}
        clean = self._ray.remote(tasks.tidy)
        for node, node_id in alive(self._ray).items():
            if node in owners:
                start = clean.options(num_cpus=0, scheduling_strategy=pinned(node_id)).remote
                with suppress(SecateursError, OSError, self._ray.exceptions.RayError):  # the collection is there
                    self._get(start(self._folder, names), "tidying up")
        with suppress(OSError):
            tasks.tidy(self._folder, names)

    def _each_shard(
        self,
        task: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        advance: Callable[[int], None] = lambda more: None,
    ) -> list[Any]:
        """The results of a task for every shard, in their order."""
        remote = self._ray.remote(task)
        running: dict[Any, int] = {}
        results: dict[int, Any] = {}
        try:
            for shard, own in enumerate(arguments):
                running[remote.options(**self._options(shard)).remote(self._folder, self._sent_plan, shard, *own)] = (
                    shard
                )
            while running:
                shard, result = self._next(running)
                results[shard] = result
                advance(1)
        finally:
            self._cancel(running)
        return [results[shard] for shard in range(len(arguments))]

    def _options(self, shard: int) -> dict[str, Any]:
        return {"num_cpus": tasks.CORES, "max_retries": tasks.RETRIES, "scheduling_strategy": self._strategies[shard]}

    def _next(self, running: dict[Any, int]) -> tuple[int, Any]:
        """The shard and the result of the task that is ready first, which is taken out."""
        (done, *_), _ = self._ray.wait(list(running))
        shard = running.pop(done)
        return shard, self._get(done, f"a task of {self._plan.shards[shard].name}", shard)

    def _cancel(self, running: Iterable[Any]) -> None:
        for task in running:
            self._ray.cancel(task)

    def _get(self, task: Any, work: str, shard: int | None = None) -> Any:
        """A task's result; what went wrong in it as an error of our own, in one line."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(task)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, SecateursError | OSError | MemoryError):
                raise error.cause from None
            if isinstance(error.cause, exceptions.RaySystemError | ImportError):  # what was sent is not known there
                raise SecateursError(
                    f"{work} cannot run on a machine of the cluster ({first_line(error.cause)}): all of them need the "
                    "same versions of Python, Ray and Secateurs"
                ) from None
            raise
        except exceptions.RayError as error:
            record = None if shard is None else self._plan.shards[shard]
            if record is not None and record.node is not None and record.node not in alive(self._ray):
                raise is_gone(record) from None
            raise SecateursError(
                f"{work} failed again and again ({first_line(error)}). What is done is kept: give the same command "
                "again to go on"
            ) from None
