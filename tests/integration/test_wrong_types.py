"""Every field of a request with values it cannot have: refused by name, or carried; never a 5xx.

Each request goes all the way, to a Responses server and to a Chat server.
"""

from itertools import count
from typing import Any

import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import UpstreamGateway, open_upstream_gateway, upstream
from tests.unit.http.test_bad_input import check_shape

VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 2**80, "", "x", "\0", "😀", [], {}, [[]], [None], [1], ["x"],
    {"a": None}, {"type": None}, {"type": "x"}, {"type": "function"}, {"type": "json_schema"},
    {"type": "allowed_tools"}, {"type": "allowed_tools", "allowed_tools": {"tools": [5]}},
    [{"type": None}], [{"type": "function"}], [{"type": "function", "function": 5}],
    [{"type": "custom", "custom": {"name": "x", "format": {"grammar": 5}}}], {"a": 1}, {"a": "b"},
]  # fmt: skip
ITEMS: list[Any] = [
    {}, {"role": "user"}, {"role": 5, "content": "x"}, {"role": "user", "content": 5},
    {"role": "user", "content": [5]}, {"role": "user", "content": [{"type": 5}]},
    {"role": "user", "content": [{"type": "input_text", "text": None}]},
    {"role": "user", "content": [{"type": "input_text", "text": 5}]},
    {"role": "user", "content": [{"type": "input_image", "image_url": 5}]},
    {"role": "user", "content": [{"type": "input_file", "file_data": 5}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": 5}]},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": 5}]},
    {"role": "assistant", "content": {"a": 1}}, {"role": "nobody", "content": "x"},
    {"type": "function_call"}, {"type": "function_call", "call_id": 5, "name": "f"},
    {"type": "function_call", "call_id": "c", "name": 5, "arguments": 5},
    {"type": "function_call_output", "call_id": "c", "output": 5},
    {"type": "function_call_output", "call_id": "c", "output": [5]},
    {"type": "function_call_output", "output": "x"}, {"type": "custom_tool_call", "input": 5},
    {"type": "reasoning", "encrypted_content": 5, "summary": 5},
    {"type": "reasoning", "encrypted_content": {}}, {"type": "local_shell_call", "action": 5},
    {"type": "web_search_call", "status": 5}, {"type": "item_reference", "id": 5},
    {"type": "compaction", "encrypted_content": 5}, {"type": "unheard_of", "x": [{}]},
    {"role": "user", "content": "x", "id": 5}, {"role": "user", "content": "x", "status": 5},
]  # fmt: skip
MESSAGES: list[Any] = [
    {"role": "user", "content": [{"type": "image_url", "image_url": "x"}]},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]},
    {"role": "user", "content": [{"type": "file", "file": 5}]},
    {"role": "user", "content": [{"type": "input_audio", "input_audio": 5}]},
    {"role": "user", "content": [{"type": "text", "text": {}}]},
    {"role": "system", "content": 5}, {"role": "system", "content": [{"text": 5}]},
    {"role": "developer", "content": [{"type": "text", "text": None}]},
    {"role": "assistant", "tool_calls": 5}, {"role": "assistant", "tool_calls": [5]},
    {"role": "assistant", "tool_calls": [{"id": 5, "function": "x"}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": 5}}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "type": 5}]},
    {"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": 5}]},
    {"role": "assistant", "function_call": 5, "content": None},
    {"role": "assistant", "refusal": 5, "content": None},
    {"role": "assistant", "content": {"a": 1}}, {"role": "tool", "content": 5},
    {"role": "tool", "content": 5, "tool_call_id": "x"}, {"role": "tool", "tool_call_id": 5},
    {"role": "function", "name": 5, "content": "x"}, {"role": None}, {"role": "user"}, 5,
]  # fmt: skip
RESPONSE_FIELDS = [
    "model", "input", "instructions", "store", "background", "previous_response_id",
    "conversation", "metadata", "include", "tools", "tool_choice", "temperature", "reasoning",
    "text", "truncation", "max_output_tokens", "parallel_tool_calls", "prompt", "stream",
]  # fmt: skip
CHAT_FIELDS = [
    "model", "messages", "store", "metadata", "tools", "tool_choice", "n", "stop", "logprobs",
    "top_logprobs", "max_tokens", "response_format", "stream_options", "functions",
    "reasoning_effort", "stream", "modalities", "audio", "web_search_options",
]  # fmt: skip


DEEP = b"[" * 501 + b"]" * 501
UNREADABLE = [b"1e999", b"-1e999", b'{"a":[1e999]}', b"1" * 5000, b'[{"a":' + DEEP + b"}]"]
"""Valid JSON that Python cannot decode, or not in every place."""

_numbers = count()


async def _post(gateway: UpstreamGateway, path: str, body: dict[str, Any]) -> None:
    number = next(_numbers)
    headers = {"X-Session-Key": f"k{number}"} if number % 2 else {}
    check_shape(await gateway.client.post(path, json=body, headers=headers), body)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_fields_of_responses(api: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            for name in RESPONSE_FIELDS:
                for value in VALUES:
                    body = {"model": "gpt-4.1", "input": "hi", name: value}
                    await _post(gateway, "/v1/responses", body)
            for item in ITEMS:
                body = {"model": "gpt-4.1", "input": [item, {"role": "user", "content": "hi"}]}
                for _ in range(2):
                    await _post(gateway, "/v1/responses", body)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_fields_of_chats(api: str) -> None:
    said = {"role": "user", "content": "hi"}
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            for name in CHAT_FIELDS:
                for value in VALUES:
                    body = {"model": "gpt-4.1", "messages": [said], name: value}
                    await _post(gateway, "/v1/chat/completions", body)
            for message in MESSAGES:
                body = {"model": "gpt-4.1", "messages": [message, said]}
                for _ in range(2):
                    await _post(gateway, "/v1/chat/completions", body)


@pytest.mark.parametrize("api", ["responses", "chat"])
@pytest.mark.parametrize("stream", [b"", b',"stream":true'], ids=["whole", "streamed"])
async def test_values_that_cannot_be_decoded_are_refused_by_name(api: str, stream: bytes) -> None:
    said = b'{"role":"user","content":"hi"}'
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            for value in UNREADABLE:
                item = b'{"role":"user","content":"hi","x":' + value + b"}"
                for path, start, name in (
                    ("/v1/responses", b'"input":"hi","x":' + value, "x"),
                    ("/v1/responses", b'"input":"hi","tools":' + value, "tools"),
                    ("/v1/responses", b'"input":"hi","truncation":' + value, "truncation"),
                    ("/v1/responses", b'"input":[' + item + b"]", "input[0]"),
                    ("/v1/responses/compact", b'"input":[' + item + b"]", "input[0]"),
                    ("/v1/chat/completions", b'"messages":[%s],"x":' % said + value, "x"),
                    ("/v1/chat/completions", b'"messages":[' + item + b"]", "messages[0]"),
                ):
                    answer = await gateway.client.post(
                        path,
                        content=b'{"model":"gpt-4.1",' + start + stream + b"}",
                        headers={"content-type": "application/json", "X-Session-Key": "k"},
                    )
                    assert answer.status_code == 400, (start[:80], answer.text)
                    assert name in answer.json()["error"]["message"], answer.text
            assert simulator.requests() == []
            await gateway.respond("still there?")
