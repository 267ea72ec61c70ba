"""What was sent, as the library takes it. requests.py describes what may be sent."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from ..corpus import DOCNO_FIELDS, TEXT_FIELDS, BadDocumentError, check_metadata, to_document
from ..errors import UsageError
from ..records import Document, EncodedText
from .limits import Limits
from .problems import Problem
from .requests import SETTINGS, has_tokens


def parse(model: type[BaseModel], body: bytes) -> Any:
    """A body as a model. It may be large, so that this runs on a thread, not on the event loop."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "the body is not JSON") from error
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise Problem.of_findings([(item["loc"] or ("body",), item) for item in error.errors()]) from error


def to_settings(request: BaseModel) -> dict[str, Any]:
    """The search settings of a request, as Index.search takes them."""
    settings = {name: getattr(request, name) for name in SETTINGS if hasattr(request, name)}
    if settings.get("p") == "all":
        settings["p"] = None
    for name in ("weights", "fuse"):
        if settings.get(name) == "none":
            settings[name] = None
    return settings


def check_hits(limits: Limits, settings: Mapping[str, Any], queries: int = 1) -> None:
    """The limit on k is for all hits that are found: those that an offset leaves out, and those of all queries."""
    k, offset = settings["k"], settings.get("offset", 0)
    if (k + offset) * queries > limits.k:
        found = f"{queries:,} queries x {k + offset:,} hits" if queries > 1 else f"k + offset = {k + offset:,}"
        field = "queries" if queries > 1 else "offset"
        raise Problem.of_field(field, f"too many hits: {found}, at most {limits.k:,} are allowed")


def to_query(request: Any) -> str | EncodedText:
    """The text, or the embeddings, of a search request."""
    if request.query is not None:
        return str(request.query)
    return _to_encoded(request, "")


def to_documents(request: Any) -> list[Document]:
    """As Index.add takes them. `to_document` decides what a document is, as it does for the library."""
    documents = []
    for number, item in enumerate(request.documents):
        place = f"documents.{number}"
        if item.embeddings is None and has_tokens(item):
            raise Problem.of_field(f"{place}.embeddings", "are missing: token_ids and token_kinds belong to them")
        fields = dict(item.model_extra or {})
        try:
            if item.embeddings is None:
                documents.append(to_document(fields))
            else:
                documents.append(_with_embeddings(fields, _to_encoded(item, f"{place}.")))
        except BadDocumentError as error:
            raise _bad_document(place, fields, error) from error
    return documents


def to_changes(request: Any) -> dict[str, dict[str, Any]]:
    """Changes of metadata by docno, as Index.update_metadata takes them."""
    changes: dict[str, dict[str, Any]] = {}
    for number, item in enumerate(request.documents):
        place, keys = f"documents.{number}", dict(item.model_extra or {})
        if item.docno in changes:
            raise Problem.of_field(f"{place}.docno", f"{item.docno!r} is there twice")
        if _given(keys, TEXT_FIELDS) is not None:
            raise Problem.of_field(f"{place}.{_given(keys, TEXT_FIELDS)}", "a text cannot be changed alone: use PUT")
        try:
            check_metadata(item.docno, keys)
        except BadDocumentError as error:
            raise Problem.of_field(place, f"{error!s:.200}") from error
        changes[item.docno] = keys
    return changes


def _with_embeddings(fields: dict[str, Any], encoded: EncodedText) -> Document:
    """A document that brings its embeddings. Its text is only shown, so that it may be missing or empty."""
    text_field = _given(fields, TEXT_FIELDS) or TEXT_FIELDS[0]
    # A mapping needs a text, so it is read with a stand-in first; then `to_document` checks the text itself.
    named = to_document({**fields, text_field: "-"})
    return to_document(Document(named.docno, fields.get(text_field, ""), named.metadata, encoded))


def _bad_document(place: str, fields: dict[str, Any], error: BadDocumentError) -> Problem:
    """The library's message names the field that is wrong. Values may be long, so that it is cut."""
    names = {"docno": DOCNO_FIELDS, "text": TEXT_FIELDS}
    found = re.search(r"\b(docno|text|metadata)\b", str(error))
    if found is None or found[1] not in names:
        return Problem.of_field(place, f"{error!s:.200}")
    given = _given(fields, names[found[1]])
    if given is None:
        return Problem.of_field(f"{place}.{found[1]}", f"is missing: give one of {', '.join(names[found[1]])}")
    return Problem.of_field(f"{place}.{given}", f"{error!s:.200}")


def _given(fields: dict[str, Any], names: Sequence[str]) -> str | None:
    """The name under which the document has it: `to_document` takes the first as well."""
    return next((name for name in names if name in fields), None)


def _to_encoded(item: Any, place: str) -> EncodedText:
    for name in ("token_ids", "token_kinds"):
        if getattr(item, name) is None:
            raise Problem.of_field(place + name, "is missing: there must be an entry for each embedding")
    try:
        encoded = EncodedText(item.embeddings, item.token_ids, item.token_kinds)
    except UsageError as error:
        field = next((name for name in ("token_ids", "token_kinds") if str(error).startswith(name)), "embeddings")
        raise Problem.of_field(place + field, str(error).removeprefix(f"{field}: ")) from error
    except ValueError as error:  # rows of unequal length
        raise Problem.of_field(
            place + "embeddings", "the rows do not all have the same number of dimensions"
        ) from error
    weights = getattr(item, "embedding_weights", None)  # only a query has them
    if weights is not None and len(weights) != len(encoded):
        message = f"must have one entry per embedding: {len(encoded)} embeddings, {len(weights)} weights"
        raise Problem.of_field(place + "embedding_weights", message)
    return encoded if weights is None else replace(encoded, weights=weights)
