"""What a run may write, and how it ends."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.decisions.lane import pack_items
from holdfast.core.decisions.run import (
    cancel,
    extend,
    finish,
    record_heal,
    request_stop,
    settle_stop,
)
from holdfast.core.errors import RunFenced, TurnNotFound
from holdfast.core.healing.policy import Heal, read_heals
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.items import message
from holdfast.core.model.session import ProviderState, Session, Usage
from holdfast.core.model.turn import Fence, Outcome, Successor, Turn
from holdfast.core.transaction.changes import (
    Decision,
    LateWriteNoted,
    PartialDropped,
    PartialSaved,
    ProviderStateDropped,
    ProviderStateSaved,
    StopRequestDropped,
    StopRequestRow,
)
from holdfast.core.transaction.commands import (
    Cancel,
    Ended,
    Extend,
    Finish,
    RecordHeal,
    RequestStop,
    SettleStop,
)
from holdfast.core.transaction.facts import Facts, Waiting
from tests.unit.core.builders import (
    NOW,
    OTHER_WORKER,
    RUN,
    SESSION,
    TENANT,
    TURN,
    a_fence,
    a_run,
    a_session,
    a_started_turn,
    a_turn,
    answer,
    appended,
    held,
    idle,
    only,
    refusal,
    running,
    told,
    waiting,
    written,
)
from tests.written_rows import RecordAdded, RunSaved, SessionSaved, TurnSaved

SAID = (message("assistant", "hello"),)
BEGUN = (message("assistant", "hel"),)
HEAL = Heal("stale_state", "dropped_state", "previous_response_not_found")
STATE = ProviderState("openai", "acct", "gpt", b"resp_1")


def a_finish(facts: Facts, **fields: Any) -> Finish:
    finish: dict[str, Any] = {"fence": a_fence(facts), "outcome": "completed", "items": SAID}
    return Finish(**(finish | fields))


# ── the fence ───────────────────────────────────────────────────────────────────────────────

LOST: dict[str, dict[str, Any]] = {
    "another run": {"active_run_id": RunId("run_2"), "owner": OTHER_WORKER, "epoch": 3},
    "a newer epoch": {"epoch": 3},
    "another generation": {"generation": 2},
    "retired": {"is_live": False, "active_turn_id": None, "active_run_id": None, "owner": None},
}


def lost(change: str) -> tuple[Fence, Facts]:
    """Return the fence of a run and the facts after it lost its session."""
    before = running()
    assert before.session is not None
    facts = replace(
        before, session=replace(before.session, **LOST[change]), run=before.active_run,
        turn=before.active,
    )  # fmt: skip
    return a_fence(before), facts


def late_writes(fence: Fence, facts: Facts) -> dict[str, Decision[Any]]:
    return {
        "extend": extend(Extend(fence=fence, items=SAID), facts),
        "completed": finish(Finish(fence=fence, outcome="completed", items=SAID), facts),
        "failed": finish(Finish(fence=fence, outcome="failed"), facts),
        "record_heal": record_heal(RecordHeal(fence=fence, number=0, heal=HEAL), facts),
    }


@pytest.mark.parametrize("change", LOST)
def test_a_run_that_lost_its_session_changes_nothing_but_its_own_record(change: str) -> None:
    for tried, decision in late_writes(*lost(change)).items():
        assert isinstance(decision.outcome, RunFenced), tried
        (saved,) = decision.changes
        # Nothing but the note: the end of the run is not its own to write.
        assert isinstance(saved, LateWriteNoted)
        assert saved.run_id == RUN
        late = msgspec.json.decode(saved.body)
        assert (late["tried"], late["at"]) == (tried, NOW)


def test_a_run_of_a_deleted_or_unknown_session_leaves_no_trace_at_all() -> None:
    fence = a_fence(running())
    gone = idle(
        session={"is_live": False, "deleted_at": NOW}, run=a_run(a_session(), a_started_turn())
    )
    for facts in (gone, Facts(now=NOW)):
        for decision in late_writes(fence, facts).values():
            assert "is gone" in refusal(decision, RunFenced).message


def test_the_refusal_names_both_epochs() -> None:
    fence, facts = lost("a newer epoch")
    error = extend(Extend(fence=fence), facts).outcome
    assert isinstance(error, RunFenced)
    assert "epoch 2" in error.message
    assert "at 3" in error.message


# ── extend ──────────────────────────────────────────────────────────────────────────────────


def test_finished_items_enter_the_log_while_the_run_goes_on() -> None:
    facts = running()
    decision = extend(Extend(fence=a_fence(facts), items=SAID), facts)
    assert answer(decision, Session).head_seq == 2
    assert [item.seq for item in appended(decision)] == [2]
    turn = only(decision, TurnSaved).turn
    assert (turn.kept_seq, turn.last_seq, turn.outcome) == (2, 2, None)
    assert told(decision) == ["items.added"]


def test_unfinished_items_are_remembered_beside_the_log() -> None:
    facts = running()
    decision = extend(Extend(fence=a_fence(facts), partial=BEGUN), facts)
    assert appended(decision) == []
    assert only(decision, PartialSaved).body == pack_items(BEGUN)


def test_finished_items_take_the_place_of_the_unfinished() -> None:
    facts = running(run_fields={"partial": pack_items(BEGUN)})
    decision = extend(Extend(fence=a_fence(facts), items=SAID), facts)
    assert only(decision, RunSaved).run.partial is None
    assert only(decision, PartialDropped).run_id == RUN


def test_an_extend_sent_again_appends_nothing_twice() -> None:
    before = running()
    command = Extend(fence=a_fence(before), items=SAID, after_seq=1)
    first = extend(command, before)
    after = replace(before, session=answer(first, Session))
    again = extend(replace(command, again=True), after)
    assert appended(again) == []
    assert answer(again, Session).head_seq == 2


def test_an_extend_sent_again_after_nothing_was_done_is_done() -> None:
    facts = running()
    command = Extend(fence=a_fence(facts), items=SAID, after_seq=1, again=True)
    assert answer(extend(command, facts), Session).head_seq == 2


# ── finish ──────────────────────────────────────────────────────────────────────────────────


def test_an_end_commits_items_answer_usage_and_provider_state_together() -> None:
    facts = running(session={"input_tokens": 5, "output_tokens": 1})
    usage = Usage(10, 4, 3, 2)
    command = a_finish(facts, result=b"{}", usage=usage, provider_state=STATE, heals=b"[]")
    decision = finish(command, facts)
    ended = answer(decision, Ended)
    assert (ended.turn.outcome, ended.turn.ended_at) == ("completed", NOW)
    assert (ended.turn.kept_seq, ended.turn.last_seq) == (2, 2)
    assert (ended.run.outcome, ended.run.result, ended.run.heals) == ("completed", b"{}", b"[]")
    assert (ended.run.first_seq, ended.run.last_seq) == (2, 2)
    assert (ended.run.input_tokens, ended.run.reasoning_tokens) == (10, 2)
    session = ended.session
    assert (session.input_tokens, session.cached_tokens) == (15, 4)
    assert (session.output_tokens, session.reasoning_tokens) == (4, 2)
    assert session.active_turn_id is None
    assert session.owner is None
    saved = only(decision, ProviderStateSaved)
    assert saved.state == replace(STATE, covers_seq=2)
    assert only(decision, SessionSaved).read_version == 2


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "interrupted"])
def test_only_a_completed_answer_leaves_provider_state(outcome: str) -> None:
    facts = running()
    decision = finish(a_finish(facts, outcome=outcome, provider_state=STATE), facts)
    assert written(decision, ProviderStateSaved) == []


def test_an_unknown_usage_stays_unknown() -> None:
    facts = running(session={"input_tokens": 5})
    ended = answer(finish(a_finish(facts), facts), Ended)
    assert ended.run.input_tokens is None
    assert ended.session.input_tokens == 5


def test_a_failure_is_recorded_with_finished_and_partial_output() -> None:
    facts = running()
    command = a_finish(
        facts, outcome="failed", partial=BEGUN, error_code="boom", error_message="it broke",
        is_retryable=True,
    )  # fmt: skip
    decision = finish(command, facts)
    turn = answer(decision, Ended).turn
    assert (turn.error_code, turn.error_message, turn.is_retryable) == ("boom", "it broke", True)
    assert (turn.kept_seq, turn.last_seq) == (2, 3)
    assert [item.is_partial for item in appended(decision)] == [False, True]
    assert told(decision) == ["turn.failed"]


def test_an_end_wakes_the_waiters_of_its_lane_only() -> None:
    alone = running()
    assert finish(a_finish(alone), alone).woken == ()
    followed = running(waiting=waiting(2))
    assert finish(a_finish(followed), followed).woken == (SESSION,)


NEXT = a_turn(id=TurnId("turn_2"), number=2, position=2)
SUCCESSOR = Successor(NEXT.id, RunId("run_2"))


def test_an_end_hands_the_lane_to_the_turn_that_is_named_and_next() -> None:
    facts = running(waiting=waiting(2, 3), turn=NEXT)
    decision = finish(a_finish(facts, successor=SUCCESSOR), facts)
    ended = answer(decision, Ended)
    begun = ended.successor
    assert begun is not None
    assert (ended.turn.outcome, ended.run.last_seq) == ("completed", 2)
    assert ended.session == begun.session == only(decision, SessionSaved).session
    assert begun.session.active_run_id == begun.fence.run_id == "run_2"
    assert (begun.turn.first_seq, begun.turn.last_seq, begun.run.first_seq) == (3, 3, 4)
    # The end is one entry, the start behind it the next: its number is the epoch.
    assert begun.fence.epoch == a_fence(facts).epoch + 2 == begun.session.version
    assert [item.turn_number for item in appended(decision)] == [1, 2]
    assert told(decision) == ["turn.completed", "turn.started"]
    assert decision.woken == ()


@pytest.mark.parametrize(
    ("queue", "changed"),
    [
        (waiting(1, 2), {}),
        (waiting(2), {"outcome": "cancelled"}),
        (waiting(2), {"session_id": SessionId("ses_2")}),
    ],
    ids=["another first", "ended", "elsewhere"],
)
def test_an_end_hands_the_lane_only_to_the_next_turn(
    queue: Waiting, changed: dict[str, Any]
) -> None:
    facts = running(waiting=queue, turn=replace(NEXT, **changed))
    decision = finish(a_finish(facts, successor=SUCCESSOR), facts)
    ended = answer(decision, Ended)
    assert (ended.successor, ended.session.active_turn_id) == (None, None)
    assert decision.woken == (SESSION,)


def test_a_lane_that_is_held_for_tools_is_not_handed_over() -> None:
    facts = running(waiting=waiting(2), turn=NEXT)
    decision = finish(a_finish(facts, successor=SUCCESSOR, pending_calls=("call_1",)), facts)
    ended = answer(decision, Ended)
    assert ended.successor is None
    assert ended.session.is_held


def test_calls_for_the_clients_tools_keep_the_lane() -> None:
    facts = running()
    decision = finish(a_finish(facts, pending_calls=("call_1",), hold_seconds=120), facts)
    ended = answer(decision, Ended)
    assert ended.turn.outcome is None
    assert ended.run.outcome == "completed"
    assert ended.session.active_turn_id == TURN
    assert ended.session.is_held
    assert (ended.session.hold_until, ended.session.pending_calls) == (NOW + 120, '["call_1"]')
    assert told(decision) == ["turn.requires_action"]


def test_a_run_that_failed_keeps_no_lane_for_tools() -> None:
    facts = running()
    command = a_finish(facts, outcome="failed", pending_calls=("call_1",))
    assert answer(finish(command, facts), Ended).session.active_turn_id is None


def test_an_end_sent_again_answers_what_was_recorded() -> None:
    before = running()
    command = a_finish(before)
    first = answer(finish(command, before), Ended)
    after = Facts(now=NOW, session=first.session, run=first.run, turn=first.turn)
    again = finish(replace(command, again=True), after)
    assert answer(again, Ended).run == first.run
    assert again.changes == ()


def test_an_end_sent_again_after_the_lane_was_taken_is_fenced() -> None:
    before = running()
    run = a_run(before.session or a_session(), a_started_turn(), outcome="interrupted")
    facts = idle(session={"epoch": 3}, run=run, turn=a_started_turn(outcome="interrupted"))
    assert isinstance(finish(a_finish(before, again=True), facts).outcome, RunFenced)


# ── provider state ──────────────────────────────────────────────────────────────────────────


def test_provider_state_has_a_place_per_provider_account_and_model() -> None:
    others = [
        replace(STATE, provider="other"), replace(STATE, account="other"),
        replace(STATE, model="other"), ProviderState("openai", 'acct","gpt', "x", b""),
    ]  # fmt: skip
    assert len({STATE.slot, *(other.slot for other in others)}) == 5
    assert replace(STATE, value=b"resp_2", covers_seq=9).slot == STATE.slot


# ── cancel ──────────────────────────────────────────────────────────────────────────────────


def a_cancel(**fields: Any) -> Cancel:
    return replace(Cancel(tenant=TENANT, turn_id=TURN), **fields)


def test_cancelling_a_running_turn_takes_the_lane_from_it_and_keeps_what_it_did() -> None:
    facts = running(run_fields={"partial": pack_items(BEGUN)})
    facts = replace(facts, turn=facts.active)
    decision = cancel(a_cancel(reason="the user left"), facts)
    turn = answer(decision, Turn)
    assert (turn.outcome, turn.error_code) == ("cancelled", "turn_cancelled")
    assert turn.error_message == "the user left"
    assert [item.is_partial for item in appended(decision)] == [True]
    session = only(decision, SessionSaved).session
    assert (session.active_turn_id, session.epoch) == (None, 3)
    assert decision.aborted == (RUN,)
    assert decision.woken == (SESSION,)
    assert only(decision, RunSaved).run.outcome == "cancelled"


def test_cancelling_a_waiting_turn_leaves_the_lane_alone() -> None:
    queued = a_turn(id=TurnId("turn_2"), number=2, position=2)
    decision = cancel(a_cancel(turn_id=queued.id), running(turn=queued))
    assert answer(decision, Turn).outcome == "cancelled"
    assert only(decision, SessionSaved).session.active_turn_id == TURN
    assert decision.aborted == ()


def test_cancelling_a_turn_that_waits_for_tools_frees_the_lane() -> None:
    facts = held()
    decision = cancel(a_cancel(), replace(facts, turn=facts.active))
    assert only(decision, SessionSaved).session.hold_until is None


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "interrupted"])
def test_what_has_ended_keeps_its_end(outcome: str) -> None:
    ended = a_started_turn(outcome=outcome)
    decision = cancel(a_cancel(), idle(turn=ended))
    assert answer(decision, Turn) == ended
    assert decision.changes == ()


def test_a_cancel_meant_for_the_queue_leaves_a_running_turn_alone() -> None:
    facts = running()
    decision = cancel(a_cancel(only_if_queued=True), replace(facts, turn=facts.active))
    assert decision.changes == ()


def test_a_cancel_may_record_another_end() -> None:
    command = a_cancel(outcome="failed", code="lane_timeout", is_retryable=True)
    turn = answer(cancel(command, idle(turn=a_turn())), Turn)
    assert (turn.outcome, turn.error_code, turn.is_retryable) == ("failed", "lane_timeout", True)


def test_a_foreign_unknown_or_erased_turn_is_not_found() -> None:
    erased = idle(session={"is_live": False, "deleted_at": NOW}, turn=a_turn())
    for command, facts in (
        (a_cancel(tenant=Tenant("rival")), idle(turn=a_turn())),
        (a_cancel(), Facts(now=NOW)),
        (a_cancel(), Facts(now=NOW, session=a_session())),
        (a_cancel(), erased),
    ):
        refusal(cancel(command, facts), TurnNotFound)


def test_a_fence_holds_only_for_the_very_run_it_was_given_to() -> None:
    facts = running()
    fence = a_fence(facts)
    assert fence.holds(facts.session)
    assert not fence.holds(None)
    assert not replace(fence, run_id=RunId("run_2")).holds(facts.session)
    assert not replace(fence, epoch=1).holds(facts.session)
    assert not replace(fence, generation=2).holds(facts.session)
    assert SessionId(fence.session_id) == SESSION


def heals_written(decision: Decision[Session]) -> list[Heal]:
    return read_heals(only(decision, RunSaved).run.heals)


def test_a_heal_is_recorded_on_its_run_and_published() -> None:
    facts = running()
    command = RecordHeal(fence=a_fence(facts), number=0, heal=HEAL)
    decision = record_heal(command, facts)
    assert heals_written(decision) == [HEAL]
    assert told(decision) == ["turn.healed"]
    assert written(decision, ProviderStateDropped) == []


def test_a_heal_that_drops_state_drops_it_in_the_same_breath() -> None:
    facts = running()
    command = RecordHeal(
        fence=a_fence(facts), number=0, heal=HEAL, drops_state=True, slot=STATE.slot
    )
    decision = record_heal(command, facts)
    assert only(decision, ProviderStateDropped) == ProviderStateDropped(SESSION, STATE.slot)


def test_heals_add_up_and_a_repeated_one_is_written_once() -> None:
    facts = running()
    first = record_heal(RecordHeal(fence=a_fence(facts), number=0, heal=HEAL), facts)
    after = replace(facts, active_run=only(first, RunSaved).run)
    again = RecordHeal(fence=a_fence(facts), number=0, heal=HEAL, again=True)
    assert record_heal(again, after).changes == ()
    second = Heal("transient", "retried")
    decision = record_heal(RecordHeal(fence=a_fence(facts), number=1, heal=second), after)
    assert heals_written(decision) == [HEAL, second]


def test_the_end_of_a_run_keeps_its_heals() -> None:
    facts = running()
    healed = only(
        record_heal(RecordHeal(fence=a_fence(facts), number=0, heal=HEAL), facts), RunSaved
    )
    facts = replace(facts, active_run=healed.run)
    ended = answer(finish(a_finish(facts), facts), Ended)
    assert ended.run.heals == healed.run.heals


# ── refused input ───────────────────────────────────────────────────────────────────────────


def test_refused_input_is_hidden_with_what_was_answered_to_it() -> None:
    facts = running(a_started_turn(first_seq=3, kept_seq=3, last_seq=3))
    ended = finish(
        a_finish(facts, outcome="failed", items=(), partial=BEGUN, refused_from=3), facts
    )
    record = only(ended, RecordAdded).record
    assert (record.kind, record.from_seq, record.to_seq, record.turn_id) == ("refused", 3, 4, TURN)
    assert only(ended, SessionSaved).session.hidden_count == 2
    # The response is shown with its input: it was made before the record.
    assert only(ended, RunSaved).run.record_no == 0
    # What a provider has of the conversation may contain the input.
    dropped = written(ended, ProviderStateDropped)
    assert ProviderStateDropped(SESSION) in dropped


def test_items_that_were_hidden_before_are_counted_once() -> None:
    facts = running(
        a_started_turn(first_seq=3, kept_seq=3, last_seq=3),
        session={"hidden_count": 2}, hidden=((2, 3),),
    )  # fmt: skip
    ended = finish(a_finish(facts, outcome="failed", items=(), refused_from=3), facts)
    assert only(ended, SessionSaved).session.hidden_count == 2


def test_a_refused_turn_without_input_hides_nothing() -> None:
    facts = running(a_started_turn(first_seq=2, kept_seq=1, last_seq=1))
    ended = finish(a_finish(facts, outcome="failed", items=(), refused_from=2), facts)
    assert written(ended, RecordAdded) == []


# ── requests to end a run ───────────────────────────────────────────────────────────────────


def test_the_worker_of_a_running_turn_is_asked_to_end_it() -> None:
    facts = running()
    facts = replace(facts, turn=facts.active)
    asked = request_stop(RequestStop(tenant=TENANT, turn_id=TURN, code="superseded"), facts)
    assert asked.outcome is True
    assert only(asked, StopRequestRow).run_id == RUN
    assert asked.woken == (SESSION,)


@pytest.mark.parametrize("facts", [held(), idle(), running(a_started_turn(id=TurnId("other")))])
def test_a_turn_that_does_not_run_has_no_worker_to_ask(facts: Facts) -> None:
    facts = replace(facts, turn=a_started_turn())
    asked = request_stop(RequestStop(tenant=TENANT, turn_id=TURN, code="superseded"), facts)
    assert (asked.outcome, asked.changes) == (False, ())


def test_a_foreign_turn_is_not_asked_to_end() -> None:
    facts = replace(running(), turn=a_started_turn())
    command = RequestStop(tenant=Tenant("other"), turn_id=TURN, code="superseded")
    assert request_stop(command, facts).changes == ()


def _requested(caller: bytes | None) -> Facts:
    """Return the facts of a running turn that another process asks to end."""
    facts = running()
    row = StopRequestRow(RUN, "superseded", caller, NOW)
    return replace(facts, turn=facts.active, stop_request=row)


def _settle(*, is_granted: bool, tenant: Tenant = TENANT) -> SettleStop:
    return SettleStop(tenant=tenant, turn_id=TURN, caller=b"me", is_granted=is_granted)


def test_a_request_to_end_a_run_is_granted_or_withdrawn_once() -> None:
    granted = settle_stop(_settle(is_granted=True), _requested(b"me"))
    assert granted.outcome is True
    assert only(granted, StopRequestRow).caller is None
    withdrawn = settle_stop(_settle(is_granted=False), _requested(b"me"))
    assert withdrawn.outcome is False
    assert only(withdrawn, StopRequestDropped).run_id == RUN


@pytest.mark.parametrize("is_granted", [True, False])
def test_a_request_that_was_settled_stays_so(is_granted: bool) -> None:
    command = _settle(is_granted=is_granted)
    assert settle_stop(command, _requested(None)) == Decision(True)
    withdrawn = replace(_requested(None), stop_request=None)
    assert settle_stop(command, withdrawn) == Decision(False)
    assert settle_stop(command, _requested(b"another")) == Decision(False)


@pytest.mark.parametrize("outcome", ["cancelled", "completed"])
def test_a_request_about_a_turn_that_ended_is_settled_by_that(outcome: Outcome) -> None:
    facts = replace(idle(), turn=a_started_turn(outcome=outcome))
    settled = settle_stop(_settle(is_granted=False), facts)
    assert settled == Decision(outcome == "cancelled")


def test_a_foreign_request_is_not_settled() -> None:
    command = _settle(is_granted=True, tenant=Tenant("other"))
    assert settle_stop(command, _requested(b"me")) == Decision(False)


def test_a_request_with_a_condition_does_not_replace_one_without() -> None:
    command = RequestStop(tenant=TENANT, turn_id=TURN, code="superseded", caller=b"me")
    assert request_stop(command, _requested(None)) == Decision(True, woken=(SESSION,))
    assert only(request_stop(command, _requested(b"another")), StopRequestRow).caller == b"me"
