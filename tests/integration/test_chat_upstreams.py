"""What Chat clients and Chat servers say beyond text, through a whole gateway."""

from typing import Any

from holdfast.testing.simulator.provider import ProviderSimulator
from tests.integration.upstream_gateway import open_upstream_gateway, upstream

SHELL = {"type": "function", "name": "shell", "parameters": {"type": "object"}}
FILES = {"type": "namespace", "name": "mcp__files__", "description": "Files.", "tools": [SHELL]}


async def test_tools_of_codex_reach_a_chat_server() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api="chat")) as gateway:
            answer = await gateway.post(
                "/v1/responses", "k", input="hi", tools=[FILES, {"type": "web_search"}]
            )
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-dropped-tools"] == "web_search"
            [sent] = simulator.requests()
            names = [tool["function"]["name"] for tool in sent.body["tools"]]
            assert names == ["mcp__files__shell"]


async def test_a_server_with_hosted_tools_drops_none() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            answer = await gateway.post("/v1/responses", "k", input="hi", tools=[SHELL])
            assert "x-dropped-tools" not in answer.headers


async def test_names_and_reasoning_of_a_chat_client_reach_a_chat_server() -> None:
    call = {"id": "callone01", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history: list[dict[str, Any]] = [
        {"role": "user", "name": "ann", "content": "hi"},
        {"role": "user", "name": "ben", "content": "hello"},
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "callone01", "content": "1"},
        {"role": "user", "name": "ann", "content": "and now?"},
    ]
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator, api="chat")) as gateway:
            await gateway.chat(history)
            [sent] = simulator.requests()
            messages = sent.body["messages"]
            assert [message.get("name") for message in messages] == [
                "ann",
                "ben",
                None,
                None,
                "ann",
            ]
            assert messages[2]["reasoning_content"] == "hm"


async def test_names_are_not_sent_to_a_responses_server() -> None:
    with ProviderSimulator() as simulator:
        async with open_upstream_gateway(upstream(simulator)) as gateway:
            await gateway.chat([{"role": "user", "name": "ann", "content": "hi"}])
            [sent] = simulator.requests()
            assert all("name" not in item for item in sent.body["input"])
