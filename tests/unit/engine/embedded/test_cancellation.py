"""A caller's own cancellation passes, whatever else happens to its turn at the same time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import RunFenced, StoreUnavailable, TurnCancelled
from holdfast.core.ids import DEFAULT_TENANT, SessionId, TurnId
from holdfast.core.transaction.commands import Cancel, ExpireWorker, Finish, Recover, Reset
from holdfast.engine.embedded.api import Holdfast, SessionHandle
from holdfast.engine.settings import LaneSettings
from holdfast.testing.store_client import StoreClient
from tests.unit.engine.sessions.test_abandoned_turns import FaultyStore, faulty_holdfast


@pytest.fixture
async def hf() -> AsyncIterator[Holdfast]:
    # Nobody comes by to look: whoever loses its lane hears of it from the commit that took it.
    lanes = LaneSettings(lease_seconds=600.0, poll_seconds=600.0)
    async with holdfast.open("memory:", lanes=lanes) as opened:
        yield opened


async def reset(hf: Holdfast, session: SessionHandle, _: str) -> None:
    await hf.gateway.store.submit(
        Reset(tenant=DEFAULT_TENANT, session_id=SessionId(session.id), new_id=SessionId("ses_new"))
    )


async def delete(hf: Holdfast, session: SessionHandle, _: str) -> None:
    await (await hf.session(id=session.id)).delete()


async def cancel_turn(hf: Holdfast, _: SessionHandle, turn_id: str) -> None:
    await hf.gateway.submit(Cancel(tenant=DEFAULT_TENANT, turn_id=TurnId(turn_id)))


async def take_over(hf: Holdfast, session: SessionHandle, _: str) -> None:
    heir = StoreClient(hf.gateway.store, "heir")
    await heir.enlist()
    await hf.gateway.store.submit(ExpireWorker(worker=hf.gateway.worker.id))
    await hf.gateway.store.submit(Recover(session_id=SessionId(session.id), worker=heir.worker))


Loss = Callable[[Holdfast, SessionHandle, str], Coroutine[Any, Any, None]]
LOSSES: list[Loss] = [reset, delete, cancel_turn, take_over]


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("delay", range(12))
async def test_a_cancelled_caller_is_cancelled_at_whatever_moment_its_lane_is_lost(
    hf: Holdfast, lose: Loss, delay: int
) -> None:
    session = await hf.session("k")
    inside = asyncio.Event()
    turn = session.turn("one")

    async def work() -> None:
        async with turn:
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    losing = asyncio.create_task(lose(hf, session, turn.id))
    for _ in range(delay):
        await asyncio.sleep(0)
    is_asked = task.cancel()
    await asyncio.gather(task, losing, return_exceptions=True)
    if is_asked:
        # Asked in time, it ends as one that was cancelled, and owes nobody a cancellation.
        assert task.cancelled(), task.exception()
    else:
        assert isinstance(task.exception(), TurnCancelled | RunFenced)


@pytest.mark.parametrize("lose", LOSSES, ids=lambda lose: lose.__name__)
@pytest.mark.parametrize("delay", range(12))
async def test_a_block_that_ends_while_its_lane_is_lost_was_cancelled_by_nobody(
    hf: Holdfast, lose: Loss, delay: int
) -> None:
    session = await hf.session("k")
    inside, may_end = asyncio.Event(), asyncio.Event()
    turn = session.turn("one")

    async def work() -> None:
        async with turn:
            inside.set()
            await may_end.wait()

    task = asyncio.create_task(work())
    await inside.wait()
    losing = asyncio.create_task(lose(hf, session, turn.id))
    for _ in range(delay):
        await asyncio.sleep(0)
    may_end.set()
    (ended, lost) = await asyncio.gather(task, losing, return_exceptions=True)
    assert lost is None
    assert ended is None or isinstance(ended, TurnCancelled | RunFenced)
    assert task.cancelling() == 0


async def test_a_cancelled_caller_is_cancelled_although_its_end_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.engine.sessions.submission.FIRST_PAUSE_SECONDS", 0.0001)
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")
        task = await _enter(session.turn("one", idempotency_key="i").__aenter__, session)
        _refuse_ends(store)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.is_down = lambda _: False
        async with asyncio.timeout(30), session.turn("two") as turn:
            turn.add("here")
        statuses = [view.status for view in await session.turns()]
        assert statuses == ["completed", "interrupted"]


async def _enter(
    enter: Callable[[], Awaitable[Any]], session: SessionHandle
) -> "asyncio.Task[None]":
    inside = asyncio.Event()

    async def work() -> None:
        turn = await enter()
        inside.set()
        try:
            await asyncio.Event().wait()
        except BaseException as exc:
            await turn.__aexit__(type(exc), exc, None)
            raise

    task = asyncio.create_task(work())
    await inside.wait()
    return task


def _refuse_ends(store: FaultyStore) -> None:
    store.is_down = lambda command: isinstance(command, Finish)


async def test_a_turn_that_another_task_entered_is_cancelled_with_the_task_that_leaves_it(
    hf: Holdfast,
) -> None:
    session = await hf.session("k")
    turn = await asyncio.create_task(session.turn("one").__aenter__())
    await reset(hf, session, turn.id)
    cancelled = asyncio.CancelledError()
    assert not await turn.__aexit__(asyncio.CancelledError, cancelled, None)


async def test_a_turn_that_another_task_entered_raises_at_its_exit_that_it_was_lost(
    hf: Holdfast,
) -> None:
    session = await hf.session("k")
    turn = await asyncio.create_task(session.turn("one").__aenter__())
    await reset(hf, session, turn.id)
    with pytest.raises(TurnCancelled):
        await turn.__aexit__(None, None, None)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "kept"])
@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit])
async def test_a_program_that_ends_inside_a_turn_ends(
    hf: Holdfast, kind: type[BaseException], *, is_lost: bool
) -> None:
    session = await hf.session("k")
    turn = session.turn("one")

    async def work() -> None:
        async with turn:
            if is_lost:
                await reset(hf, session, turn.id)
            raise kind

    with pytest.raises(kind):
        await work()
    view = await hf.gateway.read.turn(DEFAULT_TENANT, TurnId(turn.id))
    assert view is not None
    assert view.status == ("cancelled" if is_lost else "interrupted")


async def test_an_error_of_the_store_is_raised_if_the_caller_was_not_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.engine.sessions.submission.FIRST_PAUSE_SECONDS", 0.0001)
    async with faulty_holdfast() as (hf, store):
        session = await hf.session("k")
        with pytest.raises(StoreUnavailable):
            async with session.turn("one"):
                _refuse_ends(store)
        store.is_down = lambda _: False
