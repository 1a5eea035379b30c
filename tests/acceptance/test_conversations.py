"""Conversations through a real process, with the official clients."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner, function_tool
from agents.run import RunConfig

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url

QUIET = RunConfig(tracing_disabled=True)
TURNS = ["hi", "what can you do?", "give me one example", "thanks"]


@pytest.fixture(params=["sqlite", "postgres"])
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GatewayProcess]:
    url = sqlite_url(tmp_path)
    if request.param == "postgres":
        url = str(request.getfixturevalue("postgres_url"))
    with running_gateway(url) as process:
        yield process


@pytest.fixture
def client(gateway: GatewayProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def _said(item: Any) -> str:
    return str(item.content[0].text)


def test_the_official_client_lives_with_conversations(client: openai.OpenAI) -> None:
    made = client.conversations.create(
        items=[{"role": "user", "content": "I am Ada", "type": "message"}],
        metadata={"topic": "names"},
    )
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"topic": "tea"}).metadata == {
        "topic": "tea"
    }
    for batch in range(2):
        added = client.conversations.items.create(
            made.id,
            items=[{"role": "user", "content": f"{batch}-{n}"} for n in range(20)],
        )
        assert [_said(item) for item in added.data] == [f"{batch}-{n}" for n in range(20)]
    answer = client.responses.create(model="holdfast-demo", input="who?", conversation=made.id)
    assert answer.conversation is not None
    assert answer.conversation.id == made.id
    assert "I remember 41 earlier message(s); the first was 'I am Ada'" in answer.output_text
    # The client pages by itself, two pages of twenty and a rest.
    listed = list(client.conversations.items.list(made.id, order="asc"))
    assert len(listed) == 43
    assert [_said(item) for item in listed[:2]] == ["I am Ada", "0-0"]
    assert _said(listed[-1]) == answer.output_text
    assert [item.id for item in client.conversations.items.list(made.id)] == [
        item.id for item in reversed(listed)
    ]
    first = listed[0].id
    assert first is not None
    found = client.conversations.items.retrieve(first, conversation_id=made.id)
    assert found == listed[0]
    assert client.conversations.items.delete(first, conversation_id=made.id).id == made.id
    again = client.responses.create(model="holdfast-demo", input="who?", conversation=made.id)
    assert "the first was '0-0'" in again.output_text
    assert client.conversations.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="holdfast-demo", input="who?", conversation=made.id)


def test_four_turns_leave_eight_items_in_order_also_after_a_crash(
    gateway: GatewayProcess, client: openai.OpenAI
) -> None:
    made = client.conversations.create()
    for text in TURNS:
        client.responses.create(model="holdfast-demo", input=text, conversation=made.id)
    before = list(client.conversations.items.list(made.id, order="asc"))
    gateway.kill()
    gateway.start()
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none") as later:
        after = list(later.conversations.items.list(made.id, order="asc"))
    assert after == before
    assert [item.role for item in after if item.type == "message"] == ["user", "assistant"] * 4
    assert [_said(item) for item in after[::2]] == TURNS


def _roles(items: list[Any]) -> list[str]:
    return [item["role"] for item in items if item.get("type") == "message"]


async def test_no_assistant_item_is_lost_to_the_agents_sdk(gateway: GatewayProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        session = OpenAIConversationsSession(openai_client=client)
        model = OpenAIResponsesModel("holdfast-demo", client)
        agent = Agent(name="Repro", model=model, instructions="Reply in one short sentence.")
        for count, text in enumerate(TURNS):
            assert len(await session.get_items()) == 2 * count
            result = await Runner.run(agent, text, session=session, run_config=QUIET)
            assert repr(text) in str(result.final_output)
        items = await session.get_items()
        assert _roles(items) == ["user", "assistant"] * 4
        assert _roles(await session.get_items(limit=3)) == ["assistant", "user", "assistant"]
        popped = await session.pop_item()
        assert popped is not None
        assert _roles(await session.get_items()) == ["user", "assistant"] * 3 + ["user"]
        await session.add_items([{"role": "user", "content": str(n)} for n in range(45)])
        assert len(await session.get_items()) == 52
        old = session.session_id
        await session.clear_session()
        answer = await asyncio.to_thread(httpx.get, f"{gateway.url}/v1/conversations/{old}")
        assert answer.status_code == 404


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_a_run_of_the_agents_sdk_goes_on_in_a_conversation(gateway: GatewayProcess) -> None:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        made = await client.conversations.create()
        agent = Agent(name="A", model=OpenAIResponsesModel("holdfast-demo", client), tools=[add])
        for text in TURNS:
            await Runner.run(agent, text, conversation_id=made.id, run_config=QUIET)
        listed = [item async for item in client.conversations.items.list(made.id, order="asc")]
        assert [item.type for item in listed] == ["message"] * 8
        assert [_said(item) for item in listed[::2]] == TURNS


def test_items_whose_answer_was_lost_are_added_once(gateway: GatewayProcess) -> None:
    """The client sends a batch, hears nothing, and sends it again by itself."""
    lost: list[str] = []

    def lose_the_first(response: Any) -> None:
        if response.request.url.path.endswith("/items") and not lost:
            lost.append(response.request.url.path)
            raise httpx2.ReadError("the answer was lost", request=response.request)

    http = openai.DefaultHttpxClient(event_hooks={"response": [lose_the_first]})
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", http_client=http) as client:
        made = client.conversations.create()
        added = client.conversations.items.create(
            made.id, items=[{"role": "user", "content": "once"}]
        )
        assert len(lost) == 1
        listed = list(client.conversations.items.list(made.id))
    assert [item.id for item in listed] == [item.id for item in added.data]
