"""Locks of an index: one writer, any number of readers, and no folder is removed while a reader uses it.

A lock belongs to an open file, so the system releases it when the process ends, however it ends. On Windows only the
writer's lock is needed: a folder with an open file in it cannot be renamed there. What holds on network file systems is
in docs/living-index.md.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from ..errors import LockedIndexError, SecateursError
from .manifest import PARTS, Manifest

_LOG = logging.getLogger("secateurs")
LOCK = "write.lock"
_PATIENCE = 60.0  # seconds to wait for another writer
_SILENCE = 2.0  # seconds of waiting before it is logged
_PAUSE = 0.02
_BUSY = (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK, errno.EDEADLK)


@contextmanager
def write_lock(folder: Path, patience: float = _PATIENCE) -> Iterator[None]:
    """One writer at a time. Another one waits, logs that it does, and gives up after `patience` seconds."""
    try:
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise SecateursError(f"{folder} cannot be written to ({error.strerror})") from error
    with file:
        began = time.monotonic()
        is_logged = False
        while not try_to_lock(file):
            waited = time.monotonic() - began
            if waited > patience:
                raise LockedIndexError(f"another process has been writing to {folder} for a while: try again later")
            if waited > _SILENCE and not is_logged:
                _LOG.warning("%s: another process is writing to it: waiting up to %.0f s", folder, patience)
                is_logged = True
            time.sleep(_PAUSE)
        try:
            yield
        finally:
            _unlock(file)  # not only by closing: a process forked meanwhile has the file open too


def try_to_lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed; False if another process, or another open file, has the lock."""
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
    """A folder that a manifest names, and that was removed since the manifest was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder} is gone: open the index again")
        self.folder = folder


class Hold:
    """Keeps a folder of the index from being swept for as long as this object lives. It cannot be copied or pickled."""

    def __init__(self, folder: Path) -> None:
        if sys.platform == "win32":
            return
        import fcntl

        try:
            handle = os.open(folder, os.O_RDONLY)
            # Closes it once, whatever happens to this object; no attribute has the number, so no copy can close it.
            weakref.finalize(self, os.close, handle).atexit = False
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError) as error:
            raise FolderGoneError(folder) from error
        except OSError:  # a file system without locks
            pass

    def __reduce__(self) -> NoReturn:
        raise TypeError("an opened index folder cannot be copied or pickled: open the index again by its path")


def sweep(folder: Path, manifest: Manifest) -> None:
    """Remove folders that the manifest does not name and no reader holds: interrupted writes, and earlier states."""
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
    """Remove an index that is no longer used. Folders that a reader holds stay until the next call."""
    with suppress(OSError):
        parts = [folder / part for part in PARTS if (folder / part).is_dir()]
        for part in parts:
            for path in part.iterdir():
                _remove(path)
        if not any(any(part.iterdir()) for part in parts):
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    """Unless a reader holds it. No reader can open it while it is being removed."""
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
