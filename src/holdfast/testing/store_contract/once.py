"""Idempotency: repeats with a key, and an SDK's retries without one."""

import asyncio
from typing import Any

import pytest

from holdfast.core.decisions.idempotency import DELIVERED_SECONDS, UNDELIVERED_SECONDS
from holdfast.core.errors import IdempotencyMismatch, LaneFull, SessionDeleted, SessionRetired
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import (
    Cancel,
    Delete,
    Hide,
    LaneLimits,
    MarkDelivered,
    Queued,
    Repeated,
    Started,
)
from holdfast.ports.store import Store
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient
from holdfast.testing.store_contract.lanes import ask_the_client, output, state_of
from holdfast.testing.store_contract.transcript import assert_sound, picture

ONCE: dict[str, Any] = {"key": "k", "idempotency_key": "tg:42:1007", "body_hash": b"body"}
RETRY: dict[str, Any] = {"key": "k", "body_hash": b"body", "retry_count": 1}


class OnceContract:
    """Promise 3, with a key."""

    async def test_a_repeat_of_a_running_turn_is_that_turn(self, caller: StoreClient) -> None:
        run = await caller.start("yes", **ONCE)
        repeated = await caller.repeat("yes", **ONCE)
        assert (repeated.turn.id, repeated.step) == (run.turn.id, 0)
        assert await caller.texts(run.session) == ["yes"]

    async def test_a_repeat_of_a_waiting_turn_is_that_turn(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        waiting = await caller.wait("yes", **ONCE)
        repeated = await caller.repeat("yes", **ONCE)
        assert repeated.turn.id == waiting.turn.id
        assert (await caller.session(run.session)).turn_count == 2

    @pytest.mark.parametrize(
        ("ending", "status"),
        [
            ({"outcome": "completed", "result": b"{}"}, "completed"),
            ({"outcome": "failed", "error_code": "boom"}, "failed"),
        ],
    )
    async def test_an_ended_turn_replays_its_recorded_end(
        self, caller: StoreClient, ending: dict[str, Any], status: str
    ) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.finish(run, "b", **ending)
        before = await picture(caller, run.session.id)
        repeated = await caller.repeat("yes", **ONCE)
        assert (repeated.turn.id, repeated.turn.outcome) == (run.turn.id, status)
        assert repeated.run is not None
        assert (repeated.run.id, repeated.run.result) == (run.run.id, ending.get("result"))
        assert await picture(caller, run.session.id) == before

    async def test_a_cancelled_turn_stays_cancelled(self, caller: StoreClient) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.submit(Cancel(tenant=caller.tenant, turn_id=run.turn.id))
        repeated = await caller.repeat("yes", **ONCE)
        assert repeated.turn.outcome == "cancelled"

    @pytest.mark.parametrize("outcome", ["interrupted", "failed"])
    async def test_an_interrupted_turn_runs_again_as_the_same_turn(
        self, caller: StoreClient, outcome: str
    ) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.finish(run, outcome=outcome, is_retryable=True)
        again = await caller.start("yes", **ONCE)
        assert again.turn.id == run.turn.id
        assert again.run.id != run.run.id
        assert await caller.texts(run.session) == ["yes"]
        await caller.finish(again, "done")
        assert (await caller.repeat("yes", **ONCE)).turn.outcome == "completed"
        assert_sound(await picture(caller, run.session.id))

    async def test_an_interrupted_turn_behind_later_ones_is_written_again_at_the_head(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.extend(run, "half")
        await caller.finish(run, outcome="interrupted", is_retryable=True)
        await caller.converse("c", "d", key="k")
        again = await caller.start("yes", **ONCE)
        assert again.turn.id == run.turn.id
        assert await caller.texts(run.session) == ["c", "d", "yes", "half"]
        assert await caller.texts(run.session, view="log") == [
            "yes",
            "half",
            "c",
            "d",
            "yes",
            "half",
        ]
        await caller.finish(again, "done")
        assert_sound(await picture(caller, run.session.id))

    async def test_an_interrupted_turn_that_an_edit_hid_is_asked_again_in_full(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.finish(run, outcome="interrupted", is_retryable=True)
        edit = await caller.start("e", key="k", rewind=(0, 1))
        await caller.finish(edit, "f")
        assert await caller.texts(run.session) == ["e", "f"]
        again = await caller.start("yes", **ONCE)
        assert await caller.texts(run.session) == ["e", "f", "yes"]
        await caller.finish(again, "done")
        assert await caller.texts(run.session) == ["e", "f", "yes", "done"]
        assert_sound(await picture(caller, run.session.id))

    async def test_an_interrupted_turn_at_the_head_that_was_hidden_is_asked_again_in_full(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.finish(run, outcome="interrupted", is_retryable=True)
        hide = Hide(tenant=caller.tenant, session_id=run.session.id, from_seq=1, to_seq=1)
        await caller.submit(hide)
        assert await caller.texts(run.session) == []
        again = await caller.start("yes", **ONCE)
        await caller.finish(again, "done")
        assert await caller.texts(run.session) == ["yes", "done"]
        assert_sound(await picture(caller, run.session.id))

    async def test_another_body_under_the_same_key_is_refused(self, caller: StoreClient) -> None:
        run = await caller.start("yes", **ONCE)
        before = await picture(caller, run.session.id)
        with pytest.raises(IdempotencyMismatch):
            await caller.accept("no", **{**ONCE, "body_hash": b"other"})
        assert await picture(caller, run.session.id) == before

    async def test_a_repeat_is_recognised_before_bounds_and_busy_lanes(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("yes", **ONCE)
        for on_busy in ("enqueue", "reject", "interrupt", "rollback"):
            repeated = await caller.repeat(
                "yes", **ONCE, on_busy=on_busy, limits=LaneLimits(max_waiting=0)
            )
            assert repeated.turn.id == run.turn.id
        assert await state_of(caller, run.turn) == ("running", None)

    async def test_a_repeat_is_recognised_before_a_rollover(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        policy = ResetPolicy(mode="idle", idle_seconds=60, rollover="hard")
        run = await caller.start("yes", **ONCE, reset=policy)
        await caller.finish(run, "b")
        clock.advance(3600)
        assert (await caller.repeat("yes", **ONCE, reset=policy)).session.id == run.session.id

    async def test_a_refusal_records_nothing(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        with pytest.raises(LaneFull):
            await caller.accept("yes", **ONCE, limits=LaneLimits(max_waiting=0))
        await caller.finish(run)
        other_body = await caller.start("no", **{**ONCE, "body_hash": b"other"})
        assert other_body.turn.number == 2

    async def test_keys_belong_to_their_tenant(self, caller: StoreClient, store: Store) -> None:
        await caller.start("yes", **ONCE)
        stranger = StoreClient(store, "s", tenant="stranger")
        assert isinstance(await stranger.accept("yes", **{**ONCE, "body_hash": b"x"}), Started)

    async def test_keys_outlive_their_generation(self, caller: StoreClient) -> None:
        ended = await caller.finish(await caller.start("yes", **ONCE), "b")
        await caller.reset(ended.session)
        repeated = await caller.repeat("yes", **ONCE)
        assert (repeated.turn.id, repeated.session.id) == (ended.turn.id, ended.session.id)

    async def test_an_interrupted_turn_is_not_resumed_in_the_next_generation(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.finish(run, outcome="interrupted", is_retryable=True)
        fresh = await caller.reset(run.session)
        with pytest.raises(SessionRetired):
            await caller.accept("yes", **ONCE)
        assert await caller.texts(fresh) == []

    async def test_a_repeat_for_an_erased_session_raises_session_deleted(
        self, caller: StoreClient
    ) -> None:
        ended = await caller.finish(await caller.start("yes", **ONCE), "b")
        await caller.submit(Delete(tenant=caller.tenant, session_id=ended.session.id))
        with pytest.raises(SessionDeleted):
            await caller.accept("yes", **ONCE)

    async def test_many_repeats_at_once_are_one_turn(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        outcomes = await asyncio.gather(
            *(one.accept("yes", **ONCE) for _ in range(8) for one in (caller, other))
        )
        assert len({outcome.turn.id for outcome in outcomes}) == 1
        kinds = [type(outcome) for outcome in outcomes]
        assert (kinds.count(Started), kinds.count(Repeated)) == (1, 15)
        assert (await caller.session(outcomes[0].session)).turn_count == 1

    async def test_many_repeats_of_an_interrupted_turn_at_once_start_it_once(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("yes", **ONCE)
        await caller.finish(run, outcome="interrupted", is_retryable=True)
        outcomes = await asyncio.gather(
            *(one.accept("yes", **ONCE) for _ in range(5) for one in (caller, other))
        )
        assert [type(outcome) for outcome in outcomes].count(Started) == 1
        assert len(await caller.read.runs(run.turn.id)) == 2

    async def test_a_repeated_output_gets_the_answer_of_its_step(self, caller: StoreClient) -> None:
        await ask_the_client(caller, "call_1")
        answer: dict[str, Any] = {**ONCE, "items": [output("call_1", "x")]}
        joined = await caller.start(**answer)
        await caller.finish(joined, "seen", result=b"second answer")
        repeated = await caller.repeat(**answer)
        assert (repeated.turn.id, repeated.step) == (joined.turn.id, 1)
        assert repeated.run is not None
        assert repeated.run.result == b"second answer"

    async def test_a_batch_is_appended_once(self, caller: StoreClient) -> None:
        batch: dict[str, Any] = {"key": "k", "idempotency_key": "b1", "body_hash": b"x"}
        first = await caller.append("a", "b", **batch)
        second = await caller.append("a", "b", **batch)
        assert second.turn.id == first.turn.id
        assert await caller.texts(first.session) == ["a", "b"]
        with pytest.raises(IdempotencyMismatch):
            await caller.append("c", **{**batch, "body_hash": b"y"})


class ImplicitRetryContract:
    """Promise 3, for clients that retry automatically; a second "yes" must never be lost."""

    async def test_a_retry_attaches_to_an_answer_that_was_never_delivered(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await caller.start("yes", key="k", body_hash=b"body")
        assert (await caller.repeat("yes", **RETRY)).turn.id == run.turn.id
        await caller.finish(run, "b")
        clock.advance(UNDELIVERED_SECONDS)
        repeated = await caller.repeat("yes", **{**RETRY, "retry_count": 2})
        assert (repeated.turn.id, repeated.turn.outcome) == (run.turn.id, "completed")

    async def test_a_retry_resumes_an_interrupted_turn(self, caller: StoreClient) -> None:
        run = await caller.start("yes", key="k", body_hash=b"body")
        await caller.finish(run, outcome="interrupted", is_retryable=True)
        again = await caller.start("yes", **RETRY)
        assert again.turn.id == run.turn.id

    async def test_a_retry_after_a_quarter_of_an_hour_is_new(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        ended = await caller.finish(await caller.start("yes", key="k", body_hash=b"body"), "b")
        clock.advance(UNDELIVERED_SECONDS + 1)
        assert (await caller.start("yes", **RETRY)).turn.id != ended.turn.id

    async def test_a_count_attaches_once(self, caller: StoreClient) -> None:
        run = await caller.start("yes", key="k", body_hash=b"body")
        await caller.finish(run, "b")
        # Retries overtake each other: a higher count says nothing about a lower one.
        later = {**RETRY, "retry_count": 70}
        assert isinstance(await caller.accept("yes", **later), Repeated)
        assert isinstance(await caller.accept("yes", **RETRY), Repeated)
        assert isinstance(await caller.accept("yes", **later), Started)

    @pytest.mark.parametrize("is_running", [False, True])
    async def test_a_count_attaches_once_over_all_workers(
        self, caller: StoreClient, other: StoreClient, *, is_running: bool
    ) -> None:
        run = await caller.start("yes", key="k", body_hash=b"body")
        if not is_running:
            await caller.finish(run, "b")
        assert isinstance(await other.accept("yes", **RETRY), Repeated)
        # The first worker has the turn in its cache, without the claim.
        assert isinstance(await caller.accept("yes", **RETRY), Queued if is_running else Started)

    @pytest.mark.parametrize(
        "differs",
        [{"body_hash": b"other"}, {"retry_count": 0}, {"key": "l"}, {"idempotency_key": "x"}],
    )
    async def test_anything_else_is_new(self, caller: StoreClient, differs: dict[str, Any]) -> None:
        run = await caller.start("yes", key="k", body_hash=b"body")
        outcome = await caller.accept("yes", **{**RETRY, **differs})
        assert isinstance(outcome, Started | Queued)
        assert outcome.turn.id != run.turn.id

    async def test_only_the_latest_turn_can_be_meant(self, caller: StoreClient) -> None:
        first = await caller.finish(await caller.start("yes", key="k", body_hash=b"body"), "b")
        await caller.converse("c", "d", key="k")
        assert (await caller.start("yes", **RETRY)).turn.id != first.turn.id

    async def test_a_delivered_answer_is_repeated_for_ten_seconds(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        ended = await caller.finish(await caller.start("yes", key="k", body_hash=b"body"), "b")
        await _deliver(caller, ended.turn)
        clock.advance(DELIVERED_SECONDS - 1)
        assert (await caller.repeat("yes", **RETRY)).turn.id == ended.turn.id
        clock.advance(1)
        new = await caller.start("yes", **{**RETRY, "retry_count": 2})
        assert new.turn.id != ended.turn.id

    async def test_a_turn_that_went_on_is_undelivered_again(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        await _deliver(caller, run.turn)
        clock.advance(DELIVERED_SECONDS)
        answer: dict[str, Any] = {**RETRY, "items": [output("call_1", "x")]}
        joined = await caller.start(**{**answer, "retry_count": 0})
        await _deliver(caller, run.turn)  # of the step before: says nothing about this one
        await caller.finish(joined, "seen")
        clock.advance(DELIVERED_SECONDS)
        assert (await caller.repeat(**answer)).turn.id == run.turn.id


async def _deliver(caller: StoreClient, turn: Turn) -> None:
    await caller.submit(MarkDelivered(steps=((turn.id, turn.step),)))
