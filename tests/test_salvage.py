"""A build that was interrupted goes on with what it has encoded, and the index is the same to the last bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import QUERIES, build_random, random_text
from interrupted import (
    DOCUMENTS,
    TextEncoder,
    beside,
    build,
    content,
    corpus,
    files_of,
    interrupt,
    interrupted_build,
    missing_after,
    needs_kill,
    staged_folders,
)

from secateurs import Document, EncodedText, Index, SecateursError, encoders
from secateurs.cli import app
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.storage import salvage


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
