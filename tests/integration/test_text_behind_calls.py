"""Chat servers may stream text behind tool calls: it stays in the message that has the calls."""

from typing import Any

import pytest

from tests.integration.odd_server import Reply, odd_server, saying, whole
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway

Json = dict[str, Any]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
TEXTS = [("", "\n"), ("", "one moment"), ("I look.", "\n"), ("I look.", " One moment.")]
"""The text before and behind the calls."""


def _call(number: int) -> Json:
    function = {"name": "look", "arguments": f'{{"n":{number}}}'}
    return {"index": number, "id": f"call_{number}", "type": "function", "function": function}


def _answer(before: str, behind: str, count: int, *, is_stream: bool) -> Reply:
    calls = [_call(number) for number in range(count)]
    if not is_stream:
        told = {"role": "assistant", "content": before + behind, "tool_calls": calls}
        return {"choices": [{"index": 0, "message": told, "finish_reason": "tool_calls"}]}
    deltas: list[Json] = [
        *([{"content": before}] if before else []),
        *({"tool_calls": [call]} for call in calls),
        {"content": behind},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]


def _server(before: str, behind: str, count: int) -> Any:
    def say(path: str, body: Json) -> Reply:
        is_stream = bool(body.get("stream"))
        if body["messages"][-1]["role"] == "user" and "look" in str(body["messages"][-1]):
            return _answer(before, behind, count, is_stream=is_stream)
        told = {"role": "assistant", "content": "done"}
        if is_stream:
            return [{"choices": [{"index": 0, "delta": told, "finish_reason": "stop"}]}]
        return {"choices": [{"index": 0, "message": told, "finish_reason": "stop"}]}

    return odd_server(say)


def _said(chunks: Json) -> Json:
    """Return the message of a completion, put together as a client does from its chunks."""
    if "events" not in chunks:
        message: Json = chunks["choices"][0]["message"]
        return message
    content = ""
    calls: dict[int, Json] = {}
    for chunk in chunks["events"]:
        for choice in chunk["choices"]:
            content += choice["delta"].get("content") or ""
            for part in choice["delta"].get("tool_calls") or ():
                call = calls.setdefault(
                    part["index"], {"id": "", "function": {"name": "", "arguments": ""}}
                )
                call["id"] += part.get("id") or ""
                for name in ("name", "arguments"):
                    call["function"][name] += part["function"].get(name) or ""
    made = [{**call, "type": "function"} for call in calls.values()]
    return {
        "role": "assistant",
        "content": content or None,
        **({"tool_calls": made} if made else {}),
    }


async def _log(gateway: UpstreamGateway, view: str = "visible") -> list[str]:
    """Return the kinds of the items; words that only stand for others are left out."""
    [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
    query: dict[str, str | int] = {"view": view, "limit": 100}
    items = await gateway.client.get(f"/v1/sessions/{session['id']}/items", params=query)
    kinds = [entry.get("item", entry)["type"] for entry in items.json()["data"]]
    return [kind for kind in kinds if kind != "gateway_words"]


@pytest.mark.parametrize("is_stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("before", "behind"), TEXTS)
@pytest.mark.parametrize("way", ["new", "whole", "whole without blank text"])
async def test_text_and_calls_are_one_message_in_front_of_the_outputs(
    before: str, behind: str, count: int, way: str, *, is_stream: bool
) -> None:
    question = {"role": "user", "content": "please look"}
    async with (
        _server(before, behind, count) as server,
        open_upstream_gateway(server.upstream(api="chat")) as gateway,
    ):
        first = await gateway.chat([question], tools=TOOLS, stream=is_stream)
        said = _said(first)
        assert (said["content"] or "").strip() == (before + behind).strip()
        if way == "whole without blank text" and not said["content"].strip():
            said = {**said, "content": None}
        outputs = [
            {"role": "tool", "tool_call_id": call["id"], "content": call["function"]["arguments"]}
            for call in said["tool_calls"]
        ]
        history = [question, said, *outputs]
        told = outputs if way == "new" else history
        done = _said(await gateway.chat(told, tools=TOOLS, stream=is_stream))
        assert done["content"] == "done"
        roles = [message["role"] for message in server.asked[-1]["messages"]]
        assert roles == ["user", "assistant", *["tool"] * count]
        sent = server.asked[-1]["messages"][1]
        ids = [message["tool_call_id"] for message in server.asked[-1]["messages"][2:]]
        assert [call["id"] for call in sent["tool_calls"]] == ids
        assert len(ids) == count
        assert before.strip() in (sent["content"] or "")
        assert behind.strip() in (sent["content"] or "")
        log = await _log(gateway)
        assert log.count("function_call") == log.count("function_call_output") == count
        assert await _log(gateway, "log") == log
        more = [*history, done, {"role": "user", "content": "thanks"}]
        await gateway.chat(more if way != "new" else more[-1:], tools=TOOLS)
        assert server.asked[-1]["messages"][:-2] == server.asked[-2]["messages"]
        assert await _log(gateway, "log") == [*log, "message", "message"]


@pytest.mark.parametrize(("before", "behind"), TEXTS)
async def test_a_responses_client_sends_the_items_back_as_it_got_them(
    before: str, behind: str
) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    async with (
        _server(before, behind, 1) as server,
        open_upstream_gateway(server.upstream(api="chat")) as gateway,
    ):
        question = {"role": "user", "content": "please look"}
        first = await gateway.respond([question], tools=tools, stream=True)
        assert [item["type"] for item in first["output"]][-1] == "message"
        [call] = [item for item in first["output"] if item["type"] == "function_call"]
        output = {
            "type": "function_call_output", "call_id": call["call_id"], "output": "seen"
        }  # fmt: skip
        await gateway.respond([question, *first["output"], output], tools=tools)
        roles = [message["role"] for message in server.asked[-1]["messages"]]
        assert roles == ["user", "assistant", "tool"]
        assert await _log(gateway, "log") == await _log(gateway)


@pytest.mark.parametrize("shape", ["tct", "ctc", "tcct", "cttc", "bcb"])
async def test_equal_texts_and_equal_calls_of_one_answer_stay_where_they_are(shape: str) -> None:
    tools = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]
    texts = {"t": "I look.", "b": "\n"}

    def say(path: str, body: Json) -> Reply:
        if body["input"][-1].get("role") != "user":
            return whole(saying("done"))
        items = []
        for number, letter in enumerate(shape):
            call = {"type": "function_call", "name": "look", "arguments": "{}"}
            item = {**call, "call_id": f"call_{number}"} if letter == "c" else saying(texts[letter])
            items.append({**item, "id": f"item_{number}", "status": "completed"})
        return whole(*items)

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(api="responses")) as gateway,
    ):
        history: list[Json] = []
        for question in ("look here", "look there"):
            history.append({"role": "user", "content": question})
            history += (await gateway.respond(history, tools=tools))["output"]
            history += [
                {"type": "function_call_output", "call_id": item["call_id"], "output": "seen"}
                for item in history
                if item.get("type") == "function_call" and item in history[-len(shape) :]
            ]
            history += (await gateway.respond(history, tools=tools))["output"]
        assert len(await _log(gateway)) == len(history)
        assert await _log(gateway, "log") == await _log(gateway)


async def test_a_client_that_drops_the_calls_and_keeps_their_text_ends_the_wait() -> None:
    async with (
        _server("", "one moment", 1) as server,
        open_upstream_gateway(server.upstream(api="chat")) as gateway,
    ):
        question = {"role": "user", "content": "please look"}
        await gateway.chat([question], tools=TOOLS, stream=True)
        kept = {"role": "assistant", "content": "one moment"}
        await gateway.chat([question, kept, {"role": "user", "content": "never mind"}])
        [asked, told, *_] = server.asked[-1]["messages"]
        assert (asked["content"], told["content"]) == ("please look", "one moment")
