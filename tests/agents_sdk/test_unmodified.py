"""Code that was written for OpenAI's servers, as it is, on the gateway: only the URL differs."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesModel,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
)

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.gateway_process import GatewayProcess
from tests.acceptance.stories import gateway_before

MODEL = "gpt-4.1"


@pytest.fixture(scope="module")
def provider() -> Iterator[ProviderSimulator]:
    with ProviderSimulator() as simulator:
        yield simulator


@pytest.fixture(scope="module")
def gateway(
    provider: ProviderSimulator, lasting_store_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    folder = tmp_path_factory.mktemp("gateway")
    with gateway_before(provider, lasting_store_url, folder) as gateway:
        yield gateway


@pytest.fixture
async def client(gateway: GatewayProcess) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client:
        yield client


def agent_with(client: openai.AsyncOpenAI, **more: Any) -> Agent[Any]:
    return Agent(name="Tester", model=OpenAIResponsesModel(MODEL, client), **more)


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def seen(result: Any) -> int:
    """Return how many messages the model was shown for its last answer."""
    return int(str(result.final_output).split("Messages seen: ")[1].split(".")[0])


async def test_a_conversations_session_remembers(client: openai.AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    agent = agent_with(client, tools=[add])
    counts = [
        seen(await Runner.run(agent, text, session=session))
        for text in ("hi", 'call add {"a": 1, "b": 2}', "and now?")
    ]
    assert counts == [1, 3, 5]
    items: list[Any] = await session.get_items()
    assert [item["type"] for item in items] == [
        "message", "message",
        "message", "function_call", "function_call_output", "message",
        "message", "message",
    ]  # fmt: skip


async def test_a_conversation_id_remembers(client: openai.AsyncOpenAI) -> None:
    made = await client.conversations.create()
    agent = agent_with(client, tools=[add])
    counts = [
        seen(await Runner.run(agent, text, conversation_id=made.id))
        for text in ("hi", 'call add {"a": 1, "b": 2}', "and now?")
    ]
    assert counts == [1, 3, 5]


async def test_a_previous_response_id_remembers_and_forks(client: openai.AsyncOpenAI) -> None:
    agent = agent_with(client)
    first = await Runner.run(agent, "hi")
    again = [
        await Runner.run(agent, text, previous_response_id=first.last_response_id)
        for text in ("one way", "another way")
    ]
    assert [seen(result) for result in again] == [3, 3]
    third = await Runner.run(agent, "on", previous_response_id=again[0].last_response_id)
    assert seen(third) == 5


async def test_a_run_chains_its_own_answers(client: openai.AsyncOpenAI) -> None:
    agent = agent_with(client, tools=[add])
    result = await Runner.run(agent, 'call add {"a": 20, "b": 22}', auto_previous_response_id=True)
    assert str(result.final_output).endswith("Last text: 42")
    assert len(result.raw_responses) == 2


@pytest.mark.parametrize("text", ["hi", 'call add {"a": 20, "b": 22}'])
async def test_a_streamed_run_delivers_events_as_they_happen(
    client: openai.AsyncOpenAI, text: str
) -> None:
    made = await client.conversations.create()
    agent = agent_with(client, tools=[add])
    result = Runner.run_streamed(agent, text, conversation_id=made.id)
    deltas = [
        event.data.delta
        async for event in result.stream_events()
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
    ]
    assert "".join(deltas) == result.final_output


async def test_an_agent_hands_off_to_another(client: openai.AsyncOpenAI) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    expert: Agent[Any] = Agent(name="Expert", model=OpenAIResponsesModel(MODEL, client))
    triage = agent_with(client, handoffs=[expert])
    result = await Runner.run(triage, "call transfer_to_expert {}", session=session)
    assert result.last_agent is expert
    assert seen(await Runner.run(expert, "and now?", session=session)) == 3


@pytest.mark.parametrize("location", ["session", "conversation", "chain"])
async def test_a_run_waits_for_a_human(client: openai.AsyncOpenAI, location: str) -> None:
    paid: list[int] = []

    @function_tool(needs_approval=True)
    def pay(amount: int) -> str:
        paid.append(amount)
        return "done"

    options: dict[str, Any] = {"auto_previous_response_id": True}
    if location == "session":
        options = {"session": OpenAIConversationsSession(openai_client=client)}
    elif location == "conversation":
        options = {"conversation_id": (await client.conversations.create()).id}
    agent = agent_with(client, tools=[pay])
    interrupted = await Runner.run(agent, 'call pay {"amount": 5}', **options)
    assert paid == []
    state = await RunState.from_string(agent, interrupted.to_state().to_string())
    for interruption in state.get_interruptions():
        state.approve(interruption)
    resumed = {"session": options["session"]} if location == "session" else {}
    result = await Runner.run(agent, state, **resumed)
    assert paid == [5]
    assert str(result.final_output).endswith("Last text: done")


@pytest.mark.parametrize("mode", ["auto", "input"])
async def test_the_sdks_compaction_works_through_the_gateway(
    client: openai.AsyncOpenAI, tmp_path: Path, mode: Any
) -> None:
    underlying = SQLiteSession("s", tmp_path / "sdk_session.db")
    try:
        session = OpenAIResponsesCompactionSession(
            "s", underlying, client=client, model=MODEL, compaction_mode=mode,
            should_trigger_compaction=lambda context: len(context["session_items"]) >= 4,
        )  # fmt: skip
        agent = agent_with(client)
        for text in ("the password is swordfish", "thanks"):
            await Runner.run(agent, text, session=session)
        kinds = [str(item.get("type") or "message") for item in await session.get_items()]
        assert "compaction" in kinds
        result = await Runner.run(agent, "and now?", session=session)
        assert "and now?" in str(result.final_output)
    finally:
        underlying.close()


async def test_concurrent_runs_in_one_conversation_are_serial(
    client: openai.AsyncOpenAI,
) -> None:
    """Where OpenAI's server answers `conversation_locked`, the second run waits in the lane."""
    made = await client.conversations.create()
    agent = agent_with(client)
    results = await asyncio.gather(
        *(Runner.run(agent, text, conversation_id=made.id) for text in ("one", "two"))
    )
    assert sorted(seen(result) for result in results) == [1, 3]
