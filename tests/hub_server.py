"""A stand-in for the network between the client of the Hugging Face Hub and the Hub: a server on this machine.

It answers the requests that huggingface_hub makes to create a dataset repository, to commit to it and to read from it,
and keeps files in memory. Binary files go through LFS, as on the Hub: the client asks where to put them, puts them
there, and the commit names their hashes. A private repository is hidden from clients without a token, as on the Hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_this_is_a_token"
READER = "hf_this_one_may_only_read"


class Repo:
    def __init__(self, private: bool) -> None:
        self.private = private
        first = hashlib.sha1(b"first").hexdigest()
        self.commits: dict[str, dict[str, bytes]] = {first: {".gitattributes": b"*.npy filter=lfs\n"}}
        self.branches = {"main": first}

    def find(self, revision: str) -> str | None:
        """The commit of a branch, or the commit of that name."""
        return self.branches.get(revision) or (revision if revision in self.commits else None)

    def commit(self, branch: str, files: dict[str, bytes]) -> str:
        named = hashlib.sha1(repr((self.branches[branch], sorted(files), len(self.commits))).encode()).hexdigest()
        self.commits[named] = files
        self.branches[branch] = named
        return named

    @property
    def files(self) -> dict[str, bytes]:
        """Those of the branch main."""
        return self.commits[self.branches["main"]]


class Hub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.clear()

    def clear(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.objects: dict[str, bytes] = {}  # of LFS, by their SHA-256
        self.requests: list[str] = []
        self.on_request: Callable[[str], object] = lambda line: None
        self.spoil: Callable[[str, bytes], bytes] = lambda path, content: content  # what is sent instead of a file

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def object_address(self) -> str:
        """Another host for the client, as the Hub has one for large files: it follows redirects in another way then."""
        return f"http://localhost:{self.server_address[1]}/objects"


@contextmanager
def running_hub() -> Iterator[Hub]:
    hub = Hub()
    thread = Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"
    routes = (
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate"),
        ("GET", r"/api/datasets/([^/]+/[^/]+)(?:/revision/([^/]+))?", "info"),
        ("POST", r"/api/datasets/([^/]+/[^/]+)/branch/([^/]+)", "branch"),
        ("POST", r"/api/datasets/([^/]+/[^/]+)/preupload/([^/]+)", "preupload"),
        ("POST", r"/api/datasets/([^/]+/[^/]+)/commit/([^/]+)", "commit"),
        ("POST", r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "batch"),
        ("PUT", r"/objects/(\w+)", "put"),
        ("GET", r"/objects/(\w+)", "get_object"),
        ("GET", r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
    )

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._route()

    do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815

    def _route(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        self.body = self._read()
        self.server.on_request(self.server.requests[-1])
        for method, pattern, name in self.routes:
            match = re.fullmatch(pattern, path)
            if match and method == ("GET" if self.command == "HEAD" else self.command):
                getattr(self, f"_{name}")(*match.groups())
                return
        self._answer(404, {"error": f"no route for {self.command} {path}"})

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _answer(self, status: int, content: Any = None, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, {"error": code}, X_Error_Code=code, X_Error_Message=code)

    @property
    def _token(self) -> str | None:
        return (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None

    def _repo(self, name: str, writing: bool = False) -> Repo | None:
        """None if it was answered already that there is none, or that this client may not."""
        repo = self.server.repos.get(name)
        if repo is None or (repo.private and self._token is None):
            self._fail(401 if self._token is None else 404, "RepoNotFound")
            return None
        if writing and self._token != TOKEN:
            self._answer(403 if self._token else 401, {"error": "you may not"})
            return None
        return repo

    def _create(self) -> None:
        if self._token != TOKEN:
            self._answer(403 if self._token else 401, {"error": "Invalid username or password."})
            return
        wanted = json.loads(self.body)
        name = f"{wanted['organization']}/{wanted['name']}"
        assert wanted["type"] == "dataset"
        private = wanted.get("private", wanted.get("visibility") == "private")  # the client's versions differ
        self.server.repos.setdefault(name, Repo(private))
        self._answer(200, {"url": f"{self.server.address}/datasets/{name}", "name": name, "id": name})

    def _validate(self) -> None:
        content = json.loads(self.body)["content"]
        known = content.startswith("---\n") and "\n---\n" in content
        self._answer(200 if known else 400, {"errors": [] if known else ["no header"], "warnings": []})

    def _info(self, name: str, revision: str | None) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        commit = repo.find(revision or "main")
        if commit is None:
            self._fail(404, "RevisionNotFound")
            return
        siblings = [{"rfilename": path} for path in repo.commits[commit]]
        self._answer(200, {"id": name, "sha": commit, "private": repo.private, "tags": [], "siblings": siblings})

    def _branch(self, name: str, branch: str) -> None:
        repo = self._repo(name, writing=True)
        if repo is not None:
            repo.branches.setdefault(branch, repo.branches["main"])
            self._answer(200, {})

    def _preupload(self, name: str, revision: str) -> None:
        if self._repo(name, writing=True) is None:
            return
        files = [
            {
                "path": file["path"],
                "uploadMode": "regular" if file["path"].endswith((".json", ".md")) else "lfs",
                "shouldIgnore": False,
            }
            for file in json.loads(self.body)["files"]
        ]
        self._answer(200, {"files": files})

    def _batch(self, name: str) -> None:
        if self._repo(name, writing=True) is None:
            return
        answered = []
        for wanted in json.loads(self.body)["objects"]:
            item = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.server.objects:
                item["actions"] = {"upload": {"href": f"{self.server.object_address}/{wanted['oid']}"}}
            answered.append(item)
        self._answer(200, {"transfer": "basic", "objects": answered})

    def _put(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            self._answer(400, {"error": "another hash"})
            return
        self.server.objects[oid] = self.body
        self._answer(200, {})

    def _commit(self, name: str, revision: str) -> None:
        repo = self._repo(name, writing=True)
        if repo is None:
            return
        lines = [json.loads(line) for line in self.body.splitlines()]
        header = lines[0]["value"]
        if revision not in repo.branches:
            self._fail(404, "RevisionNotFound")
            return
        if header.get("parentCommit", repo.branches[revision]) != repo.branches[revision]:
            self._answer(412, {"error": "A commit has happened since. Please refresh and try again."})
            return
        files = dict(repo.commits[repo.branches[revision]])
        for line in lines[1:]:
            key, value = line["key"], line["value"]
            if key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif key == "deletedFile":
                del files[value["path"]]
            else:
                raise AssertionError(key)
        commit = repo.commit(revision, files)
        address = f"{self.server.address}/datasets/{name}/commit/{commit}"
        self._answer(200, {"success": True, "commitOid": commit, "commitUrl": address, "hookOutput": ""})

    def _resolve(self, name: str, revision: str, path: str) -> None:
        repo = self._repo(name)
        if repo is None:
            return
        commit = repo.find(revision)
        if commit is None or path not in repo.commits[commit]:
            self._fail(404, "EntryNotFound" if commit else "RevisionNotFound")
            return
        content = repo.commits[commit][path]
        oid = hashlib.sha256(content).hexdigest()
        if oid in self.server.objects:
            headers = {"X_Linked_Size": str(len(content)), "X_Linked_Etag": f'"{oid}"', "X_Repo_Commit": commit}
            self._answer(302, b"", Location=f"{self.server.object_address}/{oid}?path={path}", **headers)
        else:
            self._send(path, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=commit)

    def _get_object(self, oid: str) -> None:
        self._send(urlsplit(self.path).query, self.server.objects[oid], ETag=f'"{oid}"')

    def _send(self, path: str, content: bytes, **headers: str) -> None:
        self._answer(200, content if self.command == "HEAD" else self.server.spoil(path, content), **headers)
