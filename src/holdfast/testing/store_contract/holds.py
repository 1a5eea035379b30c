"""A lane kept for the client's own tools: who may join, who waits, and when it is over."""

import pytest

from holdfast.core.commands import Queued, Started
from holdfast.core.errors import RunFenced
from holdfast.testing.caller import Caller
from holdfast.testing.clock import HandClock
from holdfast.testing.store_contract.lanes import call, output, shown_to_a_model, state_of
from holdfast.testing.store_contract.picture import assert_sound, picture

HOLD_SECONDS = 120.0


async def ask_the_client(caller: Caller, *call_ids: str, key: str = "k") -> Started:
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
    """A turn that requires action keeps its lane, for a while."""

    async def test_a_turn_that_asks_for_tools_keeps_the_lane(
        self, caller: Caller, clock: HandClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        assert await state_of(caller, run.turn) == ("requires_action", None)
        view = await caller.read.session(caller.tenant, session_id=run.session.id)
        assert view is not None
        assert view.status == "running"
        waiting = await caller.wait("something else", key="k")
        assert waiting.look_again_at == clock.now() + HOLD_SECONDS

    async def test_an_output_joins_the_turn_that_asked_for_it(self, caller: Caller) -> None:
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

    async def test_a_turn_may_ask_more_than_once(self, caller: Caller) -> None:
        run = await ask_the_client(caller, "call_1")
        for n in range(2, 5):
            joined = await caller.start(key="k", items=[output(f"call_{n - 1}", "x")])
            assert (joined.turn.id, joined.turn.step) == (run.turn.id, n - 1)
            await caller.finish(joined, items=(call(f"call_{n}"),), pending_calls=(f"call_{n}",))
        assert await state_of(caller, run.turn) == ("requires_action", None)
        runs = await caller.read.runs(run.turn.id)
        assert [(one.step, one.outcome) for one in runs] == [(n, "completed") for n in range(4)]

    async def test_only_awaited_outputs_join(self, caller: Caller) -> None:
        await ask_the_client(caller, "call_1")
        assert isinstance(await caller.accept(key="k", items=[output("call_unknown", "x")]), Queued)
        assert isinstance(await caller.accept("call_1", key="k"), Queued)

    async def test_an_output_does_not_join_a_turn_of_another_session(self, caller: Caller) -> None:
        run = await ask_the_client(caller, "call_1")
        elsewhere = await caller.start(key="l", items=[output("call_1", "x")])
        assert elsewhere.turn.id != run.turn.id

    async def test_after_its_time_the_hold_is_over_and_who_waits_goes_on(
        self, caller: Caller, clock: HandClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        waiting = await caller.wait("something else", key="k")
        assert isinstance(await caller.claim(waiting.turn), Queued)
        clock.advance(HOLD_SECONDS)
        assert isinstance(await caller.claim(waiting.turn), Started)
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")

    async def test_after_its_time_a_newcomer_starts_at_once(
        self, caller: Caller, clock: HandClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.advance(HOLD_SECONDS)
        await caller.start("something else", key="k")
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")

    async def test_an_output_that_comes_first_after_the_time_is_a_turn_of_its_own(
        self, caller: Caller, clock: HandClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.advance(HOLD_SECONDS)
        late = await caller.start(key="k", items=[output("call_1", "a cat")])
        assert late.turn.id != run.turn.id
        assert await state_of(caller, run.turn) == ("interrupted", "tool_wait_expired")
        shown = await shown_to_a_model(caller, run.session)
        assert [item.get("output") for item in shown] == [None, None, "a cat"]

    async def test_a_late_output_is_a_turn_of_its_own_and_is_shown_at_its_call(
        self, caller: Caller, clock: HandClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        clock.advance(HOLD_SECONDS)
        await caller.converse("something else", "fine", key="k")
        before = await shown_to_a_model(caller, run.session)
        assert "interrupted" in str(before[2]["output"])
        late = await caller.start(key="k", items=[output("call_1", "a cat")])
        assert late.turn.id != run.turn.id
        shown = await shown_to_a_model(caller, run.session)
        assert [item["type"] for item in shown] == [
            "message", "function_call", "function_call_output", "message", "message",
        ]  # fmt: skip
        assert shown[2]["output"] == "a cat"

    @pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
    async def test_cutting_in_ends_the_hold(self, caller: Caller, on_busy: str) -> None:
        run = await ask_the_client(caller, "call_1")
        cut_in = await caller.start("never mind", key="k", on_busy=on_busy)
        assert (await state_of(caller, run.turn))[0] == "cancelled"
        await shown_to_a_model(caller, run.session)
        late = await caller.wait(key="k", items=[output("call_1", "x")])
        await caller.finish(cut_in, "ok")
        assert isinstance(await caller.claim(late.turn), Started)
        await shown_to_a_model(caller, run.session)
        assert_sound(await picture(caller, run.session.id))

    async def test_the_run_that_asked_may_write_no_more(self, caller: Caller) -> None:
        run = await ask_the_client(caller, "call_1")
        before = await picture(caller, run.session.id)
        with pytest.raises(RunFenced):
            await caller.extend(run, "late")
        after = await picture(caller, run.session.id)
        assert (after["session"], after["log"]) == (before["session"], before["log"])

    async def test_a_hold_outlives_the_worker_that_asked(
        self, caller: Caller, other: Caller, clock: HandClock
    ) -> None:
        run = await ask_the_client(caller, "call_1")
        await caller.store.dismiss(caller.worker)
        clock.advance(60)
        await other.enlist()
        joined = await other.start(key="k", items=[output("call_1", "x")])
        assert joined.turn.id == run.turn.id
