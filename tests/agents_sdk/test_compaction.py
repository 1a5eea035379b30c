"""A history that was shortened is still there, whoever shortened it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import OpenAIResponsesCompactionSession, Runner, SQLiteSession
from agents.memory import is_openai_responses_compaction_aware_session

from holdfast.agents_sdk import Compaction, HoldfastRunner, HoldfastSession, openai_compaction
from holdfast.testing.simulator.process import ProviderSimulator
from tests.agents_sdk.fake_model import FakeModel, agent_of, calls, texts_of


async def summarize(items: list[Any]) -> list[Any]:
    """Return one message that stands for all of them."""
    return [{"role": "user", "content": f"summary of {len(items)}"}]


@pytest.fixture
async def session(store: str) -> AsyncIterator[HoldfastSession]:
    compaction = Compaction(shorten=summarize, after_items=4)
    async with HoldfastSession("k", store, compaction=compaction) as session:
        yield session


def say(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


async def test_a_shortened_history_is_still_there(session: HoldfastSession) -> None:
    await session.add_items(say(*"abc"))
    await session.run_compaction({"force": True})
    await session.add_items(say("d"))
    assert texts_of(await session.get_items()) == ["summary of 3", "d"]
    assert texts_of(await session.history()) == ["a", "b", "c", "summary of 3", "d"]


@pytest.mark.parametrize("runner", [Runner, HoldfastRunner], ids=["bare", "in the lane"])
async def test_the_runner_has_it_shortened_when_it_is_time(
    session: HoldfastSession, runner: Any
) -> None:
    model = FakeModel()
    for text in "abc":
        await runner.run(agent_of(model), text, session=session)
    assert texts_of(model.asked[1]) == ["a", "answer to a", "b"]
    assert texts_of(model.asked[2]) == ["summary of 4", "c"]
    assert texts_of(await session.history()) == [
        "a", "answer to a", "b", "answer to b", "summary of 4", "c", "answer to c",
    ]  # fmt: skip


async def test_calls_that_wait_for_their_outputs_are_not_summed_up(
    session: HoldfastSession,
) -> None:
    waiting: list[Any] = [call.model_dump() for call in calls("pay", call_id="c")]
    await session.add_items([*say(*"abcd"), *waiting])
    await session.run_compaction({"force": True})
    assert len(await session.get_items()) == 5


async def test_what_came_while_a_summary_was_made_is_not_hidden_by_it(store: str) -> None:
    async def summarize_slowly(items: list[Any]) -> list[Any]:
        await slow.add_items(say("meanwhile"))
        return await summarize(items)

    compaction = Compaction(shorten=summarize_slowly)
    async with HoldfastSession("k", store, compaction=compaction) as slow:
        await slow.add_items(say("a"))
        await slow.run_compaction({"force": True})
        assert texts_of(await slow.get_items()) == ["a", "meanwhile"]


async def test_a_session_without_compaction_does_not_cost_the_runner_anything(
    store: str,
) -> None:
    async with HoldfastSession("k", store) as session:
        assert not is_openai_responses_compaction_aware_session(session)
        with pytest.raises(AttributeError, match="no compaction"):
            _ = session.run_compaction


async def compacted(underlying: Any) -> list[str]:
    """Let the SDK's own compaction, by a real client, shorten a session; return what is left."""
    with ProviderSimulator() as provider:
        async with openai.AsyncOpenAI(base_url=provider.base_url, api_key="none") as client:
            session = OpenAIResponsesCompactionSession(
                "k", underlying, client=client, model="gpt-4.1", compaction_mode="input"
            )
            await session.add_items(say(*"abc"))
            await session.run_compaction({"force": True})
            return [str(item.get("type") or "message") for item in await session.get_items()]


async def test_the_sdks_own_compaction_loses_nothing_on_ours(store: str) -> None:
    async with HoldfastSession("k", store) as session:
        left = await compacted(session)
        assert "compaction" in left
        history: list[Any] = await session.history()
        assert [item.get("content") for item in history[:3]] == ["a", "b", "c"]


async def test_the_sdks_own_compaction_deletes_what_the_shipped_session_had(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shipped.db"
    shipped = SQLiteSession("k", path)
    try:
        await compacted(shipped)
        rows = shipped._get_connection().execute("select count(*) from agent_messages").fetchone()
        left = len(await shipped.get_items())
    finally:
        shipped.close()
    assert rows == (left,)


async def test_a_client_of_openais_can_do_the_shortening(store: str) -> None:
    with ProviderSimulator() as provider:
        async with openai.AsyncOpenAI(base_url=provider.base_url, api_key="none") as client:
            compaction = openai_compaction(client, "gpt-4.1")
            async with HoldfastSession("k", store, compaction=compaction) as session:
                await session.add_items(say(*"abc"))
                await session.run_compaction({"force": True})
                items: list[Any] = await session.get_items()
                assert items[-1]["type"] == "compaction"
                assert len(await session.history()) == 3 + len(items)
