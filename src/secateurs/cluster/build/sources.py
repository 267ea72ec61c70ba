"""Where the documents of a build come from: files, folders and ir_datasets, or a program that has them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...corpus import IR_DATASETS, STANDARD_INPUT, OnBad, corpus_file, count_documents, read_places, text_files
from ...errors import SecateursError, UsageError
from ...records import Document
from .pieces import Placed

_LONG_TO_COUNT = 1 << 30  # bytes


class Source(NamedTuple):
    given: str  # as the user wrote it, for messages
    path: str  # absolute, because a task runs in another folder

    @classmethod
    def of(cls, given: str | Path) -> Source:
        """Raise if there is nothing to read."""
        if given == STANDARD_INPUT:
            raise UsageError("a build of shards can be continued, and standard input cannot be read again: give a file")
        read_places(given)
        name = str(given)
        if name.startswith(IR_DATASETS):
            return cls(name, name)
        file = corpus_file(Path(given))
        return cls(str(file), str(file.absolute()))

    def read(self, on_bad: OnBad | None) -> Iterator[Placed]:
        try:
            for place, document in read_places(self.path, on_bad and (lambda problem: on_bad(self._shown(problem)))):
                yield self._shown(place), document
        except SecateursError as error:
            message = self._shown(str(error))
            if not self.path.startswith(IR_DATASETS):
                message += (
                    ". When that is corrected, the same command with --overwrite goes on: what is encoded is kept"
                )
            raise type(error)(message) from error

    def _shown(self, message: str) -> str:
        return message.replace(self.path, self.given, 1)

    def state(self) -> dict[str, Any]:
        """Changes when the source changes."""
        if self.path.startswith(IR_DATASETS):
            return {"name": self.path}
        path = Path(self.path)
        facts = [(str(file), file.stat()) for file in (text_files(path) if path.is_dir() else [path])]
        listing = sorted((name, fact.st_size, fact.st_mtime_ns) for name, fact in facts)
        return {
            "name": self.path,
            "bytes": sum(fact.st_size for _, fact in facts),
            "digest": hashlib.blake2b(repr(listing).encode(errors="surrogateescape"), digest_size=16).hexdigest(),
        }


def sources_of(documents: str | Path | Iterable[Any]) -> list[Source] | None:
    """One path, or a list of nothing but paths, as sources; None if these are documents themselves."""
    if isinstance(documents, str | Path):
        return [Source.of(documents)]
    if isinstance(documents, list | tuple) and documents and all(isinstance(path, str | Path) for path in documents):
        return [Source.of(path) for path in documents]
    return None


def expected_documents(
    sources: list[Source] | None, documents: str | Path | Iterable[Document | Mapping[str, Any]]
) -> int | None:
    """How many documents, for a progress bar; None if that is not known, or would take long to count."""
    if sources is None:
        return len(documents) if isinstance(documents, list | tuple) else None
    if sum(source.state().get("bytes", 0) for source in sources) > _LONG_TO_COUNT:
        return None
    counts = [count_documents(source.path) for source in sources]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
