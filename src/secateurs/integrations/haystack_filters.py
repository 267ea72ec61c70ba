"""Haystack's filters as `where`, so that they are applied before gathering.

    {"operator": "AND", "conditions": [{"field": "meta.year", "operator": ">=", "value": 2020},
                                       {"field": "meta.lang", "operator": "!=", "value": "en"}]}

becomes  ("year" >= 2020 and not "lang" = 'en').  A document without the field has the value None, as in Haystack: it
fulfils `!=` and `not in`, and no other comparison but that with None. Other than in Haystack,

- a field that no document has is an error, when the filter is used;
- a list fulfils a comparison if one of its entries does;
- texts are compared with < and > letter by letter, and dates as the texts that they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_NOTHING = "docno in ('')"  # no document has an empty docno
_SIGNS = {"==": "=", ">": ">", ">=": ">=", "<": "<", "<=": "<="}
_DEEPEST = 50


def to_where(filters: Mapping[str, Any], fail: Callable[[str], Exception], depth: int = 0) -> str:
    """The same condition as a text for `where`; `fail` makes the exception for a filter that is none."""
    if not isinstance(filters, Mapping):
        raise fail(f"a condition is a dictionary, not {filters!r}")
    if depth > _DEEPEST:
        raise fail(f"more than {_DEEPEST} conditions inside each other")
    wanted = ("field", "operator", "value") if "field" in filters else ("operator", "conditions")
    for key in wanted:
        if key not in filters:
            raise fail(f"{key!r} is missing in the condition {dict(filters)!r}")
    if "field" in filters:
        return _comparison(str(filters["field"]), filters["operator"], filters["value"], fail)
    operator, conditions = filters["operator"], filters["conditions"]
    if operator not in ("AND", "OR", "NOT"):
        raise fail(f"the operator of several conditions is AND, OR or NOT, not {operator!r}")
    if not isinstance(conditions, Sequence) or isinstance(conditions, str) or not conditions:
        raise fail(f"conditions are a list with at least one condition, not {conditions!r}")
    joined = (" or " if operator == "OR" else " and ").join(to_where(part, fail, depth + 1) for part in conditions)
    return f"not ({joined})" if operator == "NOT" else f"({joined})"


def _comparison(field: str, operator: Any, value: Any, fail: Callable[[str], Exception]) -> str:
    name = field.removeprefix("meta.")
    if name == field and field in ("content", "blob", "score", "embedding", "sparse_embedding"):
        raise fail(f"documents can be filtered by id and by meta, not by {field}")
    key = "docno" if field == "id" else '"' + name.replace('"', '""') + '"'
    if operator in ("in", "not in"):
        if not isinstance(value, list):
            raise fail(f"the value of {operator!r} is a list, not {value!r}")
        among = _among(key, value, fail)
        return among if operator == "in" else f"not {among}"
    if operator == "!=":
        return f"not {_comparison(field, '==', value, fail)}"
    if operator not in _SIGNS:
        raise fail(
            f"the operator of a comparison is one of {', '.join((*_SIGNS, '!=', 'in', 'not in'))}, not {operator!r}"
        )
    if value is None:
        return f"{key} is null" if operator == "==" else _NOTHING
    return f"{key} {_SIGNS[operator]} {_literal(value, fail)}"


def _among(key: str, values: Sequence[Any], fail: Callable[[str], Exception]) -> str:
    literals = ", ".join(_literal(value, fail) for value in values if value is not None)
    parts = [f"{key} in ({literals})"] if literals else []
    parts += [f"{key} is null"] if None in values else []
    return f"({' or '.join(parts) or _NOTHING})"


def _literal(value: Any, fail: Callable[[str], Exception]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return repr(value)
    raise fail(f"a document is compared with a text, a number, true, false or None, not {value!r}")
