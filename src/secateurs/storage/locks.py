"""Who may do what with the folders of an index: one writer, any number of readers, and nothing removed under a reader.

A lock belongs to an open file, so the system takes it from a process that dies. On Windows only the writer's lock is
needed: a folder in which somebody has a file open cannot be renamed there.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import LockedIndexError, SecateursError
from .manifest import PARTS, Manifest

LOCK = "write.lock"
_PATIENCE = 60.0  # seconds to wait for another writer
_PAUSE = 0.02
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK)


@contextmanager
def write_lock(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """One writer at a time; another one waits, and gives up after so many seconds."""
    try:
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise SecateursError(f"{folder} cannot be written to ({error.strerror})") from error
    with file:
        deadline = time.monotonic() + patience
        while not try_to_lock(file):
            if time.monotonic() > deadline:
                raise LockedIndexError(f"another process has been writing to {folder} for a while: try again later")
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            _unlock(file)  # not only by closing: a process forked meanwhile has the file open too


def try_to_lock(file: IO[Any]) -> bool:
    """Whether this open file is ours now, until it is closed; False if another has it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise SecateursError(f"{file.name} cannot be locked ({error.strerror}), so nothing may be changed") from error
    return True


def _unlock(file: IO[str]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


class FolderGoneError(SecateursError):
    """A folder that a manifest names, and that was swept away since it was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is gone: open the index again")
        self.folder = folder


class Hold:
    """Keeps a folder of the index from being swept away for as long as this object lives."""

    def __init__(self, folder: Path) -> None:
        self._handle: int | None = None
        if sys.platform == "win32":
            return
        import fcntl

        try:
            self._handle = os.open(folder, os.O_RDONLY)
            fcntl.flock(self._handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError) as error:  # other errors: a file system without locks
            raise FolderGoneError(folder) from error
        except OSError:
            pass

    def __del__(self) -> None:
        if self._handle is not None:
            os.close(self._handle)


def sweep(folder: Path, manifest: Manifest) -> None:
    """Remove what the manifest does not name and no reader holds: interrupted writes, and states nobody looks at."""
    named = set(manifest.named())
    with suppress(OSError):  # the next change tries again
        for part in PARTS:
            if (folder / part).is_dir():
                for path in (folder / part).iterdir():
                    if (part, path.name) not in named:
                        _remove(path)
        for leftover in folder.glob("*.new"):
            leftover.unlink()


def retire(folder: Path) -> None:
    """Remove an index that nothing names any more. What a reader holds of it stays, until the next time."""
    with suppress(OSError):
        parts = [folder / part for part in PARTS if (folder / part).is_dir()]
        for part in parts:
            for path in part.iterdir():
                _remove(path)
        if not any(any(part.iterdir()) for part in parts):
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    """Unless a reader holds it. Nobody can take hold of it while it goes."""
    if sys.platform == "win32":
        with suppress(OSError):
            going = path.rename(path.with_name(f"{path.name}.going"))
            shutil.rmtree(going, ignore_errors=True)
        return
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except OSError:
        pass
    finally:
        os.close(handle)
