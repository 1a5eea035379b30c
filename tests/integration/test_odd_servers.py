"""Upstreams that are only nearly compatible lose no content."""

from typing import Any

import pytest
from aiohttp import web

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.odd_server import Reply, odd_server, saying, whole
from tests.integration.test_heals import QUICK
from tests.integration.upstream_gateway import open_upstream_gateway, text_of, upstream

Json = dict[str, Any]


def _deltas(kind: str) -> list[Json]:
    """Return a stream that only ever shows what is added, and an end that shows nothing."""
    item: Json = {"id": "m1", "type": "message", "role": "assistant", "content": []}
    at = {"output_index": 0, "item_id": "m1", "content_index": 0}
    return [
        {"type": "response.created", "response": {"id": "r1", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": f"response.{kind}.delta", **at, "delta": "good "},
        {"type": f"response.{kind}.delta", **at, "delta": "day"},
        {"type": "response.completed", "response": {"id": "r1", "output": []}},
    ]


@pytest.mark.parametrize("kind", ["output_text", "refusal"])
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_what_was_streamed_is_in_the_log_though_the_server_never_showed_it_whole(
    kind: str, path: str
) -> None:
    def say(_: str, body: Json) -> Reply:
        return _deltas(kind)

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(), heals=QUICK) as gateway,
    ):
        asked: Json = {"input": "one"} if path == "/v1/responses" else {
            "messages": [{"role": "user", "content": "one"}]
        }  # fmt: skip
        answer = await gateway.post(path, stream=True, **asked)
        assert "good " in answer.text
        assert "day" in answer.text
        [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
        items = (await gateway.client.get(f"/v1/sessions/{session['id']}/items")).json()["data"]
        [part] = items[-1]["content"]
        assert part.get("text", part.get("refusal")) == "good day"
        await gateway.respond("two", stream=True)
        assert "good day" in str(server.asked[-1]["input"])


@pytest.mark.parametrize("kind", ["output_text", "refusal"])
async def test_what_was_streamed_before_a_stream_broke_off_is_kept(kind: str) -> None:
    async with (
        odd_server(lambda path, body: _deltas(kind)[:-1]) as server,
        open_upstream_gateway(server.upstream(), heals=QUICK) as gateway,
    ):
        await gateway.post("/v1/responses", input="one", stream=True)
        [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
        items = (await gateway.client.get(f"/v1/sessions/{session['id']}/items")).json()["data"]
        [part] = items[-1]["content"]
        assert (items[-1]["status"], part["type"]) == ("incomplete", kind)
        assert part.get("text", part.get("refusal")) == "good day"
        log = (await gateway.client.get(f"/v1/sessions/{session['id']}/items?view=log")).json()[
            "data"
        ]
        assert [entry["is_partial"] is (entry is log[-1]) for entry in log] == [True] * len(log)


def _refusing(status: int, words: str, **headers: str) -> web.Response:
    return web.json_response({"error": {"message": words}}, status=status, headers=headers)


@pytest.mark.parametrize("after", ["604800", "Fri, 31 Dec 2199 23:59:59 GMT"])
async def test_a_server_with_a_long_retry_after_is_not_retried(after: str) -> None:
    async with (
        odd_server(lambda path, body: _refusing(429, "No.", **{"Retry-After": after})) as server,
        open_upstream_gateway(server.upstream(), heals=QUICK) as gateway,
    ):
        failed = await gateway.post("/v1/responses", input="one")
        assert failed.status_code == 429
        assert int(failed.headers["retry-after"]) >= 604_800
        assert failed.headers["x-should-retry"] == "false"
        assert len(server.asked) == 1


async def test_a_repeat_of_a_failed_request_gets_its_retry_after_too() -> None:
    def say(path: str, body: Json) -> Reply:
        error = {"code": "insufficient_quota", "message": "No more."}
        return web.json_response({"error": error}, status=429, headers={"Retry-After": "3000"})

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(), heals=QUICK) as gateway,
    ):
        once = {"Idempotency-Key": "once"}
        first = await gateway.post("/v1/responses", input="one", headers=once)
        again = await gateway.post("/v1/responses", input="one", headers=once)
        assert first.status_code == again.status_code == 429
        assert first.json() == again.json()
        assert first.headers["retry-after"] == "3000"
        assert 2000 < int(again.headers["retry-after"]) <= 3000
        assert len(server.asked) == 1


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_key_in_a_servers_words_is_neither_kept_nor_passed_on(is_stream: bool) -> None:
    key = "sk-abcdefgh12345678"
    words = f"Bad key {key}, sent as plain-odd-key"

    def say(path: str, body: Json) -> Reply:
        if is_stream and path == "/responses":
            return [{"type": "error", "error": {"message": words, "code": "server_error"}}]
        said = {"message": words, "code": f"bad:{key}", "type": "plain-odd-key", "param": key}
        return web.json_response({"error": said}, status=500)

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(key="plain-odd-key"), heals=QUICK) as gateway,
    ):
        failed = await gateway.post("/v1/responses", input="one", stream=is_stream)
        passed = await gateway.post("/v1/embeddings", None, input="one")
        assert passed.status_code == 500
        [session] = (await gateway.client.get("/v1/sessions")).json()["data"]
        [turn] = (await gateway.client.get(f"/v1/sessions/{session['id']}/turns")).json()["data"]
        shown = await gateway.client.get(f"/v1/turns/{turn['id']}")
        assert "Bad key" in shown.text
        events = await gateway.engine.read.events(session["id"], after=0, limit=100)
        assert [event.kind for event in events].count("turn.healed") == 2
        for said in (failed.text, passed.text, shown.text, repr(events)):
            assert "sk-abcdefgh" not in said
            assert "plain-odd-key" not in said
        assert "[redacted]" in failed.text
        assert "[redacted]" in passed.text


ODD_ITEMS: list[Json] = [
    {"type": "message", "role": "assistant"},
    {"type": "message", "role": "assistant", "content": None},
    {"type": "message", "content": [{"type": "output_text", "text": None}]},
    {"type": "message", "role": "assistant", "content": "only words"},
    {"type": "function_call", "call_id": "call_1", "name": "a.b", "arguments": {"x": 1}},
    {"type": "function_call", "call_id": "call_1", "name": None, "arguments": None},
    {"type": "function_call", "call_id": None, "name": "n" * 90},
    {"type": "reasoning", "summary": None},
]


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_items_of_an_odd_server_are_accepted_by_every_other(
    api: str, is_stream: bool
) -> None:
    with ProviderSimulator() as simulator:
        async with (
            odd_server(lambda path, body: whole(*ODD_ITEMS, saying("done"))) as server,
            open_upstream_gateway(
                server.upstream(name="odd", models=("odd",)),
                upstream(simulator, api=api),
                heals=QUICK,
            ) as gateway,
        ):
            first = await gateway.respond("one", model="odd", stream=is_stream)
            for item in first["output"]:
                assert isinstance(item.get("content", []), list)
                assert isinstance(item.get("arguments", ""), str)
                assert isinstance(item.get("name", ""), str)
            said = await gateway.respond("two", headers={"X-On-Busy": "interrupt"})
            assert text_of(said).endswith("Last text: two")
            # Nothing was refused on the way.
            assert len(simulator.requests()) == 1
            back = await gateway.respond("three", model="odd", stream=is_stream)
            assert text_of(back).endswith("done")


PICTURE = "https://pictures.test/cat.png?signed=once"
SHOWN: list[Json] = [
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "what is this?"},
            {"type": "input_image", "image_url": PICTURE},
        ],
    }
]


async def test_a_picture_that_is_refused_by_its_address_alone_is_set_aside() -> None:
    def say(path: str, body: Json) -> Reply:
        if PICTURE in str(body):
            return _refusing(400, f"Invalid value: '{PICTURE}'")
        return whole(saying("I cannot see it"))

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(), heals=QUICK) as gateway,
    ):
        assert (
            text_of((await gateway.post("/v1/responses", input=SHOWN)).json()) == "I cannot see it"
        )
        assert text_of((await gateway.post("/v1/responses", input="and?")).json())
        assert len(server.asked) == 3


async def test_f60_call_ids_are_of_the_form_that_the_strictest_chat_servers_want() -> None:
    def say(path: str, body: Json) -> Reply:
        messages = body["messages"]
        ids = [one["id"] for said in messages for one in said.get("tool_calls") or ()]
        ids += [said["tool_call_id"] for said in messages if said["role"] == "tool"]
        if any(not (len(one) == 9 and one.isalnum()) for one in ids):
            return _refusing(400, "Tool call id must be a-z, A-Z, 0-9, with a length of 9.")
        call = {"id": "D681PevKs", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        answer: Json = {"role": "assistant", "content": "done"}
        if messages[-1]["role"] == "user":
            answer = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": answer, "finish_reason": "stop"}
        return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}

    async with (
        odd_server(say) as server,
        open_upstream_gateway(server.upstream(api="chat"), heals=QUICK) as gateway,
    ):
        for number in range(2):
            asked = await gateway.post("/v1/responses", input=f"go {number}")
            [call] = [one for one in asked.json()["output"] if one["type"] == "function_call"]
            told = {"type": "function_call_output", "call_id": call["call_id"], "output": "1"}
            done = await gateway.post("/v1/responses", input=[told])
            assert text_of(done.json()) == "done"
        assert len(server.asked) == 4


async def test_the_error_of_a_validating_server_is_returned() -> None:
    found = {"detail": [{"loc": ["body", "temperature"], "msg": "Input should be less than 3"}]}
    async with (
        odd_server(lambda path, body: web.json_response(found, status=422)) as server,
        open_upstream_gateway(server.upstream(), heals=QUICK) as gateway,
    ):
        failed = await gateway.post("/v1/responses", input="one")
        assert "body.temperature: Input should be less than 3" in failed.text
