"""Documents to a whole new index: written to a hidden folder beside its target, and renamed when it is finished."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..background import Background
from ..corpus import OnBad
from ..encoders import Encoder
from ..errors import DamagedIndexError, SecateursError
from ..version import __version__
from .checksums import check_files
from .codebooks import CodebookContent
from .files import new_folder_name, sync_folder
from .indexing import Item, write_segment
from .locks import sweep, write_lock
from .manifest import MANIFEST, MANIFEST_COPY, SEGMENTS, SHARDS, Files, Manifest
from .recipe import Recipe
from .salvage import staging_beside

PRECOMPUTED = {"kind": "precomputed"}  # in place of an encoder's spec, if there is no encoder


def make_index(
    path: Path,
    items: Iterable[Item],
    encoder: Encoder | None,
    recipe: Recipe,
    *,
    spec: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    total: int | None = None,
    progress: bool | None = None,
    on_bad: OnBad | None = None,
    codebook: CodebookContent | None = None,
    unit: bool | None = None,
    dim: int | None = None,
    background: Background | None = None,
    merged: bool = False,
) -> None:
    """One segment of everything. `spec` is that of the encoder which made the embeddings that documents bring.

    With an encoder, embeddings that an interrupted build of the same index has encoded are taken over: salvage.py.
    `codebook`, `unit`, `dim` and `merged` as in write_segment: a shard of a collection has those of the collection.
    """

    def fill(folder: Path) -> Manifest:
        segment = write_segment(
            folder / SEGMENTS / new_folder_name(),
            items,
            encoder,
            recipe,
            total=total,
            progress=progress,
            on_bad=on_bad,
            codebook=codebook,
            unit=unit,
            dim=dim,
            merged=merged,
            staging=staging,
        )
        return Manifest(
            dim=segment.dim,
            store=recipe.store,
            gather=recipe.gather,
            merge=recipe.merge,
            pool=recipe.pool,
            encoder=dict(spec or (PRECOMPUTED if encoder is None else encoder.spec)),
            codebook=segment.codebook.write(folder, background),
            segments=(segment.record,),
            written_by=f"secateurs {__version__}",
        )

    path.parent.mkdir(parents=True, exist_ok=True)
    with staging_beside(path, encoder, recipe) as staging:
        build_folder(path, fill, overwrite)


def check_target(target: Path, overwrite: bool) -> None:
    """Raise if an index may not be written there; called before any work is done."""
    if not target.exists():
        return
    if (target / MANIFEST).is_file():
        if not overwrite:
            raise SecateursError(
                f"there is an index at {target} already: choose another name, or replace it with --overwrite "
                "(overwrite=True)"
            )
    elif (target / SHARDS).is_file():
        raise SecateursError(
            f"{target} is a collection in shards: choose another name, or replace it with  "
            f"secateurs shard build CORPUS {target} --overwrite"
        )
    elif not target.is_dir() or any(target.iterdir()):
        raise SecateursError(f"{target} exists and is not an index: it is left as it is, choose another name")


def build_folder(target: Path, fill: Callable[[Path], Manifest], overwrite: bool) -> None:
    """Let `fill` write the index to a hidden folder beside the target; only a finished one gets the target's name.

    An index that is there already is replaced by one rename, that of its manifest: at every moment, also after a power
    cut, there is the old index or the new one.
    """
    with hidden_folder(target) as hidden:
        manifest = fill(hidden)
        if (target / MANIFEST).is_file():
            with write_lock(target):
                check_target(target, overwrite)  # another build may have finished first
                for part, name, files in manifest.folders():
                    (target / part).mkdir(exist_ok=True)
                    if not _has_already(target / part / name, files):
                        (hidden / part / name).rename(target / part / name)
                    sync_folder(target / part)
                manifest = replace(manifest, commit=_last_commit(target) + 1)
                manifest.write(target)
                sweep(target, manifest)
        else:
            manifest.write(hidden)
            if target.is_dir():
                target.rmdir()  # empty, see check_target
            hidden.rename(target)
            sync_folder(target.parent)


@contextmanager
def hidden_folder(target: Path) -> Iterator[Path]:
    """A new folder beside the target, until the end of the `with` unless it is renamed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(target)
    hidden = target.parent / f".{target.name}.building-{platform.node()}-{os.getpid()}-{new_folder_name()}"
    hidden.mkdir()
    try:
        yield hidden
    finally:
        if hidden.exists():
            shutil.rmtree(hidden, ignore_errors=True)


def _has_already(folder: Path, files: Files) -> bool:
    """Whether the target has this folder, because the index in it was pulled before; one that is damaged is renamed."""
    if not folder.exists():
        return False
    try:
        check_files(folder, files, every_byte=True)
    except DamagedIndexError:
        folder.rename(folder.with_name(f"{folder.name}.damaged-{new_folder_name()}"))  # and swept
        return False
    return True


def _last_commit(target: Path) -> int:
    for name in (MANIFEST, MANIFEST_COPY):
        with suppress(SecateursError):
            return Manifest.read(target, name).commit
    return 0  # neither can be read


def remove_leftovers(target: Path) -> None:
    """Folders of builds on this machine whose process is gone, for instance by a power cut."""
    prefix = f".{target.name}.building-{platform.node()}-"
    with suppress(OSError):
        _remove_leftovers(target.parent, prefix)


def _remove_leftovers(folder: Path, prefix: str) -> None:
    for path in folder.iterdir():
        if path.name.startswith(prefix):
            pid = path.name.removeprefix(prefix).partition("-")[0]
            if pid.isdigit() and not _runs(int(pid)):
                shutil.rmtree(path, ignore_errors=True)


def _runs(pid: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would end the process there: leave the folder
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
