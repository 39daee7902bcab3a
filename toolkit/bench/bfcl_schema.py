"""BFCL types to JSON Schema: the function-calling set writes Python-ish types (dict, float, tuple, any), schemas do not.

In: the `parameters` object of one BFCL function.   Out: a draft 2020-12 schema, properties in their order, closed objects.
Knows nothing about: records, prompts, scoring.
Invariants: nothing is widened silently - what has no faithful schema raises SchemaError and is counted by its reason.
Bounds: a small model may run away inside an open value, so strings get 80 characters (the longest accepted answer has 54),
arrays 10 items (longest: 7), numbers 12 digits before the point (largest: 125,700,000,000). Digits after the point are
bounded by max_tokens alone: `multipleOf` with a decimal fraction is decided differently by binary floating point.
"""

from __future__ import annotations

from typing import Any

from toolkit.contracts import Json
from toolkit.errors import SchemaError

MAX_STRING, MAX_ITEMS, MAX_NUMBER = 80, 10, 10**12 - 1
BOUNDS = f"strings <= {MAX_STRING} characters, arrays <= {MAX_ITEMS} items, numbers <= 12 digits before the point"
MAX_DEPTH = 8

_NUMBER = {"minimum": -MAX_NUMBER, "maximum": MAX_NUMBER}
_SCALARS: dict[str, Json] = {
    "string": {"type": "string", "maxLength": MAX_STRING},
    "integer": {"type": "integer", **_NUMBER},
    "float": {"type": "number", **_NUMBER},
    "number": {"type": "number", **_NUMBER},
    "boolean": {"type": "boolean"},
    "any": {"type": ["string", "number", "boolean"], "maxLength": MAX_STRING, **_NUMBER},
}


def to_schema(parameters: Json) -> Json:
    """The schema of a function's arguments. Raises SchemaError with the path and the reason."""
    schema = _convert(parameters, "", 0)
    if schema["type"] != "object":
        raise SchemaError(f"parameters are {parameters.get('type')!r}, not dict", keyword="type")
    return schema


def _convert(node: Json, path: str, depth: int) -> dict[str, Any]:
    if not isinstance(node, dict) or not isinstance(node.get("type"), str):
        raise SchemaError("no type", path=path, keyword="type")
    if depth > MAX_DEPTH:
        raise SchemaError(f"nested deeper than {MAX_DEPTH}", path=path, keyword="properties")
    kind = node["type"]
    if "enum" in node:
        return _choice(node["enum"], path)
    if kind in _SCALARS:
        return dict(_SCALARS[kind])
    if kind in ("array", "tuple", "list"):
        if "items" not in node:
            raise SchemaError(f"{kind} without items", path=path, keyword="items")
        return {"type": "array", "items": _convert(node["items"], f"{path}/items", depth + 1), "maxItems": MAX_ITEMS}
    if kind in ("dict", "object"):
        return _object(node, path, depth)
    raise SchemaError(f"unknown type {kind}", path=path, keyword="type")


def _choice(values: Json, path: str) -> dict[str, Any]:
    if not isinstance(values, list) or not values:
        raise SchemaError("empty enum", path=path, keyword="enum")
    distinct: list[Json] = []
    for value in values:
        if not any(value == seen and type(value) is type(seen) for seen in distinct):
            distinct.append(value)
    return {"enum": distinct}


def _object(node: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
    properties = node.get("properties")
    if not isinstance(properties, dict) or not properties:
        raise SchemaError("dict of any keys", path=path, keyword="properties")
    required = [name for name in node.get("required", []) if not properties.get(name, {}).get("optional")]
    if unknown := [name for name in required if name not in properties]:
        raise SchemaError(f"required {unknown[0]!r} is no property", path=path, keyword="required")
    return {
        "type": "object",
        "properties": {name: _convert(child, f"{path}/{name}", depth + 1) for name, child in properties.items()},
        "required": required,
        "additionalProperties": False,
    }
