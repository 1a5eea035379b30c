"""Fields that only Chat Completions has, on servers with either API and with both."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.speaking_server import CHAT, RESPONSES, speaking
from tests.integration.upstream_gateway import (
    UpstreamGateway,
    open_upstream_gateway,
    text_of,
    upstream,
)


@pytest.fixture
def simulator() -> Iterator[ProviderSimulator]:
    """A server with both APIs."""
    with ProviderSimulator() as running:
        yield running


MESSAGES = [{"role": "user", "content": "hi"}]
FIELDS: dict[str, Any] = {
    "stop": ["END"],
    "seed": 7,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "logit_bias": {"50256": -100},
    "prediction": {"type": "content", "content": "hi"},
    "web_search_options": {"search_context_size": "low"},
}
"""Fields whose results are an answer like any other."""
NOT_STORED: dict[str, Any] = {
    "n": 2,
    "functions": [{"name": "look", "parameters": {"type": "object", "properties": {}}}],
    "audio": {"voice": "alloy", "format": "wav"},
    "modalities": ["text", "audio"],
}
"""Fields whose results a session cannot store."""


async def error_of(gateway: UpstreamGateway, key: str | None, **fields: Any) -> dict[str, Any]:
    """Return the error of a refused request."""
    answer = await gateway.post("/v1/chat/completions", key, messages=MESSAGES, **fields)
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == "unsupported_by_upstream"
    return error


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("field", FIELDS)
async def test_a_server_with_both_apis_gets_the_field_as_it_was_sent(
    simulator: ProviderSimulator, field: str, key: str | None, is_stream: bool
) -> None:
    both = upstream(simulator, api="both")
    async with open_upstream_gateway(both) as gateway:
        await gateway.chat("hi", key, stream=is_stream, **{field: FIELDS[field]})
        [sent] = simulator.requests()
        assert sent.api == "chat"
        assert sent.body[field] == FIELDS[field]


async def test_what_both_apis_can_express_goes_to_responses(
    simulator: ProviderSimulator,
) -> None:
    both = upstream(simulator, api="both")
    async with open_upstream_gateway(both) as gateway:
        for key in ("k", None):
            await gateway.chat("hi", key, temperature=0.5, stop=[], n=1, functions=[])
            await gateway.respond("hi", key)
        assert {sent.api for sent in simulator.requests()} == {"responses"}


@pytest.mark.parametrize("state", ["chain", "conversation"])
async def test_a_chat_turn_between_chained_turns_gets_and_leaves_the_whole_history(
    simulator: ProviderSimulator, state: str
) -> None:
    both = upstream(simulator, api="both", state=state)
    async with open_upstream_gateway(both) as gateway:
        await gateway.chat("one")
        answer = await gateway.chat("two", stop=["END"])
        assert text_of(answer) == "Messages seen: 3. Last text: two"
        [sent] = simulator.requests(api="chat")
        texts = [message["content"] for message in sent.body["messages"]]
        assert texts[0] == "one"
        assert texts[-1] == "two"
        turns = (await gateway.client.get("/v1/sessions")).json()["data"][0]
        listed = (await gateway.client.get(f"/v1/sessions/{turns['id']}/turns")).json()["data"]
        shown = await gateway.client.get(f"/v1/turns/{listed[-1]['id']}/projection")
        assert shown.json()["attempts"][-1]["used_provider_state"] is False
        answer = await gateway.chat("three")
        assert text_of(answer) == "Messages seen: 5. Last text: three"


@pytest.mark.parametrize("field", NOT_STORED)
async def test_a_field_that_a_session_cannot_store_is_refused_there_with_the_truth(
    simulator: ProviderSimulator, field: str
) -> None:
    for api in ("both", "chat", "responses"):
        settings = upstream(simulator, api=api)
        async with open_upstream_gateway(settings) as gateway:
            error = await error_of(gateway, "k", **{field: NOT_STORED[field]})
            assert error["param"] == field
            assert f"a session cannot store what {field} gives" in error["message"]
            assert "api =" not in error["message"]
    assert simulator.requests() == []


async def test_what_a_session_cannot_store_is_answered_without_one() -> None:
    async with (
        speaking(RESPONSES, CHAT) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        answer = await gateway.chat("hi", None, n=2)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert server.calls[-1][0] == CHAT


@pytest.mark.parametrize("key", ["k", None])
async def test_a_refusal_names_the_setting_that_helps(
    simulator: ProviderSimulator, key: str | None
) -> None:
    async with open_upstream_gateway(upstream(simulator)) as gateway:
        error = await error_of(gateway, key, stop=["END"])
        assert 'set `api = "both"`' in error["message"]
    both = upstream(simulator, api="both")
    async with open_upstream_gateway(both) as gateway:
        await gateway.chat("hi", key, stop=["END"])


@pytest.mark.parametrize("key", ["k", None])
async def test_a_refusal_names_no_setting_where_none_helps(key: str | None) -> None:
    async with (
        speaking(RESPONSES) as server,
        open_upstream_gateway(server.upstream()) as gateway,
    ):
        error = await error_of(gateway, key, stop=["END"])
        assert error["message"].endswith("its server has no /chat/completions, so no setting helps")
        assert server.calls == []


async def test_a_tool_of_a_type_that_only_chat_has_goes_to_chat(
    simulator: ProviderSimulator,
) -> None:
    # Some Chat servers have types of their own; their answer decides.
    both = upstream(simulator, api="both")
    tools = [{"type": "vendor_search", "vendor_search": {}}]
    async with open_upstream_gateway(both) as gateway:
        answer = await gateway.post("/v1/chat/completions", messages=MESSAGES, tools=tools)
        assert [sent.api for sent in simulator.requests()] == ["chat"], answer.text


async def test_a_field_of_the_gateways_own_servers_is_refused_as_before(
    simulator: ProviderSimulator,
) -> None:
    both = upstream(simulator, api="both")
    tool = {"type": "mcp", "server_label": "x", "server_url": "https://x.example/mcp"}
    async with open_upstream_gateway(both) as gateway:
        answer = await gateway.post("/v1/chat/completions", messages=MESSAGES, tools=[tool])
        assert answer.status_code == 400
        assert "runs no MCP servers" in answer.json()["error"]["message"]
