"""Lanes: one run at a time, in order and bounded, with four policies for a busy session."""

import asyncio

import msgspec
import pytest

from holdfast.core.errors import (
    LaneFull,
    RunFenced,
    SessionBusy,
    TurnCancelled,
    TurnNotFound,
)
from holdfast.core.ids import TurnId
from holdfast.core.model.items import NewItem, write_item
from holdfast.core.model.session import Session
from holdfast.core.model.turn import OnBusy, Turn
from holdfast.core.projection.project import project
from holdfast.core.transaction.commands import Cancel, LaneLimits, Queued, Started
from holdfast.ports.store import ItemQuery
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient, answered
from holdfast.testing.store_contract.transcript import assert_sound, picture


def call(call_id: str) -> NewItem:
    """Return a call of a client's tool."""
    return write_item(
        {"type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}"}
    )


def output(call_id: str, text: str) -> NewItem:
    """Return the output of a client's tool."""
    return write_item({"type": "function_call_output", "call_id": call_id, "output": text})


async def shown_to_a_model(caller: StoreClient, session: Session) -> list[dict[str, object]]:
    """Return a session's projection, after checking that every call is followed by its output."""
    items = await caller.read.items(await caller.session(session), ItemQuery())
    shown = [msgspec.json.decode(body) for body in project(items)]
    for index, item in enumerate(shown):
        if item["type"] == "function_call":
            assert shown[index + 1]["type"] == "function_call_output"
            assert shown[index + 1]["call_id"] == item["call_id"]
        if item["type"] == "function_call_output":
            assert shown[index - 1]["type"] == "function_call"
    return shown


async def state_of(caller: StoreClient, turn: Turn) -> tuple[str, str | None]:
    """Return the current status and error code of a turn."""
    view = await caller.read.turn(caller.tenant, turn.id)
    assert view is not None
    return view.status, view.turn.error_code


class LaneContract:
    """Promise 4: turns are serial."""

    async def test_a_free_lane_is_taken_at_once(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        assert run.session.active_turn_id == run.turn.id
        assert run.session.owner == caller.worker
        assert await caller.texts(run.session) == ["a"]
        view = await caller.read.session(caller.tenant, session_id=run.session.id)
        assert view is not None
        assert (view.status, view.queued_turns) == ("running", 0)
        assert await state_of(caller, run.turn) == ("running", None)

    async def test_who_comes_later_waits_and_is_not_in_the_log_yet(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        waiting = await caller.wait("b", key="k")
        assert await caller.texts(run.session, view="log") == ["a"]
        assert await state_of(caller, waiting.turn) == ("queued", None)
        view = await caller.read.session(caller.tenant, session_id=run.session.id)
        assert view is not None
        assert view.queued_turns == 1

    async def test_waiting_turns_run_in_the_order_of_their_arrival(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("0", key="k")
        callers = [caller, other, caller, other]
        waiting = [await one.wait(f"{n}", key="k") for n, one in enumerate(callers, 1)]
        for queued, one in zip(waiting, callers, strict=True):
            for later in waiting[waiting.index(queued) :]:
                assert isinstance(await one.claim(later.turn), Queued)
            await caller.finish(run, "done")
            for later in waiting[waiting.index(queued) + 1 :]:
                assert isinstance(await one.claim(later.turn), Queued)
            claimed = await one.claim(queued.turn)
            assert isinstance(claimed, Started)
            run = claimed
        await caller.finish(run, "done")
        texts = await caller.texts(run.session)
        assert texts[::2] == ["0", "1", "2", "3", "4"]
        assert_sound(await picture(caller, run.session.id))

    async def test_a_free_lane_is_not_given_to_who_comes_while_others_wait(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        first = await caller.wait("b", key="k")
        await caller.finish(run)
        await caller.wait("c", key="k")
        assert isinstance(await caller.claim(first.turn), Started)

    async def test_of_many_who_claim_one_turn_one_gets_it(
        self, caller: StoreClient, other: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        waiting = await caller.wait("b", key="k")
        await caller.finish(run)
        outcomes = await asyncio.gather(
            *(one.claim(waiting.turn) for _ in range(5) for one in (caller, other))
        )
        assert [type(outcome) for outcome in outcomes].count(Started) == 1

    async def test_a_full_lane_refuses_and_records_nothing(self, caller: StoreClient) -> None:
        limits = LaneLimits(max_waiting=2)
        run = await caller.start("a", key="k", limits=limits)
        await caller.wait("b", key="k", limits=limits)
        await caller.wait("c", key="k", limits=limits)
        before = await picture(caller, run.session.id)
        with pytest.raises(LaneFull) as refused:
            await caller.accept("d", key="k", limits=limits, idempotency_key="once")
        assert refused.value.retryable
        assert await picture(caller, run.session.id) == before
        await caller.wait("d", key="k", idempotency_key="once")

    async def test_a_turn_that_will_not_wait_is_refused_and_records_nothing(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        before = await picture(caller, run.session.id)
        with pytest.raises(SessionBusy) as refused:
            await caller.accept("b", key="k", on_busy="reject", idempotency_key="once")
        assert refused.value.retryable
        assert await picture(caller, run.session.id) == before
        await caller.finish(run)
        await caller.start("b", key="k", on_busy="reject", idempotency_key="once")

    async def test_an_interrupt_keeps_what_was_done_and_goes_to_the_front(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.extend(run, "b", partial=answered("torn"))
        waiting = await caller.wait("later", key="k")
        cut_in = await caller.start("c", key="k", on_busy="interrupt")
        assert await state_of(caller, run.turn) == ("cancelled", "interrupted_by_turn")
        assert await caller.texts(run.session) == ["a", "b", "torn", "c"]
        assert await state_of(caller, waiting.turn) == ("queued", None)
        with pytest.raises(RunFenced):
            await caller.finish(run, "too late")
        await caller.finish(cut_in, "d")
        assert isinstance(await caller.claim(waiting.turn), Started)
        assert_sound(await picture(caller, run.session.id))

    async def test_a_rollback_takes_the_running_turn_out_of_the_view(
        self, caller: StoreClient
    ) -> None:
        await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k")
        await caller.extend(run, "d", partial=answered("torn"))
        again = await caller.start("C", key="k", on_busy="rollback")
        assert await state_of(caller, run.turn) == ("cancelled", "rolled_back")
        assert await caller.texts(run.session) == ["a", "b", "C"]
        log = await caller.texts(run.session, view="log")
        assert log == ["a", "b", "c", "d", "torn", "C"]
        await caller.finish(again, "D")
        assert_sound(await picture(caller, run.session.id))

    async def test_a_completed_turn_is_never_rolled_back(self, caller: StoreClient) -> None:
        ended = await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k", on_busy="rollback")
        assert await caller.texts(run.session) == ["a", "b", "c"]
        assert await state_of(caller, ended.turn) == ("completed", None)

    @pytest.mark.parametrize("on_busy", ["enqueue", "reject", "interrupt", "rollback"])
    async def test_every_way_to_arrive_leaves_a_log_that_projects_to_a_valid_request(
        self, caller: StoreClient, on_busy: OnBusy
    ) -> None:
        await caller.converse("a", "b", key="k")
        run = await caller.start("c", key="k")
        await caller.extend(run, items=(call("call_1"),), partial=(call("call_2"),))
        try:
            outcome = await caller.accept("d", key="k", on_busy=on_busy)
        except SessionBusy:
            outcome = None
        await shown_to_a_model(caller, run.session)
        if not isinstance(outcome, Started):
            await caller.finish(run, items=(output("call_1", "seen"), *answered("e")))
        if isinstance(outcome, Queued):
            outcome = await caller.claim(outcome.turn)
        if isinstance(outcome, Started):
            await caller.finish(outcome, "f")
        await shown_to_a_model(caller, run.session)
        assert_sound(await picture(caller, run.session.id))

    async def test_several_interrupts_in_a_row_leave_one_turn_running(
        self, caller: StoreClient
    ) -> None:
        runs = [await caller.start(f"{n}", key="k", on_busy="interrupt") for n in range(4)]
        states = [await state_of(caller, run.turn) for run in runs]
        assert states == [("cancelled", "interrupted_by_turn")] * 3 + [("running", None)]
        assert_sound(await picture(caller, runs[0].session.id))

    async def test_a_waiting_turn_can_be_cancelled(self, caller: StoreClient) -> None:
        run = await caller.start("a", key="k")
        waiting = await caller.wait("b", key="k")
        behind = await caller.wait("c", key="k")
        await caller.submit(Cancel(tenant=caller.tenant, turn_id=waiting.turn.id))
        assert await state_of(caller, waiting.turn) == ("cancelled", "turn_cancelled")
        await caller.finish(run)
        with pytest.raises(TurnCancelled):
            await caller.claim(waiting.turn)
        assert isinstance(await caller.claim(behind.turn), Started)
        assert await caller.texts(run.session) == ["a", "c"]

    async def test_a_running_turn_can_be_cancelled_and_keeps_what_it_did(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.extend(run, "b")
        await caller.submit(Cancel(tenant=caller.tenant, turn_id=run.turn.id))
        assert await state_of(caller, run.turn) == ("cancelled", "turn_cancelled")
        with pytest.raises(RunFenced):
            await caller.extend(run, "late")
        assert await caller.texts(run.session) == ["a", "b"]
        await caller.start("c", key="k")

    async def test_a_turn_that_has_ended_keeps_its_end(self, caller: StoreClient) -> None:
        ended = await caller.converse("a", "b", key="k")
        before = await picture(caller, ended.session.id)
        turn = await caller.submit(Cancel(tenant=caller.tenant, turn_id=ended.turn.id))
        assert turn.outcome == "completed"
        assert await picture(caller, ended.session.id) == before
        with pytest.raises(TurnNotFound):
            await caller.submit(Cancel(tenant=caller.tenant, turn_id=TurnId("turn_unknown")))

    async def test_giving_up_waiting_does_not_stop_a_turn_that_has_started(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.submit(Cancel(tenant=caller.tenant, turn_id=run.turn.id, only_if_queued=True))
        assert await state_of(caller, run.turn) == ("running", None)

    async def test_a_failed_turn_frees_the_lane_and_keeps_the_session(
        self, caller: StoreClient
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(
            run, "half", outcome="failed", error_code="boom", error_message="it broke"
        )
        assert await state_of(caller, run.turn) == ("failed", "boom")
        again = await caller.start("b", key="k")
        assert await caller.texts(again.session) == ["a", "half", "b"]

    @pytest.mark.parametrize(
        "said",
        ["a\0b", "half a \ud83e pair", "\udcff", "x" * 100_000],
        ids=["nul", "half a pair", "a byte", "long"],
    )
    async def test_whatever_an_error_says_its_turn_ends(
        self, caller: StoreClient, said: str
    ) -> None:
        run = await caller.start("a", key="k")
        await caller.finish(run, outcome="failed", error_code="boom", error_message=said)
        view = await caller.read.turn(caller.tenant, run.turn.id)
        assert view is not None
        assert (view.status, view.turn.error_code) == ("failed", "boom")
        assert view.turn.error_message
        waiting = await caller.start("b", key="k")
        await caller.submit(Cancel(tenant=caller.tenant, turn_id=waiting.turn.id, reason=said))
        assert await state_of(caller, waiting.turn) == ("cancelled", "turn_cancelled")

    async def test_sessions_do_not_wait_for_each_other(self, caller: StoreClient) -> None:
        await caller.start("a", key="k")
        await caller.start("b", key="l")


HOLD_SECONDS = 120.0


async def ask_the_client(caller: StoreClient, *call_ids: str, key: str = "k") -> Started:
    """Run a turn up to the calls that the client's tools must answer."""
    run = await caller.start("what is there?", key=key)
    await caller.finish(
        run,
        items=tuple(call(one) for one in call_ids),
        pending_calls=call_ids,
        hold_seconds=HOLD_SECONDS,
    )
    return run


class HoldContract:
    """A turn that requires action keeps its lane for a limited time."""

    async def test_a_turn_that_asks_for_tools_keeps_the_lane(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        assert await state_of(caller, run.turn) == ("requires_action", None)
        view = await caller.read.session(caller.tenant, session_id=run.session.id)
        assert view is not None
        assert view.status == "running"
        waiting = await caller.wait("something else", key="k")
        assert waiting.check_again_at == clock.now() + HOLD_SECONDS

    async def test_an_output_joins_the_turn_that_asked_for_it(self, caller: StoreClient) -> None:
        run = await ask_the_client(caller, "call_1")
        behind = await caller.wait("something else", key="k")
        joined = await caller.start(key="k", items=[output("call_1", "a cat")])
        assert (joined.turn.id, joined.turn.step) == (run.turn.id, 1)
        await caller.finish(joined, "there is a cat")
        assert await state_of(caller, run.turn) == ("completed", None)
        assert isinstance(await caller.claim(behind.turn), Started)
        assert await caller.texts(run.session) == [
            "what is there?", "function_call", "function_call_output", "there is a cat",
            "something else",
        ]  # fmt: skip
        assert_sound(await picture(caller, run.session.id))

    async def test_a_turn_may_ask_more_than_once(self, caller: StoreClient) -> None:
        run = await ask_the_client(caller, "call_1")
        for n in range(2, 5):
            joined = await caller.start(key="k", items=[output(f"call_{n - 1}", "x")])
            assert (joined.turn.id, joined.turn.step) == (run.turn.id, n - 1)
            await caller.finish(joined, items=(call(f"call_{n}"),), pending_calls=(f"call_{n}",))
        assert await state_of(caller, run.turn) == ("requires_action", None)
        runs = await caller.read.runs(run.turn.id)
        assert [(one.step, one.outcome) for one in runs] == [(n, "completed") for n in range(4)]

    async def test_only_awaited_outputs_join(self, caller: StoreClient) -> None:
        await ask_the_client(caller, "call_1")
        assert isinstance(await caller.accept(key="k", items=[output("call_unknown", "x")]), Queued)
        assert isinstance(await caller.accept("call_1", key="k"), Queued)

    async def test_an_output_does_not_join_a_turn_of_another_session(
        self, caller: StoreClient
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        elsewhere = await caller.start(key="l", items=[output("call_1", "x")])
        assert elsewhere.turn.id != run.turn.id

    async def test_after_its_time_the_hold_is_over_and_who_waits_goes_on(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        waiting = await caller.wait("something else", key="k")
        assert isinstance(await caller.claim(waiting.turn), Queued)
        clock.advance(HOLD_SECONDS)
        assert isinstance(await caller.claim(waiting.turn), Started)
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")

    async def test_after_its_time_a_newcomer_starts_at_once(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.advance(HOLD_SECONDS)
        await caller.start("something else", key="k")
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")

    async def test_an_output_that_comes_first_after_the_time_is_a_turn_of_its_own(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.advance(HOLD_SECONDS)
        late = await caller.start(key="k", items=[output("call_1", "a cat")])
        assert late.turn.id != run.turn.id
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")
        shown = await shown_to_a_model(caller, run.session)
        assert [item.get("output") for item in shown] == [None, None, "a cat"]

    async def test_a_late_output_is_a_turn_of_its_own_and_changes_nothing_that_was_shown(
        self, caller: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.advance(HOLD_SECONDS)
        await caller.converse("something else", "fine", key="k")
        before = await shown_to_a_model(caller, run.session)
        assert "interrupted" in str(before[2]["output"])
        late = await caller.start(key="k", items=[output("call_1", "a cat")])
        assert late.turn.id != run.turn.id
        shown = await shown_to_a_model(caller, run.session)
        assert shown[: len(before)] == before
        assert len(shown) == len(before) + 1
        assert "a cat" in str(shown[-1]["content"])

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_cutting_in_ends_the_hold(self, caller: StoreClient, on_busy: str) -> None:
        run = await ask_the_client(caller, "call_1")
        cut_in = await caller.start("never mind", key="k", on_busy=on_busy)
        assert (await state_of(caller, run.turn))[0] == "cancelled"
        await shown_to_a_model(caller, run.session)
        late = await caller.wait(key="k", items=[output("call_1", "x")])
        await caller.finish(cut_in, "ok")
        assert isinstance(await caller.claim(late.turn), Started)
        await shown_to_a_model(caller, run.session)
        assert_sound(await picture(caller, run.session.id))

    async def test_the_run_that_asked_may_write_no_more(self, caller: StoreClient) -> None:
        run = await ask_the_client(caller, "call_1")
        before = await picture(caller, run.session.id)
        with pytest.raises(RunFenced):
            await caller.extend(run, "late")
        after = await picture(caller, run.session.id)
        assert (after["session"], after["log"]) == (before["session"], before["log"])

    async def test_a_hold_outlives_the_worker_that_asked(
        self, caller: StoreClient, other: StoreClient, clock: ManualClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        await caller.store.dismiss(caller.worker)
        clock.advance(60)
        await other.enlist()
        joined = await other.start(key="k", items=[output("call_1", "x")])
        assert joined.turn.id == run.turn.id
