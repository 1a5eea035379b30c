"""The SDK's session protocol in every store, compared with the SDK's own sessions."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agents import Runner, Session, SessionSettings, SQLiteSession
from agents.memory.session import _session_accepts_wrapper

from holdfast import HoldfastError
from holdfast.agents_sdk import HoldfastSession, SessionClosed
from holdfast.agents_sdk.item_codec import to_items
from holdfast.core.model.items import item_value, read_item
from tests.agents_sdk.fake_model import FakeModel, agent_of, texts_of

ODD: list[Any] = [
    {"role": "user", "content": "plain"},
    {"role": "user", "content": 'O\'Reilly; DROP TABLE "items"; --'},
    {"role": "assistant", "content": "🦞 ünïcode \u2028 日本語 \x00"},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "x", "n": None}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": [1, 2.5, true]}'},
    {"type": "function_call_output", "call_id": "c", "output": {"nested": {"deep": [[], {}]}}},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA=="},
    {"type": "holodeck", "unheard": {"of": 12345678901234567890}},
]


def say(*texts: str) -> list[Any]:
    return [{"role": "user", "content": text} for text in texts]


async def test_the_sdk_accepts_it_as_a_session(session: HoldfastSession) -> None:
    assert isinstance(session, Session)
    assert session.session_id == "agent:main:direct:michael"
    assert _session_accepts_wrapper(session)


async def test_an_empty_session_has_no_items(session: HoldfastSession) -> None:
    assert await session.get_items() == []
    assert await session.get_items(limit=5) == []
    assert await session.pop_item() is None
    await session.clear_session()
    assert await session.get_items() == []


async def test_items_come_back_as_they_were_added(session: HoldfastSession) -> None:
    await session.add_items(ODD)
    assert await session.get_items() == ODD


@pytest.mark.parametrize("role", ["user", "assistant", "developer", "r\0le"])
@pytest.mark.parametrize(
    "text", ["", "hi", " a\r\nb\rc ", "e\u0301 \u00fc \u2603", "\ud83d\ude00", "\0"]
)
def test_a_text_is_the_item_that_its_json_is_read_as(role: str, text: str) -> None:
    plain, named = (
        {"role": role, "content": text},
        {"content": text, "role": role, "type": "message"},
    )
    for value in (plain, named):
        (item,) = to_items([value])
        assert item == read_item(item.body)
        assert item_value(item.body).keys() == value.keys()


async def test_a_surrogate_pair_is_joined(session: HoldfastSession) -> None:
    await session.add_items(say("whole \ud83e\udd9e"))
    assert await session.get_items() == say("whole 🦞")


@pytest.mark.parametrize(
    "content",
    [b"raw", float("nan"), float("inf"), "half \ud83e of one", [{"deep": (1, b"raw")}], {1, 2}],
    ids=["bytes", "nan", "infinity", "half a character", "deep", "set"],
)
async def test_a_batch_with_a_value_that_is_not_json_is_rejected(
    session: HoldfastSession, content: object
) -> None:
    odd: Any = {"role": "user", "content": content}
    with pytest.raises(HoldfastError, match="must consist of JSON values"):
        await session.add_items([*say("before"), odd])
    assert await session.get_items() == []


async def test_equal_items_are_all_stored(session: HoldfastSession) -> None:
    await session.add_items(say("yes"))
    await session.add_items(say("yes"))
    assert await session.get_items() == say("yes", "yes")


@pytest.mark.parametrize(
    ("limit", "texts"),
    [(None, "abcde"), (2, "de"), (5, "abcde"), (9, "abcde"), (0, ""), (-1, "abcde")],
)
async def test_a_limit_returns_the_latest_items_in_order(
    session: HoldfastSession, limit: int | None, texts: str
) -> None:
    await session.add_items(say(*"abc"))
    await session.add_items(say(*"de"))
    assert await session.get_items(limit=limit) == say(*texts)


async def test_settings_give_the_default_limit_and_an_argument_overrides_it(store: str) -> None:
    settings = SessionSettings(limit=2)
    async with HoldfastSession("s", store, session_settings=settings) as session:
        await session.add_items(say(*"abc"))
        assert await session.get_items() == say(*"bc")
        assert await session.get_items(limit=3) == say(*"abc")
        assert await session.get_items(limit=0) == []
    async with HoldfastSession("s", store, session_settings={"limit": 1}) as session:
        assert session.session_settings == SessionSettings(limit=1)


async def test_pop_returns_the_newest_item_and_keeps_the_rest(session: HoldfastSession) -> None:
    await session.add_items(say(*"ab"))
    assert await session.pop_item() == say("b")[0]
    await session.add_items(say("c"))
    assert [await session.pop_item() for _ in range(3)] == [*say(*"ca"), None]
    assert await session.get_items() == []


async def test_clear_leaves_an_empty_usable_session(session: HoldfastSession) -> None:
    await session.add_items(say(*"ab"))
    await session.clear_session()
    assert await session.get_items() == []
    assert await session.pop_item() is None
    await session.add_items(say("c"))
    assert await session.get_items() == say("c")


async def test_an_empty_append_does_nothing(session: HoldfastSession) -> None:
    await session.add_items([])
    assert await session.get_items() == []


async def test_a_closed_session_rejects_every_call(store: str) -> None:
    session = HoldfastSession("s", store)
    await session.add_items(say("a"))
    await session.close()
    for refused in (
        session.get_items,
        lambda: session.add_items(say("b")),
        lambda: session.add_items([]),
        session.pop_item,
        session.clear_session,
    ):
        with pytest.raises(SessionClosed, match="'s' is closed") as caught:
            await refused()
        assert isinstance(caught.value, RuntimeError)
        assert isinstance(caught.value, HoldfastError)


async def test_closing_need_not_be_awaited(shared_store: str) -> None:
    session = HoldfastSession("s", shared_store)
    await session.add_items(say("a"))
    session.close()
    async with HoldfastSession("s", shared_store) as again:
        assert await again.get_items() == say("a")


async def test_sessions_of_other_ids_and_tenants_are_separate(shared_store: str) -> None:
    async with (
        HoldfastSession("a", shared_store) as a,
        HoldfastSession("b", shared_store) as b,
        HoldfastSession("a", shared_store, tenant="other") as foreign,
    ):
        await a.add_items(say("for a"))
        await b.add_items(say("for b"))
        assert await a.get_items() == say("for a")
        assert await b.get_items() == say("for b")
        assert await foreign.get_items() == []
        await b.clear_session()
        assert await a.get_items() == say("for a")


async def test_items_outlive_their_session_object(shared_store: str) -> None:
    async with HoldfastSession("s", shared_store) as first:
        await first.add_items(say("a"))
    async with HoldfastSession("s", shared_store) as second:
        assert await second.get_items() == say("a")


async def test_concurrent_appends_keep_every_batch_whole(shared: HoldfastSession) -> None:
    await asyncio.gather(*(shared.add_items(say(f"{n}a", f"{n}b")) for n in range(20)))
    found = texts_of(await shared.get_items())
    assert len(found) == 40
    assert all(found[n][:-1] == found[n + 1][:-1] for n in range(0, 40, 2))


async def test_a_batch_is_added_atomically(session: HoldfastSession) -> None:
    bad: list[Any] = [*say("a"), {"role": "user", "content": object()}]
    with pytest.raises(HoldfastError):
        await session.add_items(bad)
    assert await session.get_items() == []


async def test_a_batch_id_is_stored_once(session: HoldfastSession) -> None:
    for _ in range(2):
        await session.add_items(say("yes"), batch_id="telegram:42")
    await session.add_items(say("yes"), batch_id="telegram:43")
    assert await session.get_items() == say("yes", "yes")


async def test_a_run_of_the_sdk_remembers(session: HoldfastSession) -> None:
    model = FakeModel()
    agent = agent_of(model)
    for text in ("one", "two"):
        result = await Runner.run(agent, text, session=session)
        assert result.final_output == f"answer to {text}"
    assert texts_of(model.asked[1]) == ["one", "answer to one", "two"]
    assert texts_of(await session.get_items()) == [
        "one", "answer to one", "two", "answer to two",
    ]  # fmt: skip


async def test_a_streamed_run_remembers(session: HoldfastSession) -> None:
    agent = agent_of(FakeModel())
    result = Runner.run_streamed(agent, "one", session=session)
    async for _ in result.stream_events():
        pass
    assert texts_of(await session.get_items()) == ["one", "answer to one"]


async def test_settings_limit_the_models_input(store: str) -> None:
    model = FakeModel()
    async with HoldfastSession("s", store, session_settings=SessionSettings(limit=2)) as session:
        await session.add_items(say(*"abcd"))
        await Runner.run(agent_of(model), "e", session=session)
    assert texts_of(model.asked[0]) == ["c", "d", "e"]


def test_a_session_outlives_event_loops(tmp_path: Path) -> None:
    """`Runner.run_sync` and scripts with several `asyncio.run` use one session object."""
    session = HoldfastSession("s", tmp_path / "agent.db")
    asyncio.run(session.add_items(say("a")))
    asyncio.run(session.add_items(say("b")))

    async def read_and_close() -> list[Any]:
        found: list[Any] = await session.get_items()
        await session.close()
        return found

    assert asyncio.run(read_and_close()) == say("a", "b")


async def test_a_path_names_a_file_as_in_the_sdks_session(tmp_path: Path) -> None:
    path = tmp_path / "conversations.db"
    async with HoldfastSession("s", str(path)) as session:
        await session.add_items(say("a"))
    assert path.exists()


async def test_a_session_needs_a_store_or_a_url(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="store"):
        HoldfastSession("s")
    with pytest.raises(HoldfastError, match="session key"):
        HoldfastSession("", "memory:")


async def test_the_sdks_session_behaves_the_same_in_the_protocol(
    session: HoldfastSession, tmp_path: Path
) -> None:
    await compare_with_sdk_session(session, tmp_path)


async def compare_with_sdk_session(session: Session, folder: Path) -> None:
    """Take the steps of the protocol with a session and with the SDK's own, and compare."""
    sdk_session = SQLiteSession("s", folder / "sdk_session.db")
    try:
        seen = [await protocol_steps(each) for each in (session, sdk_session)]
    finally:
        sdk_session.close()
    assert seen[0] == seen[1]


async def protocol_steps(session: Session) -> list[Any]:
    """Go through the protocol, and return everything that it gives."""
    seen: list[Any] = [await session.get_items(), await session.pop_item()]
    await session.add_items(say(*"abc"))
    seen += [await session.get_items(), await session.get_items(2), await session.pop_item()]
    await session.add_items([])
    await session.add_items(ODD[:2] + ODD[3:])
    seen += [await session.get_items(limit=n) for n in (0, 1, 3, 100, -1)]
    await session.clear_session()
    seen += [await session.get_items(), await session.pop_item()]
    await session.add_items(say("d"))
    return [*seen, await session.get_items()]


@pytest.mark.parametrize("name", ["mysql://h/db", "htp://x", "Memory:", "foo://", "mysql://u:pw@h"])
def test_a_url_with_an_unknown_scheme_is_not_a_file_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HoldfastError, match="is none of memory:, sqlite:///") as refused:
        HoldfastSession("k", name)
    assert "pw" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


async def test_a_history_can_be_replaced_by_nothing(located_session: HoldfastSession) -> None:
    await located_session.add_items(say("one", "two"))
    assert await located_session._atomic_replace_items([])
    assert await located_session.get_items() == []
    await located_session.add_items(say("three"))
    assert await located_session.get_items() == say("three")
