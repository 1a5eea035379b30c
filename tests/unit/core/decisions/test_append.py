"""Batches that are added without a run: once for each request, and never somebody else's."""

from typing import Any

from msgspec.structs import replace

from holdfast.core.decisions.accept import accept
from holdfast.core.decisions.append import append
from holdfast.core.decisions.idempotency import claim_of
from holdfast.core.errors import SessionBusy, SessionDeleted, SessionNotFound
from holdfast.core.ids import SessionId, Tenant, TurnId
from holdfast.core.model.items import message
from holdfast.core.transaction.changes import RetryClaimed
from holdfast.core.transaction.commands import Append, Appended, Started
from tests.unit.core.builders import (
    NOW,
    SESSION,
    TENANT,
    WORKER,
    a_started_turn,
    an_accept,
    answer,
    appended,
    idle,
    only,
    refusal,
    running,
    written,
)
from tests.written_rows import TurnSaved


def a_batch(text: str = "hi", **fields: Any) -> Append:
    batch = Append(
        tenant=TENANT, turn_id=TurnId("turn_new"), worker=WORKER,
        candidate_id=SessionId("ses_new"), session_id=SESSION, items=(message("user", text),),
        body_hash=b"body",
    )  # fmt: skip
    return replace(batch, **fields)


def an_ended_turn(**fields: Any) -> Any:
    ended: dict[str, Any] = {"outcome": "completed", "ended_at": NOW - 1, "accepted_at": NOW - 2}
    return a_started_turn(**(ended | fields))


def test_an_sdks_own_repeat_is_answered_with_the_turn_it_repeats() -> None:
    turn = an_ended_turn()
    decision = append(a_batch(retry_count=1), idle(turn=turn))
    assert answer(decision, Appended).turn.id == turn.id
    assert appended(decision) == []
    assert only(decision, RetryClaimed).claims == claim_of(1)


def test_a_request_that_is_no_repeat_is_new() -> None:
    turn = an_ended_turn()
    for command, latest in (
        (a_batch(retry_count=0), turn),
        (a_batch(retry_count=1, body_hash=b"other"), turn),
        (a_batch(retry_count=1), replace(turn, retry_claim=claim_of(1))),
        (a_batch(retry_count=1), replace(turn, delivered_at=NOW - 10)),
        (a_batch(retry_count=1), replace(turn, accepted_at=NOW - 15 * 60 - 1)),
    ):
        decision = append(command, idle(turn=latest))
        assert answer(decision, Appended).turn.id == "turn_new"
        assert len(appended(decision)) == 1


def test_a_repeat_of_a_batch_that_waits_is_left_to_its_lane() -> None:
    waiting = an_ended_turn(outcome=None, ended_at=None)
    refusal(append(a_batch(retry_count=1), running(turn=waiting)), SessionBusy)


def test_nobody_attaches_to_another_tenants_turn() -> None:
    theirs = idle(turn=an_ended_turn())
    stranger = Tenant("stranger")
    refusal(append(a_batch(retry_count=1, tenant=stranger), theirs), SessionNotFound)
    request = an_accept(retry_count=1, tenant=stranger, key=None, session_id=SESSION)
    refusal(accept(request, theirs), SessionNotFound)


def test_a_batch_sent_again_after_an_unknown_outcome_is_found() -> None:
    turn = an_ended_turn(id=TurnId("turn_new"))
    decision = append(a_batch(again=True), idle(turn=turn))
    assert answer(decision, Appended).turn == turn
    assert decision.changes == ()


def test_a_repeat_in_an_erased_session_is_refused() -> None:
    facts = idle(turn=an_ended_turn(), session={"deleted_at": NOW, "is_live": False})
    refusal(append(a_batch(retry_count=1), facts), SessionDeleted)


def test_a_batch_without_a_session_begins_one_with_its_metadata() -> None:
    decision = append(
        a_batch(session_id=None, metadata=b'{"a":"b"}'), replace(idle(), session=None)
    )
    assert answer(decision, Appended).session.metadata == b'{"a":"b"}'


def test_an_accept_still_attaches_to_its_own_turn() -> None:
    turn = an_ended_turn(outcome="interrupted", is_retryable=True)
    decision = accept(an_accept(retry_count=1), idle(turn=turn))
    assert answer(decision, Started).turn.id == turn.id
    assert not written(decision, TurnSaved) or only(decision, TurnSaved).turn.id == turn.id
