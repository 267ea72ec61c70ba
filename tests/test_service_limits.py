"""Too many requests are refused at once, a failing request stops no other, and a stop finishes what runs."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from conftest import build_random
from fastapi.testclient import TestClient
from service import KEY, call, running

from secateurs import EncodedText, Index, Ranking
from secateurs.errors import SecateursError, UsageError
from secateurs.service.app import create_app
from secateurs.service.limits import Limits
from secateurs.service.server import serve

QUERY = {"embeddings": [[1.0] + [0.0] * 15], "token_ids": [1], "token_kinds": [0]}
SEARCH = "/v1/indexes/vectors/search"


class Held(Index):
    """An index whose searches wait until they are let go, or fail on request."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.begun, self.go, self.broken = threading.Semaphore(0), threading.Event(), False

    def search(self, query: str | EncodedText, *arguments: Any, **settings: Any) -> Ranking:
        if self.broken:
            raise RuntimeError("secret detail of the inside")
        self.begun.release()
        assert self.go.wait(60)
        return super().search(query, *arguments, **settings)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_random(tmp_path_factory.mktemp("vectors") / "vectors.sec", 40).path


@pytest.fixture
def held(vectors: Path) -> Iterator[Held]:
    index = Held(vectors)
    yield index
    index.go.set()


def test_searches_beyond_the_threads_and_the_queue_are_refused_with_retry_after(held: Held) -> None:
    app = create_app({"vectors": held}, Limits(threads=2, waiting=1))
    with TestClient(app) as client, ThreadPoolExecutor(4) as clients:
        asked = [clients.submit(client.post, SEARCH, json=QUERY) for _ in range(4)]
        done, taken = wait(asked, timeout=30, return_when=FIRST_COMPLETED)  # whichever comes last
        (refused,) = [future.result() for future in done]
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert client.get("/healthz").status_code == 200  # health is answered however busy it is
        held.go.set()
        assert [future.result().status_code for future in taken] == [200, 200, 200]
        assert client.post(SEARCH, json=QUERY).status_code == 200


def test_a_search_that_takes_too_long_is_given_up_and_its_thread_counted_until_it_ends(held: Held) -> None:
    app = create_app({"vectors": held}, Limits(threads=1, waiting=0, seconds=0.2))
    with TestClient(app) as client:
        late = client.post(SEARCH, json=QUERY)
        assert late.status_code == 503
        assert late.headers["retry-after"] == "5"
        assert "not finished after 0.2 seconds" in late.json()["detail"]
        assert client.post(SEARCH, json=QUERY).status_code == 429  # the thread is still at it
        held.go.set()
        statuses = [client.post(SEARCH, json=QUERY).status_code for _ in range(100)]
        assert statuses[-1] == 200


def test_a_request_that_fails_shows_no_internals_and_the_next_one_works(
    held: Held, caplog: pytest.LogCaptureFixture
) -> None:
    held.broken = True
    held.go.set()
    with TestClient(create_app({"vectors": held})) as client:
        failed = client.post(SEARCH, json=QUERY)
        assert failed.status_code == 500
        assert failed.headers["content-type"] == "application/problem+json"
        assert "secret" not in failed.text
        assert "secret detail of the inside" in caplog.text  # in the log of the server
        held.broken = False
        assert client.post(SEARCH, json=QUERY).status_code == 200


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_over_the_limit_is_refused_with_or_without_content_length(vectors: Path, announced: bool) -> None:
    body = b'{"query": "' + b"x" * 5000 + b'"}'
    with TestClient(create_app({"vectors": Index(vectors)}, Limits(body_bytes=1000))) as client:
        content = body if announced else (body[i : i + 100] for i in range(0, len(body), 100))
        response = client.post(SEARCH, content=content, headers={"Content-Type": "application/json"})  # type: ignore[arg-type]
        assert response.status_code == 413
        assert "larger than 1,000 bytes" in response.json()["detail"]
        assert client.post(SEARCH, json=QUERY).status_code == 200


# ---- A server in a separate process


def test_the_server_listens_on_loopback_and_prints_what_is_allowed(vectors: Path) -> None:
    with running(vectors) as (_, port, said):
        assert said[0] == "vectors: 40 documents"
        assert said[1].startswith("Writes are off")
        assert f"http://127.0.0.1:{port}/" in said[2]
        status, answer = call(port, "POST", SEARCH, QUERY)
        assert status == 200
        assert len(answer["hits"]) == 10
        assert call(port, "GET", "/healthz", Host="evil.example")[0] == 421
        assert call(port, "GET", "/healthz", Host=f"localhost:{port}")[0] == 200


def test_a_key_file_allows_writes_and_other_addresses_print_a_warning(vectors: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(KEY)
    with running(vectors, "--host", "0.0.0.0", "--api-key-file", tmp_path / "keys") as (_, port, said):
        assert any(
            line.startswith("WARNING: 0.0.0.0 can be reached from other machines: EVERY client") for line in said
        )
        assert any(line == "Writes need a key." for line in said)
        assert call(port, "DELETE", "/v1/indexes/vectors/documents/d001")[0] == 401


def is_listening(port: int) -> bool:
    try:
        call(port, "GET", "/healthz")
    except OSError:
        return False
    return True


def test_a_stop_finishes_the_request_that_is_under_way(vectors: Path) -> None:
    body = b'{"embeddings": [[1' + b", 0" * 15 + b']], "token_ids": [1], "token_kinds": [0]}'
    with running(vectors) as (process, port, _), socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        head = f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:20])
        assert call(port, "GET", "/metrics-are-not-json")[0] == 404  # by now the half request has been read too
        process.send_signal(signal.SIGTERM)
        while is_listening(port):
            pass
        client.sendall(body[20:])
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 OK")
        assert b'"docno":"d' in answer
        assert process.wait(60) == 0


def test_a_body_that_never_ends_is_given_up(vectors: Path) -> None:
    with running(vectors, "--timeout", "0.3") as (_, port, _said):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(f"POST {SEARCH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{{".encode())
            assert client.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert call(port, "GET", "/healthz")[0] == 200


def test_bytes_that_are_not_http_do_not_stop_the_server(vectors: Path) -> None:
    with running(vectors) as (_, port, _said):
        for rubbish in (b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"A" * 200_000, b""):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(rubbish)
        assert call(port, "POST", SEARCH, QUERY)[0] == 200


def test_a_server_that_cannot_start_says_why_in_a_sentence(vectors: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    again = tmp_path / ".." / vectors.parent.name / "vectors.sec"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        cases: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"paths": [tmp_path / "none.sec"], "port": 0}, SecateursError, "there is no index at"),
            ({"paths": [vectors, again], "port": 0}, UsageError, "both be served as 'vectors'"),
            ({"port": taken.getsockname()[1]}, SecateursError, "cannot listen on 127.0.0.1 port"),
            ({"port": 99999}, UsageError, "--port is a number from 0 to 65535"),
            ({"host": "not.a.host.invalid"}, SecateursError, "cannot listen on not.a.host.invalid .*--host"),
            ({"api_key_file": tmp_path / "nowhere"}, SecateursError, "cannot be read"),
            ({"api_key_file": tmp_path / "empty"}, SecateursError, "there is no key in"),
            ({"require_key_for_reads": True}, UsageError, "needs the keys"),
        ]
        for options, kind, message in cases:
            with pytest.raises(kind, match=message):
                serve(**{"paths": [vectors], **options})


def test_the_command_has_an_exit_code_and_no_trace(vectors: Path) -> None:
    command = [sys.executable, "-m", "secateurs", "serve", str(vectors), "--max-k", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "secateurs: the limit k must be at least 1, not 0\n"


@pytest.mark.parametrize("arguments", [["serve", "x.sec"], ["demo", "x.sec", "--serve"]])
def test_without_the_extra_the_command_names_its_pip_line(arguments: list[str], tmp_path: Path) -> None:
    code = f"import sys; sys.modules['fastapi'] = None; sys.argv = ['secateurs', *{arguments}]"
    code += "; from secateurs.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 1
    assert done.stderr == 'secateurs: fastapi is not installed: pip install "secateurs[serve]"\n'
    assert list(tmp_path.iterdir()) == []
