"""Every error as application/problem+json (RFC 9457), with the fields that are wrong by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from ..errors import UsageError
from ..settings import SearchSettings

MEDIA_TYPE = "application/problem+json"
_MOST_ERRORS = 10
_CLIENT_GONE = "Client Closed Request"  # 499, for the metrics: the client does not see it


class FieldError(BaseModel):
    field: str = Field(description="Where: a name, or a path such as embeddings.3.0")
    message: str


class ProblemAnswer(BaseModel):
    """What an error looks like."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    errors: list[FieldError] = Field(default=[], description="The fields that are wrong, where it is about fields")


class Problem(Exception):  # noqa: N818 (the word of the RFC)
    """An error to answer with."""

    def __init__(
        self,
        status: int,
        detail: str,
        errors: Sequence[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, errors
        self.headers = dict(headers or {})

    @classmethod
    def of_field(cls, field: str, message: str, status: int = 422) -> Problem:
        return cls(status, f"{field}: {message}", [(field, message)])

    @classmethod
    def of_usage(cls, error: UsageError) -> Problem:
        """What the library refused. A message about a setting begins with its name."""
        message = str(error)
        names = SearchSettings.__dataclass_fields__
        field = next((name for name in names if message.startswith((f"{name} ", f"{name}=", f"{name}:"))), None)
        return cls(422, message, [(field, message.removeprefix(f"{field}: "))] if field else ())

    @classmethod
    def of_findings(cls, found: Sequence[tuple[Sequence[int | str], Mapping[str, Any]]]) -> Problem:
        """Pydantic's, each with its place; what the client sent is not repeated, since it may be long or private."""
        by_field: dict[str, list[str]] = {}
        for place, item in found:
            by_field.setdefault(_field(place), []).append(_sentence(item))
        errors = [(field, _alternatives(messages)) for field, messages in list(by_field.items())[:_MOST_ERRORS]]
        return cls(422, "; ".join(f"{field}: {message}" for field, message in errors), errors)

    @classmethod
    def too_many(cls, what: str) -> Problem:
        return cls(429, f"too many {what} at once: try again in a moment", headers={"Retry-After": "1"})

    def response(self) -> Response:
        answer = {
            "type": "about:blank",
            "title": _CLIENT_GONE if self.status == 499 else HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "errors": [{"field": field, "message": message} for field, message in self.errors],
        }
        # ASCII, because a field name from a client may hold half a surrogate pair, which UTF-8 cannot encode.
        return Response(json.dumps(answer), self.status, self.headers, MEDIA_TYPE)


async def on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


async def on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = f"there is nothing at {request.url.path}" if error.status_code == 404 else str(error.detail)
    if error.status_code == 405:
        detail = f"{request.method} is not possible at {request.url.path}"
    return Problem(error.status_code, detail, headers=error.headers).response()


async def on_invalid_request(request: Request, error: Exception) -> Response:
    """Of a query string; its findings are placed in ("query", name)."""
    assert isinstance(error, RequestValidationError)
    return Problem.of_findings([(item["loc"][1:] or ("query string",), item) for item in error.errors()]).response()


def _field(place: Sequence[int | str]) -> str:
    """("embeddings", 3, 0) is embeddings.3.0. Pydantic's names of the branches of a union are left out."""
    branches = ("literal[", "constrained-", "TextRequest")
    return ".".join(str(part) for part in place if not str(part).startswith(branches))


def _alternatives(messages: Sequence[str]) -> str:
    """The messages of one field: each branch of its union has one."""
    first, *others = dict.fromkeys(messages)
    return ", or ".join([first, *(message.removeprefix("input should be ") for message in others)])


def _sentence(item: Mapping[str, Any]) -> str:
    if item["type"] == "extra_forbidden":
        return "there is no such field"
    if item["type"] == "missing":
        return "is missing"
    message = str(item["msg"]).removeprefix("Value error, ")
    return message[:1].lower() + message[1:]
