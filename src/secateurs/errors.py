"""Errors. Each message says what to do next."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType


class SecateursError(Exception):
    """A problem with the data, the index or the set-up. The message says what to do about it."""


class UsageError(SecateursError, ValueError):
    """An argument that makes no sense, such as p = 0."""


class DamagedIndexError(SecateursError):
    """A file of the index is missing, cut short or altered."""


class LockedIndexError(SecateursError):
    """Another process is writing to the index."""


class DuplicateDocumentError(SecateursError):
    """A docno that is there already."""


class EncoderMismatchError(SecateursError):
    """The encoder given is not the one whose embeddings are in the index."""


class ShardsMissingError(SecateursError):
    """A shard cannot be reached, and the search was not `partial`."""


class PartlyWrittenError(SecateursError):
    """Some shards of a collection were changed, and others were not.

    `written` are the docnos of the write that belong to the changed shards, `not_written` those of the other shards.
    """

    def __init__(self, message: str, written: Sequence[str] = (), not_written: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.written, self.not_written = tuple(written), tuple(not_written)


class CancelledError(SecateursError):
    """A search that was stopped, because its time was up or its client had gone."""


class MissingExtraError(SecateursError, ImportError):
    """An optional dependency is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which pip line installs it."""
    try:
        return importlib.import_module(module)
    except MissingExtraError:
        raise  # from the module itself, which knows better what it lacks
    except ImportError as error:
        if error.name is not None and error.name.split(".")[0] != module.split(".")[0]:
            raise  # the package is here but one of its own imports fails: that message is the useful one
        raise MissingExtraError(f'{module.split(".")[0]} is not installed: pip install "secateurs[{extra}]"') from error
