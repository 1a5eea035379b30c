"""Our own endpoints reject what they do not know; OpenAI's accept it, as OpenAI's clients expect.

The cases come from the served OpenAPI document, so that an endpoint that is added is tried too.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.gateway_process import running_gateway
from tests.store_urls import sqlite_url

OF_OTHERS = re.compile(
    r"/v1/(responses|chat|conversations|models)\b|/v1/channels/{name}/webhook"
    r"|/(mcp|healthz|readyz|metrics|openapi\.json)$"
)
"""Paths that OpenAI, MCP, a chat platform or a probe defines."""
UNKNOWN = "unknwon"
KEY = {"X-Session-Key": "k"}
EXAMPLES: dict[str, Any] = {
    "string": "x", "boolean": True, "array": [], "object": {}, "integer": 1, "number": 1,
}  # fmt: skip
Operation = dict[str, Any]


@contextmanager
def _client(store_url: str) -> Iterator[httpx.Client]:
    with (
        running_gateway(store_url) as gateway,
        httpx.Client(base_url=gateway.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with _client(sqlite_url(tmp_path)) as client:
        yield client


def _own_operations(client: httpx.Client) -> list[tuple[str, str, Operation]]:
    paths = client.get("/openapi.json").json()["paths"]
    found = [
        (method.upper(), re.sub(r"{\w+}", "nothing", path), operation)
        for path, operations in paths.items()
        if not OF_OTHERS.match(path)
        for method, operation in operations.items()
    ]
    assert len(found) > 40
    return found


def _schema(operation: Operation) -> dict[str, Any] | None:
    body = operation.get("requestBody")
    return body["content"]["application/json"]["schema"] if body else None


def _example(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema["type"]
    return EXAMPLES[kind if isinstance(kind, str) else kind[0]]


def _needed(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: _example(schema["properties"][name]) for name in schema["required"]}


def _rejected_name(answer: httpx.Response) -> str | None:
    """Return the name that the gateway does not know; None if it knows all of them."""
    assert answer.status_code < 500, answer.text
    if answer.status_code != 400:
        return None
    error = answer.json()["error"]
    is_unknown = error["message"].startswith(
        ("unknown field", "unknown query", "a schedule has no")
    )
    return error["param"] if is_unknown else None


def test_an_unknown_field_is_rejected_by_name(client: httpx.Client) -> None:
    for method, path, operation in _own_operations(client):
        if method == "GET":
            continue
        schema = _schema(operation) or {"properties": {}, "required": []}
        assert method == "DELETE" or schema["additionalProperties"] is False, path
        body = {**_needed(schema), UNKNOWN: None}
        answer = client.request(method, path, json=body, headers=KEY)
        assert _rejected_name(answer) == UNKNOWN, (method, path)


def test_every_field_in_the_document_is_known(client: httpx.Client) -> None:
    operations = [one for one in _own_operations(client) if one[0] == "POST"]
    # From the first key on every request needs one: keys are created last.
    operations.sort(key=lambda one: one[1] == "/v1/keys")
    for method, path, operation in operations:
        schema = _schema(operation)
        assert schema is not None
        for name, form in schema["properties"].items():
            body = {**_needed(schema), name: _example(form)}
            with client.stream(method, path, json=body, headers=KEY) as answer:
                if answer.status_code >= 400:  # a lane that was acquired has no end
                    answer.read()
                    assert _rejected_name(answer) is None, (path, name)


def test_only_query_parameters_in_the_document_are_known_to_changes(client: httpx.Client) -> None:
    for method, path, operation in _own_operations(client):
        if method != "GET":
            answer = client.request(method, path, params={UNKNOWN: ""})
            assert _rejected_name(answer) == UNKNOWN, (method, path)
        for parameter in operation["parameters"]:
            if parameter["in"] == "query":
                # Neither is a cursor, so that no endless feed is opened.
                for value in (" ", "9" * 5000):
                    answer = client.request(method, path, params={parameter["name"]: value})
                    assert _rejected_name(answer) is None, (method, path, parameter["name"])


def test_a_misspelt_condition_does_not_reset_a_session(store_url: str) -> None:
    with _client(store_url) as client:
        _check_misspelt_conditions(client)


def _check_misspelt_conditions(client: httpx.Client) -> None:
    said = client.post("/v1/responses", json={"model": "m", "input": "hi"}, headers=KEY)
    assert said.status_code == 200
    path = f"/v1/sessions/{said.headers['x-session-id']}"
    before = client.get(path).json()
    other = {"expected_sesion_id": "ses_other"}
    for answer in (
        client.post(f"{path}/reset", json=other),
        client.post(f"{path}/reset", params={"expected_session_id": "ses_other"}),
        client.post(f"{path}/fork", json={"key": "another"}),
        client.request("DELETE", path, json={"expected_session_id": "ses_other"}),
    ):
        assert _rejected_name(answer) is not None, answer.text
    assert client.get(path).json() == before
    assert [one["id"] for one in client.get("/v1/sessions").json()["data"]] == [before["id"]]
    assert client.post(f"{path}/reset", json={"expected_session_id": before["id"]}).is_success


def test_endpoints_of_openai_accept_unknown_fields(client: httpx.Client) -> None:
    more = {UNKNOWN: {"a": [1]}}
    said = [{"role": "user", "content": "hi"}]
    made = client.post("/v1/conversations", json={"items": said, **more})
    path = f"/v1/conversations/{made.json()['id']}"
    completion = client.post(
        "/v1/chat/completions", json={"model": "m", "messages": said, "store": True, **more}
    )
    for answer in (
        made,
        client.post(path, json={"metadata": {"a": "b"}, **more}),
        client.post(f"{path}/items", json={"items": said, **more}),
        client.get(f"{path}/items", params={UNKNOWN: "1"}),
        completion,
        client.post("/v1/responses", json={"model": "m", "input": "hi", **more}),
        client.post(
            f"/v1/chat/completions/{completion.json()['id']}", json={"metadata": {}, **more}
        ),
    ):
        assert answer.status_code == 200, answer.text
