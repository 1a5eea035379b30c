"""Arguments of a tool call that are no JSON object do not stop a session.

The upstreams here answer such a history as Ollama (400) and llama.cpp (500) do.
"""

import json
from typing import Any

import pytest
from aiohttp import web

from tests.integration.odd_server import Reply, odd_server, saying, whole
from tests.integration.test_heals import QUICK
from tests.integration.upstream_gateway import open_upstream_gateway, text_of

Json = dict[str, Any]
CUT = '{"path": "notes.txt", "text": "Once up'
TOOLS = [{"type": "function", "name": "write", "parameters": {"type": "object", "properties": {}}}]
CALL = {"id": "fc_1", "type": "function_call", "call_id": "call_1", "name": "write",
        "arguments": CUT, "status": "completed"}  # fmt: skip
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": "The text is cut off."}


def _sent_arguments(body: Json) -> list[str]:
    """Return the arguments of all calls in a request."""
    calls = [call for one in body.get("messages", ()) for call in one.get("tool_calls") or ()]
    items = [one for one in body.get("input", ()) if one.get("type") == "function_call"]
    return [call["function"]["arguments"] for call in calls] + [one["arguments"] for one in items]


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _small_server(status: int, *, is_stream: bool) -> Any:
    """Return a server whose model writes cut arguments, and which refuses to read them again."""

    def say(path: str, body: Json) -> Reply:
        written = _sent_arguments(body)
        if not all(map(_is_object, written)):
            error = {"message": "Value looks like object, but can't find closing '}' symbol"}
            return web.json_response({"error": error}, status=status)
        is_chat = path == "/chat/completions"
        if written:
            return (
                _chat_text("done", is_stream) if is_chat else _responses(saying("done"), is_stream)
            )
        return _chat_call(is_stream) if is_chat else _responses(CALL, is_stream)

    return say


def _chat_text(text: str, is_stream: bool) -> Reply:
    said = {"role": "assistant", "content": text}
    return _completion(said, "stop", is_stream)


def _chat_call(is_stream: bool) -> Reply:
    function = {"name": "write", "arguments": CUT}
    call = {"id": "call_1", "type": "function", "index": 0, "function": function}
    return _completion({"role": "assistant", "tool_calls": [call]}, "tool_calls", is_stream)


def _completion(said: Json, reason: str, is_stream: bool) -> Reply:
    if is_stream:
        return [{"choices": [{"index": 0, "delta": said, "finish_reason": reason}]}]
    return {"choices": [{"index": 0, "message": said, "finish_reason": reason}]}


def _responses(item: Json, is_stream: bool) -> Reply:
    if not is_stream:
        return whole(item)
    return [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole(item)},
    ]


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_session_goes_on_after_arguments_that_were_cut_off(
    api: str, is_stream: bool, status: int
) -> None:
    async with (
        odd_server(_small_server(status, is_stream=is_stream)) as server,
        open_upstream_gateway(server.upstream(api=api), heals=QUICK) as gateway,
    ):
        asked = await gateway.respond("write it", tools=TOOLS, stream=is_stream)
        # The client and the log have what the model wrote.
        assert [one["arguments"] for one in asked["output"]] == [CUT]
        output = {**OUTPUT, "call_id": asked["output"][0]["call_id"]}
        answer = await gateway.respond([output], tools=TOOLS, stream=is_stream)
        assert text_of(answer) == "done"
        # The model is shown what it wrote, in an object.
        [sent] = _sent_arguments(server.asked[-1])
        assert json.loads(sent) == {"malformed_arguments": CUT}
        assert len(server.asked) == 2
        listed = (await gateway.client.get("/v1/sessions?key=k")).json()["data"]
        path = f"/v1/sessions/{listed[0]['id']}/items"
        items = (await gateway.client.get(path)).json()["data"]
        assert [one["arguments"] for one in items if one["type"] == "function_call"] == [CUT]


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_history_of_the_client_goes_through_with_malformed_arguments(api: str) -> None:
    say = _small_server(400, is_stream=False)
    history = [{"role": "user", "content": "write it"}, CALL, OUTPUT]
    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(api=api), heals=QUICK) as gateway,
    ):
        for key in ("k", None):
            assert text_of(await gateway.respond(history, key, tools=TOOLS)) == "done"
