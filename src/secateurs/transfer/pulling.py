"""A repository of the Hub to an index: fetched to a hidden folder, checked byte for byte, and renamed.

Only files that the manifest names are fetched. The manifest is written last, so that what an interruption leaves is not
an index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import DamagedIndexError, SecateursError
from ..storage.check import check_snapshot
from ..storage.files import REMEDY, sync_folder
from ..storage.manifest import MANIFEST, SHARDS, Manifest
from ..storage.new_index import build_folder, check_target
from ..storage.snapshot import Snapshot
from .hub import Repository

_FILE_NAME = re.compile(r"\w[\w.-]*", re.ASCII)


def pull_index(repository: Repository, path: Path, overwrite: bool, progress: bool | None) -> None:
    check_target(path, overwrite)
    if SHARDS in repository.files:
        raise SecateursError(
            f"{repository.name} is a collection in shards: pull it with  ShardedIndex.pull, or  secateurs pull"
        )
    build_folder(path, lambda folder: fetch_index(repository, folder, "", progress), overwrite)


def fetch_index(repository: Repository, folder: Path, within: str, progress: bool | None) -> Manifest:
    """The files of an index, which begin with `within` in the repository, to the folder; they are checked."""
    target = folder / within
    if within + MANIFEST not in repository.files:
        raise SecateursError(f"{repository.name} is not an index: it has no {within}{MANIFEST}")
    try:
        repository.fetch([within + MANIFEST], folder, progress)
        manifest = Manifest.read(target)
        (target / MANIFEST).unlink()
        names = []
        for part, name, files in manifest.folders():
            if not isinstance(files, Mapping):
                raise SecateursError(f"{repository.name} is not an index: it does not say which files it has")
            check_names(repository, name, *files)
            names += [f"{within}{part}/{name}/{file}" for file in files]
        repository.fetch(names, folder, progress)
        for part, name in manifest.named():
            sync_folder(target / part / name)
            sync_folder(target / part)
        manifest.write(target)
        check_snapshot(Snapshot.open(target))
    except SecateursError as error:
        message = str(error).replace(str(target), f"{repository.name}/{within}".rstrip("/"))
        kind = DamagedIndexError if isinstance(error, DamagedIndexError) else SecateursError
        raise kind(message.replace(REMEDY, "nothing was kept of it, push the index again")) from error
    return manifest


def check_names(repository: Repository, *names: object) -> None:
    """Raise if a name could lead out of the folder that is pulled to."""
    for name in names:
        if not isinstance(name, str) or not _FILE_NAME.fullmatch(name):
            raise SecateursError(f"{repository.name} is not an index: it names a file {name!r}")
