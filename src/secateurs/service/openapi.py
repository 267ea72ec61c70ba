"""The OpenAPI description at /openapi.json: FastAPI's, with problems under their media type and the key explained."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel

from .problems import MEDIA_TYPE, ProblemAnswer

KEY_NEEDED: dict[str, Any] = {"security": [{"key": []}]}


def answers_with(model: type[BaseModel], *statuses: int) -> dict[str, Any]:
    """What a route can answer with, as FastAPI's decorators take it."""
    return {"response_model": model, "responses": {status: {"model": ProblemAnswer} for status in statuses}}


def describe(app: FastAPI) -> None:
    made = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = made()
            for operations in description["paths"].values():
                for operation in operations.values():
                    for status, response in operation["responses"].items():
                        if int(status) >= 400:
                            response["content"] = {MEDIA_TYPE: response["content"]["application/json"]}
            description["components"]["securitySchemes"] = {
                "key": {"type": "http", "scheme": "bearer", "description": "A line of the server's --api-key-file"}
            }
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
