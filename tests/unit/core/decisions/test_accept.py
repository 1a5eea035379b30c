"""How a turn is taken in: repeats first, then identity, then the state of the lane."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.decisions.accept import accept
from holdfast.core.decisions.append import append
from holdfast.core.decisions.idempotency import claim_of
from holdfast.core.decisions.identity import reserve
from holdfast.core.decisions.lane import pack_items
from holdfast.core.errors import (
    IdempotencyMismatch,
    LaneFull,
    SessionBusy,
    SessionDeleted,
    SessionMoved,
    SessionNotFound,
    SessionRetired,
)
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.items import message, write_item
from holdfast.core.model.reset_policy import ResetPolicy
from holdfast.core.model.session import Session
from holdfast.core.model.turn import OnBusy, Source, Turn, WorkerDeath, WorkerLosses
from holdfast.core.transaction.changes import (
    IdempotencyRow,
    ProviderStateDropped,
    RetryClaimed,
)
from holdfast.core.transaction.commands import (
    Append,
    Appended,
    LaneLimits,
    Queued,
    Repeated,
    Reserve,
    Started,
)
from holdfast.core.transaction.facts import Facts
from tests.unit.core.builders import (
    KEY,
    LIMITS,
    NOW,
    OTHER_WORKER,
    RUN,
    SESSION,
    TENANT,
    TURN,
    WORKER,
    a_run,
    a_session,
    a_started_turn,
    a_turn,
    an_accept,
    answer,
    appended,
    held,
    idle,
    only,
    refusal,
    running,
    stored,
    told,
    waiting,
    written,
)
from tests.written_rows import (
    RecordAdded,
    RunAdded,
    RunSaved,
    SessionAdded,
    SessionSaved,
    TurnAdded,
    TurnSaved,
    rows_of,
)


def a_row(**fields: object) -> IdempotencyRow:
    row = IdempotencyRow(TENANT, "tg:42:1007", b"body", TURN, 0, NOW - 50)
    return replace(row, **fields)


def an_output(call_id: str = "call_1") -> tuple[object, ...]:
    return (write_item({"type": "function_call_output", "call_id": call_id, "output": "4"}),)


# ── identity ────────────────────────────────────────────────────────────────────────────────


def test_a_new_key_gets_its_session_its_turn_and_its_run_in_one_decision() -> None:
    decision = accept(an_accept("hello"), Facts(now=NOW))
    started = answer(decision, Started)
    session = only(decision, SessionAdded).session
    assert (session.id, session.key, session.generation) == ("ses_new", KEY, 1)
    assert started.session == session
    assert only(decision, TurnAdded).turn == started.turn
    assert only(decision, RunAdded).run == started.run
    assert [item.seq for item in appended(decision)] == [1]
    assert started.fence.holds(session)
    assert told(decision) == ["session.created", "turn.started"]


def test_a_new_session_takes_the_generation_after_the_last_one_its_key_had() -> None:
    decision = accept(an_accept(), Facts(now=NOW, next_generation=4))
    assert answer(decision, Started).session.generation == 4


def test_a_known_key_writes_no_identity_row() -> None:
    decision = accept(an_accept(), idle())
    assert answer(decision, Started).session.id == SESSION
    assert written(decision, SessionAdded) == []
    assert only(decision, SessionSaved).read_version == 1


def test_an_unknown_session_id_is_not_found() -> None:
    command = an_accept(key=None, session_id=SessionId("ses_unknown"))
    assert "ses_unknown" in refusal(accept(command, Facts(now=NOW)), SessionNotFound).message


def test_a_foreign_session_looks_like_an_unknown_one() -> None:
    command = an_accept(key=None, session_id=SESSION, tenant=Tenant("rival"))
    refusal(accept(command, idle()), SessionNotFound)


def test_a_deleted_session_looks_like_an_unknown_one() -> None:
    command = an_accept(key=None, session_id=SESSION)
    facts = idle(session={"is_live": False, "deleted_at": NOW})
    refusal(accept(command, facts), SessionNotFound)


def test_a_retired_session_id_names_the_live_one() -> None:
    command = an_accept(key=None, session_id=SESSION)
    facts = idle(session={"is_live": False}, live_id=SessionId("ses_2"))
    error = refusal(accept(command, facts), SessionRetired)
    assert error.live_id == "ses_2"
    assert "ses_2" in error.message


def test_reserving_a_known_key_writes_nothing() -> None:
    decision = reserve(Reserve(tenant=TENANT, candidate_id=SessionId("ses_x"), key=KEY), idle())
    assert answer(decision, Session).id == SESSION
    assert decision.changes == ()


def test_reserving_a_new_key_makes_its_session_with_metadata_and_an_empty_log() -> None:
    command = Reserve(tenant=TENANT, candidate_id=SessionId("ses_x"), key=KEY, metadata=b'{"a":1}')
    decision = reserve(command, Facts(now=NOW, next_generation=2))
    session = only(decision, SessionAdded).session
    assert (session.id, session.generation, session.metadata) == ("ses_x", 2, b'{"a":1}')
    assert session.head_seq == 0


# ── the lane ────────────────────────────────────────────────────────────────────────────────


def test_a_busy_session_lets_the_turn_wait_durably_with_its_input() -> None:
    decision = accept(an_accept("later"), running())
    queued = answer(decision, Queued)
    assert only(decision, TurnAdded).turn == queued.turn
    assert queued.turn.input == pack_items([message("user", "later")])
    assert queued.turn.first_seq is None
    assert appended(decision) == []
    assert written(decision, RunAdded) == []
    assert told(decision) == ["turn.queued"]


def test_a_turn_does_not_overtake_those_who_wait_in_a_free_lane() -> None:
    facts = idle(session={"turn_count": 2}, waiting=waiting(2))
    assert answer(accept(an_accept(), facts), Queued).turn.position == 3


def test_a_full_lane_refuses_the_next_turn_and_records_nothing() -> None:
    command = an_accept(limits=LaneLimits(max_waiting=2))
    error = refusal(accept(command, running(waiting=waiting(2, 3))), LaneFull)
    assert error.retryable


def test_no_turn_may_wait_where_none_may() -> None:
    command = an_accept(limits=LaneLimits(max_waiting=0))
    refusal(accept(command, running()), LaneFull)
    answer(accept(command, idle()), Started)


def test_a_caller_that_will_not_wait_is_refused_by_a_busy_session() -> None:
    error = refusal(accept(an_accept(on_busy="reject"), running()), SessionBusy)
    assert error.retryable


def test_a_caller_that_will_not_wait_starts_in_an_idle_session() -> None:
    answer(accept(an_accept(on_busy="reject"), idle()), Started)


def test_an_interrupt_cancels_the_running_turn_keeps_its_items_and_runs_at_once() -> None:
    turn = a_started_turn(kept_seq=2, last_seq=2)
    decision = accept(an_accept(on_busy="interrupt"), running(turn))
    started = answer(decision, Started)
    cancelled = written(decision, TurnSaved)[0].turn
    assert (cancelled.id, cancelled.outcome) == (TURN, "cancelled")
    assert cancelled.error_code == "interrupted_by_turn"
    assert (cancelled.first_seq, cancelled.last_seq) == (1, 2)
    assert written(decision, RecordAdded) == []
    assert started.turn.first_seq == 3
    assert decision.aborted == (RUN,)


def test_an_interrupt_goes_before_those_who_wait_and_they_keep_their_order() -> None:
    facts = running(a_started_turn(position=1), waiting=waiting(2, 3), session={"turn_count": 3})
    started = answer(accept(an_accept(on_busy="interrupt"), facts), Started)
    assert started.turn.position < 1


def test_an_interrupt_needs_no_room_among_those_who_wait() -> None:
    command = an_accept(on_busy="interrupt", limits=LaneLimits(max_waiting=1))
    answer(accept(command, running(waiting=waiting(2))), Started)


def test_an_interrupt_of_a_lane_that_only_has_waiters_goes_to_the_front() -> None:
    facts = idle(session={"turn_count": 3}, waiting=waiting(2, 3))
    started = answer(accept(an_accept(on_busy="interrupt"), facts), Started)
    assert started.turn.position == 1


def test_a_rollback_takes_the_running_turns_items_out_of_the_view() -> None:
    turn = a_started_turn(first_seq=3, kept_seq=4, last_seq=4)
    decision = accept(an_accept(on_busy="rollback"), running(turn, hidden=((1, 1),)))
    record = only(decision, RecordAdded).record
    assert (record.kind, record.from_seq, record.to_seq) == ("rollback", 3, 4)
    assert answer(decision, Started).session.hidden_count == 3
    assert written(decision, TurnSaved)[0].turn.error_code == "rolled_back"


@pytest.mark.parametrize(("named", "is_stale"), [(TURN, False), (TurnId("turn_0"), True)])
def test_a_history_takes_the_place_only_of_the_turn_that_it_names(
    named: TurnId, *, is_stale: bool
) -> None:
    turn = a_started_turn(first_seq=3, kept_seq=4, last_seq=4)
    command = an_accept(on_busy="rollback", seen_seq=2, supersedes=named)
    decision = accept(command, running(turn))
    if is_stale:
        refusal(decision, SessionMoved)
        return
    assert only(decision, RecordAdded).record.kind == "rollback"
    assert written(decision, TurnSaved)[0].turn.error_code == "superseded"


def test_a_rollback_hides_what_the_run_had_begun_too() -> None:
    facts = running(run_fields={"partial": pack_items([message("assistant", "I was s")])})
    decision = accept(an_accept(on_busy="rollback"), facts)
    record = only(decision, RecordAdded).record
    assert (record.from_seq, record.to_seq) == (1, 2)


def test_a_rollback_of_a_turn_without_items_hides_nothing() -> None:
    turn = a_started_turn(first_seq=1, kept_seq=0, last_seq=0)
    decision = accept(an_accept(on_busy="rollback"), running(turn))
    assert written(decision, RecordAdded) == []
    assert answer(decision, Started).session.hidden_count == 0


@pytest.mark.parametrize("on_busy", ["interrupt", "rollback"])
def test_cutting_in_ends_a_lane_held_for_tools(on_busy: OnBusy) -> None:
    decision = accept(an_accept(on_busy=on_busy), held())
    started = answer(decision, Started)
    assert written(decision, TurnSaved)[0].turn.outcome == "cancelled"
    assert started.session.pending_calls is None
    assert started.session.hold_until is None


# ── activity and rollover ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        ("user", True), ("channel", True), ("background", False), ("cron", False),
        ("internal", False), ("system", False),
    ],
)  # fmt: skip
def test_only_users_and_channels_count_as_activity(source: Source, *, counts: bool) -> None:
    session = answer(accept(an_accept(source=source), idle()), Started).session
    assert session.last_user_activity_at == (NOW if counts else None)


IDLE = ResetPolicy(mode="idle", idle_seconds=60)
LONG_AGO = {"last_user_activity_at": NOW - 61, "head_seq": 7}


def test_a_soft_rollover_keeps_the_session_and_its_history() -> None:
    decision = accept(an_accept(reset=IDLE), idle(session=LONG_AGO))
    started = answer(decision, Started)
    assert started.session.id == SESSION
    assert started.session.head_seq == 8
    assert started.is_rolled_over
    assert told(decision) == ["session.rolled_over", "turn.started"]
    assert written(decision, ProviderStateDropped) == []


def test_a_hard_rollover_begins_the_next_generation_with_the_new_turn() -> None:
    policy = ResetPolicy(mode="idle", idle_seconds=60, rollover="hard")
    facts = idle(session=LONG_AGO | {"metadata": b'{"a":1}', "epoch": 5}, next_generation=2)
    decision = accept(an_accept(reset=policy), facts)
    old, fresh = only(decision, SessionSaved).session, only(decision, SessionAdded).session
    assert (old.is_live, old.epoch, old.retired_at) == (False, 6, NOW)
    assert only(decision, ProviderStateDropped).session_id == SESSION
    assert (fresh.generation, fresh.previous_session_id) == (2, SESSION)
    assert (fresh.metadata, fresh.head_seq) == (b'{"a":1}', 1)
    assert rows_of(decision.changes)[0] == only(decision, SessionSaved), "the key is let go first"
    assert answer(decision, Started).is_rolled_over


@pytest.mark.parametrize("source", ["cron", "background", "system", "internal"])
def test_nobody_but_a_user_causes_a_rollover(source: Source) -> None:
    decision = accept(an_accept(reset=IDLE, source=source), idle(session=LONG_AGO))
    assert not answer(decision, Started).is_rolled_over


def test_a_session_does_not_roll_over_during_a_turn_or_while_one_waits() -> None:
    policy = ResetPolicy(mode="idle", idle_seconds=60, rollover="hard")
    busy = running(session={"last_user_activity_at": NOW - 61})
    assert written(accept(an_accept(reset=policy), busy), SessionAdded) == []
    queueing = idle(session=LONG_AGO, waiting=waiting(1))
    assert written(accept(an_accept(reset=policy), queueing), SessionAdded) == []


def test_the_default_policy_never_rolls_over() -> None:
    facts = idle(session={"last_user_activity_at": NOW - 10**9})
    assert not answer(accept(an_accept(), facts), Started).is_rolled_over


# ── the gone ────────────────────────────────────────────────────────────────────────────────


def test_the_next_turn_is_accepted_at_once_where_a_worker_died() -> None:
    turn = a_started_turn(owner=OTHER_WORKER)
    decision = accept(an_accept(), running(turn, has_live_owner=False))
    started = answer(decision, Started)
    torn = written(decision, TurnSaved)[0].turn
    assert (torn.id, torn.outcome, torn.error_code) == (TURN, "interrupted", "worker_lost")
    assert torn.is_retryable
    assert written(decision, RunSaved)[0].run.outcome == "interrupted"
    assert started.turn.id == "turn_new"


def test_a_dead_workers_background_turn_runs_before_the_next_arrival() -> None:
    turn = a_started_turn(source="background", owner=OTHER_WORKER)
    decision = accept(an_accept(limits=LIMITS), running(turn, has_live_owner=False))
    queued = answer(decision, Queued)
    again = only(decision, TurnSaved).turn
    assert (again.id, again.outcome, again.owner) == (TURN, None, WORKER)
    assert again.position < queued.turn.position
    assert queued.session.active_turn_id is None


# ── once ────────────────────────────────────────────────────────────────────────────────────


def test_an_idempotency_key_is_bound_in_the_commit_that_accepts_the_turn() -> None:
    decision = accept(an_accept(idempotency_key="tg:42:1007"), running())
    row = only(decision, IdempotencyRow)
    assert (row.tenant, row.key, row.body_hash) == (TENANT, "tg:42:1007", b"body")
    assert (row.turn_id, row.step, row.created_at) == ("turn_new", 0, NOW)


def test_a_refused_request_binds_nothing() -> None:
    command = an_accept(idempotency_key="tg:42:1007", on_busy="reject")
    refusal(accept(command, running()), SessionBusy)


def test_the_same_key_with_another_body_is_refused() -> None:
    command = an_accept(idempotency_key="tg:42:1007", body_hash=b"other")
    facts = idle(repeat=a_row(), turn=a_started_turn(outcome="completed"))
    refusal(accept(command, facts), IdempotencyMismatch)


@pytest.mark.parametrize(
    ("outcome", "is_retryable"),
    [("completed", False), ("cancelled", False), ("failed", False)],
)
def test_an_ended_request_is_answered_with_its_recorded_turn(
    outcome: str, *, is_retryable: bool
) -> None:
    turn = a_started_turn(outcome=outcome, is_retryable=is_retryable)
    run = a_run(a_session(), turn, outcome=outcome)
    decision = accept(an_accept(idempotency_key="k"), idle(repeat=a_row(), turn=turn, run=run))
    repeated = answer(decision, Repeated)
    assert (repeated.turn, repeated.run) == (turn, run)
    assert decision.changes == ()


def test_a_repeat_comes_before_limits_and_busy_lanes() -> None:
    command = an_accept(idempotency_key="k", on_busy="reject", limits=LaneLimits(max_waiting=0))
    done = a_started_turn(id=TurnId("turn_old"), outcome="completed")
    facts = running(repeat=a_row(turn_id=done.id), turn=done, waiting=waiting(5))
    assert answer(accept(command, facts), Repeated).turn.id == "turn_old"


def test_a_repeat_of_a_running_request_waits_for_its_turn() -> None:
    facts = running()
    facts = replace(facts, repeat=a_row(), turn=facts.active, run=facts.active_run)
    decision = accept(an_accept(idempotency_key="k"), facts)
    assert answer(decision, Repeated).turn.is_open
    assert decision.changes == ()


def test_a_repeat_of_an_interrupted_request_resumes_the_same_turn() -> None:
    turn = a_started_turn(outcome="interrupted", error_code="worker_lost", is_retryable=True)
    facts = idle(repeat=a_row(), turn=turn, session={"head_seq": 1, "turn_count": 1})
    decision = accept(an_accept(idempotency_key="k"), facts)
    started = answer(decision, Started)
    assert started.turn.id == TURN
    assert (started.turn.outcome, started.turn.error_code) == (None, None)
    assert started.turn.attempts == 2
    assert appended(decision) == [], "its items are in the log already"
    assert written(decision, TurnAdded) == []


def test_a_repeat_of_a_retryable_failure_runs_the_same_turn_again() -> None:
    turn = a_started_turn(outcome="failed", is_retryable=True)
    facts = idle(repeat=a_row(), turn=turn, session={"head_seq": 1})
    assert answer(accept(an_accept(idempotency_key="k"), facts), Started).turn.id == TURN


def test_a_resumed_turn_queues_where_the_lane_is_busy() -> None:
    torn = a_started_turn(id=TurnId("turn_torn"), outcome="interrupted", is_retryable=True)
    active = a_started_turn(number=2, position=2, first_seq=2, last_seq=2, kept_seq=2)
    facts = running(active, repeat=a_row(turn_id=torn.id), turn=torn)
    queued = answer(accept(an_accept(idempotency_key="k"), facts), Queued)
    assert queued.turn.id == "turn_torn"
    assert queued.turn.position == 3


def test_a_resumed_turn_behind_later_turns_is_hidden_and_written_again_at_the_head() -> None:
    turn = a_started_turn(outcome="interrupted", is_retryable=True, last_seq=2)
    kept = (
        stored(1, message("user", "hi")),
        stored(2, message("assistant", "I w"), is_partial=True),
    )
    facts = idle(
        repeat=a_row(), turn=turn, turn_items=kept, session={"head_seq": 5, "turn_count": 3}
    )
    decision = accept(an_accept(idempotency_key="k"), facts)
    started = answer(decision, Started)
    record = only(decision, RecordAdded).record
    assert (record.kind, record.from_seq, record.to_seq) == ("retry", 1, 2)
    assert [(item.seq, item.body) for item in appended(decision)] == [(6, kept[0].body)]
    assert (started.turn.first_seq, started.turn.last_seq) == (6, 6)
    assert started.session.hidden_count == 2


def test_a_resumed_turn_at_the_head_hides_only_its_partial_end() -> None:
    turn = a_started_turn(outcome="interrupted", is_retryable=True, kept_seq=1, last_seq=2)
    facts = idle(repeat=a_row(), turn=turn, session={"head_seq": 2})
    decision = accept(an_accept(idempotency_key="k"), facts)
    record = only(decision, RecordAdded).record
    assert (record.kind, record.from_seq, record.to_seq) == ("retry", 2, 2)
    assert appended(decision) == []


def test_a_repeat_resumes_a_turn_whose_worker_died_though_nobody_noticed_yet() -> None:
    facts = running(a_started_turn(owner=OTHER_WORKER), has_live_owner=False)
    facts = replace(facts, repeat=a_row(), turn=facts.active, run=facts.active_run)
    decision = accept(an_accept(idempotency_key="k"), facts)
    started = answer(decision, Started)
    assert started.turn.id == TURN
    assert started.turn.owner == WORKER
    assert started.run.id == "run_new"
    assert written(decision, RunSaved)[0].run.outcome == "interrupted"
    assert decision.aborted == (RUN,)


def test_a_repeat_that_meets_the_last_lost_attempt_gives_the_turn_up() -> None:
    lost = WorkerLosses(crashes=2, deaths=2)
    turn = a_started_turn(owner=OTHER_WORKER, attempts=3, losses=lost)
    died = WorkerDeath(at=NOW, running=1)
    facts = running(turn, has_live_owner=False, owner_death=died)
    facts = replace(facts, repeat=a_row(), turn=facts.active, run=facts.active_run)
    decision = accept(an_accept(idempotency_key="k", limits=LaneLimits(max_attempts=3)), facts)
    repeated = answer(decision, Repeated)
    assert (repeated.turn.outcome, repeated.turn.error_code) == ("failed", "turn_abandoned")
    assert only(decision, TurnSaved).turn == repeated.turn


def given_up(source: Source = "user", **losses: Any) -> Facts:
    """Return facts of a repeat of a turn that was given up."""
    turn = a_started_turn(
        source=source, attempts=3, outcome="failed", error_code="turn_abandoned", ended_at=NOW - 10,
        losses=WorkerLosses(crashes=3, deaths=3, **losses),
    )  # fmt: skip
    return replace(idle(), repeat=a_row(), turn=turn)


LIMIT_OF_3 = LaneLimits(max_attempts=3, can_run_again=True)


def test_a_turn_that_was_given_up_is_run_again_under_its_key_a_few_times_an_hour() -> None:
    facts = given_up()
    for count in (1, 2, 3):
        started = answer(accept(an_accept(idempotency_key="k", limits=LIMIT_OF_3), facts), Started)
        assert (started.turn.id, started.turn.attempts) == (TURN, 4)
        assert started.turn.losses is not None
        assert started.turn.losses.asked_again == count
        assert started.turn.losses.crashes == 2, "the next death ends it"
        facts = given_up(asked_again=count, asked_since=started.turn.losses.asked_since)
    refused = accept(an_accept(idempotency_key="k", limits=LIMIT_OF_3), facts)
    assert answer(refused, Repeated).turn.error_code == "turn_abandoned"
    an_hour_ago = given_up(asked_again=3, asked_since=NOW - 3600)
    answer(accept(an_accept(idempotency_key="k", limits=LIMIT_OF_3), an_hour_ago), Started)


@pytest.mark.parametrize("source", ["channel", "cron"])
def test_a_message_that_a_platform_delivers_again_does_not_run_a_turn_that_was_given_up(
    source: Source,
) -> None:
    decision = accept(an_accept(idempotency_key="k", limits=LIMIT_OF_3), given_up(source))
    assert answer(decision, Repeated).turn.error_code == "turn_abandoned"


def test_a_repeat_of_a_background_turn_whose_worker_died_puts_it_back_in_its_queue() -> None:
    turn = a_started_turn(owner=OTHER_WORKER, source="background")
    facts = running(turn, has_live_owner=False)
    facts = replace(facts, repeat=a_row(), turn=turn, run=facts.active_run)
    decision = accept(an_accept(idempotency_key="k", limits=LIMITS), facts)
    assert answer(decision, Repeated).turn.owner == WORKER
    assert only(decision, TurnSaved).turn.outcome is None


def test_a_repeat_of_a_deleted_request_raises_session_deleted() -> None:
    gone = idle(
        session={"is_live": False, "deleted_at": NOW}, repeat=a_row(), turn=a_started_turn()
    )
    refusal(accept(an_accept(idempotency_key="k"), gone), SessionDeleted)
    refusal(accept(an_accept(idempotency_key="k"), Facts(now=NOW, repeat=a_row())), SessionDeleted)


def test_an_interrupted_request_is_not_resumed_in_the_next_generation() -> None:
    turn = a_started_turn(outcome="interrupted", is_retryable=True)
    facts = idle(session={"is_live": False}, repeat=a_row(), turn=turn, live_id=SessionId("ses_2"))
    refusal(accept(an_accept(idempotency_key="k"), facts), SessionRetired)


def test_a_repeat_of_an_earlier_step_gets_that_steps_answer() -> None:
    turn = a_started_turn(step=1)
    facts = running(turn)
    first_step = a_run(a_session(), turn, step=0, outcome="completed")
    facts = replace(facts, repeat=a_row(), turn=turn, run=first_step)
    repeated = answer(accept(an_accept(idempotency_key="k"), facts), Repeated)
    assert (repeated.run, repeated.step) == (first_step, 0)


# ── unknown outcomes ────────────────────────────────────────────────────────────────────────


def test_an_accept_sent_again_finds_the_run_its_first_commit_began() -> None:
    first = accept(an_accept(), idle())
    started = answer(first, Started)
    facts = idle(turn=started.turn, run=started.run)
    facts = replace(facts, session=started.session)
    again = accept(an_accept(again=True), facts)
    assert answer(again, Started).fence == started.fence
    assert again.changes == ()


def test_an_accept_sent_again_after_its_run_was_lost_gets_the_turn() -> None:
    started = answer(accept(an_accept(), idle()), Started)
    facts = idle(turn=started.turn, run=started.run, session={"epoch": 9})
    assert answer(accept(an_accept(again=True), facts), Repeated).run == started.run


def test_an_accept_sent_again_finds_its_own_turn_in_the_queue() -> None:
    queued = answer(accept(an_accept(), running()), Queued).turn
    decision = accept(an_accept(again=True), running(turn=queued))
    assert answer(decision, Queued).turn == queued
    assert decision.changes == ()


def test_an_accept_sent_again_after_its_queued_turn_was_cancelled_gets_that_end() -> None:
    queued = answer(accept(an_accept(), running()), Queued).turn
    ended = replace(queued, outcome="cancelled", error_code="session_reset")
    decision = accept(an_accept(again=True), idle(turn=ended))
    assert answer(decision, Repeated).turn.outcome == "cancelled"


def test_an_accept_sent_again_is_not_taken_for_the_sessions_latest_turn() -> None:
    latest = a_started_turn(outcome="completed", body_hash=b"another body", delivered_at=NOW - 60)
    facts = idle(turn=latest, run=a_run(a_session(), latest, outcome="completed"))
    command = an_accept("yes", again=True, retry_count=1)
    assert answer(accept(command, facts), Started).turn.id == "turn_new"


# ── implicit repeats ────────────────────────────────────────────────────────────────────────


def latest(**fields: object) -> Facts:
    turn = a_started_turn(outcome="completed", **fields)
    run = a_run(a_session(), turn, outcome="completed")
    return idle(turn=turn, run=run, session={"head_seq": 2, "turn_count": 1})


@pytest.mark.parametrize(
    "facts",
    [
        latest(accepted_at=NOW - 900),
        latest(accepted_at=NOW - 10**6, delivered_at=NOW - 9.9),
        latest(retry_claim=claim_of(1)),
        latest(retry_claim=claim_of(3)),
    ],
    ids=["never delivered", "just delivered", "claimed by an earlier retry", "by a later one"],
)
def test_an_sdks_retry_attaches_to_the_latest_turn(facts: Facts) -> None:
    decision = accept(an_accept(retry_count=2), facts)
    assert answer(decision, Repeated).turn.id == TURN
    assert facts.turn is not None
    assert only(decision, RetryClaimed).claims == facts.turn.retry_claim | claim_of(2)


@pytest.mark.parametrize(
    "facts",
    [
        latest(accepted_at=NOW - 901),
        latest(delivered_at=NOW - 10),
        latest(retry_claim=claim_of(2)),
        latest(body_hash=b"other"),
        replace(latest(), turn=None, run=None),
    ],
    ids=["too old", "delivered long ago", "claimed by this count", "another body", "no turn yet"],
)
def test_a_retry_that_may_be_a_real_second_message_is_new(facts: Facts) -> None:
    decision = accept(an_accept(retry_count=2), facts)
    assert answer(decision, Started).turn.id == "turn_new"


def test_a_request_without_a_retry_count_is_never_taken_for_a_retry() -> None:
    assert answer(accept(an_accept(), latest()), Started).turn.id == "turn_new"


def test_an_explicit_key_rules_out_an_implicit_repeat() -> None:
    decision = accept(an_accept(retry_count=2, idempotency_key="k"), latest())
    assert answer(decision, Started).turn.id == "turn_new"


def test_an_sdks_retry_of_an_interrupted_turn_resumes_it() -> None:
    turn = a_started_turn(outcome="interrupted", is_retryable=True)
    facts = idle(turn=turn, session={"head_seq": 1})
    started = answer(accept(an_accept(retry_count=1), facts), Started)
    assert (started.turn.id, started.turn.retry_claim) == (TURN, claim_of(1))


# ── client-side tools ───────────────────────────────────────────────────────────────────────


def test_an_awaited_output_joins_the_turn_that_asked_for_it() -> None:
    decision = accept(an_accept(items=an_output()), held())
    started = answer(decision, Started)
    assert (started.turn.id, started.turn.step) == (TURN, 1)
    assert [item.seq for item in appended(decision)] == [3]
    assert started.session.pending_calls is None
    assert started.fence.epoch == 3
    assert started.session.last_user_activity_at == NOW
    assert told(decision) == ["turn.continued"]


def test_a_joined_step_has_an_idempotency_key_of_its_own() -> None:
    decision = accept(an_accept(items=an_output(), idempotency_key="k2"), held())
    row = only(decision, IdempotencyRow)
    assert (row.turn_id, row.step) == (TURN, 1)


@pytest.mark.parametrize(
    "items",
    [an_output("call_9"), (message("user", "are you done?"),), ()],
    ids=["another call", "a message", "nothing"],
)
def test_everything_else_queues_behind_a_held_lane_and_knows_when_to_look(items: object) -> None:
    queued = answer(accept(an_accept(items=items), held(until=NOW + 60)), Queued)
    assert queued.check_again_at == NOW + 60


def test_an_output_that_comes_too_late_is_a_turn_of_its_own() -> None:
    decision = accept(an_accept(items=an_output()), held(until=NOW))
    started = answer(decision, Started)
    assert started.turn.id == "turn_new"
    expired = written(decision, TurnSaved)[0].turn
    assert (expired.outcome, expired.error_code) == ("interrupted", "tool_wait_expired")
    assert not expired.is_retryable


# ── internal turns ──────────────────────────────────────────────────────────────────────────


def test_an_internal_turn_runs_in_a_hidden_fork_and_leaves_no_trace_on_the_key() -> None:
    facts = idle(session={"head_seq": 4, "record_no": 1, "hidden_count": 2}, hidden=((2, 3),))
    decision = accept(an_accept(is_internal=True), facts)
    hidden = only(decision, SessionAdded).session
    assert (hidden.key, hidden.is_visible, hidden.parent_id) == (None, False, SESSION)
    assert (hidden.parent_seq, hidden.parent_record, hidden.hidden_count) == (4, 1, 2)
    assert answer(decision, Started).turn.first_seq == 5
    assert written(decision, SessionSaved) == []
    assert hidden.last_user_activity_at is None


def test_an_internal_turn_takes_no_lane_and_sees_only_finished_history() -> None:
    turn = a_started_turn(first_seq=3, kept_seq=4, last_seq=4)
    decision = accept(an_accept(is_internal=True), running(turn, hidden=((4, 4),)))
    hidden = only(decision, SessionAdded).session
    assert (hidden.parent_seq, hidden.hidden_count) == (2, 0)
    answer(decision, Started)


def test_an_internal_turn_on_a_new_key_makes_no_session_for_it() -> None:
    decision = accept(an_accept(is_internal=True), Facts(now=NOW))
    assert only(decision, SessionAdded).session.key is None


def test_an_internal_turn_on_an_unknown_or_foreign_id_is_not_found() -> None:
    unknown = an_accept(is_internal=True, key=None, session_id=SessionId("ses_unknown"))
    refusal(accept(unknown, Facts(now=NOW)), SessionNotFound)
    foreign = an_accept(is_internal=True, key=None, session_id=SESSION, tenant=Tenant("rival"))
    refusal(accept(foreign, idle()), SessionNotFound)


# ── rewinds ─────────────────────────────────────────────────────────────────────────────────


def test_a_rewind_hides_what_the_caller_no_longer_wants_in_the_same_commit() -> None:
    facts = idle(session={"head_seq": 6, "hidden_count": 1}, hidden=((1, 1),))
    decision = accept(an_accept(rewind=(2, 4)), facts)
    record = only(decision, RecordAdded).record
    assert (record.kind, record.from_seq, record.to_seq) == ("rewind", 3, 4)
    assert answer(decision, Started).session.hidden_count == 3


def test_a_queued_rewind_waits_for_its_turn_to_start() -> None:
    decision = accept(an_accept(rewind=(0, 1)), running())
    turn = answer(decision, Queued).turn
    assert (turn.rewind_after, turn.rewind_upto) == (0, 1)
    assert written(decision, RecordAdded) == []


def test_a_rewind_of_a_log_that_this_generation_never_had_is_left_out() -> None:
    decision = accept(an_accept(rewind=(1, 3)), Facts(now=NOW))
    started = answer(decision, Started)
    assert written(decision, RecordAdded) == []
    assert started.session.item_count == 1


# ── items without a run ─────────────────────────────────────────────────────────────────────


def an_append(**fields: object) -> Append:
    command = Append(
        tenant=TENANT, turn_id=TurnId("turn_new"), worker=WORKER,
        candidate_id=SessionId("ses_new"), key=KEY, items=(message("user", "note"),),
        body_hash=b"body",
    )  # fmt: skip
    return replace(command, **fields)


def test_an_append_is_one_completed_turn_in_one_commit() -> None:
    decision = append(an_append(), idle(session={"head_seq": 2, "turn_count": 1}))
    turn = answer(decision, Appended).turn
    assert (turn.outcome, turn.first_seq, turn.last_seq) == ("completed", 3, 3)
    assert (turn.number, turn.input) == (2, None)
    assert [item.seq for item in appended(decision)] == [3]
    assert written(decision, RunAdded) == []


def test_an_append_to_a_new_key_makes_its_session() -> None:
    decision = append(an_append(), Facts(now=NOW, next_generation=3))
    assert only(decision, SessionAdded).session.generation == 3


@pytest.mark.parametrize("facts", [running(), idle(waiting=waiting(1))], ids=["runs", "waits"])
def test_an_append_does_not_push_in_where_a_turn_runs_or_waits(facts: Facts) -> None:
    refusal(append(an_append(), facts), SessionBusy)


def test_a_repeated_batch_is_appended_once() -> None:
    done = a_turn(outcome="completed")
    decision = append(an_append(idempotency_key="b"), idle(repeat=a_row(), turn=done))
    assert answer(decision, Appended).turn == done
    assert decision.changes == ()


@pytest.mark.parametrize("turn", [a_turn(), a_turn(outcome="interrupted", is_retryable=True)])
def test_a_repeated_batch_that_never_reached_the_log_is_not_called_appended(turn: Turn) -> None:
    facts = idle(repeat=a_row(), turn=turn)
    refusal(append(an_append(idempotency_key="b"), facts), SessionBusy)


def test_a_batch_id_with_other_items_is_refused() -> None:
    facts = idle(repeat=a_row(body_hash=b"other"), turn=a_turn(outcome="completed"))
    refusal(append(an_append(idempotency_key="b"), facts), IdempotencyMismatch)


def test_a_batch_of_a_deleted_session_raises_session_deleted() -> None:
    facts = idle(session={"is_live": False, "deleted_at": NOW}, repeat=a_row(), turn=a_turn())
    refusal(append(an_append(idempotency_key="b"), facts), SessionDeleted)


def test_an_append_sent_again_answers_what_the_first_did() -> None:
    first = answer(append(an_append(), idle()), Appended)
    decision = append(an_append(again=True), idle(turn=first.turn))
    assert answer(decision, Appended).turn == first.turn
    assert decision.changes == ()


def test_an_append_to_a_retired_session_is_refused() -> None:
    facts = idle(session={"is_live": False}, live_id=SessionId("ses_2"))
    refusal(append(an_append(key=None, session_id=SESSION), facts), SessionRetired)


def test_ids_and_bodies_survive_the_queue_byte_for_byte() -> None:
    body = b'{"type" : "message", "role":"user","content":"x" , "vendor": {"a":1e400}}'
    item = write_item({"type": "message", "role": "user"})
    item = msgspec.structs.replace(item, body=body)
    queued = answer(accept(an_accept(items=(item,)), running()), Queued)
    assert queued.turn.input == pack_items([item])
