"""The built-in tools, asked by a model in a turn."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response
from openai.types.responses.tool import Mcp

from holdfast.core.search.item_text import item_text
from holdfast.engine.maintenance.search_indexer import SearchIndexer
from holdfast.engine.sessions.gateway import Gateway
from holdfast.ports.tools import Toolbox
from holdfast.tools.builtin import BuiltinTools
from holdfast.tools.memory import SessionMemory
from holdfast.tools.scope import Scope
from holdfast.tools.toolbox import GatewayTools
from tests.in_process import Item, RunningGateway, ScriptedModel, called, open_gateway, said


def _builtin(scope: Scope = "key") -> Any:
    def build(gateway: Gateway) -> Toolbox:
        return GatewayTools(BuiltinTools(gateway, scope=scope, windows=lambda _: 1000))

    return build


def _asking(name: str, **arguments: Any) -> ScriptedModel:
    """Return a model that calls a tool whenever it is asked to look, and else answers."""

    def script(items: list[Item]) -> list[Item]:
        if items[-1].get("type", "message") == "message" and "look" in str(items[-1]["content"]):
            return [called(name, "c1", json.dumps(arguments))]
        return [said("fine")]

    return ScriptedModel(script)


async def _look(gateway: RunningGateway, name: str, key: str = "k") -> dict[str, Any]:
    """Have the model call a tool; return what the tool said."""
    tools = [{"type": "holdfast", "name": name}]
    answer = (await gateway.respond("look", key, tools=tools)).json()
    call = answer["output"][0]
    assert call["type"] == "mcp_call", answer
    assert call["server_label"] == "holdfast"
    return json.loads(call["output"]) if call["output"] else {"error": call["error"]}


async def test_the_status_of_a_session_has_its_real_numbers() -> None:
    async with open_gateway(_asking("session_status"), toolbox=_builtin()) as gateway:
        await gateway.respond("hello")
        status = await _look(gateway, "session_status")
        session = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
    assert status["session_id"] == session["id"]
    assert (status["generation"], status["status"], status["queued_turns"]) == (1, "running", 0)
    assert status["turns"] == 2
    assert status["context"]["window"] == 1000
    assert 0 < status["context"]["tokens"] < 1000
    assert status["context"]["share"] == round(status["context"]["tokens"] / 1000, 3)
    # One item in and one out; the call that asks has used one more of each by now.
    assert status["usage"]["input_tokens"] == 1 + 3
    assert status["usage"]["output_tokens"] == 2
    assert status["last_heal"] is None


async def test_sessions_are_listed_by_key_with_all_generations() -> None:
    async with open_gateway(_asking("sessions_list"), toolbox=_builtin()) as gateway:
        await gateway.respond("hello")
        await gateway.respond("hello", "other")
        first = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        await gateway.client.post(f"/v1/sessions/{first['id']}/reset", json={})
        found = (await _look(gateway, "sessions_list"))["sessions"]
    assert {session["key"] for session in found} == {"k"}
    assert sorted(session["generation"] for session in found) == [1, 2]
    assert [session["is_this"] for session in found if session["generation"] == 2] == [True]


async def test_the_history_of_an_earlier_generation_can_be_read() -> None:
    model = _asking("sessions_history")
    async with open_gateway(model, toolbox=_builtin()) as gateway:
        await gateway.respond("my cat is Tom")
        first = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        await gateway.client.post(f"/v1/sessions/{first['id']}/reset", json={})
        model.script = _asking("sessions_history", session_id=first["id"]).script
        found = await _look(gateway, "sessions_history")
    assert [item["text"] for item in found["items"]] == ["my cat is Tom", "fine"]
    assert [item["role"] for item in found["items"]] == ["user", "assistant"]


async def test_a_tool_never_shows_the_session_of_another_key() -> None:
    model = _asking("sessions_history")
    async with open_gateway(model, toolbox=_builtin()) as gateway:
        await gateway.respond("secret of another", "other")
        other = (await gateway.client.get("/v1/sessions?key=other")).json()["data"][0]
        model.script = _asking("sessions_history", session_id=other["id"]).script
        found = await _look(gateway, "sessions_history")
        unknown = _asking("sessions_history", session_id="ses_unknown").script
        model.script = unknown
        absent = await _look(gateway, "sessions_history")
    # A session that may not be seen looks like one that does not exist.
    assert found["error"] == f"there is no session {other['id']}"
    assert absent["error"] == "there is no session ses_unknown"


async def test_the_operator_may_widen_the_scope_to_an_agent() -> None:
    model = _asking("sessions_list")
    async with open_gateway(model, toolbox=_builtin("agent")) as gateway:
        await gateway.respond("hello", "agent:main:direct:ann")
        await gateway.respond("hello", "agent:other:direct:bob")
        found = (await _look(gateway, "sessions_list", "agent:main:direct:michael"))["sessions"]
    assert {session["key"] for session in found} == {
        "agent:main:direct:ann",
        "agent:main:direct:michael",
    }


async def test_the_model_gets_an_error_for_bad_arguments() -> None:
    model = _asking("sessions_list", limit="many")
    async with open_gateway(model, toolbox=_builtin()) as gateway:
        found = await _look(gateway, "sessions_list")
    assert found["error"] == "limit must be a positive whole number"


async def test_an_unknown_built_in_tool_is_refused_before_the_turn() -> None:
    async with open_gateway(toolbox=_builtin()) as gateway:
        reply = await gateway.respond("hi", tools=[{"type": "holdfast", "name": "nope"}])
        listed = (await gateway.client.get("/v1/sessions?key=k")).json()["data"]
    assert reply.status_code == 400
    assert "session_status" in reply.json()["error"]["message"]
    assert not listed


async def test_openais_client_reads_built_in_tools_as_those_of_a_server() -> None:
    function = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
    names = ["session_status", "sessions_list"]
    sent = [
        {"type": "holdfast", "name": names[0]},
        function,
        {"type": "holdfast", "name": names[1]},
    ]
    async with open_gateway(_asking("sessions_list"), toolbox=_builtin()) as gateway:
        answer = (await gateway.respond("hi", tools=sent)).json()
        # A client may send what it was shown.
        again = (await gateway.respond("look", tools=answer["tools"])).json()
        everything = [{"type": "mcp", "server_label": "holdfast"}]
        whole = (await gateway.respond("look", tools=everything)).json()
    server, mine = Response.model_validate({**answer, "output": []}).tools
    assert isinstance(server, Mcp)
    assert (server.server_label, server.allowed_tools) == ("holdfast", names)
    assert mine.type == "function"
    assert again["tools"] == answer["tools"]
    assert whole["tools"] == everything
    for turn in (again, whole):
        assert [item["type"] for item in turn["output"]] == ["mcp_call", "message"]
        assert turn["output"][0]["error"] is None


@pytest.mark.parametrize("is_stream", [False, True])
async def test_fields_that_a_server_does_not_have_leave_its_session_usable(
    *, is_stream: bool
) -> None:
    server = {"type": "mcp", "server_label": "holdfast", "name": 5}
    sent = [server, {"type": "holdfast", "name": "sessions_list"}]
    async with open_gateway(toolbox=_builtin()) as gateway:
        reply = await gateway.respond("hi", tools=sent, stream=is_stream)
        assert reply.status_code == 200, reply.text
        assert (await gateway.respond("again")).status_code == 200


async def test_an_unknown_server_is_refused_before_the_turn() -> None:
    async with open_gateway(toolbox=_builtin()) as gateway:
        reply = await gateway.respond("hi", tools=[{"type": "mcp", "server_label": "nope"}])
    assert reply.status_code == 400
    assert "'nope'" in reply.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"allowed_tools": "all"}, "allowed_tools"),
        ({"allowed_tools": {"read_only": "yes"}}, "allowed_tools.read_only"),
        ({"require_approval": {"always": 5}}, "require_approval.always"),
        ({"require_approval": {"always": {"tool_names": "x"}}}, "require_approval.always"),
        ({"require_approval": {"always": {"read_only": 1}}}, "require_approval.always.read_only"),
    ],
)
async def test_a_filter_of_tools_that_cannot_be_read_is_refused(
    fields: dict[str, Any], param: str
) -> None:
    async with open_gateway(toolbox=_builtin()) as gateway:
        tool = {"type": "mcp", "server_label": "holdfast", **fields}
        reply = await gateway.respond("hi", tools=[tool])
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == f"tools[0].{param}"


@pytest.mark.parametrize("allowed", [[], {"read_only": False}])
async def test_a_server_of_which_no_tool_is_allowed_is_not_shown_to_the_upstream(
    allowed: Any,
) -> None:
    model = ScriptedModel(lambda _: [said("done")])
    async with open_gateway(model, toolbox=_builtin()) as gateway:
        tool = {"type": "mcp", "server_label": "holdfast", "allowed_tools": allowed}
        assert (await gateway.respond("hi", tools=[tool])).status_code == 200
    assert "tools" not in model.calls[0].fields


async def test_a_name_that_the_client_has_taken_stays_the_clients() -> None:
    function = {"type": "function", "name": "session_status", "parameters": {"type": "object"}}
    model = ScriptedModel(lambda _: [called("session_status", "c1")])
    async with open_gateway(model, toolbox=_builtin()) as gateway:
        tools = [function, {"type": "holdfast", "name": "session_status"}]
        answer = (await gateway.respond("hi", tools=tools)).json()
    assert [item["type"] for item in answer["output"]] == ["function_call"]


async def test_memory_finds_what_was_said_in_earlier_generations_of_the_key(
    tmp_path: Path,
) -> None:
    model = _asking("memory_search", query="cat")

    def build(gateway: Gateway) -> Toolbox:
        return GatewayTools(BuiltinTools(gateway, search=SessionMemory(gateway)))

    store_url = f"sqlite:///{tmp_path / 'memory.db'}"
    async with open_gateway(model, store_url=store_url, toolbox=build) as gateway:
        await gateway.respond("my cat is Tom")
        await gateway.respond("my cat is a secret", "other")
        first = (await gateway.client.get("/v1/sessions?key=k")).json()["data"][0]
        await gateway.client.post(f"/v1/sessions/{first['id']}/reset", json={})
        await SearchIndexer(gateway.engine).catch_up()
        found = await _look(gateway, "memory_search")
        (match,) = found["matches"]
        assert (match["session_id"], match["generation"]) == (first["id"], 1)
        assert "cat" in match["text"]
        where = {"session_id": match["session_id"], "sequence": match["sequence"]}
        model.script = _asking("memory_get", **where).script
        around = await _look(gateway, "memory_get")
    assert [item["text"] for item in around["items"]] == ["my cat is Tom", "fine"]


async def test_an_internal_turn_acts_for_the_session_of_its_key(tmp_path: Path) -> None:
    model = _asking("memory_search", query="cat")

    def build(gateway: Gateway) -> Toolbox:
        return GatewayTools(BuiltinTools(gateway, search=SessionMemory(gateway)))

    headers = {"X-Session-Internal": "true"}
    store_url = f"sqlite:///{tmp_path / 'memory.db'}"
    async with open_gateway(model, store_url=store_url, toolbox=build) as gateway:
        await gateway.respond("my cat is Tom")
        await gateway.respond("my cat is a secret", "other")
        await SearchIndexer(gateway.engine).catch_up()
        tools = [{"type": "holdfast", "name": "memory_search"}]
        answer = (await gateway.respond("look", tools=tools, headers=headers)).json()
        found = json.loads(answer["output"][0]["output"])
        assert [match["text"] for match in found["matches"]] == ["my cat is Tom"]
        model.script = _asking("session_status").script
        tools = [{"type": "holdfast", "name": "session_status"}]
        answer = (await gateway.respond("look", tools=tools, headers=headers)).json()
        assert json.loads(answer["output"][0]["output"])["key"] == "k"


async def test_the_history_shows_calls_as_clients_see_them() -> None:
    async with open_gateway(_asking("sessions_history"), toolbox=_builtin()) as gateway:
        await _look(gateway, "sessions_history")
        shown = await _look(gateway, "sessions_history")
    kinds = [item["type"] for item in shown["items"]]
    assert kinds == ["message", "mcp_call", "message", "message"]
    assert shown["items"][1]["name"] == "sessions_history"


def test_calls_of_the_gateways_tools_and_their_errors_are_indexed() -> None:
    call = {"type": "gateway_call", "name": "book", "arguments": '{"flight":"LH1"}'}
    failed = {"type": "gateway_call_output", "error": "no seats left"}
    assert item_text(json.dumps(call).encode()) == ("tool", 'book {"flight":"LH1"}')
    assert item_text(json.dumps(failed).encode()) == ("tool", "no seats left")


@pytest.mark.parametrize(
    ("sent", "allowed"),
    [
        ({}, None),
        ({"allowed_tools": ["session_status"]}, ["session_status", "sessions_list"]),
        ({"allowed_tools": {"tool_names": ["sessions_list"]}}, ["sessions_list"]),
    ],
)
async def test_the_server_of_built_in_tools_is_shown_once(
    sent: dict[str, Any], allowed: list[str] | None
) -> None:
    """An upstream's own `tools` are added to those of the request."""
    server = {"type": "mcp", "server_label": "holdfast", "require_approval": "never", **sent}
    tools = [server, {"type": "holdfast", "name": "sessions_list"}]
    async with open_gateway(toolbox=_builtin()) as gateway:
        answer = (await gateway.respond("hi", tools=tools)).json()
    (shown,) = answer["tools"]
    assert shown["server_label"] == "holdfast"
    assert shown.get("allowed_tools") == allowed
