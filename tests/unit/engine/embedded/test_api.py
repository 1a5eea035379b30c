"""The Python API: sessions by key or id, and what can be done with them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import (
    HoldfastError,
    IdempotencyMismatch,
    InvalidInput,
    InvalidItem,
    InvalidSessionKey,
    ItemNotFound,
    SessionChanged,
    SessionHasForks,
    SessionNotFound,
    SessionNotKeyed,
    SessionRetired,
    TurnFailed,
)
from holdfast.core.ids import Tenant
from holdfast.core.model.reset_policy import NEVER
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.embedded.turn_handle import Item
from holdfast.ports.store import SessionView


@pytest.fixture
async def hf() -> AsyncIterator[Holdfast]:
    async with holdfast.open("memory:") as opened:
        yield opened


def text_of(item: Item) -> str:
    text: str = item["content"][0]["text"]
    return text


async def texts(session: SessionHandle, **more: Any) -> list[str]:
    return [text_of(item) for item in await session.items(**more)]


async def until(session: SessionHandle, is_so: Callable[[SessionView], bool]) -> None:
    while not is_so(await session.view()):  # noqa: ASYNC110 - the store has no event
        await asyncio.sleep(0)


class Model:
    """Answers with how much it knows, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, items: list[Item]) -> str:
        self.calls += 1
        return f"knowing {len(items) - 1}"


# ── identity ────────────────────────────────────────────────────────────────────────────────


async def test_a_key_is_one_conversation_however_often_it_is_asked_for(hf: Holdfast) -> None:
    found = await asyncio.gather(*(hf.session("k") for _ in range(20)))
    assert len({session.id for session in found}) == 1
    assert {session.key for session in found} == {"k"}


async def test_keys_that_differ_in_a_byte_are_different_conversations(hf: Holdfast) -> None:
    found = [await hf.session(key) for key in ("K", "k", "k ", " k", "e\u0301", "\u00e9")]
    assert len({session.id for session in found}) == 6


async def test_a_session_without_a_key_is_found_by_its_id_alone(hf: Holdfast) -> None:
    session = await hf.session()
    await session.append("one")
    assert session.key is None
    again = await hf.session(id=session.id)
    assert await texts(again) == ["one"]


async def test_tenants_do_not_see_each_other(hf: Holdfast) -> None:
    mine = await hf.session("k")
    await mine.append("one")
    rival = Holdfast(hf.gateway, Tenant("rival"), NEVER)
    theirs = await rival.session("k")
    assert theirs.id != mine.id
    assert await texts(theirs) == []
    with pytest.raises(SessionNotFound):
        await rival.session(id=mine.id)
    assert [view.session.id for view in await rival.sessions()] == [theirs.id]


async def test_a_handle_by_key_follows_a_reset_by_somebody_else(hf: Holdfast) -> None:
    here, there = await hf.session("k"), await hf.session("k")
    await here.append("old")
    await there.reset()
    await here.run("new", Model())
    assert here.id == there.id
    assert here.generation == 2
    assert await texts(here) == ["new", "knowing 0"]


async def test_a_handle_by_id_stays_that_session(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append("old")
    old_id = session.id
    new_id = await session.reset()
    await session.append("new")
    old = await hf.session(id=old_id)
    assert await texts(old) == ["old"]
    assert (await old.view()).status == "retired"
    for write in (old.append("late"), old.run("late", Model())):
        with pytest.raises(SessionRetired) as caught:
            await write
        assert caught.value.live_id == new_id
    assert await texts(await hf.session(id=new_id)) == ["new"]


# ── turns through run and append ────────────────────────────────────────────────────────────


async def test_a_conversation_remembers(hf: Holdfast) -> None:
    session = await hf.session("k")
    model = Model()
    for text in ("one", "two"):
        await session.run(text, model)
    assert await texts(session) == ["one", "knowing 0", "two", "knowing 2"]
    assert [view.status for view in await session.turns()] == ["completed", "completed"]


async def test_a_repeat_gets_the_one_answer_and_the_model_is_called_once(hf: Holdfast) -> None:
    session = await hf.session("k")
    model = Model()
    answers = [await session.run("one", model, idempotency_key="i") for _ in range(3)]
    assert [[text_of(item) for item in answer] for answer in answers] == [["knowing 0"]] * 3
    assert model.calls == 1
    assert await texts(session) == ["one", "knowing 0"]


async def test_repeats_side_by_side_are_one_turn(hf: Holdfast) -> None:
    session = await hf.session("k")
    model = Model()
    await asyncio.gather(*(session.run("one", model, idempotency_key="i") for _ in range(10)))
    assert model.calls == 1


async def test_the_same_key_with_another_message_is_refused(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.run("one", Model(), idempotency_key="i")
    with pytest.raises(IdempotencyMismatch):
        await session.run("two", Model(), idempotency_key="i")
    with pytest.raises(IdempotencyMismatch):
        await (await hf.session("other")).run("one", Model(), idempotency_key="i")


async def test_without_a_key_a_real_second_message_is_never_dropped(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.run("yes", Model())
    await session.run("yes", Model())
    assert await texts(session) == ["yes", "knowing 0", "yes", "knowing 2"]


async def test_a_batch_is_appended_once_however_often_it_is_sent(hf: Holdfast) -> None:
    session = await hf.session("k")
    for _ in range(3):
        await session.append(["one", "two"], batch_id="b")
    assert await texts(session) == ["one", "two"]
    with pytest.raises(IdempotencyMismatch):
        await session.append(["three"], batch_id="b")


async def test_items_keep_their_bytes_and_their_roles(hf: Holdfast) -> None:
    session = await hf.session("k")
    raw = b'{"type":"message","role":"user", "content":[{"type":"input_text","text":"raw"}]}'
    await session.append([raw, {"type": "hologram", "x": [1]}])
    await session.append("so I said", role="assistant")
    items = await session.items()
    assert text_of(items[0]) == "raw"
    assert items[1] == {"type": "hologram", "x": [1]}
    assert items[2]["role"] == "assistant"


async def test_the_last_so_many_items_are_in_order(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append([str(n) for n in range(5)])
    assert await texts(session, last=2) == ["3", "4"]
    assert await texts(session, last=0) == []
    assert await texts(session, last=99) == ["0", "1", "2", "3", "4"]


async def test_an_append_waits_behind_a_running_turn(hf: Holdfast) -> None:
    session = await hf.session("k")
    async with session.turn("one") as turn:
        late = asyncio.create_task(session.append("late"))
        await until(session, lambda view: view.queued_turns == 1)
        turn.add("answer")
    await late
    assert await texts(session) == ["one", "answer", "late"]


async def test_the_turn_of_a_failed_model_fails_and_can_be_sent_again(hf: Holdfast) -> None:
    session = await hf.session("k")

    async def broken(_: list[Item]) -> str:
        raise ValueError("no model today")

    with pytest.raises(ValueError, match="no model today"):
        await session.run("one", broken, idempotency_key="i")
    (view,) = await session.turns()
    assert (view.status, view.turn.error_code) == ("failed", "turn_failed")
    assert view.turn.error_message == "ValueError: no model today"
    await session.run("one", Model(), idempotency_key="i")
    assert await texts(session) == ["one", "knowing 0"]
    assert len(await session.turns()) == 1


async def test_a_repeat_that_waits_for_a_failed_turn_gets_its_failure(hf: Holdfast) -> None:
    session = await hf.session("k")
    may_fail = asyncio.Event()

    async def broken(_: list[Item]) -> str:
        await may_fail.wait()
        raise ValueError("no model today")

    first = asyncio.create_task(session.run("one", broken, idempotency_key="i"))
    await asyncio.sleep(0)
    second = asyncio.create_task(session.run("one", broken, idempotency_key="i"))
    await until(session, lambda view: view.status == "running")
    may_fail.set()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert {type(result) for result in results} <= {ValueError, TurnFailed}


# ── lifecycle ───────────────────────────────────────────────────────────────────────────────


async def test_a_reset_begins_again_and_the_old_history_can_be_restored(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append("old")
    old = session.id
    assert await session.reset(expected_session_id=old) == session.id
    assert (session.generation, await texts(session)) == (2, [])
    with pytest.raises(SessionChanged) as caught:
        await session.reset(expected_session_id=old)
    assert caught.value.live_id == session.id
    await session.restore(old)
    assert (session.id, session.generation) == (old, 1)
    assert await texts(session) == ["old"]
    listed = await hf.sessions(key="k", generations=True)
    assert {view.session.generation: view.status for view in listed} == {1: "idle", 2: "retired"}


async def test_a_keyless_session_cannot_be_reset(hf: Holdfast) -> None:
    with pytest.raises(SessionNotKeyed):
        await (await hf.session()).reset()


async def test_a_fork_goes_its_own_way(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append(["one", "two", "three"])
    fork = await session.fork(after_item=2)
    await fork.run("else", Model())
    await session.append("four")
    assert await texts(fork) == ["one", "two", "else", "knowing 2"]
    assert await texts(session) == ["one", "two", "three", "four"]
    assert await texts(await session.fork()) == ["one", "two", "three", "four"]
    with pytest.raises(ItemNotFound):
        await session.fork(after_item=99)


async def test_a_deleted_session_is_gone_and_its_key_starts_over(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append("secret", batch_id="b")
    gone = session.id
    await session.delete()
    with pytest.raises(SessionNotFound):
        await session.view()
    with pytest.raises(SessionNotFound):
        await hf.session(id=gone)
    with pytest.raises(HoldfastError) as caught:
        await session.append("secret", batch_id="b")
    assert caught.value.code == "session_deleted"
    fresh = await hf.session("k")
    assert fresh.id != gone
    assert (fresh.generation, await texts(fresh)) == (2, [])


async def test_a_session_with_forks_is_deleted_with_them_or_not_at_all(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append("one")
    fork = await session.fork()
    with pytest.raises(SessionHasForks):
        await session.delete()
    await session.delete(cascade=True)
    with pytest.raises(SessionNotFound):
        await fork.items()


async def test_an_internal_turn_leaves_no_trace_on_its_key(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append("one")
    before = (await session.view()).session
    async with session.turn("between us", internal=True) as turn:
        assert [text_of(item) for item in await turn.context()] == ["one", "between us"]
        turn.add("sure")
    assert (await session.view()).session == before
    assert await texts(session) == ["one"]
    assert len(await hf.sessions(generations=True)) == 1


async def test_an_internal_turn_of_a_retired_id_is_refused_as_any_other(hf: Holdfast) -> None:
    session = await hf.session("k")
    await session.append("one")
    old = await hf.session(id=session.id)
    new_id = await session.reset()
    with pytest.raises(SessionRetired) as caught:
        await old.turn("between us", internal=True).__aenter__()
    assert caught.value.live_id == new_id


async def test_sessions_are_listed_by_pages_newest_first(hf: Holdfast) -> None:
    made = [(await hf.session(f"k{n}")).id for n in range(5)]
    newest = sorted(made, reverse=True)
    page = [view.session.id for view in await hf.sessions(limit=2)]
    assert page == newest[:2]
    rest = [view.session.id for view in await hf.sessions(after=page[-1])]
    assert rest == newest[2:]
    assert await hf.sessions(limit=0) == []
    assert [view.session.key for view in await hf.sessions(key="k3")] == ["k3"]


# ── bad input ───────────────────────────────────────────────────────────────────────────────

NO_TEXT: list[Any] = [7, b"k", ["k"], {"k": 1}]
NO_COUNT: list[Any] = [-1, "2", 1.5, True, 2**70]


@pytest.mark.parametrize("key", ["", "\n", "x" * 513, *NO_TEXT], ids=repr)
async def test_what_is_no_key_is_refused(hf: Holdfast, key: Any) -> None:
    with pytest.raises(InvalidSessionKey):
        await hf.session(key)
    with pytest.raises(InvalidSessionKey):
        await hf.sessions(key=key)


@pytest.mark.parametrize("name", ["\0", "\ud800", *NO_TEXT], ids=repr)
async def test_what_is_no_id_is_refused(hf: Holdfast, name: Any) -> None:
    session = await hf.session("k")
    with pytest.raises(InvalidInput):
        await hf.session(id=name)
    with pytest.raises(InvalidInput):
        await hf.sessions(after=name)
    with pytest.raises(InvalidInput):
        await session.restore(name)
    with pytest.raises(InvalidInput):
        await session.reset(expected_session_id=name)
    with pytest.raises(InvalidInput):
        session.turn("x", idempotency_key=name)
    with pytest.raises(InvalidInput):
        await session.append("x", batch_id=name)


async def test_an_unknown_or_empty_id_is_not_found(hf: Holdfast) -> None:
    session = await hf.session("k")
    for name in ("", "ses_unknown", "../../etc/passwd", "'; drop table sessions"):
        with pytest.raises(SessionNotFound):
            await hf.session(id=name)
        with pytest.raises(SessionNotFound):
            await session.restore(name)
        with pytest.raises(SessionChanged):
            await session.reset(expected_session_id=name)


async def test_a_key_and_an_id_together_are_refused(hf: Holdfast) -> None:
    session = await hf.session("k")
    with pytest.raises(InvalidInput, match="not both"):
        await hf.session("k", id=session.id)


@pytest.mark.parametrize("count", NO_COUNT, ids=repr)
async def test_what_is_no_number_of_things_is_refused(hf: Holdfast, count: Any) -> None:
    session = await hf.session("k")
    for ask in (
        session.items(last=count), session.turns(limit=count), hf.sessions(limit=count),
        session.fork(after_item=count),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            await ask


@pytest.mark.parametrize(
    "said",
    [
        None, 7, object(), [None], [7], ["fine", object()], {}, {"type": 7}, b"{", b"[]",
        "\ud800", {"type": "x", "v": object()}, [["nested"]],
    ],
    ids=lambda said: repr(said).partition(" at 0x")[0],
)  # fmt: skip
async def test_what_is_no_item_is_refused_and_nothing_is_kept(hf: Holdfast, said: Any) -> None:
    session = await hf.session("k")
    with pytest.raises(InvalidItem):
        session.turn(said)
    with pytest.raises(InvalidItem):
        await session.append(said)
    assert (await session.view()).session.turn_count == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_busy": "push"}, {"on_busy": 7}, {"source": "nobody"}, {"source": None},
        {"request": "text"}, {"request": None}, {"idempotency_key": ""},
        {"idempotency_key": "x" * 600},
    ],
    ids=repr,
)  # fmt: skip
async def test_a_turn_that_means_nothing_is_refused(hf: Holdfast, wrong: dict[str, Any]) -> None:
    session = await hf.session("k")
    with pytest.raises(InvalidInput):
        session.turn("x", **wrong)


async def test_wrong_views_roles_and_models_are_refused(hf: Holdfast) -> None:
    session = await hf.session("k")
    wrong: Any = "nonsense"
    with pytest.raises(InvalidInput):
        await session.items(view=wrong)
    no_role: Any = 7
    with pytest.raises(InvalidItem):
        await session.append("x", role=no_role)
    with pytest.raises(InvalidInput):
        await session.run("x", wrong)
    assert (await session.view()).session.turn_count == 0
