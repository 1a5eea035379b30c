"""Who carries on: the next of a lane, and the heirs of a worker that is gone."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.decisions.lane import pack_items
from holdfast.core.decisions.recovery import claim, recover
from holdfast.core.errors import (
    RunFenced,
    SessionDeleted,
    SessionNotFound,
    TurnCancelled,
    TurnInterrupted,
    TurnNotFound,
)
from holdfast.core.ids import RunId, TurnId, WorkerId
from holdfast.core.model.items import message
from holdfast.core.model.turn import Source, WorkerDeath, WorkerLosses
from holdfast.core.transaction.commands import (
    Claim,
    LaneLimits,
    Queued,
    Recover,
    Recovered,
    Started,
)
from holdfast.core.transaction.facts import Facts
from tests.unit.core.builders import (
    LIMITS,
    NOW,
    OTHER_WORKER,
    RUN,
    SESSION,
    TURN,
    WORKER,
    a_run,
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

SECOND = a_turn(id=TurnId("turn_2"), number=2, position=2)
GONE = frozenset({OTHER_WORKER})


def a_claim(**fields: Any) -> Claim:
    command = Claim(turn_id=SECOND.id, run_id=RunId("run_2"), worker=WORKER, limits=LIMITS)
    return replace(command, **fields)


def a_recover(**fields: Any) -> Recover:
    return replace(Recover(session_id=SESSION, worker=WORKER, limits=LIMITS), **fields)


# ── claim ───────────────────────────────────────────────────────────────────────────────────


def test_the_first_of_a_free_lane_starts_and_its_items_enter_the_log() -> None:
    facts = idle(turn=SECOND, waiting=waiting(2, 3), session={"head_seq": 4, "epoch": 7})
    decision = claim(a_claim(), facts)
    started = answer(decision, Started)
    assert (started.turn.first_seq, started.turn.input) == (5, None)
    assert [item.turn_number for item in appended(decision)] == [2]
    assert (started.fence.epoch, started.fence.run_id) == (8, "run_2")
    assert started.session.owner == WORKER
    assert started.turn.started_at == NOW
    assert told(decision) == ["turn.started"]


def test_a_run_that_was_begun_and_lost_is_not_begun_again() -> None:
    facts = idle(turn=SECOND, waiting=waiting(2))
    assert facts.session is not None
    lost = a_run(facts.session, SECOND, id=RunId("run_2"), outcome="interrupted")
    refusal(claim(a_claim(again=True), replace(facts, run=lost)), RunFenced)


def test_nobody_starts_before_those_who_stand_before_it() -> None:
    third = replace(SECOND, position=3)
    decision = claim(a_claim(), idle(turn=third, waiting=waiting(2, 3)))
    answer(decision, Queued)
    assert decision.changes == ()


def test_nobody_starts_while_a_living_worker_runs() -> None:
    decision = claim(a_claim(), running(turn=SECOND, waiting=waiting(2)))
    answer(decision, Queued)
    assert decision.changes == ()


def test_a_waiter_behind_a_held_lane_knows_when_to_look_again() -> None:
    queued = answer(claim(a_claim(), held(turn=SECOND, waiting=waiting(2))), Queued)
    assert queued.check_again_at == NOW + 60


def test_a_waiter_takes_the_lane_of_a_dead_worker() -> None:
    active = a_started_turn(owner=OTHER_WORKER)
    facts = running(active, turn=SECOND, waiting=waiting(2), has_live_owner=False)
    decision = claim(a_claim(), facts)
    assert answer(decision, Started).turn.id == "turn_2"
    torn = written(decision, TurnSaved)[0].turn
    assert (torn.id, torn.outcome) == (TURN, "interrupted")


def test_a_waiter_lets_a_dead_workers_background_turn_go_first() -> None:
    active = a_started_turn(owner=OTHER_WORKER, source="background")
    facts = running(active, turn=SECOND, waiting=waiting(2), has_live_owner=False)
    decision = claim(a_claim(), facts)
    answer(decision, Queued)
    assert only(decision, TurnSaved).turn.id == TURN
    assert only(decision, SessionSaved).session.active_turn_id is None
    assert decision.woken == (SESSION,)


def test_a_waiter_ends_a_hold_that_ran_out_and_starts() -> None:
    facts = held(until=NOW, turn=SECOND, waiting=waiting(2))
    decision = claim(a_claim(), facts)
    assert answer(decision, Started).turn.id == "turn_2"
    assert written(decision, TurnSaved)[0].turn.error_code == "tool_wait_expired"


def test_a_worker_is_alive_to_itself_whatever_its_lease_says() -> None:
    facts = running(a_started_turn(owner=WORKER), turn=SECOND, waiting=waiting(2),
                    has_live_owner=False)  # fmt: skip
    decision = claim(a_claim(), facts)
    answer(decision, Queued)
    assert decision.changes == ()


def test_a_claim_sent_again_finds_the_run_its_first_commit_began() -> None:
    facts = idle(turn=SECOND, waiting=waiting(2))
    first = answer(claim(a_claim(), facts), Started)
    after = replace(facts, session=first.session, turn=first.turn, run=first.run)
    again = claim(a_claim(again=True), after)
    assert answer(again, Started).fence == first.fence
    assert again.changes == ()


def test_a_turn_that_ended_while_it_waited_says_how() -> None:
    reset = replace(SECOND, outcome="cancelled", error_code="session_reset")
    error = refusal(claim(a_claim(), idle(turn=reset)), TurnCancelled)
    assert error.reason == "session_reset"
    torn = replace(SECOND, outcome="interrupted")
    refusal(claim(a_claim(), idle(turn=torn)), TurnInterrupted)


def test_an_unknown_or_erased_turn_is_not_found() -> None:
    refusal(claim(a_claim(), Facts(now=NOW)), TurnNotFound)
    erased = idle(session={"is_live": False, "deleted_at": NOW}, turn=SECOND)
    refusal(claim(a_claim(), erased), SessionDeleted)


def test_a_claim_that_finds_its_own_run_lost_settles_it_and_looks_again() -> None:
    torn = a_started_turn(id=SECOND.id, owner=OTHER_WORKER, source="cron")
    partial = pack_items([message("assistant", "I w")])
    facts = running(torn, turn=torn, has_live_owner=False, run_fields={"partial": partial})
    decision = claim(a_claim(), facts)
    queued = answer(decision, Queued)
    assert queued.turn == only(decision, TurnSaved).turn
    assert (queued.turn.last_seq, queued.turn.owner) == (2, WORKER)
    assert decision.woken == (SESSION,)

    session = only(decision, SessionSaved).session
    later = Facts(now=NOW, session=session, turn=queued.turn, waiting=waiting(1))
    second = claim(a_claim(), later)
    assert answer(second, Started).turn.attempts == 2
    record = only(second, RecordAdded).record
    assert (record.kind, record.from_seq, record.to_seq) == ("retry", 2, 2)


# ── recover ─────────────────────────────────────────────────────────────────────────────────


def left_behind(source: Source = "user", **fields: Any) -> Facts:
    turn = a_started_turn(owner=OTHER_WORKER, source=source, **fields.pop("turn_fields", {}))
    known = {"open_turns": (turn,), "gone_owners": GONE, "has_live_owner": False}
    return running(turn, **(known | fields))


def test_a_lost_foreground_run_ends_as_interrupted_and_can_be_resumed() -> None:
    facts = left_behind(run_fields={"partial": pack_items([message("assistant", "I w")])})
    decision = recover(a_recover(), facts)
    turn = only(decision, TurnSaved).turn
    assert (turn.outcome, turn.error_code, turn.is_retryable) == (
        "interrupted", "worker_lost", True,
    )  # fmt: skip
    assert only(decision, RunSaved).run.outcome == "interrupted"
    assert [item.is_partial for item in appended(decision)] == [True]
    recovered = answer(decision, Recovered)
    assert recovered.is_from_worker
    session = recovered.session
    assert (session.active_turn_id, session.epoch) == (None, 3)
    assert decision.aborted == (RUN,)


@pytest.mark.parametrize("source", ["background", "cron", "channel"])
def test_a_lost_run_that_nobody_waits_for_goes_back_to_its_place(source: Source) -> None:
    decision = recover(a_recover(), left_behind(source))
    turn = only(decision, TurnSaved).turn
    assert (turn.outcome, turn.owner, turn.position) == (None, WORKER, 1)
    assert told(decision) == ["turn.requeued"]
    assert appended(decision) == [], "no synthetic message enters the transcript"


def test_without_a_handler_such_a_run_is_kept_as_interrupted() -> None:
    decision = recover(a_recover(limits=LaneLimits()), left_behind("background"))
    assert only(decision, TurnSaved).turn.outcome == "interrupted"


@pytest.mark.parametrize("source", ["user", "background"])
def test_a_turn_that_keeps_losing_its_worker_is_given_up(source: Source) -> None:
    limits = LaneLimits(max_attempts=3, can_run_again=True)
    died = WorkerDeath(at=NOW - 20, running=1)
    once = {"attempts": 2, "losses": WorkerLosses(crashes=1, deaths=1)}
    twice = left_behind(source, turn_fields=once, owner_death=died)
    assert only(recover(a_recover(limits=limits), twice), TurnSaved).turn.outcome != "failed"
    lost = {"attempts": 3, "losses": WorkerLosses(crashes=2, deaths=2)}
    thrice = left_behind(source, turn_fields=lost, owner_death=died)
    turn = only(recover(a_recover(limits=limits), thrice), TurnSaved).turn
    assert (turn.outcome, turn.error_code) == ("failed", "turn_abandoned")
    assert not turn.is_retryable
    assert turn.error_message is not None
    assert "3 attempts" in turn.error_message


QUICK = WorkerDeath(at=NOW - 40 + 59.9, running=4)
"""A death that a run which began at NOW - 40 may have caused."""


@pytest.mark.parametrize(
    ("death", "losses", "crashes"),
    [
        (None, WorkerLosses(), 0),
        (QUICK, WorkerLosses(), 1),
        (replace(QUICK, at=NOW - 40 + 60), WorkerLosses(), 0),
        (replace(QUICK, running=5), WorkerLosses(), 0),
        # It died at the same step before, where one item was finished, or at another one.
        (replace(QUICK, running=5), WorkerLosses(deaths=1, place=1), 1),
        (replace(QUICK, running=5), WorkerLosses(deaths=1, place=2), 0),
        # A later step has begun.
        (replace(QUICK, at=NOW + 59), WorkerLosses(stepped_at=NOW), 1),
        (replace(QUICK, at=NOW + 60), WorkerLosses(stepped_at=NOW), 0),
    ],
)
def test_a_death_counts_only_if_the_turn_may_have_caused_it(
    death: WorkerDeath | None, losses: WorkerLosses, crashes: int
) -> None:
    facts = left_behind("channel", turn_fields={"losses": losses}, owner_death=death)
    turn = only(recover(a_recover(), facts), TurnSaved).turn
    assert turn.outcome is None
    assert turn.losses is not None
    assert turn.losses.crashes == crashes
    assert turn.losses.deaths == losses.deaths + (death is not None)


def test_a_turn_that_loses_very_many_workers_is_given_up_whatever_they_died_of() -> None:
    late = WorkerDeath(at=NOW + 1000, running=9)
    limits = LaneLimits(max_attempts=3, can_run_again=True)

    def end(deaths: int) -> str | None:
        fields = {"losses": WorkerLosses(deaths=deaths)}
        facts = left_behind("background", turn_fields=fields, owner_death=late)
        return only(recover(a_recover(limits=limits), facts), TurnSaved).turn.error_code

    assert end(10) is None
    assert end(11) == "turn_abandoned"


def test_a_run_that_a_live_worker_keeps_forgetting_is_given_up() -> None:
    """No process died, so nothing else could be the reason."""
    lost = WorkerLosses(crashes=2, deaths=2)
    facts = running(a_started_turn(source="background", losses=lost))
    limits = LaneLimits(max_attempts=3, can_run_again=True)
    command = a_recover(limits=limits, forsaken=(RUN,))
    assert only(recover(command, facts), TurnSaved).turn.error_code == "turn_abandoned"


def test_the_run_of_a_living_worker_is_left_alone() -> None:
    facts = replace(left_behind(), has_live_owner=True, gone_owners=frozenset())
    decision = recover(a_recover(), facts)
    assert decision.changes == ()
    assert decision.woken == ()


def test_waiting_turns_of_a_dead_worker_are_taken_over_or_kept_as_interrupted() -> None:
    foreground = a_turn(id=TurnId("turn_2"), position=2, owner=OTHER_WORKER)
    background = a_turn(id=TurnId("turn_3"), position=3, owner=OTHER_WORKER, source="cron")
    neighbours = a_turn(id=TurnId("turn_4"), position=4, owner=WorkerId("wrk_3"))
    facts = idle(open_turns=(foreground, background, neighbours), gone_owners=GONE)
    decision = recover(a_recover(), facts)
    saved = {change.turn.id: change.turn for change in written(decision, TurnSaved)}
    assert set(saved) == {"turn_2", "turn_3"}
    assert saved[TurnId("turn_2")].outcome == "interrupted"
    assert saved[TurnId("turn_2")].is_retryable
    assert (saved[TurnId("turn_3")].outcome, saved[TurnId("turn_3")].owner) == (None, WORKER)
    assert saved[TurnId("turn_3")].position == 3, "in order"
    assert decision.woken == (SESSION,)


def test_waiters_of_a_dead_worker_are_settled_beside_a_living_run() -> None:
    waiter = a_turn(id=TurnId("turn_2"), position=2, owner=OTHER_WORKER)
    active = a_started_turn()
    facts = running(active, open_turns=(active, waiter), gone_owners=GONE)
    decision = recover(a_recover(), facts)
    assert [change.turn.id for change in written(decision, TurnSaved)] == ["turn_2"]
    assert only(decision, SessionSaved).session.active_turn_id == TURN


def test_a_worker_does_not_recover_from_itself() -> None:
    mine = a_turn(id=TurnId("turn_2"), position=2, owner=WORKER)
    facts = idle(open_turns=(mine,), gone_owners=frozenset({WORKER}))
    assert recover(a_recover(), facts).changes == ()


def test_a_hold_that_ran_out_is_ended_without_a_request() -> None:
    facts = held(until=NOW)
    assert facts.active is not None
    decision = recover(a_recover(), replace(facts, open_turns=(facts.active,)))
    turn = only(decision, TurnSaved).turn
    assert (turn.outcome, turn.error_code) == ("interrupted", "tool_wait_expired")
    recovered = answer(decision, Recovered)
    assert recovered.session.status(has_live_owner=False) == "idle"
    assert not recovered.is_from_worker


@pytest.mark.parametrize(
    ("pending", "code", "reason"),
    [
        ('["call_1"]', "tool_wait_expired", "the client's tools did not"),
        ('["mcpr_1","mcpr_2"]', "approval_expired", "nobody answered the approval"),
        ('["mcpr_1","call_1"]', "tool_wait_expired", "tools and an approval request"),
    ],
)
def test_a_hold_that_ran_out_says_what_was_not_answered(
    pending: str, code: str, reason: str
) -> None:
    facts = held(until=NOW)
    assert facts.session is not None
    assert facts.active is not None
    session = replace(facts.session, pending_calls=pending)
    decision = recover(a_recover(), replace(facts, session=session, open_turns=(facts.active,)))
    turn = only(decision, TurnSaved).turn
    assert turn.error_code == code
    assert turn.error_message is not None
    assert reason in turn.error_message


def test_a_hold_that_still_runs_is_left_alone() -> None:
    facts = held(until=NOW + 1, gone_owners=GONE)
    assert facts.active is not None
    held_by_gone = replace(facts.active, owner=OTHER_WORKER)
    facts = replace(facts, active=held_by_gone, open_turns=(held_by_gone,))
    assert recover(a_recover(), facts).changes == ()


def test_an_erased_session_is_not_recovered() -> None:
    refusal(recover(a_recover(), Facts(now=NOW)), SessionNotFound)
    erased = idle(session={"is_live": False, "deleted_at": NOW})
    refusal(recover(a_recover(), erased), SessionNotFound)
