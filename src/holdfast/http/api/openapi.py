"""The OpenAPI document, generated from the route table.

The bodies of OpenAI's endpoints list only the fields that the gateway reads; other fields pass
through to the upstream. Our own endpoints reject other fields than those listed, and, where they
change something, other query parameters.
"""

import re
from collections.abc import Iterable
from typing import Any

from holdfast._version import __version__
from holdfast.core.errors import InvalidInput
from holdfast.http.server.types import Endpoint, Request

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
OPTIONAL: Schema = {"type": ["string", "null"]}
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


MAX_SHOWN = 64
"""Characters of an unknown name that an error shows."""
AZURE_VERSION = "api-version"
"""Sent by clients for Azure with every request."""
OPENAI_PATHS = ("/v1/responses", "/v1/chat/", "/v1/conversations", "/v1/models")


def is_own(path: str) -> bool:
    """Whether an endpoint is one of our API, which rejects what it does not know.

    Others define the rest: OpenAI's endpoints, MCP, platforms that call their webhook. Probes may
    send any query.
    """
    is_api = path.startswith("/v1/") and not path.startswith(OPENAI_PATHS)
    return is_api and not path.endswith("/webhook")


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
    "POST /v1/sessions/{id}/compact": _object({"model": OPTIONAL, "instructions": OPTIONAL}),
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
        {
            "items": ITEMS,
            "turn_id": OPTIONAL,
            "ordinal": {"type": ["integer", "null"]},
            "lane": OPTIONAL,
            "replaces_upto": {"type": ["integer", "null"]},
        },
        "items",
    ),
    "POST /v1/transcript/lane": _object(
        {
            "run_id": OPTIONAL,
            "asked": OPTIONAL,
            "once": {"type": ["boolean", "null"]},
            "own": {"type": ["boolean", "null"]},
            "resumes": {"type": ["array", "null"], "items": TEXT},
        }
    ),
    "POST /v1/transcript/lane/{turn_id}": _object(
        {
            "outcome": {"enum": ["completed", "failed", "interrupted", None]},
            "code": OPTIONAL,
            "message": OPTIONAL,
            "result": OPTIONAL,
        }
    ),
    "POST /v1/approvals/{id}": _object(
        {"approve": {"type": "boolean"}, "reason": OPTIONAL}, "approve"
    ),
    "POST /v1/keys": _object(
        {"tenant": OPTIONAL, "name": OPTIONAL, "admin": {"type": ["boolean", "null"]}}
    ),
    "POST /v1/sessions/{id}/reset": _object({"expected_session_id": OPTIONAL, "reason": OPTIONAL}),
    "POST /v1/sessions/{id}/fork": _object({"after_item": {"type": ["string", "integer", "null"]}}),
    "POST /v1/channels/{name}/messages": _object(
        {
            "to": TEXT,
            "text": OPTIONAL,
            "thread": OPTIONAL,
            "files": {
                "type": ["array", "null"],
                "items": _object({"name": TEXT, "data": TEXT, "media_type": TEXT}, "name", "data"),
            },
        },
        "to",
    ),
    "POST /v1/schedules": _object(
        {
            **dict.fromkeys(
                (
                    "name", "prompt", "cron", "every", "at", "timezone", "model", "instructions",
                    "session",
                ),
                TEXT,
            ),
            "tools": {"type": "array", "items": TEXT},
            "deliver": {
                "type": ["object", "null"],
                "properties": {"channel": TEXT, "to": TEXT, "thread": TEXT},
                "required": ["channel", "to"],
                "additionalProperties": False,
            },
            "missed": {"enum": ["once", "skip"]},
            "timeout_seconds": {"type": "number"},
            "keep_runs": {"type": "integer"},
        },
        "name",
        "prompt",
    ),
}  # fmt: skip
PAGED = (
    "/items", "/turns", "/input_items", "/messages", "/v1/sessions", "/v1/chat/completions",
    "/compactions", "/v1/schedules", "/v1/outbox",
)  # fmt: skip
PAGE_PARAMETERS = (
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    ("order", {"enum": ["asc", "desc"]}),
    ("after", TEXT),
)
NUMBER: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
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
        ("wire", FLAG),
    ),
    "GET /v1/doctor": (("deep", FLAG),),
    "GET /v1/usage": (("from", TEXT), ("to", TEXT), ("interval", {"enum": ["day", "hour"]})),
    "GET /v1/sessions": (
        ("key", TEXT),
        ("status", {"enum": ["idle", "running", "retired"]}),
        ("generations", FLAG),
        ("search", TEXT),
        ("wants", {"enum": ["approval", "failed"]}),
        ("preview", FLAG),
        ("sort", {"enum": ["created", "activity"]}),
    ),
    "GET /v1/sessions/export": (("id", TEXT), ("after", TEXT), ("generations", FLAG)),
    "GET /v1/sessions/{id}/items": (("view", {"enum": ["visible", "log"]}),),
    "DELETE /v1/sessions/{id}": (("cascade", FLAG),),
    "DELETE /v1/conversations/{id}": (("cascade", FLAG),),
    "DELETE /v1/conversations/{id}/items/{item_id}": (("erase", FLAG),),
    "GET /v1/sessions/{id}/events": (("after", TEXT),),
    "GET /v1/events": (("after", TEXT),),
    "GET /v1/transcript": (("last", NUMBER),),
    "GET /v1/outbox": (
        ("channel", TEXT),
        ("state", {"enum": ["open", "pending", "sending", "sent", "dead", "dropped"]}),
    ),
    "GET /v1/search": (
        ("q", TEXT),
        ("key", TEXT),
        ("key_prefix", TEXT),
        ("session_id", TEXT),
        ("role", TEXT),
        ("since", TEXT),
        ("until", TEXT),
        ("include_hidden", FLAG),
        ("limit", PAGE_PARAMETERS[0][1]),
        ("after", TEXT),
    ),
}
"""Query parameters besides those of a page."""
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
        if path == "/" or path.startswith("/console"):
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
    if is_own(path) and method == "POST":
        schema = {**(schema or _object({})), "additionalProperties": False}
    if schema is not None:
        operation["requestBody"] = {
            "required": bool(schema["required"]) or not is_own(path),
            "content": {"application/json": {"schema": schema}},
        }
    return operation


def _parameters(method: str, path: str) -> list[dict[str, Any]]:
    path_parameters = [
        {"name": name, "in": "path", "required": True, "schema": TEXT}
        for name in re.findall(r"{(\w+)}", path)
    ]
    return path_parameters + [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in _query_parameters(method, path)
    ]


def _query_parameters(method: str, path: str) -> tuple[tuple[str, Schema], ...]:
    paged = PAGE_PARAMETERS if method == "GET" and path.endswith(PAGED) else ()
    return (*QUERIES.get(f"{method} {path}", ()), *paged)


def check_query(request: Request) -> None:
    """Reject a query parameter that an endpoint of our own does not have, if it changes something.

    Ignored, a condition in the wrong place would not hold. The same is true of the parameters that
    we added to OpenAI's endpoints: who misspells `erase` must not believe that something was
    erased. Reads ignore what they do not know, as OpenAI's do: clients send `limit` and the like
    with all of them.
    """
    allowed = {name for name, _ in _query_parameters(request.method, request.route)}
    if request.method == "GET" or not (allowed or is_own(request.route)):
        return
    if not is_own(request.route):
        allowed.add(AZURE_VERSION)
    for name in request.query():
        if name.removesuffix("[]") not in allowed:
            shown = name[:MAX_SHOWN]
            raise InvalidInput(f"unknown query parameter {shown!r}", param=shown)
