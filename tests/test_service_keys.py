"""Which clients are admitted: by their key and by the host name that they ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
from fastapi.testclient import TestClient
from service import BEARER, KEY

from secateurs import Index, refresh
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import SecateursError
from secateurs.service.app import Access, create_app
from secateurs.service.keys import ApiKeys

SEARCH = "/v1/indexes/library/search"


@pytest.fixture(scope="module")
def library(index_path: Path, encoder: OnnxEncoder) -> Index:
    return Index(index_path, encoder)


@pytest.fixture(scope="module")
def client(library: Index) -> Iterator[TestClient]:
    with TestClient(create_app({"library": library})) as client:
        yield client


def test_without_keys_every_write_is_refused(client: TestClient) -> None:
    for response in (
        client.post("/v1/indexes/library/documents", json={"documents": []}),
        client.put("/v1/indexes/library/documents", json={"documents": []}),
        client.delete("/v1/indexes/library/documents/x"),
        client.delete("/v1/indexes/library/documents/x", headers=BEARER),
    ):
        assert response.status_code == 403
        assert "--api-key-file" in response.json()["detail"]


@pytest.mark.parametrize(
    ("given", "detail", "challenge"),
    [
        ("", "a key is needed", "Bearer"),
        ("Bearer", "a key is needed", "Bearer"),
        (f"Basic {KEY}", "a key is needed", "Bearer"),
        (KEY, "a key is needed", "Bearer"),
        ("Bearer wrong-key-but-long-enough", "the key is not valid", 'Bearer error="invalid_token"'),
        (f"Bearer {KEY}x", "the key is not valid", 'Bearer error="invalid_token"'),
    ],
)
def test_a_wrong_key_and_a_missing_key_have_different_answers(
    library: Index, given: str, detail: str, challenge: str
) -> None:
    with TestClient(create_app({"library": library}, access=Access(ApiKeys([KEY])))) as client:
        response = client.post(
            "/v1/indexes/library/documents",
            content=b"not even read" * 1000,
            headers={"Authorization": given},
        )
        assert response.status_code == 401
        assert response.json()["detail"].startswith(detail)
        assert response.headers["www-authenticate"] == challenge
        assert client.post(SEARCH, json={"query": "a"}).json()["hits"]  # reading needs no key


def test_reads_may_need_a_key_but_the_page_and_health_do_not(library: Index) -> None:
    access = Access(ApiKeys(["another-key-of-some-length", KEY]), reads_need_a_key=True)
    with TestClient(create_app({"library": library}, access=access)) as client:
        for path in ("/v1/indexes", "/v1/indexes/library/info", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 401
            assert client.get(path, headers=BEARER).status_code == 200
        assert client.post(SEARCH, json={"query": "a"}).status_code == 401
        assert client.post(SEARCH, json={"query": "a"}, headers=BEARER).status_code == 200
        for path in ("/", "/web/main.js", "/healthz"):
            assert client.get(path).status_code == 200


def test_other_host_names_are_refused_against_dns_rebinding(library: Index) -> None:
    access = Access(hosts=frozenset({"localhost", "[::1]"}))
    with TestClient(create_app({"library": library}, access=access)) as client:
        for host, status in (("localhost:8000", 200), ("[::1]:80", 200), ("evil.example", 421), ("", 421)):
            assert client.get("/healthz", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "there is no key"),
        ("# only this\n", "there is no key"),
        ("short\n", "fewer than 16"),
        ("schlüssel" * 3, "ASCII"),
    ],
)
def test_a_key_file_without_a_usable_key_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "keys").write_text(content, "utf-8")
    with pytest.raises(SecateursError, match=message):
        ApiKeys.read(tmp_path / "keys")


def test_a_key_file_may_hold_several_keys_and_comments(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"# old\nthe-first-of-the-two-keys\n\n {KEY} \n")
    keys = ApiKeys.read(tmp_path / "keys")
    assert keys.allow(f"Bearer {KEY}".encode())
    assert keys.allow(b"bearer the-first-of-the-two-keys")
    assert not keys.allow(b"Bearer # old")


def test_a_new_key_is_valid_and_a_removed_one_is_not_without_a_restart(
    tmp_path: Path, library: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refresh, "SECONDS", -1)
    file = tmp_path / "keys"
    file.write_text("the-first-of-the-two-keys\n")
    access = Access(ApiKeys.read(file), reads_need_a_key=True)
    with TestClient(create_app({"library": library}, access=access)) as client:

        def status(key: str) -> int:
            return client.get("/v1/indexes", headers={"Authorization": f"Bearer {key}"}).status_code

        assert (status("the-first-of-the-two-keys"), status(KEY)) == (200, 401)
        file.write_text(f"the-first-of-the-two-keys\n{KEY}\n")
        assert (status("the-first-of-the-two-keys"), status(KEY)) == (200, 200)
        file.write_text(f"{KEY}\n")
        assert (status("the-first-of-the-two-keys"), status(KEY)) == (401, 200)
        for broken in ("short\n", "", None):  # the keys that were valid stay valid
            file.unlink() if broken is None else file.write_text(broken)
            assert (status("the-first-of-the-two-keys"), status(KEY)) == (401, 200)
        assert caplog.text.count("the earlier state stays in use") == 1
        file.write_text("another-key-of-some-length\n")
        assert (status("another-key-of-some-length"), status(KEY)) == (200, 401)


def test_a_removed_key_is_not_valid_if_the_new_file_has_the_time_and_size_of_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refresh, "SECONDS", -1)
    file = tmp_path / "keys"
    file.write_text("the-first-of-the-two-keys\n")
    keys = ApiKeys.read(file)
    status = file.stat()
    file.write_text("the-other-of-the-two-keys\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not keys.allow(b"Bearer the-first-of-the-two-keys")
    assert keys.allow(b"Bearer the-other-of-the-two-keys")


def test_every_answer_forbids_scripts_and_frames_of_other_sites(client: TestClient) -> None:
    for path in ("/", "/v1/indexes", "/v1/nothing", "/web/main.js"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
