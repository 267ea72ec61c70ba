"""The OpenAPI description at /openapi.json: FastAPI's, with problems under their media type and the key explained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from .problems import MEDIA_TYPE, ProblemAnswer

KEY_NEEDED: dict[str, Any] = {"security": [{"key": []}]}
_ANYWHERE = (401, 413, 421, 429, 500, 503)  # what admission.py refuses, and a server that is too busy or fails
_COMPONENTS = "#/components/schemas/"


def answers_with(model: Any, *statuses: int) -> dict[str, Any]:
    """What a route can answer with, as FastAPI's decorators take it."""
    problems = {status: {"model": ProblemAnswer} for status in sorted({*_ANYWHERE, *statuses})}
    return {"response_model": model, "responses": problems}


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """The description of a body that the route itself parses, on a thread."""
    content = {"application/json": {"schema": {"$ref": _COMPONENTS + model.__name__}}}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI, bodies: Iterable[type[BaseModel]], reads_need_a_key: bool) -> None:
    describe_routes = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = describe_routes()
            for path, operations in description["paths"].items():
                for operation in operations.values():
                    if reads_need_a_key and path != "/healthz":
                        operation |= KEY_NEEDED
                    for status, response in operation["responses"].items():
                        if int(status) >= 400:
                            response["content"] = {MEDIA_TYPE: response["content"]["application/json"]}
            for model in bodies:
                schema = model.model_json_schema(ref_template=_COMPONENTS + "{model}")
                description["components"]["schemas"] |= schema.pop("$defs", {}) | {model.__name__: schema}
            description["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer", "description": "A line of the server's --api-key-file"}
            }
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
