"""Holdfast as an MCP server: raw messages, the official client, and the stdio bridge."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from holdfast.app import open_application
from holdfast.settings import Settings, StoreSettings
from tests.acceptance.gateway_process import running_gateway
from tests.http_server import serving
from tests.store_urls import sqlite_url

TOOLS = {"session_status", "sessions_list", "sessions_history", "memory_search", "memory_get"}


@asynccontextmanager
async def running() -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(store=StoreSettings(url="memory:"))
    async with (
        open_application(settings) as application,
        serving(application) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30) as client,
    ):
        yield client


async def say(client: httpx.AsyncClient, text: str, key: str) -> None:
    body = {"model": "holdfast-demo", "input": text}
    reply = await client.post("/v1/responses", json=body, headers={"X-Session-Key": key})
    assert reply.status_code == 200


async def rpc(
    client: httpx.AsyncClient, method: str, params: Any = None, *, key: str = "agent:main:ada"
) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    reply = await client.post("/mcp", json=message, headers={"X-Session-Key": key})
    assert reply.status_code == 200
    answer: dict[str, Any] = reply.json()
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", 1)
    return answer


async def call(client: httpx.AsyncClient, name: str, key: str, **arguments: Any) -> Any:
    params = {"name": name, "arguments": arguments}
    result = (await rpc(client, "tools/call", params, key=key))["result"]
    text = result["content"][0]["text"]
    return text if result["isError"] else json.loads(text)


async def test_the_tools_see_the_callers_key_alone() -> None:
    async with running() as client:
        await say(client, "my dog is Rex", "agent:main:ada")
        await say(client, "my dog is Bello", "agent:main:bob")
        matches: list[Any] = []
        while not matches:
            found = await call(client, "memory_search", "agent:main:ada", query="dog", role="user")
            matches = found["matches"]
        assert [match["text"] for match in matches] == ["my dog is Rex"]
        place = {"session_id": matches[0]["session_id"], "sequence": matches[0]["sequence"]}
        around = await call(client, "memory_get", "agent:main:ada", **place)
        assert around["items"][0]["text"] == "my dog is Rex"
        denied = await call(client, "memory_get", "agent:main:bob", **place)
        assert denied == f"there is no session {place['session_id']}"
        status = await call(client, "session_status", "agent:main:ada")
        assert (status["key"], status["turns"]) == ("agent:main:ada", 1)
        nobody = await call(client, "memory_search", "agent:main:eve", query="dog")
        assert nobody["matches"] == []


async def test_the_protocol_is_spoken() -> None:
    async with running() as client:
        begun = await rpc(client, "initialize", {"protocolVersion": "2025-03-26"})
        assert begun["result"]["protocolVersion"] == "2025-03-26"
        assert begun["result"]["serverInfo"]["name"] == "holdfast"
        assert (await rpc(client, "ping"))["result"] == {}
        listed = (await rpc(client, "tools/list"))["result"]["tools"]
        assert {tool["name"] for tool in listed} == TOOLS
        assert all(tool["annotations"]["readOnlyHint"] for tool in listed)
        assert (await rpc(client, "resources/list"))["error"]["code"] == -32601
        wrong = await rpc(client, "tools/call", {"name": "rm"})
        assert wrong["error"]["code"] == -32602
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        assert (await client.post("/mcp", json=note)).status_code == 202
        batch = [note, {"jsonrpc": "2.0", "id": 7, "method": "ping"}]
        assert (await client.post("/mcp", json=batch)).json() == [
            {"jsonrpc": "2.0", "id": 7, "result": {}}
        ]


@pytest.mark.parametrize("body", [b"{", b"[]", b"[1]", b'"x"', b"{}", b'{"id":1}', b"[" * 9000])
async def test_a_wrong_message_is_a_json_rpc_error(body: bytes) -> None:
    async with running() as client:
        reply = await client.post(
            "/mcp", content=body, headers={"content-type": "application/json"}
        )
        answer = reply.json()
        error = answer[0]["error"] if isinstance(answer, list) else answer["error"]
        assert error["code"] in (-32700, -32600)
        assert (await client.get("/mcp")).status_code == 405


async def test_an_unknown_protocol_version_is_refused() -> None:
    async with running() as client:
        message = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        reply = await client.post(
            "/mcp", json=message, headers={"mcp-protocol-version": "1999-01-01"}
        )
        assert reply.status_code == 400


META = "io.modelcontextprotocol/"
MODERN = "2026-07-28"


async def stateless(
    client: httpx.AsyncClient, method: str, *, drop: str = "", **more: Any
) -> httpx.Response:
    """Send a request that names the version of the protocol itself."""
    version = more.pop("version", MODERN)
    meta = {f"{META}protocolVersion": version, f"{META}clientCapabilities": {}}
    meta.pop(f"{META}{drop}", None)
    headers = {"mcp-protocol-version": version, "mcp-method": method, "mcp-name": "session_status"}
    headers.pop(drop, None)
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": meta, **more}}
    return await client.post("/mcp", json=message, headers=headers)


async def test_requests_may_name_the_version_of_the_protocol_themselves() -> None:
    async with running() as client:
        found = (await stateless(client, "server/discover")).json()["result"]
        assert found["supportedVersions"] == [MODERN]
        assert found["resultType"] == "complete"
        listed = (await stateless(client, "tools/list")).json()["result"]
        assert {tool["name"] for tool in listed["tools"]} == TOOLS
        called = (await stateless(client, "tools/call", name="session_status")).json()["result"]
        assert (called["resultType"], called["isError"]) == ("complete", True)
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}
        headers = {"mcp-protocol-version": MODERN}
        assert (await client.post("/mcp", json=note, headers=headers)).status_code == 202


@pytest.mark.parametrize(
    ("method", "more", "status", "code"),
    [
        ("ping", {}, 404, -32601), ("initialize", {}, 404, -32601),
        ("tools/list", {"drop": "clientCapabilities"}, 400, -32602),
        ("tools/list", {"drop": "protocolVersion"}, 400, -32602),
        ("tools/list", {"drop": "mcp-method"}, 400, -32020),
        ("tools/call", {"name": "memory_get"}, 400, -32020),
        ("tools/list", {"version": "2099-01-01"}, 400, -32022),
    ],
)  # fmt: skip
async def test_a_request_that_contradicts_itself_is_refused(
    method: str, more: dict[str, Any], status: int, code: int
) -> None:
    async with running() as client:
        reply = await stateless(client, method, **more)
        assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_works_over_http_and_stdio(mode: str, tmp_path: Path) -> None:
    with running_gateway(sqlite_url(tmp_path)) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url) as client:
            await say(client, "my dog is Rex", "agent:main:ada")
        async with Client(f"{gateway.url}/mcp", mode=mode) as http_client:
            assert (http_client.protocol_version == MODERN) == (mode == "auto")
            listed = await http_client.list_tools()
            assert {tool.name for tool in listed.tools} == TOOLS
        command = ["-m", "holdfast.cli", "mcp", "--url", gateway.url, "--key", "agent:main:ada"]
        server = StdioServerParameters(command=sys.executable, args=command)
        async with Client(server, mode=mode) as stdio:
            assert (stdio.protocol_version == MODERN) == (mode == "auto")
            result = await stdio.call_tool("session_status", {})
            assert not result.is_error
            assert json.loads(result.content[0].model_dump()["text"])["key"] == "agent:main:ada"
