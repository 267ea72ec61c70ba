"""Collections in shards to and from a repository of the Hub: a folder of indexes and shards.json, as on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ..errors import SecateursError
from ..storage.files import sync_folder
from ..storage.manifest import SHARDS
from ..storage.new_index import hidden_folder
from ..storage.snapshot import Snapshot
from ..transfer.hub import Repository
from ..transfer.pulling import check_names, fetch_index
from ..transfer.pushing import IndexFiles, index_files
from .layout import Layout


def collection_files(path: Path, layout: Layout) -> IndexFiles:
    """One committed state of each shard. Of a write to several shards, some may have it already, and others not."""
    elsewhere = [shard for shard in layout.shards if shard.node is not None]
    if elsewhere:
        raise SecateursError(
            f"{path} has shards on the disks of other machines ({elsewhere[0].name} on {elsewhere[0].node}): "
            "only a collection on one file system can be pushed"
        )
    files: dict[str, Path | bytes] = {SHARDS: layout.packed()}
    snapshots = tuple(Snapshot.open(path / shard.name) for shard in layout.shards)
    for shard, snapshot in zip(layout.shards, snapshots, strict=True):
        files |= index_files(snapshot, f"{shard.name}/").files
    return IndexFiles(files, snapshots)


def pull_shards(repository: Repository, path: Path, overwrite: bool, progress: bool | None) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        advice = "remove it yourself first" if overwrite else "choose another name"
        raise SecateursError(f"{path} is there already, and a pulled collection in shards replaces nothing: {advice}")
    if SHARDS not in repository.files:
        raise SecateursError(f"{repository.name} is not a collection in shards: it has no {SHARDS}")
    with hidden_folder(path) as folder:
        repository.fetch([SHARDS], folder, progress)
        try:
            layout = Layout.read(folder)
        except SecateursError as error:
            raise type(error)(str(error).replace(str(folder), repository.name)) from error
        (folder / SHARDS).unlink()
        check_names(repository, *(shard.name for shard in layout.shards))
        for shard in layout.shards:
            fetch_index(repository, folder, f"{shard.name}/", progress)
        replace(layout, shards=tuple(replace(shard, node=None) for shard in layout.shards)).write(folder)
        if path.is_dir():
            path.rmdir()  # empty, see above
        folder.rename(path)
        sync_folder(path.parent)
