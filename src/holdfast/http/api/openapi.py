"""The OpenAPI document, generated from the route table.

Bodies list only the fields that the gateway reads; other fields pass through to the upstream.
"""

import re
from collections.abc import Iterable
from typing import Any

from holdfast._version import __version__
from holdfast.http.server.types import Endpoint

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
METADATA: Schema = {
    "type": ["object", "null"],
    "additionalProperties": {"type": "string", "maxLength": 512},
    "maxProperties": 16,
}
ITEM: Schema = {
    "type": "object",
    "properties": {
        "type": TEXT,
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"anyOf": [TEXT, {"type": "array", "items": {"type": "object"}}]},
        "call_id": TEXT,
        "output": TEXT,
    },
    "anyOf": [{"required": ["type"]}, {"required": ["role"]}],
}
ITEMS: Schema = {"type": "array", "items": ITEM, "maxItems": 20}
MESSAGE: Schema = {
    "type": "object",
    "properties": {
        "role": {"enum": ["user", "assistant", "system", "developer", "tool"]},
        "content": {"anyOf": [TEXT, {"type": "array", "items": {"type": "object"}}]},
        "tool_call_id": TEXT,
    },
    "required": ["role"],
}
INPUT: Schema = {"anyOf": [TEXT, {"type": "array", "items": ITEM}]}


def _object(properties: Schema, *required: str) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


RESPONSE: Schema = {
    "model": TEXT,
    "input": INPUT,
    "instructions": {"type": ["string", "null"]},
    "previous_response_id": {"type": ["string", "null"]},
    "conversation": {"anyOf": [TEXT, _object({"id": TEXT}, "id"), {"type": "null"}]},
    "store": {"type": ["boolean", "null"]},
    "stream": {"type": ["boolean", "null"]},
    "background": {"type": ["boolean", "null"]},
    "metadata": METADATA,
}
COMPACT: Schema = {
    name: RESPONSE[name] for name in ("model", "input", "instructions", "previous_response_id")
}
BODIES: dict[str, Schema] = {
    "POST /v1/responses/compact": _object(COMPACT, "model"),
    "POST /v1/sessions/{id}/compact": _object({"model": TEXT, "instructions": TEXT}),
    "POST /v1/responses": _object(RESPONSE, "model"),
    "POST /v1/responses/input_tokens": _object({"model": TEXT, "input": INPUT}),
    "POST /v1/chat/completions": _object(
        {
            "model": TEXT,
            "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
            "store": {"type": ["boolean", "null"]},
            "stream": {"type": ["boolean", "null"]},
            "metadata": METADATA,
        },
        "model",
        "messages",
    ),
    "POST /v1/chat/completions/{id}": _object({"metadata": METADATA}, "metadata"),
    "POST /v1/conversations": _object({"items": ITEMS, "metadata": METADATA}),
    "POST /v1/conversations/{id}": _object({"metadata": METADATA}, "metadata"),
    "POST /v1/conversations/{id}/items": _object({"items": ITEMS}, "items"),
    "POST /v1/sessions/{id}": _object({"metadata": METADATA}, "metadata"),
    "POST /v1/sessions/{id}/items": _object({"items": ITEMS}, "items"),
    "POST /v1/transcript": _object(
        {"items": ITEMS, "turn_id": TEXT, "ordinal": {"type": "integer"}, "lane": TEXT}, "items"
    ),
    "POST /v1/transcript/lane": _object(
        {
            "run_id": TEXT,
            "asked": TEXT,
            "once": {"type": "boolean"},
            "resumes": {"type": "array", "items": TEXT},
        }
    ),
    "POST /v1/transcript/lane/{turn_id}": _object(
        {
            "outcome": {"enum": ["completed", "failed", "interrupted"]},
            "code": TEXT,
            "message": TEXT,
            "result": TEXT,
        }
    ),
    "POST /v1/approvals/{id}": _object({"approve": {"type": "boolean"}, "reason": TEXT}, "approve"),
    "POST /v1/keys": _object({"tenant": TEXT, "name": TEXT, "admin": {"type": "boolean"}}),
    "POST /v1/sessions/{id}/reset": _object({"expected_session_id": TEXT, "reason": TEXT}),
    "POST /v1/sessions/{id}/fork": _object({"after_item": {"anyOf": [TEXT, {"type": "integer"}]}}),
}
PAGED = ("/items", "/turns", "/input_items", "/messages", "/v1/sessions", "/v1/chat/completions")
PAGE_PARAMETERS = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    ("order", {"enum": ["asc", "desc"]}),
    ("after", TEXT),
)
NUMBER: Schema = {"type": "integer", "minimum": 0}
QUERIES: dict[str, tuple[tuple[str, Schema], ...]] = {
    "GET /v1/approvals": (
        ("key", TEXT),
        ("session_id", TEXT),
        ("limit", NUMBER),
        ("after", TEXT),
    ),
    "GET /v1/turns/{id}/projection": (
        ("step", NUMBER),
        ("attempt", NUMBER),
        ("offset", NUMBER),
        ("limit", NUMBER),
        ("wire", {"type": "boolean"}),
    ),
    "GET /v1/usage": (("from", TEXT), ("to", TEXT), ("interval", {"enum": ["day", "hour"]})),
}
"""Query parameters of endpoints that are not pages of a list."""
ERROR: Schema = _object(
    {
        "error": _object(
            {
                "message": TEXT,
                "type": TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "message", "type", "param", "code",
        )
    },
    "error",
)  # fmt: skip


def document(routes: Iterable[tuple[str, str, Endpoint]]) -> dict[str, Any]:
    """Return the OpenAPI document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, endpoint in routes:
        if path.startswith("/console"):
            continue  # static files, not part of the API
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, endpoint)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Durable sessions behind the OpenAI APIs.",
        },
        "paths": paths,
        "components": {
            "schemas": {"Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(method: str, path: str, endpoint: Endpoint) -> dict[str, Any]:
    doc = (endpoint.__doc__ or "").strip().splitlines()
    operation: dict[str, Any] = {
        "summary": doc[0] if doc else f"{method} {path}",
        "parameters": _parameters(method, path),
        "responses": {
            "200": {"description": "Success."},
            "default": {
                "description": "An error.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    schema = BODIES.get(f"{method} {path}")
    if schema is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _parameters(method: str, path: str) -> list[dict[str, Any]]:
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": TEXT}
        for name in re.findall(r"{(\w+)}", path)
    ]
    queries = QUERIES.get(f"{method} {path}", ())
    if method == "GET" and path.endswith(PAGED):
        queries = PAGE_PARAMETERS
    return path_parameters + [
        {"name": name, "in": "query", "schema": schema} for name, schema in queries
    ]
