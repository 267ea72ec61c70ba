"""API keys: read from a file, read again each second at most, compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Iterable
from pathlib import Path

from ..errors import SecateursError
from ..refresh import ThrottledRefresh

_SHORTEST = 16
_LOG = logging.getLogger("secateurs.service")


class ApiKeys:
    """Only digests are kept. With several keys, a new key can be handed out before the old one is withdrawn."""

    def __init__(self, keys: Iterable[str] = (), path: Path | None = None) -> None:
        """The keys, or the file with a key on each line; empty lines and lines that begin with # do not count."""
        self._digests = tuple(_digest(key.encode()) for key in keys)
        self._path = path
        if path is not None:
            self._read(path)
            self._newest = ThrottledRefresh(path, lambda: self._read(path), _LOG)

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """The keys of a file. A change of the file is seen within a second; if it holds no usable keys, the earlier
        ones stay valid."""
        return cls(path=path)

    def allow(self, authorization: bytes) -> bool:
        """Whether the header is `Bearer KEY` with a key that is valid now."""
        if self._path is not None and self._newest.is_due:
            self._newest.run()
        given = _digest(sent_key(authorization))
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]  # every key, whichever matches
        return any(matches)

    def _read(self, path: Path) -> None:
        try:
            # Its time and size do not show every change: a copy may have those of the earlier file.
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
        self._digests = tuple(_digest(key.encode()) for key in keys)


def sent_key(authorization: bytes) -> bytes:
    """The key of a header `Bearer KEY`; empty if the header is missing or is of another scheme."""
    scheme, _, key = authorization.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
