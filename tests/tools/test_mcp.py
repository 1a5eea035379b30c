"""MCP servers as real processes: one that misbehaves, and one of the client library over HTTP."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.ids import DEFAULT_TENANT, SessionId, Tenant, TurnId
from holdfast.core.model.request import TurnRequest
from holdfast.core.model.session import begin_session
from holdfast.core.tools.requested import RequestedServer, read_tools
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ToolSettings
from holdfast.ports.tools import Tool, Toolbox, ToolCaller
from holdfast.tools.builtin import BuiltinTools
from holdfast.tools.mcp.check import check_servers
from holdfast.tools.mcp.naming import function_name
from holdfast.tools.mcp.servers import McpServers
from holdfast.tools.settings import McpSettings
from holdfast.tools.toolbox import GatewayTools
from tests.in_process import Item, ScriptedModel, called, open_gateway, said

SERVER = Path(__file__).with_name("odd_mcp_server.py")


def _settings(tmp_path: Path, **more: Any) -> McpSettings:
    more.setdefault("approval", "never")
    settings = McpSettings(
        name=more.pop("name", "odd"),
        command=sys.executable,
        args=(str(SERVER), str(tmp_path / "state")),
        **more,
    )
    return settings.filled({"PATH": os.environ["PATH"], "SHOWN": "yes", "HIDDEN": "no"})


def _caller(tenant: str = DEFAULT_TENANT, session: str = "ses_a") -> ToolCaller:
    return ToolCaller(
        tenant=Tenant(tenant),
        session=begin_session(SessionId(session), Tenant(tenant), now=0.0),
        turn_id=TurnId("turn_a"),
        source="user",
    )


@asynccontextmanager
async def _servers(*settings: McpSettings) -> AsyncIterator[McpServers]:
    servers = McpServers(settings)
    try:
        yield servers
    finally:
        await servers.close()


def _requested(**fields: Any) -> RequestedServer:
    """Return the server as a request names it."""
    tools = msgspec.json.encode([{"type": "mcp", "server_label": "odd", **fields}])
    read = read_tools(TurnRequest(model="m", api="responses", fields={"tools": msgspec.Raw(tools)}))
    assert read is not None
    return read.servers[0]


async def _tools(servers: McpServers, caller: ToolCaller | None = None) -> dict[str, Tool]:
    found, _ = await servers.tools(caller or _caller(), RequestedServer(label="odd"))
    return {tool.name: tool for tool in found}


def _state(tmp_path: Path) -> list[str]:
    path = tmp_path / "state"
    return path.read_text().splitlines() if path.exists() else []


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


async def test_a_server_starts_with_its_first_use_and_ends_with_the_gateway(
    tmp_path: Path,
) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        assert _state(tmp_path) == []
        assert [each.state for each in servers.status()] == ["idle"]
        tools = await _tools(servers)
        result = await servers.call(_caller(), tools["echo"], {"text": "hello"})
        assert (result.output, result.error) == ("hello", None)
        assert [each.state for each in servers.status()] == ["ready"]
        process = int(_state(tmp_path)[0].split()[1])
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


async def test_a_server_that_died_is_started_again(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        died = await servers.call(_caller(), tools["die"], {})
        assert died.error is not None
        assert "unknown" in died.error
        again = await servers.call(_caller(), tools["echo"], {"text": "back"})
        assert again.output == "back"
    assert [line for line in _state(tmp_path) if not line.startswith("started")] == ["die", "echo"]


async def test_a_server_gets_no_sampling_no_roots_and_no_words_of_the_user(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        asked = await servers.call(_caller(), tools["ask"], {})
    codes = json.loads(asked.output or "")
    assert set(codes) == {"sampling/createMessage", "elicitation/create", "roots/list"}
    assert all(isinstance(code, int) for code in codes.values()), codes


async def test_a_cancelled_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        call = asyncio.create_task(servers.call(_caller(), tools["slow"], {}))
        await _until(lambda: "slow" in _state(tmp_path))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await _until(lambda: "cancelled" in _state(tmp_path))
        # The connection is still good.
        assert (await servers.call(_caller(), tools["echo"], {"text": "x"})).output == "x"


async def test_a_line_without_an_end_ends_the_server_and_not_the_gateway(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        result = await servers.call(_caller(), tools["endless"], {})
        assert result.error is not None
        assert "sent a message of more than 16 MiB and was ended during the call" in result.error
        assert (await servers.call(_caller(), tools["echo"], {"text": "x"})).output == "x"


async def test_garbage_between_messages_is_skipped(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        assert (await servers.call(_caller(), tools["garbage"], {"text": "x"})).output == "x"


async def test_an_error_of_a_tool_is_its_result(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        assert (await servers.call(_caller(), tools["fail"], {})).error == "no such file"


async def test_a_list_that_changed_is_read_again(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        assert "grown" not in tools
        await servers.call(_caller(), tools["grow"], {})
        assert "grown" in await _tools(servers)


async def test_a_list_that_changed_while_it_was_read_is_read_again(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        await servers.call(_caller(), tools["grow_late"], {})
        assert "grown" not in await _tools(servers)
        assert "grown" in await _tools(servers)


async def test_names_are_plain_and_stay_apart(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        found, _ = await servers.tools(_caller(), RequestedServer(label="odd"))
    functions = [tool.function for tool in found]
    assert len(functions) == len(set(functions))
    assert all(0 < len(name) <= 64 for name in functions)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz_-0123456789") for name in functions)
    assert functions.count("odd__echo") == 1
    assert sum(name.startswith("odd__xxx") for name in functions) == 2
    assert not any("/" in name or "." in name for name in functions)


def test_a_changed_name_is_always_the_same() -> None:
    assert function_name("a", "b.c") == function_name("a", "b.c")
    assert function_name("a", "b.c") != function_name("a", "b_c")
    assert function_name("a", "b_c") == "a__b_c"


async def test_a_server_sees_only_the_variables_that_are_named(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path, env=("SHOWN",))) as servers:
        tools = await _tools(servers)
        result = await servers.call(_caller(), tools["env"], {})
    shown = json.loads(result.output or "")
    assert shown["SHOWN"] == "yes"
    assert "HIDDEN" not in shown
    assert "HOLDFAST_UPSTREAM_KEY" not in shown
    assert set(shown) <= {
        "SHOWN", "PATH", "HOME", "LANG", "TMPDIR", "LC_CTYPE", "HOLDFAST_STARTED_BY",
    }  # fmt: skip


async def test_tenants_share_no_server(tmp_path: Path) -> None:
    async with _servers(
        _settings(tmp_path), _settings(tmp_path, tenant="acme", allow=("echo",))
    ) as servers:
        assert servers.has(Tenant("acme"), "odd")
        assert not servers.has(Tenant("other"), "odd")
        assert await _tools(servers, _caller("other")) == {}
        assert list(await _tools(servers, _caller("acme"))) == ["echo"]
        assert "write" in await _tools(servers)
        await _until(lambda: len(_state(tmp_path)) == 2)
    assert all(line.startswith("started") for line in _state(tmp_path))


async def test_a_stateful_server_has_a_process_for_each_session(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path, per="session")) as servers:
        for session in ("ses_a", "ses_b", "ses_a"):
            assert await _tools(servers, _caller(session=session))
    assert len(_state(tmp_path)) == 2


async def test_a_server_that_does_not_start_is_tried_again_after_a_pause(tmp_path: Path) -> None:
    settings = McpSettings(name="odd", command=str(tmp_path / "missing"))
    async with _servers(settings) as servers:
        assert await _tools(servers) == {}
        assert await _tools(servers) == {}
        status = servers.status()[0]
    assert status.state == "failed"
    assert status.error is not None
    assert "missing" in status.error


@pytest.mark.parametrize(
    ("settings", "requested", "expected"),
    [
        ({"approval": "always"}, None, {"echo": True, "write": True}),
        ({"approval": "never"}, None, {"echo": False, "write": False}),
        ({"approval": "writes"}, None, {"echo": True, "write": True}),
        ({"approval": "writes", "read_only": ("echo",)}, None, {"echo": False, "write": True}),
        ({"approval": "writes", "trust_annotations": True}, None, {"echo": False, "write": True}),
        ({"approval": "never"}, "always", {"echo": True, "write": True}),
        ({"approval": "never"}, {"always": {"tool_names": ["write"]}},
         {"echo": False, "write": True}),
        ({"approval": "never", "read_only": ("write",)}, {"always": {"read_only": True}},
         {"echo": True, "write": True, "slow": False}),
        ({"approval": "never", "read_only": ("echo",)}, {"always": {"read_only": False}},
         {"echo": False, "write": True}),
        ({"approval": "always"}, {"never": {"tool_names": ["write"]}},
         {"echo": True, "write": True}),
    ],
)  # fmt: skip
async def test_a_request_may_ask_for_more_approvals_and_never_for_fewer(
    settings: dict[str, Any],
    requested: Any,
    expected: dict[str, bool],
    tmp_path: Path,
) -> None:
    async with _servers(_settings(tmp_path, **settings)) as servers:
        found, _ = await servers.tools(_caller(), _requested(require_approval=requested))
    needed = {tool.name: tool.needs_approval for tool in found if tool.name in expected}
    assert needed == expected


@pytest.mark.parametrize(
    ("settings", "allowed", "expected"),
    [
        ({}, None, {"echo", "write", "slow"}),
        ({}, ["write"], {"write"}),
        ({}, {"tool_names": ["write"]}, {"write"}),
        ({}, {"read_only": True}, set()),
        ({"trust_annotations": True}, {"read_only": True}, {"echo"}),
        ({"read_only": ("write",)}, {"read_only": True}, {"write"}),
        ({"read_only": ("write",)}, {"read_only": False, "tool_names": ["write", "slow"]},
         {"slow"}),
        ({"allow": ("write",)}, ["write", "slow"], {"write"}),
    ],
)  # fmt: skip
async def test_a_request_has_only_the_tools_that_it_allows(
    settings: dict[str, Any], allowed: Any, expected: set[str], tmp_path: Path
) -> None:
    async with _servers(_settings(tmp_path, **settings)) as servers:
        found, _ = await servers.tools(_caller(), _requested(allowed_tools=allowed))
    assert {tool.name for tool in found} & {"echo", "write", "slow"} == expected


async def test_hints_of_a_server_make_nothing_safe_unless_they_are_trusted(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        assert not (await _tools(servers))["echo"].is_repeatable
    async with _servers(_settings(tmp_path, trust_annotations=True)) as servers:
        tools = await _tools(servers)
        assert tools["echo"].is_repeatable
        assert not tools["write"].is_repeatable
    async with _servers(_settings(tmp_path, repeatable=("write",))) as servers:
        assert (await _tools(servers))["write"].is_repeatable


async def test_a_turn_uses_a_server_and_bounds_what_it_says(tmp_path: Path) -> None:
    servers = McpServers([_settings(tmp_path)])

    def build(gateway: Gateway) -> Toolbox:
        return GatewayTools(BuiltinTools(gateway), servers)

    def script(items: list[Item]) -> list[Item]:
        if items[-1].get("type", "").endswith("_output"):
            return [said("done")]
        return [called("odd__echo", "c1", '{"text":"hi"}'), called("odd__huge", "c2")]

    model = ScriptedModel(script)
    try:
        async with open_gateway(
            model, toolbox=build, tools=ToolSettings(output_bytes=1000)
        ) as gateway:
            tools = [{"type": "mcp", "server_label": "odd", "allowed_tools": ["echo", "huge"]}]
            answer = (await gateway.respond("go", tools=tools)).json()
    finally:
        await servers.close()
    assert [item["type"] for item in answer["output"]] == [
        "mcp_list_tools", "mcp_call", "mcp_call", "message",
    ]  # fmt: skip
    assert [tool["name"] for tool in answer["output"][0]["tools"]] == ["echo", "huge"]
    shown = json.loads(bytes(model.calls[0].fields["tools"]))
    assert [tool["name"] for tool in shown] == ["odd__echo", "odd__huge"]
    calls = [item for item in answer["output"] if item["type"] == "mcp_call"]
    assert calls[0]["output"] == "hi"
    assert calls[1]["output"].startswith("h" * 1000)
    assert "1000000 bytes" in calls[1]["output"]


async def test_a_malformed_tool_is_left_out_and_the_others_are_offered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = _settings(tmp_path)
    settings = replace(settings, args=(*settings.args, "malformed"))
    async with _servers(settings) as servers:
        for _ in range(2):
            tools = await _tools(servers)
        assert {"echo", "write", "slow"} <= set(tools)
        assert not {"schemaless", "text_schema"} & set(tools)
        result = await servers.call(_caller(), tools["echo"], {"text": "hi"})
        assert result.output == "hi"
        [status] = servers.status()
    assert status.state == "ready"
    assert status.left_out == ["(no name)", "schemaless", "text_schema"]
    logged = [vars(one)["tool"] for one in caplog.records if one.message == "tool.disabled"]
    assert [name for name in logged if name in status.left_out] == [
        "schemaless", "text_schema", "(no name)",
    ]  # fmt: skip
    [check] = await check_servers([settings])
    assert check.is_ok
    assert check.detail.endswith("left out, because malformed: schemaless, text_schema, (no name)")
