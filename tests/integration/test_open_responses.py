"""Responses to every legal request match the Open Responses schema and the official client's."""

import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.odd_server import odd_server
from tests.integration.open_responses import COMPACTION, RESPONSE, violations
from tests.integration.upstream_gateway import open_upstream_gateway, upstream

Json = dict[str, Any]
FUNCTION: Json = {"type": "function", "name": "weather"}
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
FORMAT: Json = {"type": "json_schema", "name": "city", "schema": SCHEMA}
ALLOWED: Json = {"type": "allowed_tools", "tools": [FUNCTION]}
LEGAL: dict[str, Json] = {
    "bare": {},
    "tool": {"tools": [FUNCTION]},
    "tool with nulls": {"tools": [{**FUNCTION, "description": None, "strict": None}]},
    "tool in full": {"tools": [{**FUNCTION, "parameters": SCHEMA, "strict": False}]},
    "no tools": {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
    "chosen tool": {"tools": [FUNCTION], "tool_choice": FUNCTION},
    "allowed tools": {"tools": [FUNCTION], "tool_choice": ALLOWED},
    "allowed tools by mode": {"tools": [FUNCTION], "tool_choice": {**ALLOWED, "mode": "auto"}},
    "effort": {"reasoning": {"effort": "low"}},
    "summary": {"reasoning": {"summary": "auto"}},
    "reasoning with nulls": {"reasoning": {"effort": None, "summary": None}},
    "no reasoning": {"reasoning": None},
    "verbosity": {"text": {"verbosity": "low"}},
    "text with nulls": {"text": {"format": None, "verbosity": None}},
    "no text": {"text": None},
    "schema": {"text": {"format": FORMAT}},
    "schema with nulls": {"text": {"format": {**FORMAT, "strict": None, "description": None}}},
    "no sampling": {"temperature": None, "top_p": None, "top_logprobs": None},
    "no penalties": {"presence_penalty": None, "frequency_penalty": None},
    "no tier": {"service_tier": None, "truncation": None, "metadata": None},
    "no flags": {"store": None, "background": None},
    "no limits": {"max_output_tokens": None, "max_tool_calls": None},
    "no names": {"user": None, "safety_identifier": None, "prompt_cache_key": None},
    "no instructions": {"instructions": None, "previous_response_id": None, "include": None},
    "no more": {"prompt": None, "conversation": None, "prompt_cache_retention": None},
    "limits": {"max_output_tokens": 16, "truncation": "auto"},
}
HISTORIES: dict[str, Any] = {
    "text": "hello",
    "short": [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "the word is plum"},
    ],
    "parts": [
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "look"},
                {"type": "input_image", "image_url": "https://example.com/a.png"},
                {"type": "input_file", "file_url": "https://example.com/a", "filename": None},
            ],
        },
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "rain " * 200},
        {"role": "assistant", "content": [{"type": "output_text", "text": "plum " * 300}]},
    ],
}


def _responses(answer: httpx.Response) -> list[Json]:
    """Return the response of an answer, or every one that its stream shows."""
    assert answer.status_code == 200, answer.text
    if "text/event-stream" not in answer.headers["content-type"]:
        return [answer.json()]
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    shown = [event["response"] for event in map(json.loads, lines) if "response" in event]
    assert len(shown) >= 2
    return shown


def _check(answer: httpx.Response) -> None:
    for response in _responses(answer):
        assert violations(response, RESPONSE) == []
        Response.model_validate(response)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_every_legal_request_is_answered_by_the_schema(api: str) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            for fields in LEGAL.values():
                for way in ({}, {"stream": True}, {"background": True}):
                    body = {"input": "hello", **fields, **way}
                    _check(await gateway.post("/v1/responses", None, **body))
                bare = {"input": "hello", **fields, "store": False}
                _check(await gateway.post("/v1/responses", None, **bare))


async def test_the_simulator_answers_every_legal_request_by_the_schema() -> None:
    headers = {"content-type": "application/json"}
    with ProviderSimulator() as simulator:
        headers["authorization"] = f"Bearer {simulator.key}"
        async with httpx.AsyncClient(base_url=simulator.base_url, headers=headers) as client:
            for fields in LEGAL.values():
                for is_stream in (False, True):
                    body = {"model": "gpt-5.4", "input": "hello", **fields, "stream": is_stream}
                    _check(await client.post("/responses", json=body))
            for history in HISTORIES.values():
                body = {"model": "gpt-5.4", "input": history}
                _check_compaction((await client.post("/responses/compact", json=body)).json())


def _check_compaction(value: Json) -> None:
    assert violations(value, COMPACTION) == []
    assert [item["type"] for item in value["output"]].count("compaction") == 1
    assert value["output"][-1]["type"] == "compaction"


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES)
async def test_a_compaction_ends_with_its_item_and_goes_on(history: Any) -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            answer = await gateway.post("/v1/responses/compact", None, input=history)
            _check_compaction(answer.json())
            given = answer.json()["output"]
            simulator.clear_record()
            await gateway.respond([*given, {"role": "user", "content": "go on"}], None)
            sent = str(simulator.requests()[-1].body["input"])
            assert "plum" in sent or history == "hello"
            assert ("be kind" in sent) == ("be kind" in str(history))


async def test_a_request_cannot_replace_what_the_response_says() -> None:
    wrong = {"id": "resp_x", "object": "x", "status": "failed", "output": 1, "usage": 2, "error": 3}
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            said = await gateway.post("/v1/responses", None, input="hello", **wrong)
            assert said.status_code in (200, 400)
            if said.status_code == 200:
                _check(said)
                assert said.json()["status"] == "completed"


SPARSE: list[Json] = [
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": None},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "plum"}]},
    {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
]
SPARSE_USAGES: list[Any] = [None, {}, {"input_tokens": 3}, {"output_tokens": None}, 7]


async def test_what_an_upstream_leaves_out_of_its_answer_is_filled_in() -> None:
    def say(_: str, body: Json) -> Json:
        number = len(server.asked) - 1
        usage = SPARSE_USAGES[number % len(SPARSE_USAGES)]
        return {"id": f"r{number}", "status": "completed", "output": SPARSE, "usage": usage}

    async with odd_server(say) as server, open_upstream_gateway(server.upstream()) as gateway:
        for _ in SPARSE_USAGES:
            _check(await gateway.post("/v1/responses", None, input="hello"))
