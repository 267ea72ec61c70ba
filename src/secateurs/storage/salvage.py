"""Embeddings that an interrupted build has encoded: the next build of the same index takes them over.

A build with an encoder stages its embeddings in a hidden folder beside its target, `.demo.sec.staged-HOST-ID`, with a
journal of them (journal.py). A process locks the folders that it uses, and the system releases the locks when the
process ends, however it ends. A build that is finished removes its folder. If it was interrupted, the folder stays,
unless it has very little. The next build of the same target locks it, copies the embeddings of all texts that are the
same to its own folder, encodes the other texts, and removes both folders when it is finished. A folder with embeddings
of another encoder, or with embeddings that were merged otherwise, is removed unread.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..encoders import Encoder
from ..errors import DamagedIndexError, SecateursError
from ..progress import counted
from ..records import Document, EncodedText
from ..version import __version__
from .embeddings import encode
from .files import new_folder_name
from .journal import JOURNAL, Journal, JournalWriter, StagedText, text_digest
from .locks import write_lock
from .recipe import Recipe

WORTH_KEEPING = 100_000  # positions, about 1,500 passages: to encode fewer again takes too little time for a leftover
_GOING = ".going"
_BEING_MADE = 3600.0  # seconds in which a folder without a journal may be that of a build that is just beginning


class Salvage:
    """What interrupted builds have encoded."""

    def __init__(self, journals: Sequence[Journal] = (), dim: int = 0) -> None:
        self._journals, self._dim = journals, dim
        self._starts = np.cumsum([0, *map(len, journals)]).tolist()  # of each journal, among the documents of all
        keys = np.concatenate([journal.keys for journal in journals] or [np.empty(0, np.uint64)])
        self._order = np.argsort(keys, kind="stable")
        self._keys: NDArray[np.uint64] = keys[self._order]  # (documents,) ascending
        self._texts = len(np.unique(self._keys))

    def __len__(self) -> int:
        """How many different texts."""
        return self._texts

    def find(self, text: str) -> int | None:
        """The number of a document with this text, if every byte that was staged of it is as it was written."""
        digest = text_digest(text)
        key = np.frombuffer(digest, dtype="<u8")[0]
        first, last = np.searchsorted(self._keys, key), np.searchsorted(self._keys, key, side="right")
        for number in self._order[first:last].tolist():
            found = self._read(number)
            if found is not None and found[0] == digest:
                return int(number)
        return None

    def read(self, number: int) -> StagedText:
        found = self._read(number)
        if found is None:
            raise DamagedIndexError("embeddings of an interrupted build were altered while they were read: build again")
        return found[1]

    def _read(self, number: int) -> tuple[bytes, StagedText] | None:
        journal = bisect_right(self._starts, number) - 1
        return self._journals[journal].read(number - self._starts[journal], self._dim)


def encode_or_take_over(
    documents: Iterable[Document], encoder: Encoder | None, salvage: Salvage
) -> Iterator[EncodedText | StagedText]:
    """The documents' embeddings, in order: those of the salvage, and for texts that it does not have the encoder's."""
    if not len(salvage):
        yield from encode(documents, encoder)
        return
    remaining = iter(documents)
    for document in remaining:
        number = _find(document, salvage)
        if number is None:
            remaining = chain([document], remaining)
            break
        yield salvage.read(number)
    read_ahead: deque[int | None] = deque()  # of each document the encoder has passed: its number in the salvage

    def to_encode() -> Iterator[Document]:
        for document in remaining:
            number = _find(document, salvage)
            read_ahead.append(number)
            if number is None:
                yield document

    def taken_over() -> Iterator[StagedText]:
        while read_ahead and read_ahead[0] is not None:
            yield salvage.read(read_ahead[0])
            read_ahead.popleft()

    for encoded in encode(to_encode(), encoder):
        yield from taken_over()
        if read_ahead:
            read_ahead.popleft()
        yield encoded
    yield from taken_over()


def _find(document: Document, salvage: Salvage) -> int | None:
    return salvage.find(document.text) if document.encoded is None else None


class Staging:
    """The folder in which a build stages its embeddings, and what it can take over."""

    def __init__(self, folder: Path, common: bytes, salvage: Salvage) -> None:
        self.folder = folder
        self.journal = JournalWriter(folder, common)
        self.salvage = salvage


class _Folder:
    """A folder of staged embeddings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open = ExitStack()  # what must be closed before the folder can be removed
        self.journal: Journal | None = None

    def lock(self) -> None:
        """SecateursError if another process has the lock, or if the file system has no locks."""
        self.open.enter_context(write_lock(self.path, patience=0))

    def remove(self) -> None:
        """Rename it first: if this process is killed while it removes files, the next build removes the rest."""
        self.open.close()
        with suppress(OSError):
            self.path = self.path.rename(self.path.with_name(f"{self.path.name}{_GOING}"))
        shutil.rmtree(self.path, ignore_errors=True)


@contextmanager
def staging_beside(target: Path, encoder: Encoder | None, recipe: Recipe) -> Iterator[Staging | None]:
    """A folder for what a build stages, until the index is finished; None where nothing is encoded.

    If the build fails, the folder stays if it has enough, and the error gets a note that says so.
    """
    staged = recipe.codec.staged
    prefix = f".{target.name}.staged-{platform.node()}-"
    if encoder is None:
        _take_earlier(target.parent, prefix, b"", staged)  # removes them: no encoder has an empty digest
        yield None
        return
    settings = [__version__, encoder.spec["fingerprint"], encoder.dim, np.dtype(staged).name, recipe.merge, recipe.pool]
    common = hashlib.blake2b(repr(settings).encode(), digest_size=16).digest()
    earlier = _take_earlier(target.parent, prefix, common, staged)
    salvage = Salvage([folder.journal for folder in earlier if folder.journal is not None], encoder.dim)
    folder = _Folder(target.with_name(prefix + new_folder_name()))
    with ExitStack() as stack:
        for used in (*earlier, folder):
            stack.push(used.open)
        folder.path.mkdir()
        can_be_found = False
        with suppress(SecateursError):  # without locks, no other build can tell that this one has ended
            folder.lock()
            can_be_found = True
        staging = Staging(folder.path, common, salvage)
        folder.open.callback(staging.journal.close)
        try:
            yield staging
        except BaseException as error:
            documents = len(salvage)
            if staging.journal.positions < WORTH_KEEPING or not can_be_found:
                folder.remove()
            else:
                documents = max(documents, staging.journal.documents)
            if documents:
                error.add_note(
                    f"what was encoded, {counted(documents, 'document')}, is kept in {target.with_name(prefix)}*: "
                    f"building {target} again goes on from there"
                )
            raise
        for used in (*earlier, folder):
            used.remove()


def _take_earlier(parent: Path, prefix: str, common: bytes, staged: type[np.generic]) -> list[_Folder]:
    """Lock the folders of interrupted builds that have embeddings to take over, and remove the others.

    A build that was interrupted while it took embeddings over has many that an earlier one has too: the one with most
    documents comes first, and a folder stays if it adds enough to those before it.
    """
    found = []
    for path in [path for path in parent.iterdir() if path.name.startswith(prefix)]:
        if path.name.endswith(_GOING):
            shutil.rmtree(path, ignore_errors=True)
        elif not _is_being_made(path):
            folder = _Folder(path)
            try:
                folder.lock()
            except SecateursError:
                continue
            try:
                folder.journal = Journal(path, staged)
            except OSError:
                folder.remove()
                continue
            folder.open.callback(folder.journal.close)
            found.append((folder, folder.journal))
    found.sort(key=lambda pair: (-len(pair[1]), pair[0].path.name))
    taken: list[_Folder] = []
    known = np.empty(0, dtype=np.uint64)
    for folder, journal in found:
        more = ~np.isin(journal.keys, known)
        if journal.common != common or int(journal.positions[more].sum()) < WORTH_KEEPING:
            folder.remove()
        else:
            known = np.concatenate([known, journal.keys[more]])
            taken.append(folder)
    return taken


def _is_being_made(folder: Path) -> bool:
    """Whether another process may have made it and not locked it yet: it makes the journal after it has the lock."""
    try:
        return not (folder / JOURNAL).exists() and time.time() - folder.stat().st_mtime < _BEING_MADE
    except OSError:
        return True  # gone
