"""A corpus to a collection in shards, on all machines of a Ray cluster.

    read      one task per source splits it into pieces: up to 500 documents of one shard
    encode    one task per piece writes its embeddings to a file; a piece whose file is there is done
    survey    one task per shard finds docnos that occur twice, and adds up the embeddings for the int8 scale of all
    finish    one task per shard makes an index of its pieces
    commit    shards.json is written

What a task has finished is on disk, so it is not lost with a worker, a machine or this process: Ray starts a lost task
again, and the same command continues where an interrupted one stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...background import AUTO, Background, choose_background
from ...corpus import OnBad
from ...encoders import DEFAULT_MODEL, Encoder, load_encoder
from ...errors import DuplicateDocumentError, LockedIndexError, SecateursError, UsageError
from ...progress import progress_bar
from ...records import Document
from ...settings import DEFAULT_STORE, GatherName, Merge, StoreName
from ...storage.locks import write_lock
from ...storage.merging import choose_merge
from ...storage.new_index import PRECOMPUTED
from ...storage.recipe import Recipe
from ...storage.rounding import fit_int8
from ...storage.sampling import sample_bound
from ...version import __version__
from ..layout import Layout, ShardRecord, is_sharded, shard_names
from ..ray_connection import connect, first_line
from . import tasks
from .piece_stream import joint_digest, pieces_of_documents, pieces_of_sources
from .pieces import PieceLostError, Survey
from .plan import BUILDING, Plan, Scale, check_collection_target, new_names
from .ray_nodes import assign_nodes, node_gone_error, node_ids, on_node, scheduling_strategies
from .resume import choose_plan
from .sources import Source, expected_documents, sources_of


def build_shards(
    path: str | Path,
    documents: str | Path | Sequence[str | Path] | Iterable[Document | Mapping[str, Any]],
    *,
    shards: int,
    encoder: Encoder | str | None = DEFAULT_MODEL,
    encoder_kind: str = "onnx",
    encoder_settings: Mapping[str, Any] | None = None,
    store: StoreName = DEFAULT_STORE,
    gather: GatherName | Sequence[GatherName] = ("cells",),
    background: Background | str | Path | None = AUTO,
    merge: Merge = "auto",
    pool: int = 1,
    overwrite: bool = False,
    per_node: bool = False,
    ray_address: str | None = None,
    progress: bool | None = None,
    on_bad: OnBad | None = None,
) -> dict[str, int]:
    """Make a collection in shards at `path`, on the Ray cluster that this process is connected to, or on this machine.

    documents   one corpus or a list of them (see secateurs.corpus); or mappings or Document records, as Index.build has
    shards      how many
    encoder     a model's name or folder, of `encoder_kind` and with `encoder_settings`, as load_encoder takes them; an
                Encoder that can be pickled; or None if every Document brings its embeddings
    overwrite   replace a collection, which stays as it is until the new one is ready; or an unfinished build with other
                settings, or of other documents
    per_node    each shard on the disk of one machine, in turn, under the same path; otherwise `path` is on a file
                system that all machines see
    ray_address of the cluster, if this process is not connected yet: see ray_connection.connect

    The rest as in Index.build. The same call after an interruption continues with what is missing. Gives how many
    shards, documents, embeddings, cut documents and bytes there are.
    """
    gatherers = (gather,) if isinstance(gather, str) else tuple(dict.fromkeys(gather))
    Recipe(store, gatherers, choose_merge(merge, None), pool).check()
    shard_names(shards)
    folder = Path(path).absolute()
    check_collection_target(folder, overwrite)
    sources = sources_of(documents)
    if encoder_settings and not isinstance(encoder, str):
        raise UsageError("encoder_settings belong to a model that is named: give the others to load_encoder()")
    loaded = load_encoder(encoder, encoder_kind, settings=encoder_settings) if isinstance(encoder, str) else encoder
    recipe = Recipe(store, gatherers, choose_merge(merge, loaded), pool)
    chosen = choose_background(background, loaded)
    ray = connect(ray_address)
    nodes = assign_nodes(ray, shards, per_node)
    sent_encoder = tasks.encoder_to_send(ray, loaded, by_name=isinstance(encoder, str))
    building = folder / BUILDING
    building.mkdir(parents=True, exist_ok=True)
    try:
        with write_lock(building, patience=0):
            check_collection_target(folder, overwrite)  # another build may have finished meanwhile
            new_plan = Plan(
                tuple(map(ShardRecord, new_names(folder, shards), nodes)),
                dict(loaded.spec if loaded is not None else PRECOMPUTED),
                *recipe,
                None if sources is None else [source.state() for source in sources],
                None if chosen is None else chosen.description | {"digest": chosen.digest},
            )
            items: Any = documents  # paths, if there are sources
            plan = choose_plan(folder, new_plan, overwrite, items, on_bad)
            build = _Build(ray, folder, plan, loaded, sent_encoder, chosen, progress, on_bad)
            return build.run(sources, items)
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
        sent_encoder: Any,
        background: Background | None,
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
        self._strategies = scheduling_strategies(ray, plan)
        self._sent_encoder = sent_encoder
        self._background = background

    def run(self, sources: list[Source] | None, documents: Iterable[Document | Mapping[str, Any]]) -> dict[str, int]:
        building = self._folder / BUILDING
        scale = Scale.read(building, self._plan)
        if scale is None or not scale.whole:
            pieces, digest = self._encode(sources, documents)
            if sources is not None and [source.state() for source in sources] != self._plan.corpus:
                raise SecateursError(
                    "the corpus has changed while it was read: give the same command with --overwrite "
                    "(overwrite=True), which encodes only what is new"
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
        sent = (self._ray.put(scale), self._ray.put(self._background))
        try:
            with progress_bar("finishing shards", len(self._plan.shards), "shards", self._progress) as advance:
                shards = self._each_shard(tasks.finish_shard, [sent] * len(self._plan.shards), advance)
        except PieceLostError:
            replace(scale, whole=False).write(building)
            raise
        self._commit()
        return {"shards": len(shards)} | {name: sum(facts[name] for facts in shards) for name in shards[0]}

    def _encode(
        self, sources: list[Source] | None, documents: Iterable[Document | Mapping[str, Any]]
    ) -> tuple[list[list[int]], str | None]:
        """Of each shard, of each source, how many pieces; and a digest of the documents if a program has given them."""
        shards = len(self._plan.shards)
        counts = [[0] * (1 if sources is None else len(sources)) for _ in range(shards)]
        digests: list[str] = []
        encode = self._ray.remote(tasks.encode_piece)
        running: dict[Any, int] = {}
        if sources is None:
            pieces = pieces_of_documents(self._ray, documents, shards, self._on_bad)
        else:
            pieces = pieces_of_sources(self._ray, sources, shards, self._on_bad, self._get)
        total = expected_documents(sources, documents)
        with closing(pieces), progress_bar("encoding documents", total, "passages", self._progress) as advance:
            try:
                for source, head, piece in pieces:
                    counts[head.shard][source] += 1
                    if sources is None:
                        digests.append(head.digest)
                    advance(len(head.problems))
                    start = encode.options(**self._options(head.shard)).remote
                    where = (self._folder, self._sent_plan, head.shard, source)
                    running[start(*where, head, piece, self._sent_encoder)] = head.shard
                    while len(running) >= self._at_once():
                        advance(self._next(running)[1])
                while running:
                    advance(self._next(running)[1])
            finally:
                self._cancel(running)
        return counts, joint_digest(digests) if sources is None else None

    def _at_once(self) -> int:
        """So many pieces that no core waits for the next. Counted each time, because nodes come and go."""
        return 2 + 2 * int(self._ray.cluster_resources().get("CPU", 1))

    def _fit(self, pieces: list[list[int]], digest: str | None) -> Scale:
        """The scale that one index of all documents would have, bit for bit."""
        surveys: list[Survey] = self._each_shard(tasks.survey_shard, [(counts,) for counts in pieces])
        repeated = [problem for survey in surveys for problem in survey.repeated]
        if repeated and self._on_bad is None:
            raise DuplicateDocumentError(
                f"{repeated[0]}. Nothing that was encoded is lost: the same command with --skip-bad (on_bad=...) keeps "
                "the first of each docno and finishes"
            )
        for problem in repeated:
            assert self._on_bad is not None
            self._on_bad(problem)
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
            rows = [sample for sample in samples if len(sample)]  # each (rows, dim)
            int8 = fit_int8(total, count, np.concatenate(rows) if rows else np.empty((0, dim), np.float16))
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
        nodes = {record.node for record in (*before, *self._plan.shards)}
        clean = self._ray.remote(tasks.tidy)
        for node, node_id in node_ids(self._ray).items():
            if node in nodes:
                start = clean.options(num_cpus=0, scheduling_strategy=on_node(node_id)).remote
                with suppress(SecateursError, OSError, self._ray.exceptions.RayError):  # the collection is finished
                    self._get(start(self._folder, names), "removing what is left over")
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
            for shard, shard_arguments in enumerate(arguments):
                start = remote.options(**self._options(shard)).remote
                running[start(self._folder, self._sent_plan, shard, *shard_arguments)] = shard
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
        """The shard and the result of the task that is ready first. It is removed from `running`."""
        (done, *_), _ = self._ray.wait(list(running))
        shard = running.pop(done)
        return shard, self._get(done, f"a task of {self._plan.shards[shard].name}", shard)

    def _cancel(self, running: Iterable[Any]) -> None:
        for task in running:
            self._ray.cancel(task)

    def _get(self, task: Any, work: str, shard: int | None = None) -> Any:
        """A task's result. What went wrong in it is raised as a SecateursError of one line."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(task)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, SecateursError | OSError | MemoryError):
                raise error.cause from None
            if isinstance(
                error.cause, exceptions.RaySystemError | ImportError
            ):  # the worker cannot unpickle what was sent
                raise SecateursError(
                    f"{work} cannot run on a machine of the cluster ({first_line(error.cause)}): all of them need the "
                    "same versions of Python, Ray and Secateurs"
                ) from None
            raise
        except exceptions.RayError as error:
            record = None if shard is None else self._plan.shards[shard]
            if record is not None and record.node is not None and record.node not in node_ids(self._ray):
                raise node_gone_error(record) from None
            raise SecateursError(
                f"{work} failed again and again ({first_line(error)}). What is done is kept: give the same command "
                "again to go on"
            ) from None
