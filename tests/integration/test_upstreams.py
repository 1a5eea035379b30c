"""Both client APIs over every kind of upstream keep the same history."""

import itertools
from typing import Any

import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)

Json = dict[str, Any]
PROFILES = ["openai", "azure-like", "chat-only", "ignores-previous-id", "strict-alternation"]
CHAT_ONLY = {"chat-only", "strict-alternation"}
SERVED = [
    (profile, api)
    for profile, api in itertools.product(PROFILES, ("responses", "chat"))
    if not (profile in CHAT_ONLY and api == "responses")
]
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CHAT_TOOL = {"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}


@pytest.mark.parametrize(("profile", "api"), SERVED)
@pytest.mark.parametrize("model", ["gpt-5.4", "gpt-4.1"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_conversation_with_a_tool_is_remembered(
    profile: str, api: str, model: str, is_stream: bool
) -> None:
    with ProviderSimulator(profile=profile) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            ask: Json = {"model": model, "stream": is_stream, "tools": [TOOL]}
            first = await gateway.respond("I am Ada", **ask)
            assert text_of(first) == "Messages seen: 1. Last text: I am Ada"
            called = await gateway.respond('call weather {"city": "Ulm"}', **ask)
            call = next(item for item in called["output"] if item["type"] == "function_call")
            assert (call["name"], call["arguments"]) == ("weather", '{"city": "Ulm"}')
            output = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
            told = await gateway.respond([output], **ask)
            assert text_of(told).endswith("Last text: rain")
            last = await gateway.respond("who am I?", **ask)
            assert text_of(last) == "Messages seen: 5. Last text: who am I?"


@pytest.mark.parametrize(("profile", "api"), SERVED)
async def test_chat_clients_are_served_by_every_kind_of_upstream(profile: str, api: str) -> None:
    with ProviderSimulator(profile=profile) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            assert text_of(await gateway.chat("one")) == "Messages seen: 1. Last text: one"
            asked = await gateway.chat('call weather {"city": "Ulm"}', tools=[CHAT_TOOL])
            [call] = asked["choices"][0]["message"]["tool_calls"]
            assert asked["choices"][0]["finish_reason"] == "tool_calls"
            tool = {"role": "tool", "tool_call_id": call["id"], "content": "rain"}
            told = await gateway.chat([tool], tools=[CHAT_TOOL])
            assert text_of(told).endswith("Last text: rain")
            last = await gateway.chat("two")
            assert text_of(last) == "Messages seen: 5. Last text: two"
            assert last["usage"]["prompt_tokens"] > 0


async def _parallel(gateway: UpstreamGateway) -> None:
    asked = await gateway.respond(
        'call weather {"city": "Ulm"} and call weather {"city": "Bonn"}', tools=[TOOL]
    )
    calls = [item["call_id"] for item in asked["output"] if item["type"] == "function_call"]
    assert len(set(calls)) == 2
    outputs = [{"type": "function_call_output", "call_id": one, "output": one} for one in calls]
    told = await gateway.respond(outputs, tools=[TOOL])
    assert text_of(told).endswith(f"Last text: {calls[1]}")


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_upstreams_that_give_every_call_the_same_id_work(api: str) -> None:
    with ProviderSimulator(faults=["constant_call_ids"]) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            await _parallel(gateway)
            await _parallel(gateway)


@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_duplicated_chunks_are_used_once(api: str) -> None:
    with ProviderSimulator(faults=["duplicate_chunks"]) as simulator:
        async with open_upstream_gateway(upstream(simulator, api=api)) as gateway:
            said = await gateway.respond("no no no", stream=True)
            deltas = [e["delta"] for e in said["events"] if e["type"].endswith("text.delta")]
            assert "".join(deltas) == "Messages seen: 1. Last text: no no no"
            assert text_of(said) == "".join(deltas)
            called = await gateway.respond(
                'call weather {"city": "Ulm"}', tools=[TOOL], stream=True
            )
            [call] = [item for item in called["output"] if item["type"] == "function_call"]
            assert call["arguments"] == '{"city": "Ulm"}'


async def test_replay_sends_no_upstream_ids() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            await gateway.respond("one")
            await gateway.respond("two")
            [_, second] = simulator.requests(api="responses")
            assert second.body["store"] is False
            assert "previous_response_id" not in second.body
            assert all("id" not in item for item in second.body["input"])
            sealed = [item for item in second.body["input"] if item["type"] == "reasoning"]
            assert [bool(item["encrypted_content"]) for item in sealed] == [True]
            assert second.body["include"] == ["reasoning.encrypted_content"]
            assert second.body["prompt_cache_key"].startswith("ses_")


async def test_encrypted_reasoning_is_sent_only_to_its_provider() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            await gateway.respond("one", model="gpt-5.4")
            await gateway.respond("two", model="gpt-5.5")
            await gateway.respond("three", model="gpt-5.4")
            shown = [
                [item["type"] for item in request.body["input"]]
                for request in simulator.requests(api="responses")
            ]
            assert shown[1] == ["message", "message", "message"]
            assert shown[2] == ["message", "reasoning", "message", "message", "message", "message"]


async def test_models_are_routed_by_the_first_pattern_that_matches() -> None:
    with (
        ProviderSimulator({"models": ["gpt-5.4"]}) as big,
        ProviderSimulator({"models": ["llama-3", "gpt-oss"]}, profile="chat-only") as small,
    ):
        upstreams = (
            upstream(big, name="big", models=("gpt-5*",)),
            upstream(small, name="small", api="chat", models=("llama-*", "gpt-*")),
        )
        async with open_upstream_gateway(*upstreams) as gateway:
            await gateway.respond("hi", model="gpt-5.4")
            await gateway.respond("hi", model="llama-3")
            await gateway.respond("hi", model="gpt-oss")
            assert [r.model for r in big.requests(operation="create")] == ["gpt-5.4"]
            assert [r.model for r in small.requests(operation="create")] == ["llama-3", "gpt-oss"]
            missing = await gateway.post("/v1/responses", model="claude", input="hi")
            assert missing.status_code == 404
            assert missing.json()["error"]["code"] == "model_not_found"
            listed = (await gateway.client.get("/v1/models")).json()["data"]
            assert [model["id"] for model in listed] == ["gpt-5.4", "llama-3", "gpt-oss"]
            one = await gateway.client.get("/v1/models/llama-3")
            assert one.json()["id"] == "llama-3"
            assert (await gateway.client.get("/v1/models/none")).status_code == 404


async def test_an_upstream_that_is_down_is_named_beside_the_models_of_the_others() -> None:
    with ProviderSimulator() as gone:
        down = upstream(gone, name="down", models=("llama-3", "qwen-*"))
    with ProviderSimulator({"models": ["gpt-5.4"]}) as up:
        async with open_upstream_gateway(down, upstream(up, name="up")) as gateway:
            listed = (await gateway.client.get("/v1/models")).json()
            assert [model["id"] for model in listed["data"]] == ["llama-3", "gpt-5.4"]
            [unavailable] = listed["unavailable"]
            assert unavailable["upstream"] == "down"
            assert unavailable["message"]
        async with open_upstream_gateway(down) as gateway:
            refused = await gateway.client.get("/v1/models")
            assert refused.status_code == 502
            assert refused.json()["error"]["message"].startswith("upstream down: ")


async def test_the_clients_key_is_never_sent_upstream() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            await gateway.respond("hi", headers={"authorization": "Bearer sk-client"})
            [request] = simulator.requests()
            assert request.headers["authorization"] == f"Bearer {simulator.key}"
            assert "sk-client" not in str(request)
