"""Story 1: a provider's conversation silently dropped the assistant's messages.

The report's own scenario, with the Agents SDK as it is, against our server: four of four.
"""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner
from agents.tracing import set_tracing_disabled

from holdfast.testing.simulator.process import ProviderSimulator
from tests.acceptance.stories import gateway_before

TURNS = ["hi", "what can you do?", "give me one example", "thanks"]


@pytest.mark.parametrize("state", ["replay", "conversation"])
def test_every_assistant_item_is_still_there(store_url: str, tmp_path: Path, state: str) -> None:
    set_tracing_disabled(True)
    scenario: dict[str, Any] = {"unlink_models": ["gpt-5.4"]}
    upstream = f'state = "{state}"'
    with (
        ProviderSimulator(scenario) as sim,
        gateway_before(sim, store_url, tmp_path, upstream=upstream) as gateway,
    ):
        items = asyncio.run(_converse(f"{gateway.url}/v1", "gpt-5.4"))
    said = [item for item in items if item.get("type") == "message"]
    assert [item["role"] for item in said] == ["user", "assistant"] * len(TURNS)


async def _converse(base_url: str, model: str) -> list[Any]:
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        session = OpenAIConversationsSession(openai_client=client)
        agent = Agent(
            name="Repro",
            model=OpenAIResponsesModel(model, client),
            instructions="Reply in one short sentence.",
        )
        for text in TURNS:
            await Runner.run(agent, text, session=session)
        return list(await session.get_items())
