"""A dataset repository of the Hugging Face Hub, read and written with the Hub's client (extra `[hub]`).

Who may read and write is decided by the client's token: that of `hf auth login`, or of the environment variable
HF_TOKEN.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from ..errors import SecateursError, UsageError, require
from ..progress import progress_bar
from ..storage.files import sync_file
from ..version import __version__

_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_KIND = "dataset"
_CLIENT_FOLDER = ".cache"  # where the client notes what it has fetched to a folder
_LOG_IN = "log in with  hf auth login, or set HF_TOKEN"


class NoSuchRepositoryError(SecateursError):
    """The Hub has no such repository, or does not show it to this user."""


class NoSuchRevisionError(SecateursError):
    """The repository has no such branch, tag or commit."""


class Repository:
    """A dataset repository at one commit, whatever is pushed to it meanwhile."""

    commit: str
    files: frozenset[str]

    def __init__(self, name: str, revision: str | None = None) -> None:
        """`revision` is a branch, a tag or a commit; None is the branch main. The Hub is first asked by `open`."""
        if not _NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no repository: name its owner too, as in  user/name")
        self._hub = require("huggingface_hub", "hub")
        self._api = self._hub.HfApi(library_name="secateurs", library_version=__version__)
        self.name, self.revision = name, revision

    def open(self) -> Self:
        with self._errors():
            found = self._api.repo_info(self.name, repo_type=_KIND, revision=self.revision)
        self.commit = found.sha
        self.files = frozenset(file.rfilename for file in found.siblings or ())
        return self

    def open_or_make(self, public: bool) -> Self:
        """Make the repository, `public` or not, and the branch `revision` from main, if they are not there."""
        try:
            return self.open()
        except NoSuchRevisionError:
            pass
        except NoSuchRepositoryError:
            if self._hub.get_token() is None:
                raise
            with self._errors():
                self._api.create_repo(self.name, repo_type=_KIND, private=not public, exist_ok=True)
        if self.revision is not None:
            with self._errors():
                self._api.create_branch(self.name, branch=self.revision, repo_type=_KIND, exist_ok=True)
        return self.open()

    def fetch(self, names: Sequence[str], folder: Path, progress: bool | None) -> None:
        """Files of the repository to a folder, under their names. They are on disk when this returns."""
        missing = [name for name in names if name not in self.files]
        if missing:
            raise SecateursError(f"{self.name} has no {missing[0]}: push the index again")
        shown = False if sys.stderr.isatty() else progress  # on a terminal, the client shows more
        with self._errors(), self._bars(progress), progress_bar("pulling files", len(names), "files", shown) as advance:
            for name in names:  # one after the other, so that Ctrl-C need not wait for other threads
                self._api.hf_hub_download(self.name, name, repo_type=_KIND, revision=self.commit, local_dir=folder)
                sync_file(folder / name)
                advance(1)
        shutil.rmtree(folder / _CLIENT_FOLDER, ignore_errors=True)

    def text(self, name: str) -> str:
        """The content of a small file; an empty text if there is none."""
        if name not in self.files:
            return ""
        with TemporaryDirectory(prefix="secateurs-hub-") as folder:
            self.fetch([name], Path(folder), progress=False)
            return (Path(folder) / name).read_text("utf-8", errors="replace")

    def replace(
        self, files: Mapping[str, Path | bytes], gone: Iterable[str], message: str, progress: bool | None
    ) -> str:
        """Write and remove files with one commit on top of this one; give its address.

        If something else was pushed since this repository was opened, that is an error, and nothing is changed.
        """
        operations = [self._hub.CommitOperationAdd(name, content) for name, content in files.items()]
        operations += [self._hub.CommitOperationDelete(name) for name in gone]
        with self._errors(), self._bars(progress):
            done = self._api.create_commit(
                self.name,
                operations,
                commit_message=message,
                repo_type=_KIND,
                revision=self.revision,
                parent_commit=self.commit,
            )
        address: str = done.commit_url
        return address

    @contextmanager
    def _bars(self, progress: bool | None) -> Iterator[None]:
        """The client shows its bars on a terminal; not if `progress` is False."""
        utils = self._hub.utils
        if progress is not False or utils.are_progress_bars_disabled():
            yield
            return
        utils.disable_progress_bars()
        try:
            yield
        finally:
            utils.enable_progress_bars()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the client raises as an error that says what to do."""
        try:
            yield
        except SecateursError:
            raise
        except Exception as error:  # the client raises a dozen kinds, which differ between its versions
            response = getattr(error, "response", None)
            if response is None and isinstance(error, OSError) and error.errno is not None:
                raise  # of this machine, such as a full disk
            raise self._explained(error, getattr(response, "status_code", None)) from error

    def _explained(self, error: Exception, status: int | None) -> SecateursError:
        errors = self._hub.errors
        where = f"{self.name} at {self.revision}" if self.revision else self.name
        if isinstance(error, errors.GatedRepoError):
            return SecateursError(f"{self.name} is gated: accept its conditions on its page, then {_LOG_IN}")
        if isinstance(error, errors.RevisionNotFoundError):
            return NoSuchRevisionError(f"{self.name} has no revision {self.revision!r}")
        if isinstance(error, errors.RepositoryNotFoundError):
            hint = _LOG_IN if self._hub.get_token() is None else "its name may be wrong, or your token may not read it"
            return NoSuchRepositoryError(f"there is no dataset repository {self.name} that you can see: {hint}")
        if isinstance(error, errors.HFValidationError):
            return UsageError(f"{where}: {_first_line(error)}")
        if status == 401:
            return SecateursError(f"the hub does not know who you are: {_LOG_IN}")
        if status == 403:
            return SecateursError(f"your token may not do this to {self.name}: use one that may write to it")
        if status in (409, 412):
            return SecateursError(
                f"{where} was changed by another push meanwhile, and this one changed nothing: repeat it"
            )
        if status is not None:
            return SecateursError(f"{where}: the hub refused this ({_first_line(error)})")
        cause = error.__cause__ or error
        return SecateursError(f"{where}: the hub could not be reached, or stopped answering ({_first_line(cause)})")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
