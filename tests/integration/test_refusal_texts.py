"""No words of a provider make a session fail for ever.

The upstreams here fail every request that contains one item, in every way and with texts that real
providers send, changed at random. The session must go on without that item.
"""

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

from holdfast.engine.settings import HealSettings
from holdfast.providers.errors import names_item
from tests.integration.odd_server import OddServer, Reply, odd_server, saying, whole
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, read

Json = dict[str, Any]
TEXTS: list[str] = json.loads(
    (Path(__file__).parent / "data" / "provider_error_texts.json").read_text()
)
MARK = "c29tZXRoaW5nIHJlZnVzZWQ"
SESSIONS = 100
HEALS = HealSettings(transient_retries=1, first_pause_seconds=0.0001, busy_wait_seconds=0.001)
STATUSES = (400, 413, 415, 422, 500)
PLACES = ("text", "image", "file", "output", "instructions", "history", "long")
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


class Way(msgspec.Struct, frozen=True):
    """How an upstream fails, and over what."""

    place: str
    kind: str
    """`status`, `error` (in a body or stream of status 200), `late` (after output), `nothing`."""
    status: int
    error: Any
    form: str = "openai"


def _mutated(text: str, dice: random.Random) -> str:
    words = text.split(" ")
    match dice.randrange(6):
        case 0:
            dice.shuffle(words)
        case 1:
            words = words[: dice.randrange(len(words) + 1)]
        case 2:
            words += dice.choice(TEXTS).split(" ")
        case 3:
            words.insert(dice.randrange(len(words) + 1), dice.choice(_WORDS))
        case _:
            pass
    return " ".join(words)


_WORDS = [
    "model", "image", "file", "input[0]", "messages.1", "schema", "context", "tokens", "\0", "é",
    "reasoning", "policy", "'hello'", "conversation", "previous_response",
]  # fmt: skip


def _way(dice: random.Random, *, is_stream: bool) -> Way:
    text = _mutated(dice.choice(TEXTS), dice)
    error: Any = {"message": text, "type": dice.choice(["invalid_request_error", "x", None])}
    code = dice.choice([None, None, "invalid_value", "unknown", "invalid_image", "400", 400])
    error |= {"code": code, "param": dice.choice([None, None, "input", "model", "temperature"])}
    kinds = ["status", "status", "error", "nothing", *(["late"] * 2 if is_stream else [])]
    forms = ["openai", "openai", "detail", "plain", "list"]
    return Way(dice.choice(PLACES), dice.choice(kinds), dice.choice(STATUSES), error,
               dice.choice(forms))  # fmt: skip


def _failure(way: Way, *, is_chat: bool, is_stream: bool) -> Reply:
    text = way.error["message"]
    if way.kind == "nothing":
        bodies = ["", "null", "{}", '{"detail":"Not Found"}', "[]", text, '{"object":"error"}']
        body = bodies[len(text) % len(bodies)]
        return web.Response(text=body, content_type="application/json")
    if way.kind == "status":
        bodies_of: dict[str, Any] = {
            "openai": {"error": way.error}, "detail": {"detail": text}, "plain": text,
            "list": [{"error": {"message": text, "code": way.status, "status": "X"}}],
        }  # fmt: skip
        body = bodies_of[way.form]
        written = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=written, status=way.status)
    failed: Json = {"error": way.error} if is_chat else {"type": "error", "error": way.error}
    if not is_stream:
        return {"error": way.error} if is_chat else whole(status="failed", error=way.error)
    return [*(_begun(is_chat=is_chat) if way.kind == "late" else []), failed]


def _begun(*, is_chat: bool) -> list[Json]:
    if is_chat:
        return [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": "I th"}}]}]
    item = {"id": "m1", "type": "message", "role": "assistant", "content": []}
    at = {"output_index": 0, "item_id": "m1", "content_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_text.delta", **at, "delta": "I th"},
    ]


def _success(text: str, *, is_chat: bool, is_stream: bool) -> Reply:
    if not is_chat:
        response = whole(saying(text))
        return [{"type": "response.completed", "response": response}] if is_stream else response
    part = "delta" if is_stream else "message"
    choice = {"index": 0, part: {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return [{"choices": [choice]}] if is_stream else {"choices": [choice]}


@asynccontextmanager
async def _opened(
    api: str, ways: list[Way], *, is_stream: bool
) -> AsyncIterator[tuple[OddServer, UpstreamGateway]]:
    """Run a gateway with an upstream that refuses marked items; the mark names the way."""

    def say(path: str, body: Json) -> Reply:
        is_chat, sent = path == "/chat/completions", json.dumps(body)
        if MARK in sent:
            way = ways[int(sent.split(MARK)[1][:4])]
            return _failure(way, is_chat=is_chat, is_stream=is_stream)
        if "use the tool" in sent and '"call_id"' not in sent and '"tool_calls"' not in sent:
            return _called(is_chat=is_chat, is_stream=is_stream)
        return _success("fine", is_chat=is_chat, is_stream=is_stream)

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(api=api), heals=HEALS) as gateway,
    ):
        yield server, gateway


def _called(*, is_chat: bool, is_stream: bool) -> Reply:
    if not is_chat:
        item = {"id": "fc_1", "type": "function_call", "call_id": "call_1",
                "name": "look", "arguments": "{}", "status": "completed"}  # fmt: skip
        response = whole(item)
        return [{"type": "response.completed", "response": response}] if is_stream else response
    call = {"id": "call_1", "type": "function", "index": 0,
            "function": {"name": "look", "arguments": "{}"}}  # fmt: skip
    part = "delta" if is_stream else "message"
    said = {"role": "assistant", "tool_calls": [call]}
    choice = {"index": 0, part: said, "finish_reason": "tool_calls"}
    return [{"choices": [choice]}] if is_stream else {"choices": [choice]}


async def _ask(gateway: UpstreamGateway, key: str, given: Any, *, is_stream: bool) -> Json | None:
    """Return the response to an input, or None if it failed."""
    answer = await gateway.post("/v1/responses", key, input=given, tools=TOOLS, stream=is_stream)
    if answer.status_code != 200:
        assert answer.status_code < 600
        return None
    response = read(answer)
    return response if response["status"] == "completed" else None


def _user(*content: Json | str) -> Json:
    parts = [{"type": "input_text", "text": p} if isinstance(p, str) else p for p in content]
    return {"role": "user", "content": parts}


async def _refused_input(gateway: UpstreamGateway, key: str, way: Way, mark: str) -> list[Json]:
    match way.place:
        case "image":
            url = f"data:image/png;base64,{mark}"
            return [_user("look", {"type": "input_image", "image_url": url, "detail": "auto"})]
        case "file":
            data = f"data:application/pdf;base64,{mark}"
            return [_user("read", {"type": "input_file", "filename": "a.pdf", "file_data": data})]
        case "instructions":
            return [{"role": "system", "content": mark}, _user("hi")]
        case "history":
            return [_user(mark), {"role": "assistant", "content": "ok"}, _user("hi")]
        case "long":
            return [_user("word " * 2000 + mark)]
        case _:
            return [_user(mark)]


async def _use_tool(gateway: UpstreamGateway, key: str, mark: str, *, is_stream: bool) -> None:
    """Let the model call a tool, and return an output that is refused."""
    asked = await _ask(gateway, key, [_user("use the tool")], is_stream=is_stream)
    assert asked is not None
    call_id = asked["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": mark}
    await _ask(gateway, key, [output], is_stream=is_stream)


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
async def test_no_words_of_a_provider_make_a_session_fail_for_ever(
    api: str, is_stream: bool
) -> None:
    dice = random.Random(f"{api} {is_stream}")
    ways = [_way(dice, is_stream=is_stream) for _ in range(SESSIONS)]
    async with _opened(api, ways, is_stream=is_stream) as (server, gateway):
        for number, way in enumerate(ways):
            key, mark = f"k{number}", f"{MARK}{number:04}"
            assert await _ask(gateway, key, [_user("hello there")], is_stream=is_stream), way
            if way.place == "output":
                await _use_tool(gateway, key, mark, is_stream=is_stream)
            else:
                refused = await _refused_input(gateway, key, way, mark)
                await _ask(gateway, key, refused, is_stream=is_stream)
            # A failure in the middle of a stream must have occurred twice before it is healed.
            failed = 0
            while not await _ask(gateway, key, [_user(f"on {failed}")], is_stream=is_stream):
                failed += 1
                assert failed < 3, way
            assert failed <= (1 if way.kind == "late" else 0), way
            assert await _ask(gateway, key, [_user("and on")], is_stream=is_stream), way
            # What models have answered is still sent, unless the client replaced it, or the text
            # names a place.
            if way.place != "history" and names_item(None, way.error["message"]) is None:
                assert "hello there" in json.dumps(server.asked[-1]), way


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_server_that_fails_whatever_is_sent_costs_one_extra_call_and_hides_nothing(
    api: str,
) -> None:
    def say(path: str, body: Json) -> Reply:
        return web.json_response({"error": {"message": "No."}}, status=400)

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(api=api), heals=HEALS) as gateway,
    ):
        for text in ("one", "two", "three"):
            assert await _ask(gateway, "k", [_user(text)], is_stream=False) is None
        assert len(server.asked) == 1 + 2 + 2
        listed = (await gateway.client.get("/v1/sessions?key=k")).json()["data"]
        path = f"/v1/sessions/{listed[0]['id']}/items"
        assert len((await gateway.client.get(path)).json()["data"]) == 3
