"""What runs elsewhere: the Ray tasks of a build, as plain functions. Each can be run again at any moment.

What goes wrong with the user's data is raised as one of our own errors, which building.py unwraps.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...encoders import Encoder, load_encoder
from ...errors import EncoderMismatchError, SecateursError
from ...index import Index
from ...storage.codebooks import CodebookContent
from ...storage.files import write_atomically
from ...storage.locks import retire
from ...storage.new_index import make_index
from ...threads import granted_cores
from ..layout import shard_names
from .pieces import (
    Pieces,
    Placed,
    Survey,
    digest_of,
    is_written,
    piece_path,
    split,
    write_piece,
)
from .plan import BUILDING, OURS, PLAN, Plan, Scale
from .sources import Source

RETRIES = 5  # of a task whose worker or machine died
FINISHED = "finished.json"
CORES = 1  # of a task

_loaded: dict[str, Encoder] = {}  # by fingerprint; a worker process runs many tasks


class Head(NamedTuple):
    """Told of a piece before the piece itself, to whoever decides where that goes."""

    shard: int
    number: int
    documents: int
    digest: str
    problems: list[str]  # documents that were skipped since the last piece


def read_source(source: Source, shards: int, skip_bad: bool) -> Iterator[Head | list[Placed] | list[str]]:
    """For each piece its head and its documents, and last the remaining problems."""
    problems: list[str] = []
    for piece in split(source.read(problems.append if skip_bad else None), shards):
        yield Head(piece.shard, piece.number, len(piece.documents), digest_of(piece.documents), problems.copy())
        problems.clear()
        yield piece.documents
    yield problems


def encode_piece(
    folder: Path,
    plan: Plan,
    shard: int,
    source: int,
    head: Head,
    documents: Sequence[Placed],
    given: Encoder | None,
) -> int:
    """How many documents are in the file, which is left as it is if it is there already."""
    record = plan.shards[shard]
    if record.node is None and not (folder / BUILDING / PLAN).is_file():
        raise SecateursError(
            f"{platform.node()} does not see {folder}: put it on a file system that all machines of the Ray cluster "
            "share, or build with --per-node (per_node=True), which keeps each shard on a machine's own disk"
        )
    own = _own(folder, plan, shard)
    if _is_finished(own, plan):
        return head.documents
    path = piece_path(own, source, head.number)
    digest = f"{plan.encoder.get('fingerprint')} {head.digest}"
    if not is_written(path, digest):
        with granted_cores(CORES):
            write_piece(path, documents, given or _encoder(plan.encoder), digest)
    return head.documents


def _encoder(spec: Mapping[str, Any]) -> Encoder | None:
    if spec["kind"] == "precomputed":
        return None
    fingerprint = spec["fingerprint"]
    if fingerprint not in _loaded:
        encoder = load_encoder(spec["model"], spec["kind"])
        if encoder.spec["fingerprint"] != fingerprint:
            raise EncoderMismatchError(
                f"the model {spec['model']!r} on {platform.node()} ({encoder.spec['fingerprint']}) is not that of the "
                f"machine where the build was started ({fingerprint}): all machines need the same"
            )
        _loaded[fingerprint] = encoder
    return _loaded[fingerprint]


def survey_shard(folder: Path, plan: Plan, shard: int, counts: Sequence[int]) -> Survey:
    return Pieces(_own(folder, plan, shard), counts).survey()


def sample_shard(folder: Path, plan: Plan, shard: int, counts: Sequence[int], bound: int) -> NDArray[np.float16]:
    return Pieces(_own(folder, plan, shard), counts).sample(bound)


def finish_shard(folder: Path, plan: Plan, shard: int, scale: Scale) -> dict[str, int]:
    """The shard's pieces become its index, and go. Gives what the index holds."""
    name = plan.shards[shard].name
    own = _own(folder, plan, shard)
    if not _is_finished(own, plan):
        int8 = scale.int8
        with granted_cores(CORES):
            make_index(
                folder / name,
                Pieces(own, scale.pieces[shard]).items(),
                None,
                plan.recipe,
                spec=plan.encoder,
                overwrite=True,  # one of this name is that of a task which died before it said so
                progress=False,
                codebook=None if int8 is None else CodebookContent(scale.embeddings[shard], int8),
                unit=scale.unit[shard],
                dim=scale.dim,
            )
        own.mkdir(parents=True, exist_ok=True)
        write_atomically(own / FINISHED, json.dumps({"plan": plan.id}).encode())
    for path in own.glob("*.npz"):
        path.unlink(missing_ok=True)
    facts = Index(folder / name).info()
    return {fact: facts[fact] for fact in ("documents", "embeddings", "cut_documents", "bytes")}


def _is_finished(own: Path, plan: Plan) -> bool:
    with suppress(FileNotFoundError, ValueError, KeyError):
        return bool(json.loads((own / FINISHED).read_bytes())["plan"] == plan.id)
    return False


def tidy(folder: Path, names: Sequence[str]) -> None:
    """When the collection is there: what it does not name, and what it was built from, goes."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if OURS.fullmatch(path.name) and path.name not in names:
            retire(path)
    shutil.rmtree(folder / BUILDING, ignore_errors=True)


def _own(folder: Path, plan: Plan, shard: int) -> Path:
    """Where a shard's pieces are: the same for all plans with so many shards, so that another can use them."""
    return folder / BUILDING / shard_names(len(plan.shards))[shard]
