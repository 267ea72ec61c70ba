"""Files of an index: arrays that are mapped into memory, and writes that happen whole or not at all."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import DamagedIndexError

REMEDY = "restore it from a copy, or try  secateurs check --repair"

_HEADER = re.compile(rb"\{'descr': '(\|[iu]1|<[iuf][248])', 'fortran_order': False, 'shape': \(([\d, ]+)\), \} *\n")


def new_folder_name() -> str:
    """Random, so that no open reader can mistake a new folder for one that it has open."""
    return uuid.uuid4().hex[:12]


def write_atomically(path: Path, content: bytes | Callable[[Path], object]) -> None:
    """Write a file whole or not at all; two processes that write the same file at once do not mix.

    `content` is the bytes, or a function that writes them to the path it is given. The file and its name are on disk
    when this returns.
    """
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.new")
    try:
        if isinstance(content, bytes):
            new.write_bytes(content)
        else:
            content(new)
        sync_file(new)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)  # on a full disk it would take up the little room that is left
    sync_folder(path.parent)


def new_array(path: Path, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
    """An .npy file to be filled, mapped into memory. Its space is taken at once.

    A full disk would otherwise show when a page is written back, and that kills the process.
    """
    array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("rb+") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def open_array(path: Path) -> NDArray[Any]:
    """An .npy file, mapped into memory.

    np.load parses the header with `ast`, which in Python 3.11 is not safe while other threads do the same. Also, of a
    file that has been tampered with nothing should be believed.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(10)[8:], "little")
        match = _HEADER.fullmatch(file.read(length))
    if match is None:
        raise DamagedIndexError(f"{path} was altered (in its header): {REMEDY}")
    dtype = np.dtype(match[1].decode())
    shape = tuple(int(size) for size in match[2].split(b",") if size.strip())
    size = int(np.prod(shape)) * dtype.itemsize
    if 10 + length + size != path.stat().st_size:
        raise DamagedIndexError(f"{path} was altered (its header does not fit its size): {REMEDY}")
    if size == 0:  # nothing to map
        return np.empty(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", 10 + length, shape))  # a plain array: one type for the kernels


def sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in the folder survive a power cut, where the system can."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
