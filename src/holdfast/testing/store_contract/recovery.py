"""Recovery after a crash: nothing acknowledged is lost or answered twice, and every turn ends."""

import asyncio

import pytest

from holdfast.core.errors import RunFenced
from holdfast.core.ids import RunId, SessionId, WorkerId
from holdfast.core.model.turn import Source
from holdfast.core.transaction.commands import (
    ExpireWorker,
    LaneLimits,
    Queued,
    Recover,
    Renew,
    Started,
)
from holdfast.ports.store import WorkerState
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import LEASE_SECONDS, StoreClient, answered
from holdfast.testing.store_contract.lanes import HOLD_SECONDS, ask_the_client, output, state_of
from holdfast.testing.store_contract.transcript import assert_sound, picture, without_runs

AGAIN = LaneLimits(can_run_again=True)
NOT_AGAIN = LaneLimits(can_run_again=False)


async def expire(successor: StoreClient, dead: StoreClient) -> None:
    """Do what a sweep does about a dead worker."""
    await successor.submit(ExpireWorker(worker=dead.worker))


async def recover(
    successor: StoreClient, session_id: SessionId, limits: LaneLimits = AGAIN
) -> None:
    """Settle one session."""
    await successor.submit(Recover(session_id=session_id, worker=successor.worker, limits=limits))


async def gone(caller: StoreClient) -> set[WorkerId]:
    """Return the workers that give no sign that they are alive."""
    return {worker.id for worker in await caller.store.workers() if worker.is_gone}


async def state_of_worker(caller: StoreClient, worker: WorkerId) -> WorkerState:
    """Return what the store knows about a worker."""
    [found] = [one for one in await caller.store.workers() if one.id == worker]
    return found


async def owned(caller: StoreClient) -> set[RunId]:
    """Return the runs that still own a lane for a worker."""
    return {run.run_id for run in await caller.store.owned_runs(caller.worker)}


class RecoveryContract:
    """Promise 6, and promises 2 and 3 across the death of a process."""

    async def test_a_lease_lasts_until_its_time_and_is_renewed(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        clock.advance(LEASE_SECONDS - 1)
        assert await gone(other) == set()
        until = await caller.submit(Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS))
        assert until == clock.now() + LEASE_SECONDS
        clock.advance(LEASE_SECONDS - 1)
        assert await gone(other) == {other.worker}
        clock.advance(1)
        assert await gone(other) == {caller.worker, other.worker}

    async def test_a_worker_that_was_dismissed_may_not_come_back_under_its_name(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        await other.store.dismiss(caller.worker)
        with pytest.raises(RunFenced):
            await caller.submit(Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS))

    async def test_a_worker_that_was_taken_for_dead_cannot_renew_its_lease(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await expire(other, caller)
        for _ in range(2):
            with pytest.raises(RunFenced):
                await caller.submit(Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS))
            assert await gone(other) == {caller.worker}
        assert (await state_of(other, run.turn))[0] == "interrupted"
        assert await other.store.orphaned_sessions(10) == [run.session.id]
        await recover(other, run.session.id)
        with pytest.raises(RunFenced):
            await caller.finish(run, "late")
        assert await other.texts(run.session) == ["a"]

    async def test_a_worker_that_renewed_its_lease_since_it_was_judged_is_not_expired(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        run = await caller.start("a", key="k")
        clock.advance(LEASE_SECONDS)
        judged = await state_of_worker(other, caller.worker)
        await caller.submit(Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS))
        late = ExpireWorker(worker=caller.worker, alive_until=judged.alive_until)
        assert await other.submit(late) is False
        assert caller.worker not in await gone(other)
        await caller.finish(run, "b")
        clock.advance(LEASE_SECONDS)
        judged = await state_of_worker(other, caller.worker)
        in_time = ExpireWorker(worker=caller.worker, alive_until=judged.alive_until)
        assert await other.submit(in_time) is True

    async def test_a_turn_that_lost_a_worker_is_read_as_it_ended(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k", source="background")
        await expire(other, caller)
        await recover(other, run.session.id)
        again = await other.claim(run.turn)
        assert isinstance(again, Started)
        ended = await other.finish(again, "b")
        assert ended.turn.losses is not None
        view = await other.read.turn(other.tenant, run.turn.id)
        assert view is not None
        assert view.turn.losses == ended.turn.losses

    async def test_without_a_live_owner_nothing_runs(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        await expire(caller, caller)
        view = await caller.read.session(caller.tenant, session_id=run.session.id)
        assert view is not None
        assert view.status == "idle"
        assert (await state_of(caller, run.turn))[0] == "interrupted"

    async def test_what_a_gone_worker_left_is_found(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        lane = await other.start("b", key="l")
        await caller.wait("c", key="l")
        await caller.start("d", key="m")
        quiet = await caller.converse("e", "f", key="n")
        assert await other.store.orphaned_sessions(100) == []
        await expire(other, caller)
        found = set(await other.store.orphaned_sessions(100))
        assert run.session.id in found
        assert lane.session.id in found
        assert quiet.session.id not in found
        assert len(found) == 3
        assert len(await other.store.orphaned_sessions(2)) == 2

    async def test_recovery_leaves_nothing_to_recover(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        for key in "klm":
            await caller.start("a", key=key)
            await caller.wait("b", key=key)
        await expire(other, caller)
        for session_id in await other.store.orphaned_sessions(100):
            await recover(other, session_id)
        assert await other.store.orphaned_sessions(100) == []

    @pytest.mark.parametrize("source", ["user", "system", "internal"])
    async def test_a_foreground_turn_ends_as_interrupted_and_can_be_resumed(
        self, caller: StoreClient, other: StoreClient, source: Source
    ) -> None:
        run = await caller.start("a", key="k", source=source)
        await caller.extend(run, "b", partial=answered("torn"))
        await expire(other, caller)
        await recover(other, run.session.id)
        view = await other.read.turn(other.tenant, run.turn.id)
        assert view is not None
        assert (view.turn.outcome, view.turn.error_code) == ("interrupted", "worker_lost")
        assert view.turn.is_retryable
        assert await other.texts(run.session) == ["a", "b", "torn"]
        assert_sound(await picture(other, run.session.id))

    @pytest.mark.parametrize("source", ["background", "cron", "channel", "console"])
    async def test_a_turn_nobody_waits_for_goes_back_to_the_front_of_its_queue(
        self, caller: StoreClient, other: StoreClient, source: Source
    ) -> None:
        run = await caller.start("a", key="k", source=source)
        await caller.extend(run, "b", partial=answered("torn"))
        behind = await caller.wait("c", key="k", source=source)
        await expire(other, caller)
        await recover(other, run.session.id)
        owned = await other.store.owned_turns(other.worker)
        assert [turn.id for turn in owned] == [run.turn.id, behind.turn.id]
        assert isinstance(await other.claim(behind.turn), Queued)
        again = await other.claim(run.turn)
        assert isinstance(again, Started)
        assert (again.turn.id, again.turn.attempts) == (run.turn.id, 2)
        # Finished output is kept, interrupted output is hidden; the user's input is there once.
        assert await other.texts(run.session) == ["a", "b"]
        await other.finish(again, "done")
        assert isinstance(await other.claim(behind.turn), Started)
        assert_sound(await picture(other, run.session.id))

    async def test_without_a_handler_such_a_turn_is_kept_as_interrupted(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k", source="background")
        waiting = await caller.wait("b", key="k", source="background")
        await expire(other, caller)
        await recover(other, run.session.id, NOT_AGAIN)
        for turn in (run.turn, waiting.turn):
            assert await state_of(other, turn) == ("interrupted", "worker_lost")

    async def test_a_waiting_foreground_turn_whose_client_is_gone_is_kept_as_interrupted(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await other.start("a", key="k")
        waiting = await caller.wait("b", key="k", idempotency_key="once", body_hash=b"x")
        await expire(other, caller)
        await recover(other, run.session.id)
        assert await state_of(other, waiting.turn) == ("interrupted", "worker_lost")
        assert await state_of(other, run.turn) == ("running", None)
        await other.finish(run, "done")
        resumed = await other.start("b", key="k", idempotency_key="once", body_hash=b"x")
        assert resumed.turn.id == waiting.turn.id
        assert await other.texts(run.session) == ["a", "done", "b"]

    async def test_recovery_touches_nothing_of_a_living_worker(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.wait("b", key="k", source="cron")
        before = await picture(caller, run.session.id)
        await recover(other, run.session.id)
        assert await picture(caller, run.session.id) == before
        await caller.finish(run, "c")

    async def test_many_who_recover_at_once_do_it_once(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k", source="cron")
        await expire(other, caller)
        await asyncio.gather(*(recover(other, run.session.id) for _ in range(5)))
        events = await other.read.events(run.session.id, after=0, limit=100)
        assert [event.kind for event in events].count("turn.requeued") == 1
        assert_sound(await picture(other, run.session.id))

    async def test_a_turn_that_keeps_losing_its_worker_is_given_up(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        limits = LaneLimits(can_run_again=True, max_attempts=3)
        run = await caller.start("a", key="k", source="cron", limits=limits)
        owner = caller
        for attempt in range(1, 4):
            successor = StoreClient(other.store, f"successor{attempt}")
            await successor.enlist()
            await expire(successor, owner)
            owner = successor
            await recover(successor, run.session.id, limits)
            if attempt < 3:
                claimed = await successor.claim(run.turn, limits=limits)
                assert isinstance(claimed, Started)
                assert claimed.turn.attempts == attempt + 1
        assert await state_of(other, run.turn) == ("failed", "turn_abandoned")
        await other.start("b", key="k")
        assert_sound(await picture(other, run.session.id))

    async def test_a_worker_that_says_goodbye_hands_its_turns_back(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        limits = LaneLimits(can_run_again=True, max_attempts=1)
        run = await caller.start("a", key="k", source="channel", limits=limits)
        owner, last = caller, run
        for restart in range(1, 4):
            successor = StoreClient(other.store, f"successor{restart}")
            await successor.enlist()
            await successor.submit(ExpireWorker(worker=owner.worker, drop=True))
            owner = successor
            await recover(successor, run.session.id, limits)
            claimed = await successor.claim(run.turn, limits=limits)
            assert isinstance(claimed, Started)
            assert claimed.turn.attempts == restart + 1
            last = claimed
        await owner.finish(last, "b")
        assert await state_of(other, run.turn) == ("completed", None)

    async def test_a_turn_is_not_given_up_for_a_process_that_ran_many(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        limits = LaneLimits(can_run_again=True, max_attempts=1)
        runs = [
            await caller.start("a", key=f"k{n}", source="background", limits=limits)
            for n in range(5)
        ]
        await expire(other, caller)
        for run in runs:
            await recover(other, run.session.id, limits)
            assert await state_of(other, run.turn) == ("queued", None)

    async def test_a_turn_that_joins_its_outputs_has_all_its_attempts_again(
        self, caller: StoreClient
    ) -> None:
        await ask_the_client(caller, "call_1")
        joined = await caller.start(key="k", items=[output("call_1", "x")])
        assert joined.turn.attempts == 1

    async def test_the_next_turn_is_accepted_at_once_before_any_recovery(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await expire(other, caller)
        started = await other.start("b", key="k")
        assert await state_of(other, run.turn) == ("interrupted", "worker_lost")
        assert await other.texts(started.session) == ["a", "b"]

    async def test_a_zombie_cannot_answer_a_turn_that_somebody_else_took_over(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k", source="channel")
        await expire(other, caller)
        await recover(other, run.session.id)
        again = await other.claim(run.turn)
        assert isinstance(again, Started)
        before = without_runs(await picture(other, run.session.id))
        with pytest.raises(RunFenced):
            await caller.finish(run, "zombie")
        assert without_runs(await picture(other, run.session.id)) == before
        await other.finish(again, "once")
        assert await other.texts(run.session) == ["a", "once"]

    async def test_a_worker_knows_what_it_still_runs(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        first, second = await caller.start("a", key="k"), await caller.start("b", key="l")
        assert await owned(caller) == {first.run.id, second.run.id}
        await other.start("c", key="k", on_busy="interrupt")
        assert await owned(caller) == {second.run.id}
        assert await caller.store.owned_runs(WorkerId("wrk_unknown")) == []

    async def test_a_hold_that_ran_out_is_found_and_settled(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        assert await other.store.orphaned_sessions(10) == []
        clock.advance(HOLD_SECONDS)
        await caller.submit(Renew(worker=caller.worker, lease_seconds=LEASE_SECONDS))
        assert await other.store.orphaned_sessions(10) == [run.session.id]
        await recover(other, run.session.id)
        assert await state_of(other, run.turn) == ("interrupted", "tool_wait_expired")
        assert await other.store.orphaned_sessions(10) == []

    async def test_a_hold_is_not_a_loss(self, caller: StoreClient, other: StoreClient) -> None:
        run = await ask_the_client(caller, "call_1")
        await expire(other, caller)
        assert run.session.id not in await other.store.orphaned_sessions(100)
        await recover(other, run.session.id)
        assert await state_of(other, run.turn) == ("requires_action", None)


DAY_SECONDS = 86_400.0
LEASE_BOUND_SECONDS = 300.0


class ClockStepContract:
    """Promise 6 while the clock is set forward and back."""

    @pytest.mark.parametrize("step", [DAY_SECONDS, -DAY_SECONDS, -600.0])
    async def test_a_hold_ends_though_the_clock_was_set(
        self, caller: StoreClient, clock: ManualClock, step: float
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        waiting = await caller.wait("something else", key="k")
        clock.set(clock.now() + step)
        assert isinstance(await caller.claim(waiting.turn), Started)
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")
        assert_sound(await picture(caller, run.session.id))

    @pytest.mark.parametrize("step", [DAY_SECONDS, -DAY_SECONDS])
    async def test_a_sweep_finds_a_hold_though_the_clock_was_set(
        self, caller: StoreClient, clock: ManualClock, step: float
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.set(clock.now() + step)
        assert await caller.store.orphaned_sessions(10) == [run.session.id]
        await recover(caller, run.session.id)
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")

    async def test_an_output_still_joins_its_turn_after_the_clock_was_set_back(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.set(clock.now() - DAY_SECONDS)
        joined = await caller.start(key="k", items=[output("call_1", "a cat")])
        assert (joined.turn.id, joined.turn.step) == (run.turn.id, 1)

    async def test_a_small_step_back_leaves_a_hold_alone(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        await ask_the_client(caller, "call_1")
        waiting = await caller.wait("something else", key="k")
        clock.set(clock.now() - 5.0)
        assert isinstance(await caller.claim(waiting.turn), Queued)

    async def test_a_worker_that_hangs_loses_its_lease_though_the_clock_was_set_back(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        run = await caller.start("a", key="k")
        clock.set(clock.now() - DAY_SECONDS)
        renewal = Renew(worker=other.worker, lease_seconds=LEASE_SECONDS)
        await other.submit(renewal)
        clock.advance(LEASE_BOUND_SECONDS)
        await other.submit(renewal)
        assert await gone(other) == {caller.worker}
        await expire(other, caller)
        await recover(other, run.session.id)
        assert (await state_of(other, run.turn))[0] == "interrupted"

    @pytest.mark.parametrize("step", [DAY_SECONDS, -DAY_SECONDS])
    async def test_no_command_takes_a_lane_because_the_clock_was_set(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock, step: float
    ) -> None:
        run = await caller.start("a", key="k", idempotency_key="once", body_hash=b"x")
        behind = await caller.wait("b", key="k", source="cron")
        before = await picture(caller, run.session.id)
        clock.set(clock.now() + step)
        assert await other.store.orphaned_sessions(10) == []
        await recover(other, run.session.id)
        repeated = await other.repeat("a", key="k", idempotency_key="once", body_hash=b"x")
        assert not repeated.is_settled
        assert isinstance(await other.claim(behind.turn), Queued)
        assert await picture(other, run.session.id) == before
        assert await state_of(other, run.turn) == ("running", None)
        view = await other.read.session(other.tenant, session_id=run.session.id)
        assert view is not None
        assert view.status == "running"
        assert isinstance(await other.accept("c", key="k"), Queued)
        await caller.finish(run, "fine")
        assert await state_of(caller, run.turn) == ("completed", None)
        assert_sound(await picture(caller, run.session.id))

    async def test_a_lease_that_is_over_is_a_suspicion_until_its_process_ends(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        states = {}
        for step in (0.0, DAY_SECONDS):
            clock.set(clock.now() + step)
            states[step] = await state_of_worker(other, caller.worker)
        assert [(one.is_late, one.is_dead) for one in states.values()] == [
            (False, False),
            (True, False),
        ]
        assert states[0.0].alive_until == states[DAY_SECONDS].alive_until
        await expire(other, caller)
        assert (await state_of_worker(other, caller.worker)).is_dead

    @pytest.mark.parametrize("step", [DAY_SECONDS, -DAY_SECONDS])
    async def test_a_living_worker_keeps_its_lane_if_it_renews(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock, step: float
    ) -> None:
        run = await caller.start("a", key="k")
        clock.set(clock.now() + step)
        for worker in (caller, other):
            await worker.submit(Renew(worker=worker.worker, lease_seconds=LEASE_SECONDS))
        assert await gone(other) == set()
        assert await other.store.orphaned_sessions(10) == []
        await caller.finish(run, "fine")
        assert await state_of(caller, run.turn) == ("completed", None)
