"""Rows on disk are asked for together, and reading them gives what is stored."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from secateurs.storage.checksums import CheckedRows, block_checksums
from secateurs.storage.files import open_array
from secateurs.storage.read_ahead import ReadAhead

ROWS, WIDTH = 20_000, 256  # 5 MB


def put_out_of_memory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def is_in_memory(path: Path, byte: int) -> bool:
    """Whether this byte can be read without waiting for a disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.preadv(descriptor, [bytearray(1)], byte, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (ROWS, WIDTH), dtype=np.uint8))
    return path


def byte_of(row: int) -> int:
    return 128 + row * WIDTH  # np.save writes a header of 128 bytes


def test_rows_that_were_asked_for_come_into_memory_without_being_read(stored: Path) -> None:
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system cannot say what is in memory")
    ahead = ReadAhead(open_array(stored))
    put_out_of_memory(stored)
    try:
        if is_in_memory(stored, byte_of(10_000)):
            pytest.skip("this file system keeps files in memory")
    except OSError:
        pytest.skip("this file system cannot say what is in memory")
    ahead.ask(np.array([10_000, ROWS - 10]), np.array([10_100, ROWS]))
    for row in (10_000, 10_099, ROWS - 10, ROWS - 1):
        deadline = time.monotonic() + 60
        while not is_in_memory(stored, byte_of(row)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert is_in_memory(stored, byte_of(row))
    assert not is_in_memory(stored, byte_of(5_000))


def test_arrays_that_are_not_mapped_are_left_alone() -> None:
    for rows in (np.zeros((3, 4), dtype=np.int8), np.zeros((0, 4), dtype=np.int8)):
        ReadAhead(rows).ask(np.array([0]), np.array([len(rows)]))


class Asked(ReadAhead):
    """Notes what was asked for."""

    def __init__(self, rows: NDArray[np.generic]) -> None:
        super().__init__(rows)
        self.ranges: list[tuple[int, int]] = []

    def ask(self, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        super().ask(starts, ends)
        self.ranges += zip(starts.tolist(), ends.tolist(), strict=True)


def checked_rows(path: Path) -> tuple[CheckedRows, Asked]:
    rows = open_array(path)
    checked = CheckedRows(path, block_checksums(rows, 64), 64, ROWS, np.uint8)
    asked = Asked(rows)
    checked._read_ahead = asked
    return checked, asked


def test_only_blocks_that_were_not_checked_are_asked_for(stored: Path) -> None:
    checked, asked = checked_rows(stored)
    checked.check(np.array([70, 0]), np.array([130, 3]))
    assert asked.ranges == [(0, 64), (64, 128), (128, 192)]
    checked.check(np.array([100, 190]), np.array([101, 193]))
    assert asked.ranges[3:] == [(192, 256)]
    checked.check(np.array([0]), np.array([256]))
    assert len(asked.ranges) == 4


def test_every_block_is_asked_for_while_searches_read_from_disk(stored: Path) -> None:
    checked, asked = checked_rows(stored)
    checked.check(np.array([0]), np.array([64]))
    checked.from_disk = True
    checked.check(np.array([0]), np.array([64]))
    checked.check(np.array([ROWS - 1]), np.array([ROWS]))
    assert asked.ranges == [(0, 64), (0, 64), (ROWS // 64 * 64, ROWS)]


def test_a_page_is_asked_for_from_its_beginning(stored: Path) -> None:
    """The system refuses other addresses: rows begin in the middle of a page, behind the header."""
    ahead = ReadAhead(open_array(stored))
    assert byte_of(1) % mmap.PAGESIZE
    ahead.ask(np.array([1]), np.array([2]))
