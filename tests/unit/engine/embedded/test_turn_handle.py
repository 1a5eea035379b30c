"""One turn as an object: serial, durable once entered, ended with its block, however it ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import (
    InvalidInput,
    InvalidItem,
    LaneFull,
    LaneTimeout,
    RunFenced,
    SessionBusy,
    TurnAlreadyDone,
    TurnCancelled,
)
from holdfast.core.ids import SessionId, WorkerId
from holdfast.core.model.session import ProviderState, Usage
from holdfast.core.transaction.commands import Cancel, ExpireWorker, Recover
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.embedded.turn_handle import Item, TurnHandle
from holdfast.engine.settings import LaneSettings
from holdfast.testing.store_client import StoreClient

IN_TIME = 60.0


@pytest.fixture
async def hf() -> AsyncIterator[Holdfast]:
    async with holdfast.open("memory:") as opened:
        yield opened


@pytest.fixture
async def session(hf: Holdfast) -> SessionHandle:
    return await hf.session("k")


def texts_of(items: list[Item]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


async def texts(session: SessionHandle, **more: Any) -> list[str]:
    return texts_of(await session.items(**more))


async def until_queued(session: SessionHandle, count: int = 1) -> None:
    while (await session.view()).queued_turns < count:  # noqa: ASYNC110 - the store has no event
        await asyncio.sleep(0)


# ── the block ───────────────────────────────────────────────────────────────────────────────


async def test_turns_of_a_session_are_serial_and_each_sees_what_came_before(
    session: SessionHandle,
) -> None:
    inside = 0

    async def converse(text: str) -> None:
        nonlocal inside
        async with session.turn(text) as turn:
            inside += 1
            assert inside == 1
            seen = await turn.context()
            await asyncio.sleep(0)
            turn.add(f"after {len(seen) - 1}")
            inside -= 1

    await asyncio.gather(*(converse(str(n)) for n in range(20)))
    said = await texts(session)
    assert sorted(said[::2], key=int) == [str(n) for n in range(20)]
    assert said[1::2] == [f"after {n}" for n in range(0, 40, 2)]


async def test_what_was_added_is_committed_together_when_the_block_ends(
    session: SessionHandle,
) -> None:
    async with session.turn("one") as turn:
        turn.add("a")
        turn.add(["b", {"type": "message", "role": "assistant",
                        "content": [{"type": "output_text", "text": "c"}]}])  # fmt: skip
        assert await texts(session) == ["one"]
    assert await texts(session) == ["one", "a", "b", "c"]
    assert texts_of(await turn.output()) == ["a", "b", "c"]
    assert turn.is_done


async def test_a_checkpoint_commits_what_was_added_so_far(session: SessionHandle) -> None:
    async with session.turn("one") as turn:
        turn.add("a")
        await turn.checkpoint()
        assert await texts(session) == ["one", "a"]
        await turn.checkpoint()
        assert texts_of(await turn.context()) == ["one", "a"]
        turn.add("b")
    assert await texts(session) == ["one", "a", "b"]


async def test_a_turn_without_input_or_answer_is_a_turn(session: SessionHandle) -> None:
    async with session.turn() as turn:
        assert await turn.context() == []
    assert await texts(session) == []
    assert [view.status for view in await session.turns()] == ["completed"]
    assert await turn.output() == []


async def test_usage_and_provider_state_are_kept_with_the_answer(
    hf: Holdfast, session: SessionHandle
) -> None:
    state = ProviderState("p", "a", "m", b"v")
    async with session.turn("one") as turn:
        turn.add("answer")
        turn.spent(Usage(input_tokens=3, output_tokens=2))
        turn.remember(state)
    view = await session.view()
    assert (view.session.input_tokens, view.session.output_tokens) == (3, 2)
    (kept,) = await hf.gateway.read.provider_state(view.session.id)
    assert (kept.value, kept.covers_seq) == (b"v", 2)


async def test_a_turn_that_fails_keeps_no_provider_state(
    hf: Holdfast, session: SessionHandle
) -> None:
    async def fail() -> None:
        async with session.turn("one") as turn:
            turn.remember(ProviderState("p", "a", "m", b"v"))
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await fail()
    assert await hf.gateway.read.provider_state(SessionId(session.id)) == []


# ── errors inside ───────────────────────────────────────────────────────────────────────────


class Unspeakable(Exception):
    """An error that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ValueError("plain"), "ValueError: plain"),
        (OSError("bad name \udcff"), "OSError: bad name \\udcff"),
        (ValueError("nul \0 byte"), "ValueError: nul \\0 byte"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("x" * 10_000), "ValueError: " + "x" * 1988),
    ],
    ids=["plain", "surrogate", "nul", "unspeakable", "long"],
)
async def test_any_error_inside_ends_the_turn_as_failed_and_passes_through(
    session: SessionHandle, error: Exception, message: str
) -> None:
    async def fail() -> None:
        async with session.turn("one") as turn:
            turn.add("so far")
            raise error

    with pytest.raises(type(error)) as caught:
        await fail()
    assert caught.value is error
    (view,) = await session.turns()
    assert (view.status, view.turn.error_message) == ("failed", message)
    assert view.turn.is_retryable
    assert await texts(session) == ["one", "so far"]
    async with session.turn("two") as turn:
        turn.add("fine")
    assert await texts(session) == ["one", "so far", "two", "fine"]


async def test_a_caller_that_is_cancelled_inside_leaves_its_turn_interrupted(
    session: SessionHandle,
) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with session.turn("one", idempotency_key="i") as turn:
            turn.add("so far")
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (view,) = await session.turns()
    assert (view.status, view.turn.error_code) == ("interrupted", "caller_left")
    async with session.turn("one", idempotency_key="i") as turn:
        assert texts_of(await turn.context()) == ["one", "so far"]
        turn.add("and done")
    (view,) = await session.turns()
    assert (view.status, view.turn.attempts) == ("completed", 1)


async def test_a_second_cancellation_does_not_keep_the_end_from_being_written(
    session: SessionHandle,
) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with session.turn("one"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(IN_TIME), session.turn("two") as turn:
        turn.add("here")
    statuses = [view.status for view in await session.turns()]
    assert statuses == ["completed", "interrupted"]


async def test_a_caller_that_is_cancelled_while_it_waits_leaves_its_turn_to_be_resumed(
    session: SessionHandle,
) -> None:
    async with session.turn("one") as first:
        waiting = asyncio.create_task(session.turn("two", idempotency_key="i").__aenter__())
        await until_queued(session)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.add("first")
    async with asyncio.timeout(IN_TIME), session.turn("three") as third:
        third.add("third")
    async with asyncio.timeout(IN_TIME), session.turn("two", idempotency_key="i") as second:
        second.add("second")
    assert await texts(session) == ["one", "first", "three", "third", "two", "second"]


# ── losing the lane ─────────────────────────────────────────────────────────────────────────


async def _take_away(hf: Holdfast, session: SessionHandle, how: str) -> None:
    match how:
        case "reset":
            await session.reset()
        case "delete":
            await session.delete()
        case "interrupt":
            async with session.turn("push", on_busy="interrupt") as turn:
                turn.add("pushed")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("reset", "session_reset"), ("delete", "session_deleted"),
        ("interrupt", "interrupted_by_turn"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("waits", [True, False], ids=["at an await", "at its end"])
async def test_a_turn_whose_lane_is_taken_is_stopped_with_the_reason(
    hf: Holdfast, session: SessionHandle, how: str, reason: str, *, waits: bool
) -> None:
    other = await hf.session(id=session.id)
    inside, taken = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        async with session.turn("one") as turn:
            turn.add("too late")
            inside.set()
            if waits:
                await asyncio.Event().wait()
            await _take_away(hf, other, how)
            taken.set()

    task = asyncio.create_task(work())
    await inside.wait()
    if waits:
        await _take_away(hf, other, how)
    with pytest.raises(TurnCancelled) as caught:
        await task
    assert caught.value.reason == reason
    assert not task.cancelled()
    assert task.cancelling() == 0
    if how != "delete":
        assert "too late" not in await texts(await hf.session("k"))


async def test_a_stopped_block_that_raises_another_error_gets_the_reason_of_the_stop(
    hf: Holdfast, session: SessionHandle
) -> None:
    other = await hf.session("k")

    async def work() -> None:
        async with session.turn("one"):
            await other.reset()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise ValueError("my clean-up broke") from None

    with pytest.raises(TurnCancelled) as caught:
        await work()
    assert isinstance(caught.value.__cause__, ValueError)


async def test_a_cancellation_from_outside_is_not_swallowed_with_our_own(
    hf: Holdfast, session: SessionHandle
) -> None:
    other = await hf.session("k")
    inside = asyncio.Event()

    async def work() -> None:
        async with session.turn("one"):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    resetting = asyncio.create_task(other.reset())
    while task.cancelling() == 0:  # noqa: ASYNC110 - a task has no event for it
        await asyncio.sleep(0)
    task.cancel()
    await resetting
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_turn_under_a_timeout_times_out(session: SessionHandle) -> None:
    async def work() -> None:
        async with asyncio.timeout(None) as limit, session.turn("one"):
            limit.reschedule(asyncio.get_running_loop().time())
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await work()
    (view,) = await session.turns()
    assert view.status == "interrupted"


async def test_a_run_that_another_worker_took_over_is_fenced(
    hf: Holdfast, session: SessionHandle
) -> None:
    heir = StoreClient(hf.gateway.store, "heir")
    await heir.enlist()

    async def work() -> None:
        async with session.turn("one") as turn:
            turn.add("too late")
            mine = hf.gateway.worker.id
            await hf.gateway.store.submit(ExpireWorker(worker=WorkerId(mine)))
            await hf.gateway.store.submit(
                Recover(session_id=SessionId(session.id), worker=heir.worker)
            )

    with pytest.raises(RunFenced):
        await work()
    (view,) = await session.turns()
    assert (view.turn.outcome, view.turn.error_code) == ("interrupted", "worker_lost")
    assert await texts(session) == ["one"]


# ── repeats ─────────────────────────────────────────────────────────────────────────────────


async def test_a_repeat_finds_the_turn_done_and_its_answer_recorded(
    session: SessionHandle,
) -> None:
    async with session.turn("one", idempotency_key="i") as first:
        first.add("answer")
    async with session.turn("one", idempotency_key="i") as again:
        assert again.is_done
        assert again.id == first.id
        assert texts_of(await again.output()) == ["answer"]
        with pytest.raises(TurnAlreadyDone):
            again.add("another")
        with pytest.raises(TurnAlreadyDone):
            await again.context()
    assert await texts(session) == ["one", "answer"]


async def test_a_repeat_of_a_running_turn_waits_for_its_end(session: SessionHandle) -> None:
    async with session.turn("one", idempotency_key="i") as first:
        again = asyncio.create_task(session.turn("one", idempotency_key="i").__aenter__())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not again.done()
        first.add("answer")
    async with asyncio.timeout(IN_TIME):
        assert texts_of(await (await again).output()) == ["answer"]


async def test_a_repeat_that_waits_for_an_interrupted_turn_resumes_it(
    session: SessionHandle,
) -> None:
    inside = asyncio.Event()

    async def doomed() -> None:
        async with session.turn("one", idempotency_key="i"):
            inside.set()
            await asyncio.Event().wait()

    async def stand_by() -> TurnHandle:
        async with session.turn("one", idempotency_key="i") as turn:
            assert not turn.is_done
            turn.add("carried on")
        return turn

    first = asyncio.create_task(doomed())
    await inside.wait()
    second = asyncio.create_task(stand_by())
    for _ in range(20):
        await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    async with asyncio.timeout(IN_TIME):
        turn = await second
    assert await texts(session) == ["one", "carried on"]
    (view,) = await session.turns()
    assert (view.turn.id, view.status) == (turn.id, "completed")


async def test_a_waiting_turn_that_one_caller_left_is_run_by_the_caller_that_still_waits(
    hf: Holdfast, session: SessionHandle
) -> None:
    async def wait_for_it() -> None:
        async with session.turn("two", idempotency_key="i") as turn:
            turn.add("second")

    first = session.turn("one")
    await first.__aenter__()
    waiting = asyncio.create_task(wait_for_it())
    await until_queued(session)
    (queued, _) = await session.turns()
    left = Cancel(
        tenant=queued.turn.tenant, turn_id=queued.turn.id, outcome="interrupted",
        code="caller_left", is_retryable=True,
    )  # fmt: skip
    await hf.gateway.submit(left)
    first.add("first")
    await first.__aexit__(None, None, None)
    async with asyncio.timeout(IN_TIME):
        await waiting
    assert await texts(session) == ["one", "first", "two", "second"]
    assert [view.status for view in await session.turns()] == ["completed", "completed"]


async def test_a_repeat_of_a_cancelled_turn_gets_turn_cancelled(session: SessionHandle) -> None:
    async def be_pushed() -> None:
        async with session.turn("one", idempotency_key="i"):
            async with session.turn("push", on_busy="interrupt") as push:
                push.add("pushed")
            await asyncio.Event().wait()

    for _ in range(2):
        with pytest.raises(TurnCancelled) as caught:
            await be_pushed()
        assert caught.value.reason == "interrupted_by_turn"


# ── bounds ──────────────────────────────────────────────────────────────────────────────────


async def test_a_caller_that_will_not_wait_gets_session_busy(
    session: SessionHandle,
) -> None:
    async with session.turn("one"):
        with pytest.raises(SessionBusy):
            await session.turn("two", on_busy="reject").__aenter__()
    assert len(await session.turns()) == 1


async def test_a_lane_takes_so_many_and_no_more() -> None:
    async with holdfast.open("memory:", lanes=LaneSettings(max_waiting=1)) as hf:
        session = await hf.session("k")
        async with session.turn("one"):
            second = asyncio.create_task(session.turn("two").__aenter__())
            await until_queued(session)
            with pytest.raises(LaneFull):
                await session.turn("three").__aenter__()
        await (await second).__aexit__(None, None, None)


async def test_a_turn_that_waited_too_long_fails_and_can_be_sent_again() -> None:
    async with holdfast.open("memory:", lanes=LaneSettings(max_wait_seconds=0.0)) as hf:
        session = await hf.session("k")
        async with session.turn("one") as first:
            with pytest.raises(LaneTimeout):
                await session.turn("two", idempotency_key="i").__aenter__()
            first.add("first")
        async with session.turn("two", idempotency_key="i") as second:
            second.add("second")
        assert await texts(session) == ["one", "first", "two", "second"]


# ── wrong use ───────────────────────────────────────────────────────────────────────────────


async def test_a_turn_is_used_inside_its_block_alone(session: SessionHandle) -> None:
    turn = session.turn("one")
    with pytest.raises(InvalidInput, match="enter the turn first"):
        turn.add("x")
    with pytest.raises(InvalidInput, match="enter the turn first"):
        await turn.context()
    with pytest.raises(InvalidInput, match="enter the turn first"):
        await turn.checkpoint()
    async with turn:
        pass
    for late in (turn.checkpoint, turn.context):
        with pytest.raises(TurnAlreadyDone):
            await late()
    with pytest.raises(TurnAlreadyDone):
        turn.add("x")


async def test_a_turn_is_entered_once(session: SessionHandle) -> None:
    turn = session.turn("one")
    async with turn:
        with pytest.raises(InvalidInput, match="entered once"):
            await turn.__aenter__()
    with pytest.raises(InvalidInput, match="entered once"):
        await turn.__aenter__()
    assert len(await session.turns()) == 1


@pytest.mark.parametrize(
    "said", [None, 7, [None], object(), {}, b"{"], ids=lambda said: type(said).__name__
)
async def test_an_answer_that_is_no_item_is_refused_and_the_turn_goes_on(
    session: SessionHandle, said: Any
) -> None:
    async with session.turn("one") as turn:
        with pytest.raises(InvalidItem):
            turn.add(said)
        turn.add("better")
    assert await texts(session) == ["one", "better"]


async def test_wrong_usage_and_state_are_refused_where_they_are_given(
    session: SessionHandle,
) -> None:
    wrong: Any = "much"
    async with session.turn("one") as turn:
        for usage in (wrong, Usage(input_tokens=wrong)):
            with pytest.raises(InvalidInput):
                turn.spent(usage)
        for state in (wrong, ProviderState("p", "a", "m", wrong), ProviderState(7, "a", "m", b"")):  # type: ignore[arg-type]
            with pytest.raises(InvalidInput):
                turn.remember(state)
    assert [view.status for view in await session.turns()] == ["completed"]
