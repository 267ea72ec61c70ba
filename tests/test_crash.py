"""A short run of tests/soak.py: kills, full disks, damage."""

import errno
import os
import random
from collections import Counter
from pathlib import Path

import pytest
import soak

from secateurs.storage import salvage
from secateurs.storage.files import write_atomically

pytestmark = pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    soak.carry_out(tmp_path / "i.sec", "build", {f"b{i}": i for i in range(12)})
    return tmp_path / "i.sec"


@pytest.mark.parametrize("verb", soak.VERBS)
def test_a_change_killed_at_any_step_is_done_or_not_done(path: Path, verb: str) -> None:
    counts: Counter[str] = Counter()
    state = soak.kill_at_every_step(path, {f"b{i}": i for i in range(12)}, random.Random(0), verb, counts)
    assert counts["kills"] > 10
    soak.carry_out(path, "add", {"another": 7})
    soak.verify(path, state | {"another": 7})
    soak.verify_nothing_is_left_over(path)


def test_processes_killed_at_random_lose_nothing(path: Path) -> None:
    counts: Counter[str] = Counter()
    rng = random.Random(1)
    state = {f"b{i}": i for i in range(12)}
    for _ in range(12):
        state = soak.kill_at_random(path, state, rng, counts)
    assert counts["kills"] == 12
    soak.carry_out(path, "compact", {})
    soak.verify(path, state)
    soak.verify_nothing_is_left_over(path)


def test_a_build_killed_again_and_again_encodes_no_text_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORTH_KEEPING", "_BEING_MADE"):
        monkeypatch.setattr(salvage, name, getattr(salvage, name))  # puts back what the builds change
    counts: Counter[str] = Counter()
    rng = random.Random(4)
    for _ in range(3):
        soak.build_in_several_runs(tmp_path / "runs", rng, counts)
    assert counts["killed during a build that encodes"] > 3


def test_without_room_on_the_disk_nothing_changes(path: Path) -> None:
    counts: Counter[str] = Counter()
    rng = random.Random(2)
    state = {f"b{i}": i for i in range(12)}
    for _ in range(12):
        state = soak.no_room(path, state, rng, counts)
    assert counts["changes without room"] > 3


def test_a_file_for_which_there_is_no_room_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "plan.json", b"old")

    def no_room(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "plan.json", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_damage_anywhere_is_found_or_does_not_matter(path: Path) -> None:
    counts: Counter[str] = Counter()
    rng = random.Random(3)
    soak.carry_out(path, "delete", {"b3": 3})
    soak.carry_out(path, "add", {"new": 4})
    for _ in range(60):
        soak.damage(path, rng, counts)
    assert counts["damaged files found"] > 30
