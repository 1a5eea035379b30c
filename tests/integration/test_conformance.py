"""Replies match the types of the official client, strictly and field by field."""

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.conversations import Conversation, ConversationItem
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import TypeAdapter

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.test_upstreams import TOOL
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, upstream

Json = dict[str, Any]
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
ITEM: TypeAdapter[Any] = TypeAdapter(ResponseItem)
KEPT: TypeAdapter[Any] = TypeAdapter(ConversationItem)
REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
    "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty",
    "top_logprobs", "temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls",
    "store", "background", "service_tier", "metadata", "safety_identifier", "prompt_cache_key",
}  # fmt: skip
ASKED: list[Json] = [
    {"input": "hello"},
    {"input": 'call weather {"city": "Ulm"}', "tools": [TOOL]},
    {"input": "think", "model": "gpt-5.4", "reasoning": {"effort": "low", "summary": "auto"}},
    {"input": "limits", "max_output_tokens": 1, "temperature": 0.5, "metadata": {"a": "b"}},
]


def _events(text: str) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if "data: {" in line]
    return [json.loads(line) for line in lines]


async def _post(gateway: UpstreamGateway, path: str, body: Json) -> Any:
    reply = await gateway.client.post(path, json={"model": "gpt-4.1", **body})
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("body", ASKED, ids=lambda body: body["input"].split()[0])
async def test_responses_and_their_events(api: str, body: Json) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            whole = (await _post(gateway, "/v1/responses", body)).json()
            events = _events((await _post(gateway, "/v1/responses", {**body, "stream": True})).text)
            background = (
                await _post(gateway, "/v1/responses", {**body, "background": True})
            ).json()
            for event in events:
                EVENT.validate_python(event)
                assert event["type"] != "error"
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
            for shown in (whole, background, *(e["response"] for e in events if "response" in e)):
                Response.model_validate(shown)
                assert set(shown) >= REQUIRED
            read = (await gateway.client.get(f"/v1/responses/{whole['id']}")).json()
            assert read == whole
            listed = (await gateway.client.get(f"/v1/responses/{whole['id']}/input_items")).json()
            for item in listed["data"]:
                ITEM.validate_python(item)


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("is_stored", [False, True])
async def test_chat_completions_and_their_chunks(api: str, is_stored: bool) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            for text in ("hello", 'call weather {"city": "Ulm"}'):
                messages = [{"role": "user", "content": text}]
                body: Json = {"messages": messages, "tools": [tool], "store": is_stored}
                whole = await _post(gateway, "/v1/chat/completions", body)
                ChatCompletion.model_validate(whole.json())
                streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
                chunks = _events((await _post(gateway, "/v1/chat/completions", streamed)).text)
                for chunk in chunks:
                    ChatCompletionChunk.model_validate(chunk)
                assert chunks[-1]["usage"]
                assert len({chunk["id"] for chunk in chunks}) == 1


async def test_conversations_and_their_items() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            made = (await gateway.client.post("/v1/conversations", json={})).json()
            Conversation.model_validate(made)
            for body in (ASKED[0], ASKED[2], ASKED[1]):
                await _post(gateway, "/v1/responses", {**body, "conversation": made["id"]})
            path = f"/v1/conversations/{made['id']}/items"
            listed = (await gateway.client.get(path, params={"limit": 100})).json()
            assert len(listed["data"]) >= 6
            for item in listed["data"]:
                KEPT.validate_python(item)
