"""API keys: read from a file, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from ..errors import SecateursError

_SHORTEST = 16


class ApiKeys:
    """Only digests are kept. Several keys let one be replaced while the other still works."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """One key a line; empty lines and lines that begin with # do not count."""
        try:
            lines = [line.strip() for line in path.read_text("ascii").splitlines()]
        except OSError as error:
            raise SecateursError(f"the API key file {path} cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise SecateursError(f"the API key file {path} is not plain ASCII text, which a header needs") from error
        keys = [line for line in lines if line and not line.startswith("#")]
        make = 'make one with  python -c "import secrets; print(secrets.token_urlsafe(32))"'
        if not keys:
            raise SecateursError(f"there is no key in {path}: {make}")
        if any(len(key) < _SHORTEST for key in keys):
            raise SecateursError(f"a key in {path} has fewer than {_SHORTEST} characters: {make}")
        return cls(keys)

    def allow(self, authorization: bytes) -> bool:
        """Whether the header is `Bearer KEY` with one of the keys. Every key is compared, whichever matches."""
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
