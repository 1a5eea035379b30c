"""Guarded conversations: losses at the provider are detected, reported once and repaired."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, Runner

from holdfast.agents_sdk import HoldfastSession, Missing, SessionClosed, guard
from holdfast.testing.simulator.process import ProviderSimulator

TURNS = ["hi", "what can you do?", "give me one example", "thanks"]
MODEL = "gpt-5.4"


@pytest.fixture
def provider() -> Iterator[ProviderSimulator]:
    scenario: dict[str, Any] = {"unlink_models": [MODEL]}
    with ProviderSimulator(scenario) as simulator:
        yield simulator


@pytest.fixture
async def client(provider: ProviderSimulator) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none") as client:
        yield client


def roles(items: list[Any]) -> str:
    return "".join(item["role"][0] for item in items if item.get("role"))


async def converse(session: Any, client: openai.AsyncOpenAI) -> None:
    agent = Agent(name="tester", model=OpenAIResponsesModel(MODEL, client))
    for text in TURNS:
        await Runner.run(agent, text, session=session)


async def lose(session: Any, client: openai.AsyncOpenAI) -> None:
    """Have the provider lose earlier answers, by a call that does not come through the guard."""
    await client.responses.create(model=MODEL, conversation=session.session_id, input="and now?")


async def test_the_sdks_session_loses_the_assistants_messages(
    client: openai.AsyncOpenAI,
) -> None:
    session = OpenAIConversationsSession(openai_client=client)
    await converse(session, client)
    assert roles(await session.get_items()) != "ua" * len(TURNS)


async def test_a_guarded_conversation_returns_the_whole_history(
    client: openai.AsyncOpenAI, store: str
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        await converse(session, client)
        assert roles(await session.get_items()) == "ua" * len(TURNS)
        assert session.missing == []


async def test_a_loss_is_detected_on_read_reported_once_and_absent_from_the_history(
    client: openai.AsyncOpenAI, store: str
) -> None:
    read_all: list[Missing] = []
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k", on_missing=read_all.append) as session:
        await converse(session, client)
        await lose(session, client)
        items: list[Any] = await session.get_items()
        assert roles(items) == "ua" * (len(TURNS) + 1)
        assert [item["content"] for item in items if item.get("role") == "user"][:4] == TURNS
        lost: list[Any] = [item for found in read_all for item in found.items]
        assert roles(lost) == "aaaa"
        await session.get_items()
        assert len(read_all) == len(session.missing) == 1


async def test_a_conversation_is_reseeded_with_the_whole_history(
    client: openai.AsyncOpenAI, store: str
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        await converse(session, client)
        await lose(session, client)
        assert await session.check() is not None
        old = session.session_id
        new = await session.reseed()
        assert new != old
        assert session.session_id == new
        assert await session.check() is None
        plain = OpenAIConversationsSession(conversation_id=new, openai_client=client)
        assert roles(await plain.get_items()) == "ua" * (len(TURNS) + 1)
        assert roles(await session.get_items()) == "ua" * (len(TURNS) + 1)


async def test_the_log_follows_the_conversation_when_no_key_is_given(
    client: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, tmp_path / "guard.db") as session:
        await converse(session, client)
        new = await session.reseed()
    later = OpenAIConversationsSession(conversation_id=new, openai_client=client)
    async with guard(later, tmp_path / "guard.db") as session:
        assert roles(await session.get_items()) == "ua" * len(TURNS)
    async with HoldfastSession(f"openai:{new}", tmp_path / "guard.db") as log:
        assert roles(await log.get_items()) == "ua" * len(TURNS)


async def test_items_that_others_added_to_the_conversation_are_copied_into_the_log(
    client: openai.AsyncOpenAI, store: str
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        await session.add_items([{"role": "user", "content": "mine"}])
        await inner_add(session.session_id, client)
        items: list[Any] = await session.get_items()
        assert len(items) == 2
        assert "theirs" in str(items[1])
        assert session.missing == []


async def inner_add(conversation_id: str, client: openai.AsyncOpenAI) -> None:
    other = OpenAIConversationsSession(conversation_id=conversation_id, openai_client=client)
    await other.add_items([{"role": "user", "content": "theirs"}])


async def test_pop_and_clear_apply_to_provider_and_log(
    client: openai.AsyncOpenAI, store: str
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        assert await session.pop_item() is None
        await session.add_items([{"role": "user", "content": text} for text in "ab"])
        popped: Any = await session.pop_item()
        assert popped["content"] == "b"
        plain = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=client)
        assert len(await plain.get_items()) == len(await session.get_items()) == 1
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items([{"role": "user", "content": "c"}])
        assert len(await session.get_items(limit=5)) == 1


async def test_a_deleted_conversation_has_lost_everything_and_is_reported_once(
    client: openai.AsyncOpenAI, store: str
) -> None:
    read_all: list[Missing] = []
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k", on_missing=read_all.append) as session:
        await converse(session, client)
        gone = session.session_id
        await client.conversations.delete(gone)
        assert roles(await session.get_items()) == "ua" * len(TURNS)
        await converse(session, client)
        assert roles(await session.get_items()) == "ua" * len(TURNS) * 2
        assert [roles(list(found.items)) for found in read_all] == ["ua" * len(TURNS)]
        assert await session.pop_item() is not None
        new = await session.reseed()
        assert new != gone
        assert await session.check() is None
        plain = OpenAIConversationsSession(conversation_id=new, openai_client=client)
        assert roles(await plain.get_items()) == ("ua" * len(TURNS) * 2)[:-1]
        assert len(read_all) == 1


async def test_a_deleted_conversation_can_be_cleared(
    client: openai.AsyncOpenAI, store: str
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        await session.add_items([{"role": "user", "content": "a"}])
        await client.conversations.delete(session.session_id)
        await session.clear_session()
        assert await session.get_items() == []


class FaultyTransport(httpx2.AsyncHTTPTransport):
    """A transport that can fail, or answer in the provider's place."""

    failure: Exception | int | None = None
    after = 0
    """How many requests still pass."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self.failure is not None and self.after <= 0:
            if isinstance(self.failure, Exception):
                raise self.failure
            return httpx2.Response(self.failure, json={"error": {"message": "no"}}, request=request)
        self.after -= 1
        return await super().handle_async_request(request)


@pytest.fixture
async def faulty_client(
    provider: ProviderSimulator,
) -> AsyncIterator[tuple[FaultyTransport, openai.AsyncOpenAI]]:
    transport = FaultyTransport()
    async with (
        httpx2.AsyncClient(transport=transport) as http,
        openai.AsyncOpenAI(
            base_url=f"{provider.url}/v1", api_key="none", http_client=http, max_retries=0
        ) as client,
    ):
        yield transport, client


def user(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


def texts(items: list[Any]) -> list[str]:
    said = [item["content"] for item in items]
    return [one if isinstance(one, str) else one[0]["text"] for one in said]


@pytest.mark.parametrize(
    "failure",
    [httpx2.ConnectError("cut"), httpx2.ReadTimeout("silent"), 500, 503, 429],
    ids=["cut", "silent", "500", "503", "429"],
)
async def test_an_unreachable_provider_loses_nothing_and_is_compared_later(
    faulty_client: tuple[FaultyTransport, openai.AsyncOpenAI], store: str, failure: Exception | int
) -> None:
    transport, client = faulty_client
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        await session.add_items(user("before"))
        transport.failure = failure
        await session.add_items(user("meanwhile"))
        assert texts(await session.get_items()) == ["before", "meanwhile"]
        with pytest.raises(openai.OpenAIError):
            await session.check()
        with pytest.raises(openai.OpenAIError):
            await session.pop_item()
        with pytest.raises(openai.OpenAIError):
            await session.clear_session()
        assert session.missing == []
        transport.failure = None
        assert texts(await session.get_items()) == ["before", "meanwhile"]
        assert [texts(list(found.items)) for found in session.missing] == [["meanwhile"]]
        await session.reseed()
        assert await session.check() is None
        assert texts(await session.get_items()) == ["before", "meanwhile"]


async def test_a_provider_unreachable_from_the_start_does_not_block_the_session(
    faulty_client: tuple[FaultyTransport, openai.AsyncOpenAI], store: str
) -> None:
    transport, client = faulty_client
    transport.failure = httpx2.ConnectError("cut")
    async with guard(OpenAIConversationsSession(openai_client=client), store, key="k") as session:
        assert await session.get_items() == []
        await session.add_items(user("a"))
        assert texts(await session.get_items()) == ["a"]


async def test_a_batch_partly_stored_at_the_provider_is_logged_whole_and_once(
    faulty_client: tuple[FaultyTransport, openai.AsyncOpenAI], store: str
) -> None:
    transport, client = faulty_client
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        await session.add_items(user("first"))
        transport.failure, transport.after = 500, 1
        many = [f"n{n}" for n in range(45)]
        await session.add_items(user(*many))
        transport.failure = None
        assert texts(await session.get_items()) == ["first", *many]
        assert [texts(list(found.items)) for found in session.missing] == [many[20:]]


async def test_items_that_the_provider_rejects_are_stored_nowhere(
    faulty_client: tuple[FaultyTransport, openai.AsyncOpenAI], store: str
) -> None:
    transport, client = faulty_client
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, store, key="k") as session:
        await session.add_items(user("a"))
        transport.failure = 400
        with pytest.raises(openai.BadRequestError):
            await session.add_items(user("b"))
        transport.failure = None
        assert texts(await session.get_items()) == ["a"]
        assert session.missing == []


async def test_a_closed_guard_does_not_call_the_provider(
    client: openai.AsyncOpenAI, store: str
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    session = guard(inner, store, key="k")
    await session.add_items(user("a"))
    await session.close()
    for refused in (
        session.get_items, session.pop_item, session.clear_session, session.check,
        session.reseed, lambda: session.add_items(user("b")),
    ):  # fmt: skip
        with pytest.raises(SessionClosed):
            await refused()
    plain = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=client)
    assert texts(await plain.get_items()) == ["a"]


async def test_items_in_flight_or_seen_by_several_guards_are_copied_once(
    client: openai.AsyncOpenAI, shared_store: str
) -> None:
    inner = OpenAIConversationsSession(openai_client=client)
    async with guard(inner, shared_store, key="k") as session:
        await session.add_items(user("first"))
        again = OpenAIConversationsSession(conversation_id=session.session_id, openai_client=client)
        async with guard(again, shared_store, key="k") as other:
            await inner_add(session.session_id, client)
            await asyncio.gather(*(one.get_items() for one in (session, other, session, other)))
            await asyncio.gather(
                session.get_items(), session.add_items(user("mine")), session.get_items()
            )
            found = texts(await session.get_items())
    assert found == ["first", "theirs", "mine"]


async def test_the_lost_one_of_two_equal_messages_is_reported(
    client: openai.AsyncOpenAI, store: str
) -> None:
    session = guard(OpenAIConversationsSession(openai_client=client), store, key="a")
    async with session:
        await session.add_items(user("yes", "one", "ok", "two", "yes", "three"))
        there: list[Any] = await OpenAIConversationsSession(
            conversation_id=session.session_id, openai_client=client
        ).get_items()
        await client.conversations.items.delete(there[0]["id"], conversation_id=session.session_id)
        missing = await session.check()
        assert missing is not None
        assert texts(list(missing.items)) == ["yes"]
        assert texts(await session.get_items()) == ["yes", "one", "ok", "two", "yes", "three"]
