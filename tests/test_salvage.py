"""A build that was interrupted goes on with what it has encoded, and the index is the same to the last bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import sqlite3
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import QUERIES, build_random, random_text

from secateurs import Document, EncodedText, Index, SecateursError, encoders
from secateurs.cli import app
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.storage import salvage
from secateurs.storage.journal import STAGED
from secateurs.storage.locks import write_lock
from secateurs.storage.manifest import CODEBOOKS, SEGMENTS

needs_kill = pytest.mark.skipif(os.name == "nt", reason="sends SIGKILL")
DOCUMENTS = 60


class TextEncoder:
    """Random embeddings that depend on the text alone. Counts what it encodes, and stops where it is told to."""

    dim = 16

    def __init__(self, stop_at: int | None = None, stop: Callable[[], object] = lambda: None, name: str = "a") -> None:
        self.spec = {"kind": "test", "model": "test", "fingerprint": name}
        self.encoded: list[str] = []
        self._stop_at, self._stop, self._name = stop_at, stop, name

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        for text in texts:
            if len(self.encoded) == self._stop_at:
                self._stop()
            self.encoded.append(text)
            yield self.encode_query(text)

    def encode_query(self, text: str) -> EncodedText:
        seed = zlib.crc32(f"{self._name} {text}".encode())
        return random_text(np.random.default_rng(seed), 1 + seed % 7)

    def token_text(self, token_id: int) -> str:
        return str(token_id)


def corpus(numbers: Iterable[int] = range(DOCUMENTS)) -> list[dict[str, Any]]:
    return [{"docno": f"d{number}", "text": f"text {number % 50}", "number": number} for number in numbers]


def missing_after(count: int) -> list[str]:
    """The texts of the corpus that none of its first documents has."""
    texts = [document["text"] for document in corpus()]
    return [text for text in texts if text not in texts[:count]]


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def small_builds_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "WORTH_KEEPING", 1)


def build(path: Path, encoder: TextEncoder, documents: Sequence[Any] | None = None, **options: Any) -> Index:
    return Index.build(path, corpus() if documents is None else documents, encoder=encoder, progress=False, **options)


def interrupted_build(path: Path, stop_at: int, documents: Sequence[Any] | None = None, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(path, TextEncoder(stop_at, interrupt), documents, **options)


def files_of(path: Path) -> dict[str, Any]:
    """Every file of an index, without the random names of the folders: bytes, and of the database what it holds."""
    held: dict[str, Any] = {}
    for part in (SEGMENTS, CODEBOOKS):
        (folder,) = (path / part).iterdir()
        for file in folder.iterdir():
            if file.suffix == ".sqlite":
                with closing(sqlite3.connect(file)) as database:
                    held[file.name] = list(database.iterdump())
            else:
                held[file.name] = file.read_bytes()
    return held


def content(path: Path) -> dict[str, Any]:
    """Every file of an index, what its manifest says of them, and some rankings."""
    index, held = Index(path), files_of(path)
    record = index.manifest.segments[0]
    counts = record.documents, record.embeddings, record.positions, record.cut_documents
    held["record"] = *counts, record.spread, record.clipped, record.unit, record.reach
    rng = np.random.default_rng(1)
    held["rankings"] = [index.search(random_text(rng, 4)).hits for _ in range(5)]
    return held


def beside(path: Path) -> list[str]:
    return sorted(file.name for file in path.parent.iterdir())


def staged_folders(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f".{path.name}.staged-*"))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("whole") / "i.sec"
    build(path, TextEncoder())
    return content(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "i.sec"


@pytest.mark.parametrize("stop_at", [1, 30, DOCUMENTS - 1])
def test_a_build_goes_on_after_ctrl_c(path: Path, expected: dict[str, Any], stop_at: int) -> None:
    interrupted_build(path, stop_at)
    assert not path.exists()
    encoder = TextEncoder()
    build(path, encoder)
    assert encoder.encoded == missing_after(stop_at)
    assert content(path) == expected
    assert beside(path) == ["i.sec"]


def test_the_error_of_a_build_says_that_it_can_go_on(path: Path) -> None:
    with pytest.raises(SecateursError, match="document 61: no docno") as error:
        build(path, TextEncoder(), [*corpus(), {"text": "nameless"}])
    (note,) = error.value.__notes__
    assert note.startswith("what was encoded, 60 documents, is kept in ")
    assert f"{path.parent / '.i.sec.staged-'}" in note
    assert note.endswith(f": building {path} again goes on from there")
    encoder = TextEncoder()
    build(path, encoder)
    assert encoder.encoded == []
    assert beside(path) == ["i.sec"]


def test_a_build_that_has_encoded_little_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "WORTH_KEEPING", 1000)
    with pytest.raises(KeyboardInterrupt) as error:
        build(path, TextEncoder(30, interrupt))
    assert not hasattr(error.value, "__notes__")
    assert beside(path) == []


def test_a_killed_build_that_has_encoded_little_is_not_taken_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_build(path, 30)
    monkeypatch.setattr(salvage, "WORTH_KEEPING", 1000)
    encoder = TextEncoder()
    build(path, encoder)
    assert len(encoder.encoded) == DOCUMENTS
    assert beside(path) == ["i.sec"]


def test_documents_that_bring_their_embeddings_are_staged_in_the_index_alone(path: Path) -> None:
    def documents() -> Iterator[Document]:
        for number in range(5):
            yield Document(f"d{number}", encoded=random_text(np.random.default_rng(number), 3))
        assert staged_folders(path) == []
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.build(path, documents(), encoder=None)
    assert beside(path) == []


def test_the_bar_says_what_was_taken_over(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    interrupted_build(path, 30)
    Index.build(path, corpus(), encoder=TextEncoder(), progress=True)
    assert "encoding documents, 30 of an interrupted build" in capsys.readouterr().err.replace("\n", " ")
    Index.build(path, corpus(), encoder=TextEncoder(), progress=True, overwrite=True)
    assert "interrupted" not in capsys.readouterr().err


def on_the_command_line(arguments: list[str | Path], encoder: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a command that loads this encoder."""
    codes: list[int] = []
    monkeypatch.setattr(encoders, "load_encoder", lambda *given, **settings: encoder)
    monkeypatch.setattr(sys, "argv", ["secateurs", *map(str, arguments)])
    monkeypatch.setattr(app, "end_process", codes.append)
    try:
        app.main()
    except SystemExit as ended:
        codes.append(ended.code if isinstance(ended.code, int) else 0)
    return codes[0]


def test_a_command_says_that_it_can_go_on(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps(document) for document in corpus()]
    Path("c.jsonl").write_text("\n".join([*lines, "{}"]))
    kept = f"is kept in .i.sec.staged-{platform.node()}-*: building i.sec again goes on from there\n"
    assert on_the_command_line(["index", "c.jsonl", "i.sec"], TextEncoder(20, interrupt), monkeypatch) == 130
    assert capsys.readouterr().err == (
        f"secateurs: interrupted: there is no index at i.sec; what was encoded, 20 documents, {kept}"
    )
    assert on_the_command_line(["index", "c.jsonl", "i.sec"], TextEncoder(), monkeypatch) == 1
    message = capsys.readouterr().err
    assert message.startswith("secateurs: c.jsonl, line 61: no docno")
    assert message.endswith(f"; what was encoded, 50 documents, {kept}")
    Path("c.jsonl").write_text("\n".join(lines))
    encoder = TextEncoder()
    assert on_the_command_line(["index", "c.jsonl", "i.sec"], encoder, monkeypatch) == 0
    assert encoder.encoded == []
    assert beside(path) == ["c.jsonl", "i.sec"]


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def in_another_process(target: Callable[..., object], *arguments: Any) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=target, args=arguments)
    process.start()
    process.join()
    return process.exitcode


@needs_kill
@pytest.mark.parametrize("stop_at", [0, 1, 17, 49, DOCUMENTS - 1])
def test_a_killed_build_goes_on(path: Path, expected: dict[str, Any], stop_at: int) -> None:
    assert in_another_process(build, path, TextEncoder(stop_at, kill_this_process)) == -signal.SIGKILL
    encoder = TextEncoder()
    build(path, encoder)
    assert encoder.encoded == missing_after(stop_at)
    assert content(path) == expected
    assert beside(path) == ["i.sec"]


def _die_at(step: int, path: Path) -> None:
    """Build, and kill this process before its n-th step to the disk after everything is encoded."""
    left = [step]

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                kill_this_process()
            return real(*arguments, **options)

        return instead

    def documents() -> Iterator[dict[str, Any]]:
        yield from corpus()
        os.fsync, os.unlink, os.rmdir = counted(os.fsync), counted(os.unlink), counted(os.rmdir)
        Path.rename, Path.replace, Path.mkdir = map(counted, (Path.rename, Path.replace, Path.mkdir))  # type: ignore
        np.save = counted(np.save)

    Index.build(path, documents(), encoder=TextEncoder(), progress=False)
    os._exit(0)


@needs_kill
def test_a_build_killed_at_any_step_after_encoding_does_not_encode_again(path: Path, expected: dict[str, Any]) -> None:
    kills = 0
    for step in range(1000):
        if in_another_process(_die_at, step, path) == 0:
            break
        kills += 1
        encoder = TextEncoder()
        is_finished = path.exists()
        build(path, encoder, overwrite=is_finished)
        assert is_finished or encoder.encoded == []
        assert content(path) == expected
        assert beside(path) == ["i.sec"]
        shutil.rmtree(path)
    assert kills > 10


def test_the_third_build_has_the_work_of_both_before_it(path: Path, expected: dict[str, Any]) -> None:
    interrupted_build(path, 20)
    interrupted_build(path, 10)  # takes 20 over and encodes 10
    encoder = TextEncoder()
    build(path, encoder)
    assert encoder.encoded == missing_after(30)
    assert content(path) == expected
    assert beside(path) == ["i.sec"]


def test_a_build_interrupted_while_it_takes_over_loses_nothing(path: Path, expected: dict[str, Any]) -> None:
    interrupted_build(path, 40)

    def stop_after_10() -> Iterator[dict[str, Any]]:
        yield from corpus()[:10]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as error:
        Index.build(path, stop_after_10(), encoder=TextEncoder(), progress=False)
    assert "40 documents" in error.value.__notes__[0]
    assert len(staged_folders(path)) == 2
    interrupted_build(path, 5)
    assert len(staged_folders(path)) == 2  # what has nothing of its own was removed
    encoder = TextEncoder()
    build(path, encoder)
    assert encoder.encoded == missing_after(45)
    assert content(path) == expected
    assert beside(path) == ["i.sec"]


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


def test_an_index_that_is_replaced_stays_until_the_build_has_gone_on(path: Path, expected: dict[str, Any]) -> None:
    build_random(path, 5)
    interrupted_build(path, 40, overwrite=True)
    assert len(Index(path)) == 5
    Index(path).delete(["d001"])  # a change of the old index does not remove what was encoded for the new one
    encoder = TextEncoder()
    build(path, encoder, overwrite=True)
    assert encoder.encoded == missing_after(40)
    assert content(path) == expected
    assert beside(path) == ["i.sec"]


def test_an_encoder_that_skips_texts_leaves_nothing_to_take_over(path: Path) -> None:
    class Skips(TextEncoder):
        def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
            return super().encode_documents(text for text in texts if text != "text 7")

    with pytest.raises(SecateursError, match="the encoder gave 58 encodings for 60 documents"):
        build(path, Skips())
    assert beside(path) == []


class StoppedEncoder:
    """Another encoder, interrupted after so many documents."""

    def __init__(self, encoder: OnnxEncoder, stop_after: int) -> None:
        self.dim, self.spec, self._encoder, self._stop_after = encoder.dim, encoder.spec, encoder, stop_after

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        yield from islice(self._encoder.encode_documents(texts), self._stop_after)
        raise KeyboardInterrupt

    def encode_query(self, text: str) -> EncodedText:
        return self._encoder.encode_query(text)

    def token_text(self, token_id: int) -> str:
        return self._encoder.token_text(token_id)


def test_the_built_in_encoder_goes_on_to_the_same_index(
    path: Path, tmp_path: Path, encoder: OnnxEncoder, passages: list[dict[str, str]]
) -> None:
    """Its embeddings do not depend on the texts that it encodes at the same time."""
    options: dict[str, Any] = {"merge": encoder.merge, "background": None, "progress": False}
    documents = [*passages[:40], {"docno": "long", "text": "a long text " * 400}]  # the last is cut
    fresh = Index.build(tmp_path / "fresh" / "i.sec", documents, encoder=encoder, **options)
    with pytest.raises(KeyboardInterrupt):
        Index.build(path, documents[::-1], encoder=StoppedEncoder(encoder, 23), **options)
    with pytest.raises(KeyboardInterrupt):
        Index.build(path, documents, encoder=StoppedEncoder(encoder, 11), **options)
    assert len(staged_folders(path)) == 2
    index = Index.build(path, documents, encoder=encoder, **options)
    assert [index.search(query).hits for query in QUERIES] == [fresh.search(query).hits for query in QUERIES]
    assert index.info()["cut_documents"] == fresh.info()["cut_documents"] > 0
    assert files_of(path) == files_of(fresh.path)
