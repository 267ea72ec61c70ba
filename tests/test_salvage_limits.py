"""What the next build takes over of an interrupted one, and what not: other settings, damage, locked folders."""

from __future__ import annotations

import platform
import random
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import build_random
from interrupted import (
    DOCUMENTS,
    TextEncoder,
    beside,
    build,
    content,
    corpus,
    interrupt,
    interrupted_build,
    missing_after,
    staged_folders,
)

from secateurs import EncodedText, Index, SecateursError
from secateurs.storage import salvage
from secateurs.storage.journal import STAGED
from secateurs.storage.locks import write_lock


@pytest.fixture(autouse=True)
def small_builds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "WORTH_KEEPING", 1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("whole") / "i.sec"
    build(path, TextEncoder())
    return content(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "i.sec"


def test_texts_are_taken_over_wherever_they_stand_in_a_changed_corpus(path: Path, tmp_path: Path) -> None:
    changed = corpus([70, 3, 2, 1, 71, *range(20, 50), 72, 73, 0, 74])
    changed[10] = {"docno": "renamed", "text": changed[10]["text"]}
    changed[11] |= {"text": "another text"}
    build(tmp_path / "fresh" / "i.sec", TextEncoder(), changed)
    interrupted_build(path, 40)
    encoder = TextEncoder()
    build(path, encoder, changed)
    before = {document["text"] for document in corpus()[:40]}
    assert encoder.encoded == [document["text"] for document in changed if document["text"] not in before]
    assert 0 < len(encoder.encoded) < 20
    assert content(path) == content(tmp_path / "fresh" / "i.sec")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"encoder": TextEncoder(name="b")}),
        ({}, {"merge": 0.5}),
        ({}, {"pool": 2}),
        ({"store": "int8"}, {"store": "int16"}),  # is staged as float32
    ],
    ids=["encoder", "merge", "pool", "store"],
)
def test_embeddings_that_would_not_be_the_same_are_not_taken_over(
    path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    interrupted_build(path, 40, **first)
    (folder,) = staged_folders(path)
    encoder = second.pop("encoder", TextEncoder())
    stopped = [*corpus(), {"text": "nameless"}]
    with pytest.raises(SecateursError, match="no docno"):
        build(path, encoder, stopped, **second)
    assert len(encoder.encoded) == DOCUMENTS
    assert folder not in staged_folders(path)


def test_without_file_locks_an_interrupted_build_keeps_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later build could tell that it has ended, and so nothing would ever be taken over or removed."""

    def refuse(*arguments: object, **options: object) -> None:
        raise SecateursError("no locks on this file system")

    monkeypatch.setattr(salvage, "write_lock", refuse)
    with pytest.raises(KeyboardInterrupt) as stopped:
        build(path, TextEncoder(40, interrupt))
    assert beside(path) == []
    assert not getattr(stopped.value, "__notes__", [])


def test_a_build_without_an_encoder_removes_what_is_kept(path: Path) -> None:
    interrupted_build(path, 40)
    build_random(path)
    assert beside(path) == ["i.sec"]


def test_what_follows_from_the_same_embeddings_may_be_another(path: Path, tmp_path: Path) -> None:
    build(tmp_path / "fresh" / "i.sec", TextEncoder(), store="float16", gather=("cells", "text"))
    interrupted_build(path, 40)
    encoder = TextEncoder()
    build(path, encoder, store="float16", gather=("cells", "text"))
    assert encoder.encoded == missing_after(40)
    assert content(path) == content(tmp_path / "fresh" / "i.sec")


@pytest.mark.parametrize("options", [{"merge": 0.2}, {"pool": 3}, {"store": "int16"}, {"store": "residual4"}])
def test_whatever_is_done_to_embeddings_they_are_the_same(path: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    build(tmp_path / "fresh" / "i.sec", TextEncoder(), **options)
    interrupted_build(path, 40, **options)
    encoder = TextEncoder()
    build(path, encoder, **options)
    assert encoder.encoded == missing_after(40)
    assert content(path) == content(tmp_path / "fresh" / "i.sec")


@pytest.mark.parametrize("name", ["staged.journal", *(f"staged.{name}" for name in STAGED)])
def test_what_is_damaged_is_encoded_again(path: Path, expected: dict[str, Any], name: str) -> None:
    rng = random.Random(0)
    for _ in range(8):
        interrupted_build(path, 40)
        (folder,) = staged_folders(path)
        damaged = bytearray((folder / name).read_bytes())
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(damaged)
        encoder = TextEncoder()
        build(path, encoder)
        again = len(encoder.encoded) - len(missing_after(40))
        assert again in (1, 2, 50)  # a text of one or two documents; all, if the head of the journal is damaged
        assert content(path) == expected
        assert beside(path) == ["i.sec"]
        shutil.rmtree(path)


@pytest.mark.parametrize("name", ["staged.journal", *(f"staged.{name}" for name in STAGED)])
def test_what_is_cut_off_is_encoded_again(path: Path, expected: dict[str, Any], name: str) -> None:
    for share in (0.0, 0.3, 0.999):
        interrupted_build(path, 40)
        (folder,) = staged_folders(path)
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(share * len(whole))])
        encoder = TextEncoder()
        build(path, encoder)
        assert len(missing_after(40)) < len(encoder.encoded) <= DOCUMENTS
        assert len(encoder.encoded) < DOCUMENTS or share == 0
        assert content(path) == expected
        assert beside(path) == ["i.sec"]
        shutil.rmtree(path)


@pytest.mark.parametrize("name", ["staged.journal", "staged.rows"])
def test_a_folder_without_one_of_its_files_is_removed(
    path: Path, expected: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted_build(path, 40)
    (folder,) = staged_folders(path)
    (folder / name).unlink()
    monkeypatch.setattr(salvage, "_BEING_MADE", 0.0)
    build(path, TextEncoder())
    assert content(path) == expected
    assert beside(path) == ["i.sec"]


def test_the_folder_of_a_build_that_runs_is_left_alone(path: Path, expected: dict[str, Any]) -> None:
    interrupted_build(path, 40)
    (folder,) = staged_folders(path)
    with write_lock(folder):  # as the process of that build has it
        encoder = TextEncoder()
        build(path, encoder)
    assert len(encoder.encoded) == DOCUMENTS
    assert staged_folders(path) == [folder]
    build(path, TextEncoder(), overwrite=True)
    assert beside(path) == ["i.sec"]


def test_a_build_locks_its_folder_while_it_runs(path: Path) -> None:
    def check() -> None:
        (folder,) = staged_folders(path)
        with pytest.raises(SecateursError, match="another process"), write_lock(folder, patience=0):
            pass

    build(path, TextEncoder(10, check))
    assert len(Index(path)) == DOCUMENTS


def test_a_folder_that_another_build_is_just_making_is_left_alone(path: Path) -> None:
    folder = path.with_name(f".{path.name}.staged-{platform.node()}-0123")
    folder.mkdir()
    build(path, TextEncoder())
    assert folder.exists()


def test_an_encoder_that_skips_texts_leaves_nothing_to_take_over(path: Path) -> None:
    class Skips(TextEncoder):
        def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
            return super().encode_documents(text for text in texts if text != "text 7")

    with pytest.raises(SecateursError, match="the encoder gave 58 encodings for 60 documents"):
        build(path, Skips())
    assert beside(path) == []
