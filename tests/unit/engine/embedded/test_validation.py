"""The Python API: which session a handle means, and errors for invalid arguments."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast import ProviderState, Usage
from holdfast.core.errors import (
    HoldfastError,
    InvalidInput,
    InvalidItem,
    InvalidSetting,
    SessionChanged,
    SessionNotFound,
    SessionNotKeyed,
    StoreError,
)
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.embedded.turn_handle import Item, TurnHandle
from holdfast.ports.store import ItemQuery, SessionQuery


@pytest.fixture
async def hf() -> AsyncIterator[Holdfast]:
    async with holdfast.open("memory:") as opened:
        yield opened


async def texts(session: SessionHandle) -> list[str]:
    return [item["content"][0]["text"] for item in await session.items()]


# ── which session is meant ──────────────────────────────────────────────────────────────────


async def _moved_on(hf: Holdfast) -> tuple[SessionHandle, SessionHandle, str]:
    """Return a handle by key and one by id that last saw a generation, and the one after it."""
    by_key = await hf.session("k")
    await by_key.append("old")
    by_id = await hf.session(id=by_key.id)
    other = await hf.session("k")
    new_id = await other.reset()
    await other.append("new")
    return by_key, by_id, new_id


async def test_a_handle_by_key_forks_what_is_live(hf: Holdfast) -> None:
    by_key, by_id, _ = await _moved_on(hf)
    assert await texts(await by_key.fork()) == ["new"]
    assert await texts(await by_id.fork()) == ["old"]


async def test_a_handle_by_key_deletes_what_is_live(hf: Holdfast) -> None:
    by_key, by_id, new_id = await _moved_on(hf)
    await by_key.delete()
    with pytest.raises(SessionNotFound):
        await hf.session(id=new_id)
    assert await texts(by_id) == ["old"]


async def test_a_handle_by_id_deletes_that_session_alone(hf: Holdfast) -> None:
    by_key, by_id, new_id = await _moved_on(hf)
    await by_id.delete()
    assert await texts(by_key) == ["new"]
    assert by_key.id == new_id
    with pytest.raises(SessionNotFound):
        await by_id.view()


async def test_a_handle_by_key_resets_what_is_live_and_one_by_id_that_session(hf: Holdfast) -> None:
    by_key, by_id, new_id = await _moved_on(hf)
    with pytest.raises(SessionChanged) as caught:
        await by_id.reset()
    assert caught.value.live_id == new_id
    await by_key.reset()
    assert by_key.generation == 3


async def test_only_a_generation_of_its_own_key_is_restored_by_a_handle(hf: Holdfast) -> None:
    session, stranger = await hf.session("k"), await hf.session("other")
    await stranger.append("theirs")
    theirs = stranger.id
    await stranger.reset()
    with pytest.raises(SessionNotFound):
        await session.restore(theirs)
    assert session.key == "k"
    assert (await stranger.view()).session.generation == 2
    keyless = await hf.session()
    with pytest.raises(SessionNotKeyed):
        await keyless.restore(keyless.id)


async def test_a_repeat_of_an_older_generation_moves_no_handle(hf: Holdfast) -> None:
    async def model(_: list[Item]) -> str:
        return "answer"

    first = await hf.session("k")
    await first.run("one", model, idempotency_key="i")
    new_id = await first.reset()
    by_key, by_id = await hf.session("k"), await hf.session(id=new_id)
    for handle in (first, by_key, by_id):
        (answer,) = await handle.run("one", model, idempotency_key="i")
        assert answer["content"][0]["text"] == "answer"
        assert (handle.id, handle.generation) == (new_id, 2)
    await by_id.append("still here")
    assert await texts(by_key) == ["still here"]


# ── what cannot be meant ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("role", [None, 7, "", "\0", "robot", b"user"], ids=repr)
async def test_a_role_that_is_none_is_refused(hf: Holdfast, role: Any) -> None:
    session = await hf.session("k")
    with pytest.raises(InvalidItem, match="role"):
        await session.append("x", role=role)
    with pytest.raises(InvalidItem, match="role"):
        await session.append({"type": "message"}, role=role)
    assert await session.items() == []


COUNTS: list[Any] = [2**70, 2**63, -1, 1.5, "7", None, True]
NO_WORDS: list[Any] = ["a\0b", "\ud800", 7, None, b"p"]


@pytest.mark.parametrize("count", COUNTS, ids=repr)
async def test_tokens_that_cannot_be_counted_are_refused_where_they_are_given(
    hf: Holdfast, count: Any
) -> None:
    session = await hf.session("k")
    async with session.turn("one") as turn:
        for usage in (Usage(count), Usage(0, count), Usage(0, 0, count), Usage(0, 0, 0, count)):
            with pytest.raises(InvalidInput, match="token"):
                turn.spent(usage)
    (view,) = await session.turns()
    assert view.status == "completed"


async def test_the_largest_counts_can_be_added_up(any_store_url: str) -> None:
    async with holdfast.open(any_store_url) as hf:
        session = await hf.session("k")
        for _ in range(3):
            async with session.turn("one") as turn:
                turn.spent(Usage(2**53, 2**53, 2**53, 2**53))
        assert (await session.view()).session.input_tokens == 3 * 2**53


@pytest.mark.parametrize("word", NO_WORDS, ids=repr)
async def test_the_maker_of_provider_state_is_text_that_can_be_kept(
    hf: Holdfast, word: Any
) -> None:
    session = await hf.session("k")
    async with session.turn("one") as turn:
        for state in (
            ProviderState(word, "a", "m", b""), ProviderState("p", word, "m", b""),
            ProviderState("p", "a", word, b""),
        ):  # fmt: skip
            with pytest.raises(InvalidInput, match="provider state"):
                turn.remember(state)
        turn.remember(ProviderState("p", "a", "m", b"\0\xff"))
    (view,) = await session.turns()
    assert view.status == "completed"


async def _read_everything(hf: Holdfast, name: Any) -> list[Any]:
    """Return what every read answers to a name that no column can hold."""
    read, session = hf.gateway.read, (await (await hf.session("k")).view()).session
    asks = [
        lambda: read.session(Tenant(name), session_id=SessionId("s")),
        lambda: read.session(Tenant("default"), session_id=SessionId(name)),
        lambda: read.sessions(Tenant("default"), SessionQuery(after=SessionId(name))),
        lambda: read.turn(Tenant("default"), TurnId(name)),
        lambda: read.runs(TurnId(name)),
        lambda: read.item(session, name),
        lambda: read.response(Tenant("default"), TurnId(name), 0),
        lambda: read.provider_state(SessionId(name)),
        lambda: read.events(SessionId(name), after=0, limit=1),
        lambda: read.items(session, ItemQuery(limit=2**70)),
        lambda: read.turns(session.id, limit=2**70),
    ]
    answers: list[Any] = []
    for ask in asks:
        try:
            answers.append(await ask())  # type: ignore[no-untyped-call]
        except HoldfastError as exc:
            answers.append(exc)
    return answers


@pytest.mark.parametrize("name", ["\0", "\ud800", 2**70], ids=repr)
async def test_a_read_of_what_no_column_can_hold_finds_nothing_or_is_refused(
    any_store_url: str, name: Any
) -> None:
    async with holdfast.open(any_store_url) as hf:
        session = await hf.session("k")
        await session.append("kept")
        for answer in await _read_everything(hf, name):
            if isinstance(answer, Exception):
                assert isinstance(answer, StoreError | InvalidInput)
                assert not answer.retryable
        assert await texts(session) == ["kept"]


@pytest.mark.parametrize(
    "place",
    ["localhost:99999", "localhost:-1", "localhost:0", "localhost:port", "a:5432,b:99999",
     "/db?host=localhost&port=99999", "/db?host=a,b&port=5432,70000"],
)  # fmt: skip
async def test_a_port_that_cannot_be_is_a_wrong_url(place: str) -> None:
    with pytest.raises(InvalidSetting, match="port"):
        async with holdfast.open(f"postgresql://{place}"):
            pass


async def test_invalid_input_of_a_turn_is_reported_once_and_the_next_turn_runs(
    hf: Holdfast,
) -> None:
    session = await hf.session("k")

    async def work(turn: TurnHandle) -> None:
        async with turn:
            turn.spent(Usage(2**70))

    with pytest.raises(InvalidInput):
        await work(session.turn("one"))
    async with session.turn("two", on_busy="reject") as turn:
        turn.add("here")
    assert [view.status for view in await session.turns()] == ["completed", "failed"]
