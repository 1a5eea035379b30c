"""Values of a wrong type in what only the adapters of upstreams read: tools, formats, parts.

The request is rejected or served, never a 500, and its session goes on: what was stored of it must
not stop every later turn.
"""

from typing import Any

import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import open_upstream_gateway, upstream

Json = dict[str, Any]
APIS = ["responses", "chat"]
ODD: list[Any] = [{}, [], [{}], {"type": "function"}, 1.5, True]
CHAT_TOOL: Json = {"type": "function", "function": {"name": "f", "parameters": {}}}
TOOL: Json = {"type": "function", "name": "f", "parameters": {}}
INTERRUPT = {"X-On-Busy": "interrupt"}
"""For the next turn: a call of the client's tool may have been accepted."""


def responses_fields(odd: Any) -> list[Json]:
    """Return bodies of Responses requests with an odd value in one place of their fields."""
    return [
        {"tools": [{**TOOL, "type": odd}]},
        {"tools": [{**TOOL, "name": odd}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{**TOOL, "type": odd}]}]},
        {"tools": [{"type": "namespace", "name": odd, "tools": [TOOL]}]},
        {"tools": [{"type": "custom", "name": "f", "format": {"type": odd}}]},
        {"tools": [TOOL], "tool_choice": {"type": odd, "name": "f"}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": odd}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "name": "f", "namespace": odd}},
        {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "tools": [{"type": odd}]}},
        {"text": {"format": odd}},
        {"text": {"format": {"type": odd}}},
        {"reasoning": odd},
        {"reasoning": {"effort": odd}},
    ]


def response_items(odd: Any) -> list[Json]:
    """Return outputs of tools with an odd value in one place."""
    return [
        {"type": "function_call_output", "call_id": "c", "output": [part]}
        for part in (
            {"type": odd, "text": "x"},
            {"type": "input_text", "text": odd},
            {"type": "input_image", "image_url": odd},
        )
    ]


def chat_parts(odd: Any) -> list[Json]:
    """Return parts of a Chat message with an odd value in one place."""
    return [
        {"type": odd, "text": "x"},
        {"type": "text", "text": odd},
        {"type": "input_text", "text": odd},
        {"type": "refusal", "refusal": odd},
        {"type": "image_url", "image_url": odd},
        {"type": "image_url", "image_url": {"url": odd, "detail": odd}},
        {"type": "file", "file": odd},
    ]


def chat_messages(odd: Any) -> list[list[Json]]:
    """Return messages of Chat requests with an odd value in one place."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    question, answer = {"role": "user", "content": "q"}, {"role": "tool", "tool_call_id": "c"}
    assistant: Json = {"role": "assistant", "content": None}
    calls: list[Json] = [
        {**call, "type": odd},
        {**call, "id": odd},
        {**call, "function": odd},
        {**call, "function": {"name": odd, "arguments": "{}"}},
        {**call, "function": {"name": "f", "arguments": odd}},
    ]
    called = {**assistant, "tool_calls": [call]}
    return [
        *([{"role": "user", "content": [part]}] for part in chat_parts(odd)),
        *([question, {**assistant, "content": [part]}, question] for part in chat_parts(odd)),
        *(
            [question, {**assistant, "tool_calls": [one]}, {**answer, "content": "x"}]
            for one in calls
        ),
        *([question, called, {**answer, "content": [part]}] for part in chat_parts(odd)),
        [{**question, "name": odd}],
        [question, {**assistant, "content": "x", "reasoning_content": odd}, question],
    ]  # fmt: skip


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("is_stream", [False, True])
async def test_no_wrong_type_in_a_field_of_a_response_causes_a_500(
    api: str, is_stream: bool
) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            for number, body in enumerate(body for odd in ODD for body in responses_fields(odd)):
                for key in (None, f"k{number}"):
                    asked = {"input": "hi", "stream": is_stream, **body}
                    answer = await gateway.post("/v1/responses", key, **asked)
                    assert answer.status_code in (200, 400), (body, answer.text)
                    assert "internal error" not in answer.text, body
                after = await gateway.post(
                    "/v1/responses", f"k{number}", input="still there?", headers=INTERRUPT
                )
                assert after.status_code == 200, (body, after.text)


@pytest.mark.parametrize("api", APIS)
async def test_no_wrong_type_in_a_tools_output_stops_its_session(api: str) -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            for number, item in enumerate(item for odd in ODD for item in response_items(odd)):
                sent = [{"role": "user", "content": "q"}, call, item]
                key = f"k{number}"
                answer = await gateway.post("/v1/responses", key, input=sent)
                assert answer.status_code in (200, 400), (item, answer.text)
                after = await gateway.post(
                    "/v1/responses", key, input="still there?", headers=INTERRUPT
                )
                assert after.status_code == 200, (item, after.text)


@pytest.mark.parametrize("api", APIS)
async def test_no_wrong_type_in_a_chat_message_stops_its_session(api: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            messages = [messages for odd in ODD for messages in chat_messages(odd)]
            for number, sent in enumerate(messages):
                key = f"k{number}"
                asked = {"messages": sent, "tools": [CHAT_TOOL]}
                answer = await gateway.post("/v1/chat/completions", key, **asked)
                assert answer.status_code in (200, 400), (sent, answer.text)
                more = [{"role": "user", "content": "still there?"}]
                after = await gateway.post(
                    "/v1/chat/completions", key, messages=more, headers=INTERRUPT
                )
                assert after.status_code == 200, (sent, after.text)
