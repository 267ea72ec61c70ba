"""Which requests are admitted: by host name, key, size and number. Decided before the application sees the request,
and mostly before its body is read."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .keys import ApiKeys, sent_key
from .limits import Limits
from .metrics import Metrics
from .problems import Problem
from .request_work import SMALL_BODY

_LOG = logging.getLogger("secateurs.service")
_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_READ_BY_POST = ("/v1/rerank", "/v1/encode")  # and /search of an index
_OPEN = ("/healthz", "/")  # and /web/: the page itself holds nothing of an index
HAS_KEY = "secateurs.has_key"  # of an ASGI scope: whether the request came with a valid key

# The page loads nothing from other sites and makes no HTML out of strings. The browser enforces both.
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]


class Admission:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        metrics: Metrics,
        most_small: int,
        most_large: int,
        keys: ApiKeys | None,
        reads_need_a_key: bool,
        hosts: Collection[str] | None,
    ) -> None:
        """`most_small` and `most_large` are the numbers of requests for indexes, by the size of their body, that are
        admitted at once. `hosts` are the names that the server answers to, None: any."""
        self._app, self._limits, self._metrics = app, limits, metrics
        self._keys, self._reads_need_a_key, self._hosts = keys, reads_need_a_key, hosts
        self._most = {"small": most_small, "large": most_large}
        self._admitted = {"small": 0, "large": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status = perf_counter(), 0
        caching = b"no-store" if scope["path"].startswith("/v1/") else b"no-cache"

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *_HEADERS, (b"cache-control", caching)]
            await send(message)

        self._metrics.in_flight.inc()
        try:
            await self._admit(scope, receive, send_with_headers)
        except Problem as problem:
            await problem.response()(scope, receive, send_with_headers)
        except Exception:
            _LOG.exception("a request failed")  # the trace, and nothing that the client sent
            if status:
                raise  # the answer has begun: the server closes the connection
            unexpected = Problem(500, "an unexpected error; the server's log has the details")
            await unexpected.response()(scope, receive, send_with_headers)
        finally:
            self._metrics.in_flight.dec()
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            self._metrics.request(method, route, status, perf_counter() - started)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        if self._hosts is not None and _host(headers.get(b"host", b"")) not in self._hosts:
            # A page of another site may point its name at this machine's address, and then read what it serves.
            raise Problem(421, "this server does not answer to that host name: start it with  --allowed-host NAME")
        scope[HAS_KEY] = self._check_key(scope["method"], scope["path"], headers.get(b"authorization", b""))
        if not scope["path"].startswith("/v1/"):
            await self._forward(scope, headers, receive, send)
            return
        announced = headers.get(b"content-length", b"" if b"transfer-encoding" in headers else b"0")
        size = "small" if announced.isdigit() and int(announced) <= SMALL_BODY else "large"
        if self._admitted[size] >= self._most[size]:
            raise Problem.too_many("requests")
        self._admitted[size] += 1
        try:
            await self._forward(scope, headers, receive, send)
        finally:
            self._admitted[size] -= 1

    async def _forward(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send) -> None:
        body = await self._body(scope["method"], headers, receive)
        if body is None:
            return  # the client has gone
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return unread.pop() if unread else await receive()

        await self._app(scope, replay, send)

    def _check_key(self, method: str, path: str, authorization: bytes) -> bool:
        """Whether the request has a valid key; raises if it needs one and has none, or has one that is not valid."""
        if method in ("GET", "HEAD") and (path in _OPEN or path.startswith("/web/")):
            return False
        searches = path.startswith("/v1/") and path.endswith("/search")
        reads_by_post = method == "POST" and (searches or path in _READ_BY_POST)
        writes = method not in ("GET", "HEAD", "OPTIONS") and not reads_by_post
        if writes and self._keys is None:
            raise Problem(403, "this server takes no writes: start it with  --api-key-file FILE  to allow them")
        if self._keys is not None and self._keys.allow(authorization):
            return True
        if self._keys is not None and sent_key(authorization):
            # RFC 6750, 3.1
            raise Problem(
                401,
                "the key is not valid: it is not in the server's key file",
                headers={"WWW-Authenticate": 'Bearer error="invalid_token"'},
            )
        if not writes and not self._reads_need_a_key:
            return False
        raise Problem(
            401,
            "a key is needed: send the header  Authorization: Bearer KEY",
            headers={"WWW-Authenticate": "Bearer"},
        )

    async def _body(self, method: str, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        most = self._limits.body_bytes
        too_large = Problem(413, f"the body is larger than {most:,} bytes", headers={"Connection": "close"})
        if method not in ("POST", "PUT", "PATCH"):
            if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
                raise Problem(413, f"a {method} request has no body", headers={"Connection": "close"})
            return b""
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > most:
            raise too_large
        received = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                while True:
                    message: Any = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    received += message.get("body", b"")
                    if len(received) > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(received)
        except TimeoutError:
            raise Problem(
                408, f"the body did not arrive within {self._limits.seconds:g} seconds", headers={"Connection": "close"}
            ) from None


def _host(header: bytes) -> str:
    """The name without the port; an IPv6 address keeps its brackets."""
    name = header.decode("latin-1").lower()
    return name[: name.index("]") + 1] if name.startswith("[") and "]" in name else name.split(":")[0]
