"""Connections to MCP servers that restart, hang, start slowly or answer with nonsense."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import psutil
import pytest

from holdfast.core.tools.requested import RequestedServer, RequestedTools
from holdfast.ports.tools import ToolResult
from holdfast.processes.process_table import kill_orphans
from holdfast.tools.builtin import BuiltinTools
from holdfast.tools.mcp import connection as module
from holdfast.tools.mcp import servers as servers_module
from holdfast.tools.mcp.connection import McpConnection
from holdfast.tools.mcp.servers import IDLE_SECONDS
from holdfast.tools.settings import McpSettings
from holdfast.tools.toolbox import GatewayTools
from tests.in_process import ScriptedModel, open_gateway, said
from tests.tools.http_mcp_server import HttpMcpServer
from tests.tools.test_mcp import _caller, _servers, _settings, _state, _tools, _until
from tests.tools.test_tool_loop import _events


def _http(server: HttpMcpServer) -> McpSettings:
    return McpSettings(name="odd", url=server.url, approval="never", start_seconds=60)


@pytest.fixture
def idle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each connection probed before each call."""
    monkeypatch.setattr(module, "PROBE_AFTER_SECONDS", -1.0)


async def _echo(connection: McpConnection, text: str) -> ToolResult:
    return await connection.call("echo", {"text": text})


async def test_a_call_runs_in_a_new_session_when_the_server_has_lost_the_old_one() -> None:
    async with HttpMcpServer() as server:
        connection = McpConnection(_http(server))
        try:
            assert (await _echo(connection, "one")).output == "one"
            server.forget()
            assert (await _echo(connection, "two")).output == "two"
        finally:
            await connection.close()
    assert server.methods.count("initialize") == 2


@pytest.mark.parametrize("has_sessions", [True, False], ids=["sessions", "no sessions"])
@pytest.mark.parametrize(
    "fault",
    [
        "dies", "500 HTML", "500 JSON", "504 of a proxy", "HTML", "202", "no JSON-RPC",
        "half a body", "a stream that ends", "a stream that breaks", "502 JSON of a proxy",
        "200 JSON of a proxy", "500 about no request", "500 with a stream",
        "a stream of other JSON",
    ],
)  # fmt: skip
async def test_a_call_whose_answer_is_lost_may_have_taken_effect(
    fault: str, has_sessions: bool
) -> None:
    async with HttpMcpServer(has_sessions=has_sessions) as server, asyncio.timeout(60):
        connection = McpConnection(_http(server))
        try:
            await _echo(connection, "one")
            server.fault = fault
            result = await _echo(connection, "two")
            server.fault = None
            assert (await _echo(connection, "three")).output == "three", "it is used again"
        finally:
            await connection.close()
    assert server.effects == 1
    assert result.error is not None
    assert "outcome of this call is unknown" in result.error
    assert "may have taken effect" in result.error
    assert "answered with an error" not in result.error


@pytest.mark.parametrize("has_sessions", [True, False], ids=["sessions", "no sessions"])
@pytest.mark.parametrize("answer", ["error", "error with 400", "error in a stream"])
async def test_an_error_that_the_server_itself_answers_is_the_outcome(
    answer: str, has_sessions: bool
) -> None:
    async with HttpMcpServer(has_sessions=has_sessions) as server, asyncio.timeout(60):
        connection = McpConnection(_http(server))
        try:
            await _echo(connection, "one")
            server.fault = answer
            result = await _echo(connection, "two")
        finally:
            await connection.close()
    assert result.error == "The server answered with an error: no account"


@pytest.mark.parametrize("has_sessions", [True, False], ids=["sessions", "no sessions"])
async def test_a_call_that_was_never_sent_says_so(has_sessions: bool) -> None:
    async with HttpMcpServer(has_sessions=has_sessions) as server, asyncio.timeout(60):
        connection = McpConnection(_http(server))
        try:
            await _echo(connection, "one")
            server.stop_listening()
            results = [await _echo(connection, text) for text in ("two", "three")]
        finally:
            await connection.close()
    for result in results:
        assert result.error is not None
        assert result.error.startswith("The call was not run: ")
        assert "unknown" not in result.error


async def test_a_call_to_a_host_that_is_not_found_says_that_it_was_not_run() -> None:
    connection = McpConnection(McpSettings(name="odd", url="http://nowhere.invalid/mcp"))
    try:
        result = await _echo(connection, "one")
    finally:
        await connection.close()
    assert result.error is not None
    assert result.error.startswith("The call was not run: ")


async def test_a_local_server_that_dies_during_a_call_may_have_done_it(tmp_path: Path) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        results = await asyncio.gather(
            *(servers.call(_caller(), tools[name], {}) for name in ("slow", "die"))
        )
    for result in results:
        assert result.error is not None
        assert "exited" in result.error or "ended" in result.error
        assert "may have taken effect" in result.error


@pytest.mark.parametrize("status", [400, 404])
async def test_a_server_that_has_lost_its_sessions_is_reached_again_after_a_pause(
    status: int, idle_at_once: None
) -> None:
    async with HttpMcpServer(lost_status=status) as server:
        connection = McpConnection(_http(server))
        try:
            await _echo(connection, "one")
            server.forget()
            assert (await _echo(connection, "two")).output == "two"
            server.forget()
            connection._listed_at = None
            assert [tool.name for tool in await connection.list_tools()] == ["echo"]
        finally:
            await connection.close()


async def test_a_server_without_ping_is_not_taken_for_dead(idle_at_once: None) -> None:
    async with HttpMcpServer(has_sessions=False) as server:
        connection = McpConnection(_http(server))
        try:
            for text in ("one", "two"):
                assert (await _echo(connection, text)).output == text
        finally:
            await connection.close()
    assert server.methods.count("server/discover") == 1
    assert "ping" not in server.methods


async def test_a_server_that_hangs_is_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.2)
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        call = asyncio.create_task(servers.call(_caller(), tools["hang"], {}))
        await _until(lambda: "hang" in _state(tmp_path))
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        again = await servers.call(_caller(), tools["echo"], {"text": "back"})
        assert again.output == "back"
    assert sum(line.startswith("started") for line in _state(tmp_path)) == 2


async def test_a_server_that_hangs_is_restarted_also_if_no_call_waits_for_its_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 1.0)
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        for name in ("hang", "echo"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(servers.call(_caller(), tools[name], {}), 0.5)
        await _until(lambda: sum(line.startswith("started") for line in _state(tmp_path)) == 2)
        assert (await servers.call(_caller(), tools["echo"], {"text": "back"})).output == "back"


async def test_a_server_is_not_restarted_while_another_call_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, idle_at_once: None
) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        call = asyncio.create_task(servers.call(_caller(), tools["hang"], {}))
        await _until(lambda: "hang" in _state(tmp_path))
        # Only now: a slow start of the call that hangs would be taken for a dead server.
        monkeypatch.setattr(module, "PROBE_SECONDS", 0.1)
        other = asyncio.create_task(servers.call(_caller(), tools["echo"], {}))
        done, _ = await asyncio.wait({call, other}, timeout=0.5)
        assert not done
        assert sum(line.startswith("started") for line in _state(tmp_path)) == 1
        for task in (call, other):
            task.cancel()
        await asyncio.gather(call, other, return_exceptions=True)


async def test_a_caller_that_leaves_does_not_stop_the_start_for_others(tmp_path: Path) -> None:
    settings = _settings(tmp_path, env=("SHOWN",))
    async with _servers(settings) as servers:
        first = asyncio.create_task(_tools(servers))
        await asyncio.sleep(0)
        second = asyncio.create_task(_tools(servers))
        await asyncio.sleep(0)
        first.cancel()
        assert "echo" in await second
        assert servers.status()[0].error is None
    assert sum(line.startswith("started") for line in _state(tmp_path)) == 1


@pytest.mark.parametrize(
    ("name", "shown"), [("surrogate", "a?b"), ("latin", "caf\ufffd"), ("invalid", None)]
)
async def test_an_answer_that_cannot_be_read_is_not_waited_for(
    name: str, shown: str | None, tmp_path: Path
) -> None:
    async with _servers(_settings(tmp_path)) as servers:
        tools = await _tools(servers)
        async with asyncio.timeout(60):
            result = await servers.call(_caller(), tools[name], {})
        assert result.output == shown
        if shown is None:
            assert result.error is not None
            assert "invalid answer" in result.error


async def test_servers_that_do_not_start_are_waited_for_side_by_side(tmp_path: Path) -> None:
    # Each one ends without an answer as soon as all of them have been started.
    mark = tmp_path / "mark"
    script = f'echo >> "{mark}"; until [ $(wc -l < "{mark}") = 3 ]; do sleep 0.05; done'
    settings = [
        McpSettings(name=f"dead{n}", command="/bin/sh", args=("-c", script), start_seconds=600)
        for n in range(3)
    ]
    async with (
        open_gateway(ScriptedModel(lambda _: [said("x")])) as gateway,
        _servers(*settings) as servers,
    ):
        toolbox = GatewayTools(BuiltinTools(gateway.engine), servers)
        labels = tuple(RequestedServer(label=each.name) for each in settings)
        async with asyncio.timeout(60):
            found = await toolbox.open(_caller(), RequestedTools(servers=labels))
        assert [(each.label, bool(each.error)) for each in found.servers] == [
            ("dead0", True), ("dead1", True), ("dead2", True),
        ]  # fmt: skip


async def test_a_connection_in_use_is_not_closed_to_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers_module, "MAX_SESSION_CONNECTIONS", 1)
    async with _servers(_settings(tmp_path, per="session")) as servers:
        tools = await _tools(servers, _caller(session="ses_a"))
        call = asyncio.create_task(servers.call(_caller(session="ses_a"), tools["slow"], {}))
        await _until(lambda: "slow" in _state(tmp_path))
        await _tools(servers, _caller(session="ses_b"))
        await _tools(servers, _caller(session="ses_c"))
        assert not call.done()
        sessions = {key[2] for key in servers._connections}
        assert sessions == {"ses_a", "ses_c"}
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_an_idle_connection_of_a_session_is_closed_when_another_one_opens(
    tmp_path: Path,
) -> None:
    async with _servers(_settings(tmp_path, per="session")) as servers:
        await _tools(servers, _caller(session="ses_a"))
        await _tools(servers, _caller(session="ses_b"))
        first, second = (int(line.split()[1]) for line in _state(tmp_path))
        servers._connections["default", "odd", "ses_a"].last_used -= IDLE_SECONDS
        await _tools(servers, _caller(session="ses_c"))
        assert {key[2] for key in servers._connections} == {"ses_b", "ses_c"}
        assert not psutil.pid_exists(first)
        assert psutil.pid_exists(second)


async def test_a_stream_says_that_a_server_is_not_there(tmp_path: Path) -> None:
    settings = McpSettings(name="odd", command=str(tmp_path / "missing"))
    async with (
        _servers(settings) as servers,
        open_gateway(
            ScriptedModel(lambda _: [said("done")]),
            toolbox=lambda engine: GatewayTools(BuiltinTools(engine), servers),
        ) as gateway,
    ):
        tools = [{"type": "mcp", "server_label": "odd"}]
        events = await _events(gateway, tools=tools)
    named = [event["type"] for event in events if "mcp" in event["type"]]
    assert named == ["response.mcp_list_tools.in_progress", "response.mcp_list_tools.failed"]
    listed = events[-1]["response"]["output"][0]
    assert (listed["type"], listed["tools"]) == ("mcp_list_tools", [])
    assert listed["error"] == "the server odd is not available"


def _start_server(command: str, *arguments: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start a process that runs an MCP server, as a gateway does; return both."""
    script = textwrap.dedent(
        f"""
        import asyncio
        from holdfast.tools.mcp.stdio import ServerProcess, open_process
        from holdfast.tools.settings import McpSettings

        async def main():
            settings = McpSettings(name="odd", command={command!r}, args={arguments!r})
            async with open_process(settings, ServerProcess()):
                print("started", flush=True)
                await asyncio.sleep(600)

        asyncio.run(main())
        """
    )
    gateway = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert gateway.stdout is not None
    assert gateway.stdout.readline() == "started\n"
    (server,) = psutil.Process(gateway.pid).children()
    return gateway, server


def test_a_server_that_reads_nothing_dies_with_its_gateway() -> None:
    gateway, server = _start_server("/bin/sleep", "600")
    gateway.send_signal(signal.SIGKILL)
    gateway.communicate()
    _, alive = psutil.wait_procs([server], timeout=20)
    for process in alive:
        process.kill()
    assert not alive


def test_what_a_hung_server_started_is_ended_when_a_gateway_starts() -> None:
    command = "sleep 600 <&- & setsid sleep 600 <&- & wait"
    gateway, server = _start_server("/bin/sh", "-c", command)
    children: list[psutil.Process] = []
    while sum(child.name() == "sleep" for child in children) < 2:
        children = server.children(recursive=True)
    (orphan,) = [child for child in children if os.getsid(child.pid) == server.pid]
    (daemon,) = [child for child in children if child != orphan]
    try:
        kill_orphans()
        assert orphan.is_running(), "its gateway lives"
        gateway.send_signal(signal.SIGKILL)
        gateway.communicate()
        psutil.wait_procs([server], timeout=20)
        kill_orphans()
        _, alive = psutil.wait_procs([orphan], timeout=20)
        assert not alive
        assert daemon.is_running(), "it was meant to stay"
    finally:
        for process in (orphan, daemon):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


async def test_a_tool_whose_name_is_taken_is_logged_once_until_it_is_offered_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def function(name: str) -> msgspec.Raw:
        return msgspec.Raw(msgspec.json.encode({"type": "function", "name": name}))

    async with open_gateway() as gateway:
        tools = GatewayTools(BuiltinTools(gateway.engine))
        name = tools.builtin.tool("session_status").function
        free = RequestedTools(builtins=("session_status",))
        taken = RequestedTools(builtins=("session_status",), others=(function(name),))
        for requested in (taken, taken, free, taken, taken):
            await tools.open(_caller(), requested)
    assert [one.getMessage() for one in caplog.records].count("tool.disabled") == 2
