"""What long work shows of itself."""

import sys

import pytest

from secateurs import progress
from secateurs.progress import progress_bar


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    return clock


def work(clock: Clock, steps: int, total: int | None, shown: bool | None = None) -> None:
    """A step of ten seconds does 41 passages."""
    with progress_bar("encoding documents", total, "passages", shown) as advance:
        for _ in range(steps):
            clock.now += 10
            advance(41)


def test_without_a_terminal_there_is_a_line_every_half_minute(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    work(clock, 7, 58_434)
    assert capsys.readouterr().err.splitlines() == [
        "encoding documents: 123 of 58,434 (4 passages/s)",
        "encoding documents: 246 of 58,434 (4 passages/s)",
    ]


def test_slow_work_is_not_shown_as_none(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar("encoding documents", 2, "passages") as advance:
        clock.now += 80
        advance(1)
    assert capsys.readouterr().err == "encoding documents: 1 of 2 (0.013 passages/s)\n"


def test_a_line_needs_no_total(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    work(clock, 3, None)
    assert capsys.readouterr().err == "encoding documents: 123 (4 passages/s)\n"


@pytest.mark.parametrize(("steps", "shown"), [(2, None), (7, False)])
def test_short_work_and_unwanted_progress_are_silent(
    clock: Clock, capsys: pytest.CaptureFixture[str], steps: int, shown: bool | None
) -> None:
    work(clock, steps, 1000, shown)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_a_bar(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    work(clock, 7, 287)
    shown = capsys.readouterr().err
    assert "287/287" in shown
    assert "of 287 (" not in shown
