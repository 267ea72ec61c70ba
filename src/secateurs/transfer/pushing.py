"""An index to a repository of the Hub: its files under the names that they have in its folder, and a card.

A clone of the repository is the index. What is pushed is one committed state, whatever is written meanwhile: the files
of a committed state are never changed, and are not removed while a snapshot of it is open. One commit of the repository
adds them and removes those of the state that was there before, so that every commit is a whole index.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SecateursError
from ..progress import counted
from ..storage.manifest import MANIFEST, MANIFEST_COPY, PARTS, SHARDS
from ..storage.snapshot import Snapshot
from .dataset_card import CARD, GENERATED, dataset_card
from .hub import Repository

_OF_AN_INDEX = re.compile(
    rf"{re.escape(SHARDS)}|(shard-[\w-]+/)?({re.escape(MANIFEST)}|{re.escape(MANIFEST_COPY)}|({'|'.join(PARTS)})/.+)"
)
_MAY_BE_THERE = re.compile(r"\..*|README\.md|LICENSE.*", re.IGNORECASE)


class IndexFiles(NamedTuple):
    """The files of committed states by their names in the repository, and what keeps them from being removed."""

    files: Mapping[str, Path | bytes]
    snapshots: tuple[Snapshot, ...]


def index_files(snapshot: Snapshot, within: str = "") -> IndexFiles:
    packed = snapshot.manifest.packed()
    files: dict[str, Path | bytes] = {within + MANIFEST: packed, within + MANIFEST_COPY: packed}
    for part, folder, names in snapshot.manifest.folders():
        files |= {f"{within}{part}/{folder}/{name}": snapshot.path / part / folder / name for name in names}
    return IndexFiles(files, (snapshot,))


def push(
    pushed: IndexFiles,
    facts: Mapping[str, Any],
    repo: str,
    public: bool,
    revision: str | None,
    progress: bool | None,
) -> str:
    """`facts` are those of Index.info(); give the address of the commit."""
    repository = Repository(repo, revision).open_or_make(public)
    _check_content(repository)
    files = dict(pushed.files)
    card = repository.text(CARD)
    if not card or GENERATED in card:  # one that someone has written is kept
        files[CARD] = dataset_card(repo, facts).encode()
    gone = sorted(name for name in repository.files - files.keys() if _OF_AN_INDEX.fullmatch(name))
    return repository.replace(files, gone, f"Index of {counted(facts['documents'], 'document')}", progress)


def _check_content(repository: Repository) -> None:
    if MANIFEST in repository.files or SHARDS in repository.files:
        return
    others = sorted(name for name in repository.files if not _MAY_BE_THERE.fullmatch(name))
    if others:
        raise SecateursError(
            f"{repository.name} holds other things than an index, such as {others[0]}: push to a repository of its own"
        )
