"""The Ray tasks of a build, as plain functions. Each can be run again at any time.

What is wrong with the user's data is raised as a SecateursError, which builder.py unwraps.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from pickle import PicklingError
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...background import Background
from ...encoders import LOADED_BY_NAME, Encoder, load_recorded
from ...errors import EncoderMismatchError, SecateursError, UsageError
from ...index import Index, calibrate_if_due
from ...storage.codebooks import CodebookContent
from ...storage.files import write_atomically
from ...storage.locks import retire
from ...storage.new_index import make_index
from ...threads import granted_cores
from ..layout import shard_names
from ..ray_connection import first_line
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

RETRIES = 5  # of a task whose worker or node died
FINISHED = "finished.json"
CORES = 1  # of a task

_loaded: dict[str, Encoder] = {}  # by fingerprint; a worker process runs many tasks


class Head(NamedTuple):
    """Comes before a piece in the stream of a reader, and decides where the piece goes."""

    shard: int
    number: int
    documents: int
    digest: str
    problems: list[str]  # documents that were skipped since the last piece


def read_source(source: Source, shards: int, skip_bad: bool) -> Iterator[Head | list[Placed] | list[str]]:
    """For each piece its head and its documents; at the end the remaining problems."""
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
    sent_encoder: Encoder | None,
) -> int:
    """Write the file of a piece, unless it is there already. Gives how many documents it has."""
    record = plan.shards[shard]
    if record.node is None and not (folder / BUILDING / PLAN).is_file():
        raise SecateursError(
            f"{platform.node()} does not see {folder}: put it on a file system that all machines of the Ray cluster "
            "share, or build with --per-node (per_node=True), which keeps each shard on the disk of one machine"
        )
    pieces = _pieces_folder(folder, plan, shard)
    if _is_finished(pieces, plan):
        return head.documents
    path = piece_path(pieces, source, head.number)
    staged = np.dtype(plan.recipe.codec.staged).name
    digest = f"{plan.encoder.get('fingerprint')} {staged} {plan.merge} {plan.pool} {head.digest}"
    if not is_written(path, digest):
        with granted_cores(CORES):
            write_piece(path, documents, sent_encoder or load_recorded_encoder(plan.encoder), plan.recipe, digest)
    return head.documents


def encoder_to_send(ray: ModuleType, encoder: Encoder | None, by_name: bool) -> Any:
    """An encoder in Ray's memory; None if there is none, or if tasks can load it by its name."""
    if encoder is None or by_name:
        return None
    kind, model = encoder.spec["kind"], encoder.spec["model"]
    if kind not in LOADED_BY_NAME:
        try:
            return ray.put(encoder)
        except (TypeError, AttributeError, PicklingError) as error:
            raise UsageError(
                f"this encoder cannot be sent to other processes ({first_line(error)}): name a model"
            ) from error
    with suppress(SecateursError):
        by_its_name = load_recorded(encoder.spec)
        if by_its_name.spec["fingerprint"] == encoder.spec["fingerprint"]:
            return None
    raise UsageError(
        f"this encoder is not what other processes load as {model!r}: give its settings by name to load_encoder(), or "
        "save them in a model folder, with its linear layer, and name that"
    )


def load_recorded_encoder(spec: Mapping[str, Any]) -> Encoder | None:
    """The encoder of a plan, loaded once in each worker process; None where documents bring their embeddings."""
    if spec["kind"] == "precomputed":
        return None
    fingerprint = spec["fingerprint"]
    if fingerprint not in _loaded:
        encoder = load_recorded(spec)
        if encoder.spec["fingerprint"] != fingerprint:
            raise EncoderMismatchError(
                f"the model {spec['model']!r} on {platform.node()} ({encoder.spec['fingerprint']}) is not that of the "
                f"machine where the build was started ({fingerprint}): all machines need the same"
            )
        _loaded[fingerprint] = encoder
    return _loaded[fingerprint]


def survey_shard(folder: Path, plan: Plan, shard: int, counts: Sequence[int]) -> Survey:
    return Pieces(_pieces_folder(folder, plan, shard), counts).survey()


def sample_shard(folder: Path, plan: Plan, shard: int, counts: Sequence[int], bound: int) -> NDArray[np.float16]:
    return Pieces(_pieces_folder(folder, plan, shard), counts).sample(bound)


def finish_shard(folder: Path, plan: Plan, shard: int, scale: Scale, background: Background | None) -> dict[str, int]:
    """Make an index of the shard's pieces, and remove them. Gives what the index holds."""
    name = plan.shards[shard].name
    pieces = _pieces_folder(folder, plan, shard)
    if not _is_finished(pieces, plan):
        int8 = scale.int8
        with granted_cores(CORES):
            make_index(
                folder / name,
                Pieces(pieces, scale.pieces[shard]).items(),
                None,
                plan.recipe,
                spec=plan.encoder,
                overwrite=True,  # an index of this name is that of a task that died before it was finished
                progress=False,
                codebook=None if int8 is None else CodebookContent(scale.embeddings[shard], int8),
                unit=scale.unit[shard],
                dim=scale.dim,
                background=background,
                merged=True,
            )
            calibrate_if_due(Index(folder / name))
        pieces.mkdir(parents=True, exist_ok=True)
        write_atomically(pieces / FINISHED, json.dumps({"plan": plan.id}).encode())
    for path in pieces.glob("*.npz"):
        path.unlink(missing_ok=True)
    facts = Index(folder / name).info()
    return {fact: facts[fact] for fact in ("documents", "embeddings", "merged_embeddings", "cut_documents", "bytes")}


def _is_finished(pieces: Path, plan: Plan) -> bool:
    with suppress(FileNotFoundError, ValueError, KeyError):
        return bool(json.loads((pieces / FINISHED).read_bytes())["plan"] == plan.id)
    return False


def tidy(folder: Path, names: Sequence[str]) -> None:
    """After the commit: remove shards that the collection does not name, and what it was built from."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if OURS.fullmatch(path.name) and path.name not in names:
            retire(path)
    shutil.rmtree(folder / BUILDING, ignore_errors=True)


def _pieces_folder(folder: Path, plan: Plan, shard: int) -> Path:
    """The folder of a shard's pieces: the same for all plans with as many shards, so that another plan can use them."""
    return folder / BUILDING / shard_names(len(plan.shards))[shard]
