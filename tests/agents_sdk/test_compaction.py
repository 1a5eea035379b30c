"""A compacted history is still in the log, whoever compacted it."""

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


async def test_a_compacted_history_is_still_in_the_log(session: HoldfastSession) -> None:
    await session.add_items(say(*"abc"))
    await session.run_compaction({"force": True})
    await session.add_items(say("d"))
    assert texts_of(await session.get_items()) == ["summary of 3", "d"]
    assert texts_of(await session.history()) == ["a", "b", "c", "summary of 3", "d"]


@pytest.mark.parametrize("runner", [Runner, HoldfastRunner], ids=["bare", "in the lane"])
async def test_the_runner_compacts_when_compaction_is_due(
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


async def test_open_calls_are_not_compacted(
    session: HoldfastSession,
) -> None:
    waiting: list[Any] = [call.model_dump() for call in calls("pay", call_id="c")]
    await session.add_items([*say(*"abcd"), *waiting])
    await session.run_compaction({"force": True})
    assert len(await session.get_items()) == 5


async def test_items_appended_during_compaction_are_not_hidden(store: str) -> None:
    async def summarize_slowly(items: list[Any]) -> list[Any]:
        await slow.add_items(say("meanwhile"))
        return await summarize(items)

    compaction = Compaction(shorten=summarize_slowly)
    async with HoldfastSession("k", store, compaction=compaction) as slow:
        await slow.add_items(say("a"))
        await slow.run_compaction({"force": True})
        assert texts_of(await slow.get_items()) == ["a", "meanwhile"]


async def test_a_session_without_compaction_adds_no_work_to_the_runner(
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


async def test_the_sdks_own_compaction_loses_nothing_on_a_holdfast_session(store: str) -> None:
    async with HoldfastSession("k", store) as session:
        left = await compacted(session)
        assert "compaction" in left
        history: list[Any] = await session.history()
        assert [item.get("content") for item in history[:3]] == ["a", "b", "c"]


async def test_the_sdks_own_compaction_deletes_items_of_the_sdks_session(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sdk_session.db"
    sdk_session = SQLiteSession("k", path)
    try:
        await compacted(sdk_session)
        rows = (
            sdk_session._get_connection().execute("select count(*) from agent_messages").fetchone()
        )
        left = len(await sdk_session.get_items())
    finally:
        sdk_session.close()
    assert rows == (left,)


async def test_an_openai_client_can_compact(store: str) -> None:
    with ProviderSimulator() as provider:
        async with openai.AsyncOpenAI(base_url=provider.base_url, api_key="none") as client:
            compaction = openai_compaction(client, "gpt-4.1")
            async with HoldfastSession("k", store, compaction=compaction) as session:
                await session.add_items(say(*"abc"))
                await session.run_compaction({"force": True})
                items: list[Any] = await session.get_items()
                assert items[-1]["type"] == "compaction"
                assert len(await session.history()) == 3 + len(items)
