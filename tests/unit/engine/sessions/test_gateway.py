"""The engine's front door: whoever goes away, breaks or asks twice, the lane goes on."""

import asyncio

import pytest

from holdfast.core.errors import StoreUnavailable, TurnCancelled, TurnInterrupted
from holdfast.core.ids import SessionId
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.transaction.commands import Accept, Bury, Delete, Fork, Queued, Repeated, Started
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.appending import append_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.testing.ids import CountedIds
from tests.unit.engine.room import a_room, let_others_run


async def test_a_turn_that_was_accepted_unheard_is_settled_while_its_worker_lives() -> None:
    async with a_room() as room:
        room.store.is_silent = lambda command: isinstance(command, Accept)
        command = room.arrival("one")
        with pytest.raises(StoreUnavailable):
            await room.gateway.accept(command)
        room.store.is_silent = lambda _: False
        await room.gateway.worker.sweep()
        await room.gateway.worker.sweep()
        turn = await room.turn(command.turn_id)
        assert (turn.outcome, turn.is_retryable) == ("interrupted", True)
        assert isinstance(await room.accept("two"), Started)


async def test_a_sweep_leaves_turns_alone_that_somebody_here_cares_for() -> None:
    async with a_room() as room:
        running = await room.enter("one")
        queued = await room.accept("two")
        for _ in range(3):
            await room.gateway.worker.sweep()
        assert (await room.turn(running.turn)).is_open
        assert (await room.turn(queued.turn)).is_open


async def test_a_hold_that_ran_out_is_settled_although_nobody_asks() -> None:
    async with a_room() as room:
        run = await room.enter("one")
        await room.finish(run, "calling", pending_calls=("call_1",), hold_seconds=5.0)
        room.clock.advance(6.0)
        await room.gateway.worker.sweep()
        turn = await room.turn(run.turn)
        assert (turn.outcome, turn.error_code) == ("interrupted", "tool_wait_expired")
        assert (await room.caller.session(run.session)).active_turn_id is None


async def test_a_background_turn_that_waits_for_tools_is_not_adopted() -> None:
    adopted: list[str] = []

    async def handler(run: ActiveRun) -> None:
        adopted.append(run.turn.id)

    async with a_room(handler=handler) as room:
        run = await room.enter("one", source="background")
        await room.finish(run, "calling", pending_calls=("call_1",), hold_seconds=5.0)
        for _ in range(3):
            await room.gateway.worker.sweep()
            await let_others_run()
        assert (await room.turn(run.turn)).is_open
        assert not adopted


async def test_two_callers_of_one_torn_turn_get_one_run() -> None:
    async with a_room() as room:
        torn = await room.enter("one", idempotency_key="i", body_hash=b"b")
        await room.finish(torn, outcome="interrupted", is_retryable=True)
        busy = await room.enter("two")
        one = await room.accept("one", idempotency_key="i", body_hash=b"b")
        other = await room.accept("one", idempotency_key="i", body_hash=b"b")
        assert isinstance(one, Queued)
        assert isinstance(other, Repeated)
        assert one.turn.id == other.turn.id == torn.turn.id
        await room.finish(busy)
        await room.finish(await room.gateway.enter(one), "once")


async def test_an_accept_is_made_in_the_name_the_worker_has_now() -> None:
    async with a_room() as room:
        command = room.arrival("one")
        assert command.worker != room.gateway.worker.id
        started = await room.gateway.accept(command)
        assert started.turn.owner == room.gateway.worker.id


async def test_a_batch_that_is_sent_again_waits_until_it_is_in_the_log() -> None:
    async with a_room() as room:
        running = await room.enter("one")

        def append() -> asyncio.Task[object]:
            command = room.caller.batch("late", key="k", idempotency_key="b", body_hash=b"b")
            return asyncio.create_task(append_items(room.gateway, command))

        first, again = append(), append()
        await let_others_run()
        assert not first.done()
        assert not again.done()
        await room.finish(running, "done")
        await first
        await again
        assert await room.caller.texts(running.session) == ["one", "done", "late"]


async def test_a_batch_that_was_cancelled_is_not_reported_as_appended() -> None:
    async with a_room() as room:
        running = await room.enter("one")

        def append() -> asyncio.Task[object]:
            command = room.caller.batch("late", key="k", idempotency_key="b", body_hash=b"b")
            return asyncio.create_task(append_items(room.gateway, command))

        first, again = append(), append()
        await let_others_run()
        await room.caller.reset(running.session)
        for task in (first, again):
            with pytest.raises((TurnCancelled, TurnInterrupted)):
                await task


async def test_a_session_named_by_its_id_is_not_rolled_over_to_another() -> None:
    daily = ResetPolicy(mode="daily")
    async with a_room() as room:
        run = await room.enter("one", reset=daily)
        await room.finish(run, "done")
        room.clock.advance(2 * 86_400)
        named = await room.accept("two", session_id=run.session.id, reset=daily)
        assert named.session.id == run.session.id


async def test_attempts_that_came_to_their_end_do_not_count_against_a_turn() -> None:
    async with a_room(settings=LaneSettings(max_attempts=2)) as room:
        for _ in range(3):
            run = await room.enter("one", idempotency_key="i", body_hash=b"b")
            await room.finish(run, outcome="interrupted", is_retryable=True)
        run = await room.enter("one", idempotency_key="i", body_hash=b"b")
        await room.store.submit(Bury(worker=room.gateway.worker.id))
        room.clock.advance(1.0)
        assert isinstance(await room.caller.accept("two", key="k"), Started)
        turn = await room.turn(run.turn)
        assert (turn.outcome, turn.error_code) == ("interrupted", "worker_lost")


async def test_erasing_a_session_ends_the_runs_of_its_forks() -> None:
    async with a_room() as room:
        run = await room.enter("one")
        await room.finish(run, "done")
        fork = await room.store.submit(
            Fork(tenant=room.caller.tenant, session_id=run.session.id, new_id=SessionId("ses_fork"))
        )
        branch = await room.enter("two", session_id=fork.id)
        await room.store.submit(
            Delete(tenant=room.caller.tenant, session_id=run.session.id, cascade=True)
        )
        assert branch.is_lost
        runs = await room.gateway.read.runs(branch.turn.id)
        assert [(run.outcome, run.error_code) for run in runs] == [("cancelled", "session_deleted")]


async def test_a_repeat_waits_for_a_turn_that_was_taken_up_again() -> None:
    async with a_room() as room:
        torn = await room.enter("one", idempotency_key="i", body_hash=b"b")
        await room.finish(torn, outcome="interrupted", is_retryable=True)
        busy = await room.enter("two")
        again = await room.accept("one", idempotency_key="i", body_hash=b"b")
        repeated = await room.caller.accept("one", key="k", idempotency_key="i", body_hash=b"b")
        assert isinstance(again, Queued)
        assert isinstance(repeated, Repeated)
        assert not repeated.is_settled
        await room.finish(busy)
        await room.finish(await room.gateway.enter(again), "done")
        repeated = await room.caller.accept("one", key="k", idempotency_key="i", body_hash=b"b")
        assert isinstance(repeated, Repeated)
        assert repeated.is_settled


async def test_a_background_turn_that_was_running_when_its_worker_stopped_is_left_to_heirs() -> (
    None
):
    begun = asyncio.Event()

    async def handler(run: ActiveRun) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with a_room(handler=handler) as room:
        admission = await room.caller.accept("one", key="k", source="cron")
        await room.gateway.worker.sweep()
        await begun.wait()
        await room.gateway.stop()
        turn = await room.turn(admission.turn)
        assert turn.is_open
        heir = Gateway(
            room.store, clock=room.clock, ids=CountedIds("h"), limits=room.gateway.limits
        )
        begun.clear()
        await heir.start(handler)
        await begun.wait()
        await heir.stop()
