"""Schemathesis sends what the OpenAPI description allows and what it does not: never a 5xx, never off the schema."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
schemathesis: Any = pytest.importorskip("schemathesis", reason='pip install "secateurs[dev]"')
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis.errors import Unsatisfiable  # noqa: E402
from schemathesis.specs.openapi import checks as openapi  # noqa: E402
from service import BEARER, KEY  # noqa: E402

from secateurs import Index  # noqa: E402
from secateurs.encoders.onnx import OnnxEncoder  # noqa: E402
from secateurs.service.app import Access, create_app  # noqa: E402
from secateurs.service.keys import ApiKeys  # noqa: E402

OPERATIONS = [
    (method, f"/v1/indexes/{{name}}/{verb}")
    for method, verb in [
        ("post", "search"),
        ("get", "explain"),
        ("get", "prune-curve"),
        ("get", "colbertv2"),
        ("get", "info"),
        ("post", "documents"),
        ("put", "documents"),
        ("get", "documents/{docno}"),
        ("delete", "documents/{docno}"),
        ("delete", "documents"),
        ("patch", "documents"),
        ("get", "fields"),
    ]
] + [
    ("post", "/v1/rerank"),
    ("post", "/v1/encode"),
    ("get", "/v1/indexes"),
    ("get", "/healthz"),
    ("get", "/metrics"),
]


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory, encoder: OnnxEncoder, index_path: Path) -> Any:
    copy = tmp_path_factory.mktemp("schema") / "library.sec"
    shutil.copytree(index_path, copy)
    app = create_app({"library": Index(copy, encoder)}, access=Access(ApiKeys([KEY])))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


def test_every_operation_that_is_described_is_tried(schema: Any) -> None:
    described = [found.ok() for found in schema.get_all_operations()]
    assert sorted((operation.method, operation.path) for operation in described) == sorted(OPERATIONS)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_no_request_gets_a_server_error_or_an_answer_off_the_schema(
    schema: Any, method: str, path: str, mode: Any
) -> None:
    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    @settings(max_examples=25, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    def send(case: Any) -> None:
        if "name" in (case.path_parameters or {}):
            case.path_parameters["name"] = "library"
        case.call_and_validate(headers=BEARER, checks=CHECKS)

    try:
        send()
    except Unsatisfiable:
        assert mode.is_negative  # nothing can be wrong with a request that has no parameters


CHECKS = [
    schemathesis.checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_schema_conformance,
]
