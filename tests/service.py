"""What the tests of the service share: a key, and a server in a separate process."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KEY = "a-key-that-is-long-enough"
BEARER = {"Authorization": f"Bearer {KEY}"}


@contextmanager
def running(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], int, list[str]]]:
    """`secateurs serve` on a free port: the process, the port, and what it said when it started."""
    process = subprocess.Popen(
        [sys.executable, "-m", "secateurs", "serve", *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        said: list[str] = []
        for line in process.stdout:
            said.append(line.rstrip())
            if found := re.search(r"http://[^/]*:(\d+)/", line):
                yield process, int(found[1]), said
                return
        raise AssertionError(f"the server did not start: {said} {process.stderr and process.stderr.read()}")
    finally:
        process.kill()
        process.communicate()


def call(port: int, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    packed = None if body is None else json.dumps(body)
    connection.request(method, path, packed, {"Content-Type": "application/json", **headers})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content)
