"""docs/service.md: its curl lines work as they stand, and it names every endpoint, option and metric."""

from __future__ import annotations

import http.client
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from fastapi.testclient import TestClient
from service import KEY, running

from secateurs import Index
from secateurs.demo import standard_library
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.service.app import create_app

PAGE = (Path(__file__).parent.parent / "docs/service.md").read_text("utf-8")
CURLS = re.findall(r"^curl .*$", PAGE, flags=re.MULTILINE)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, encoder: OnnxEncoder) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    documents = [document for document in standard_library() if document["docno"].startswith("zipfile.ZipFile")]
    Index.build(folder / "demo.sec", documents, encoder=encoder)
    (folder / "keys").write_text(KEY)
    return folder / "demo.sec"


@pytest.fixture(scope="module")
def port(demo: Path) -> Iterator[int]:
    with running(demo, "--api-key-file", demo.parent / "keys") as (_, port, _said):
        yield port


def send(line: str, port: int) -> int:
    """What curl would, for the few options that the page uses."""
    words = shlex.split(line.replace("$KEY", KEY))[1:]
    method, headers, body, query, as_query, path = "", {}, None, [], False, ""
    while words:
        word = words.pop(0)
        if word == "-G":
            as_query = True
        elif word == "-X":
            method = words.pop(0)
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "--json":
            body, headers["Content-Type"] = words.pop(0), "application/json"
        elif word in ("-d", "--data-urlencode"):
            query.append(tuple(words.pop(0).split("=", 1)))
        elif word != "-s":
            assert word.startswith("localhost:8000/")
            path = quote(word.removeprefix("localhost:8000"))
    assert as_query == bool(query)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    full = f"{path}?{urlencode(query)}" if query else path
    connection.request(method or ("POST" if body else "GET"), full, body, headers)
    response = connection.getresponse()
    response.read()
    return response.status


def test_the_page_has_a_line_for_every_operation() -> None:
    shown = " ".join(CURLS)
    verbs = (
        "search",
        "explain",
        "prune-curve",
        "rerank",
        "encode",
        "info",
        "fields",
        "documents",
        "healthz",
        "metrics",
    )
    for verb in (*verbs, "-X PUT", "-X PATCH", "-X DELETE", "where="):
        assert verb in shown


def test_every_curl_line_works_in_the_order_of_the_page(port: int) -> None:
    """One test: a document is added, replaced and deleted, which is not there if a line is tried by itself."""
    for line in CURLS:
        assert send(line, port) == 200, line


def test_every_endpoint_option_and_metric_is_written_about(demo: Path, encoder: OnnxEncoder) -> None:
    import typer.main

    from secateurs.cli.app import app as commands

    with TestClient(create_app({"demo": Index(demo, encoder)})) as client:
        for path, operations in client.get("/openapi.json").json()["paths"].items():
            for method in operations:
                assert f"`{method.upper()} {path}`" in PAGE
        for name in re.findall(r"^# TYPE (\S+) (?!gauge\n.*_created)", client.get("/metrics").text, flags=re.MULTILINE):
            assert name.removesuffix("_created") in PAGE
    command = typer.main.get_command(commands).commands["serve"]  # type: ignore[attr-defined]
    command_line = (Path(__file__).parent.parent / "docs/command-line.md").read_text("utf-8")
    for option in (option for parameter in command.params for option in parameter.opts if option.startswith("--")):
        assert f"`{option}" in command_line, option
