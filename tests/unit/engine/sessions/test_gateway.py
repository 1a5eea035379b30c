"""The engine's API: whoever goes away, breaks or asks twice, the lane goes on."""

import asyncio
import logging

import pytest

from holdfast.core.errors import StoreUnavailable, TurnCancelled, TurnInterrupted
from holdfast.core.ids import SessionId
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.transaction.commands import (
    Accept,
    Delete,
    ExpireWorker,
    Fork,
    Queued,
    Repeated,
    Started,
)
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.appending import append_items
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import LaneSettings
from holdfast.observability.metrics import PrometheusMeter
from holdfast.testing.ids import SequentialIds
from tests.unit.engine.harness import let_others_run, open_engine


async def test_a_turn_whose_acceptance_was_lost_is_settled_while_its_worker_lives() -> None:
    async with open_engine() as engine:
        engine.store.is_silent = lambda command: isinstance(command, Accept)
        command = engine.arrival("one")
        with pytest.raises(StoreUnavailable):
            await engine.gateway.accept(command)
        engine.store.is_silent = lambda _: False
        await engine.gateway.worker.sweep()
        await engine.gateway.worker.sweep()
        turn = await engine.turn(command.turn_id)
        assert (turn.outcome, turn.is_retryable) == ("interrupted", True)
        assert isinstance(await engine.accept("two"), Started)


async def test_a_sweep_leaves_turns_alone_that_somebody_here_cares_for() -> None:
    async with open_engine() as engine:
        running = await engine.enter("one")
        queued = await engine.accept("two")
        for _ in range(3):
            await engine.gateway.worker.sweep()
        assert (await engine.turn(running.turn)).is_open
        assert (await engine.turn(queued.turn)).is_open


async def test_a_hold_that_ran_out_is_settled_without_a_request() -> None:
    async with open_engine() as engine:
        run = await engine.enter("one")
        await engine.finish(run, "calling", pending_calls=("call_1",), hold_seconds=5.0)
        engine.clock.advance(6.0)
        await engine.gateway.worker.sweep()
        turn = await engine.turn(run.turn)
        assert (turn.outcome, turn.error_code) == ("interrupted", "tool_wait_expired")
        assert (await engine.caller.session(run.session)).active_turn_id is None


async def test_a_recovery_that_settled_something_is_logged_at_the_default_level(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_engine() as engine:
        await engine.caller.enlist()
        for key in ("a", "b"):
            await engine.caller.start("one", key=key)
        caplog.clear()
        await engine.gateway.worker.sweep()
        assert not caplog.records
        await engine.store.submit(ExpireWorker(worker=engine.caller.worker))
        engine.clock.advance(1.0)
        await engine.gateway.worker.sweep()
        await engine.gateway.worker.sweep()
    warned = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert [(one.getMessage(), vars(one)["sessions"]) for one in warned] == [
        ("recovery.settled", 2)
    ]


async def test_a_wait_for_tools_that_is_over_is_no_recovery_of_a_lost_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meter = PrometheusMeter()
    async with open_engine() as engine:
        engine.gateway.worker._meter = meter
        run = await engine.enter("one")
        await engine.finish(run, "calling", pending_calls=("call_1",), hold_seconds=5.0)
        engine.clock.advance(6.0)
        await engine.gateway.worker.sweep()
        assert (await engine.turn(run.turn)).outcome == "interrupted"
        assert b"holdfast_sessions_recovered_total 0.0" in meter.render()
        await engine.caller.start("two", key="other")
        await engine.store.submit(ExpireWorker(worker=engine.caller.worker))
        engine.clock.advance(1.0)
        await engine.gateway.worker.sweep()
    assert b"holdfast_sessions_recovered_total 1.0" in meter.render()
    warned = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
    assert warned == ["recovery.settled"]


async def test_a_background_turn_that_waits_for_tools_is_not_adopted() -> None:
    adopted: list[str] = []

    async def handler(run: ActiveRun) -> None:
        adopted.append(run.turn.id)

    async with open_engine(handler=handler) as engine:
        run = await engine.enter("one", source="background")
        await engine.finish(run, "calling", pending_calls=("call_1",), hold_seconds=5.0)
        for _ in range(3):
            await engine.gateway.worker.sweep()
            await let_others_run()
        assert (await engine.turn(run.turn)).is_open
        assert not adopted


async def test_two_callers_of_one_interrupted_turn_get_one_run() -> None:
    async with open_engine() as engine:
        torn = await engine.enter("one", idempotency_key="i", body_hash=b"b")
        await engine.finish(torn, outcome="interrupted", is_retryable=True)
        busy = await engine.enter("two")
        one = await engine.accept("one", idempotency_key="i", body_hash=b"b")
        other = await engine.accept("one", idempotency_key="i", body_hash=b"b")
        assert isinstance(one, Queued)
        assert isinstance(other, Repeated)
        assert one.turn.id == other.turn.id == torn.turn.id
        await engine.finish(busy)
        await engine.finish(await engine.gateway.enter(one), "once")


async def test_an_accept_is_made_in_the_name_the_worker_has_now() -> None:
    async with open_engine() as engine:
        command = engine.arrival("one")
        assert command.worker != engine.gateway.worker.id
        started = await engine.gateway.accept(command)
        assert started.turn.owner == engine.gateway.worker.id


async def test_a_batch_that_is_sent_again_waits_until_it_is_in_the_log() -> None:
    async with open_engine() as engine:
        running = await engine.enter("one")

        def append() -> asyncio.Task[object]:
            command = engine.caller.batch("late", key="k", idempotency_key="b", body_hash=b"b")
            return asyncio.create_task(append_items(engine.gateway, command))

        first, again = append(), append()
        await let_others_run()
        assert not first.done()
        assert not again.done()
        await engine.finish(running, "done")
        await first
        await again
        assert await engine.caller.texts(running.session) == ["one", "done", "late"]


async def test_a_batch_that_was_cancelled_is_not_reported_as_appended() -> None:
    async with open_engine() as engine:
        running = await engine.enter("one")

        def append() -> asyncio.Task[object]:
            command = engine.caller.batch("late", key="k", idempotency_key="b", body_hash=b"b")
            return asyncio.create_task(append_items(engine.gateway, command))

        first, again = append(), append()
        await let_others_run()
        await engine.caller.reset(running.session)
        for task in (first, again):
            with pytest.raises((TurnCancelled, TurnInterrupted)):
                await task


async def test_a_session_named_by_its_id_is_not_rolled_over_to_another() -> None:
    daily = ResetPolicy(mode="daily")
    async with open_engine() as engine:
        run = await engine.enter("one", reset=daily)
        await engine.finish(run, "done")
        engine.clock.advance(2 * 86_400)
        named = await engine.accept("two", session_id=run.session.id, reset=daily)
        assert named.session.id == run.session.id


async def test_attempts_that_came_to_their_end_do_not_count_against_a_turn() -> None:
    async with open_engine(settings=LaneSettings(max_attempts=2)) as engine:
        for _ in range(3):
            run = await engine.enter("one", idempotency_key="i", body_hash=b"b")
            await engine.finish(run, outcome="interrupted", is_retryable=True)
        run = await engine.enter("one", idempotency_key="i", body_hash=b"b")
        await engine.store.submit(ExpireWorker(worker=engine.gateway.worker.id))
        engine.clock.advance(1.0)
        assert isinstance(await engine.caller.accept("two", key="k"), Started)
        turn = await engine.turn(run.turn)
        assert (turn.outcome, turn.error_code) == ("interrupted", "worker_lost")


async def test_erasing_a_session_ends_the_runs_of_its_forks() -> None:
    async with open_engine() as engine:
        run = await engine.enter("one")
        await engine.finish(run, "done")
        fork = await engine.store.submit(
            Fork(
                tenant=engine.caller.tenant, session_id=run.session.id, new_id=SessionId("ses_fork")
            )
        )
        branch = await engine.enter("two", session_id=fork.id)
        await engine.store.submit(
            Delete(tenant=engine.caller.tenant, session_id=run.session.id, cascade=True)
        )
        assert branch.is_lost
        runs = await engine.gateway.read.runs(branch.turn.id)
        assert [(run.outcome, run.error_code) for run in runs] == [("cancelled", "session_deleted")]


async def test_a_repeat_waits_for_a_turn_that_was_taken_up_again() -> None:
    async with open_engine() as engine:
        torn = await engine.enter("one", idempotency_key="i", body_hash=b"b")
        await engine.finish(torn, outcome="interrupted", is_retryable=True)
        busy = await engine.enter("two")
        again = await engine.accept("one", idempotency_key="i", body_hash=b"b")
        repeated = await engine.caller.accept("one", key="k", idempotency_key="i", body_hash=b"b")
        assert isinstance(again, Queued)
        assert isinstance(repeated, Repeated)
        assert not repeated.is_settled
        await engine.finish(busy)
        await engine.finish(await engine.gateway.enter(again), "done")
        repeated = await engine.caller.accept("one", key="k", idempotency_key="i", body_hash=b"b")
        assert isinstance(repeated, Repeated)
        assert repeated.is_settled


async def test_a_background_turn_of_a_stopped_worker_is_left_to_other_workers() -> None:
    begun = asyncio.Event()

    async def handler(run: ActiveRun) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with open_engine(handler=handler) as engine:
        admission = await engine.caller.accept("one", key="k", source="cron")
        await engine.gateway.worker.sweep()
        await begun.wait()
        await engine.gateway.stop()
        turn = await engine.turn(admission.turn)
        assert turn.is_open
        heir = Gateway(
            engine.store, clock=engine.clock, ids=SequentialIds("h"), limits=engine.gateway.limits
        )
        begun.clear()
        await heir.start(handler)
        await begun.wait()
        await heir.stop()
