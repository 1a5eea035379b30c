"""The served OpenAPI document, and a schema fuzzer that must not cause a 500."""

from pathlib import Path
from typing import Any

import httpx
from hypothesis import HealthCheck, Phase, given, settings

from tests.acceptance.gateway_process import running_gateway
from tests.store_urls import sqlite_url

ENDLESS = {"/v1/events"}
"""Streams that end only when their reader leaves."""


def test_no_request_that_the_document_allows_breaks_anything(tmp_path: Path) -> None:
    import schemathesis  # takes a second, which other processes of pytest need not wait

    with running_gateway(sqlite_url(tmp_path)) as gateway:
        schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
        operations = [_operation(found) for found in schema.get_all_operations()]
        # From the first key on every request needs one: keys are created last.
        operations.sort(key=lambda one: one.path == "/v1/keys" and one.method == "post")
        assert operations[-1].path == "/v1/keys"
        tried = 0
        for operation in operations:
            if operation.path in ENDLESS:
                continue
            _fuzz(operation, gateway.url)
            tried += 1
        assert tried > 35
        assert httpx.get(f"{gateway.url}/readyz").status_code == 200


def _operation(found: Any) -> Any:
    assert hasattr(found, "ok"), found
    return found.ok()


def _fuzz(operation: Any, url: str) -> None:
    @given(case=operation.as_strategy())
    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case: Any) -> None:
        reply = case.call(base_url=url)
        assert reply.status_code < 500, f"{operation.method} {operation.path}: {reply.text[:300]}"
        if reply.status_code >= 400 and "application/json" in str(reply.headers["content-type"]):
            assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

    send()
