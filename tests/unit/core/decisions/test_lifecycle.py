"""Reset, restore, delete, fork, hide: the life of a session under its key."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.decisions.hide import hide
from holdfast.core.decisions.lifecycle import annotate, delete, fork, reset, restore
from holdfast.core.errors import (
    HoldfastError,
    ItemNotFound,
    SessionChanged,
    SessionHasForks,
    SessionNotFound,
    SessionNotKeyed,
)
from holdfast.core.ids import RunId, SessionId, Tenant, TurnId
from holdfast.core.model.items import ERASED_ITEM
from holdfast.core.model.session import Session
from holdfast.core.transaction.changes import ContentErased, ItemErased, ProviderStateDropped
from holdfast.core.transaction.commands import Annotate, Delete, Fork, Hide, Reset, Restore
from holdfast.core.transaction.facts import Facts, Log
from tests.unit.core.builders import (
    KEY,
    NOW,
    RUN,
    SESSION,
    TENANT,
    TURN,
    a_session,
    a_started_turn,
    a_turn,
    answer,
    idle,
    only,
    refusal,
    running,
    told,
    waiting,
    written,
)
from tests.written_rows import RecordAdded, RunSaved, SessionAdded, SessionSaved, TurnSaved, rows_of

NEW = SessionId("ses_2")
RICH: dict[str, Any] = {
    "head_seq": 5, "hidden_count": 1, "turn_count": 3, "epoch": 9, "metadata": b'{"a":1}',
    "last_user_activity_at": NOW - 5, "input_tokens": 7, "record_no": 1,
}  # fmt: skip


def a_reset(**fields: Any) -> Reset:
    return replace(Reset(tenant=TENANT, session_id=SESSION, new_id=NEW), **fields)


def test_a_reset_begins_the_next_generation_empty_but_for_key_and_metadata() -> None:
    decision = reset(a_reset(), idle(session=RICH, next_generation=2))
    fresh = answer(decision, Session)
    assert fresh == only(decision, SessionAdded).session
    assert (fresh.id, fresh.key, fresh.generation, fresh.previous_session_id) == (
        NEW, KEY, 2, SESSION,
    )  # fmt: skip
    assert fresh.metadata == b'{"a":1}'
    assert (fresh.head_seq, fresh.turn_count, fresh.input_tokens) == (0, 0, 0)
    assert fresh.last_user_activity_at is None
    assert fresh.status(has_live_owner=False) == "idle"


def test_a_reset_retires_the_old_generation_raises_its_epoch_and_drops_provider_state() -> None:
    decision = reset(a_reset(reason="the user asked"), idle(session=RICH, next_generation=2))
    old = only(decision, SessionSaved).session
    assert (old.is_live, old.retired_at, old.epoch) == (False, NOW, 10)
    assert old.head_seq == 5
    assert only(decision, ProviderStateDropped) == ProviderStateDropped(SESSION)
    rows = rows_of(decision.changes)
    assert rows.index(only(decision, SessionSaved)) < rows.index(only(decision, SessionAdded)), (
        "the key is let go first"
    )
    assert told(decision) == ["session.retired", "session.created"]


def test_a_reset_cancels_every_turn_accepted_before_it() -> None:
    queued = a_turn(id=TurnId("turn_2"), number=2, position=2)
    facts = running(waiting=waiting(2), next_generation=2)
    assert facts.active is not None
    facts = replace(facts, open_turns=(facts.active, queued))
    decision = reset(a_reset(reason="the user asked"), facts)
    ends = [(c.turn.id, c.turn.outcome, c.turn.error_code) for c in written(decision, TurnSaved)]
    assert ends == [
        (TURN, "cancelled", "session_reset"), ("turn_2", "cancelled", "session_reset"),
    ]  # fmt: skip
    assert written(decision, TurnSaved)[0].turn.error_message == "the user asked"
    assert only(decision, RunSaved).run.outcome == "cancelled"
    assert decision.aborted == (RUN,)
    assert decision.woken == (SESSION,)


@pytest.mark.parametrize("expected", [None, SESSION])
def test_a_reset_with_a_true_expectation_is_done(expected: SessionId | None) -> None:
    answer(reset(a_reset(expected_id=expected), idle(next_generation=2)), Session)


def test_a_reset_with_a_wrong_expectation_does_nothing_and_names_the_live_one() -> None:
    error = refusal(reset(a_reset(expected_id=NEW), idle(live_id=SESSION)), SessionChanged)
    assert error.live_id == SESSION


def test_a_reset_of_a_session_that_is_not_live_names_the_one_that_is() -> None:
    facts = idle(session={"is_live": False}, live_id=NEW)
    assert refusal(reset(a_reset(), facts), SessionChanged).live_id == NEW


def test_a_keyless_session_cannot_be_reset_or_restored() -> None:
    keyless = idle(session={"key": None})
    refusal(reset(a_reset(), keyless), SessionNotKeyed)
    refusal(restore(Restore(tenant=TENANT, session_id=SESSION), keyless), SessionNotKeyed)


def test_a_reset_sent_again_answers_with_the_generation_it_began() -> None:
    fresh = answer(reset(a_reset(), idle(next_generation=2)), Session)
    facts = idle(session={"is_live": False}, live=fresh, live_id=fresh.id)
    again = reset(a_reset(again=True), facts)
    assert answer(again, Session) == fresh
    assert again.changes == ()


# ── restore ─────────────────────────────────────────────────────────────────────────────────

RESTORE = Restore(tenant=TENANT, session_id=SESSION)
RETIRED: dict[str, Any] = {"is_live": False, "retired_at": NOW - 9, "epoch": 4}


def test_a_restored_generation_lives_again_and_the_live_one_is_retired() -> None:
    active = a_started_turn(session_id=NEW)
    live = replace(
        a_session(id=NEW, generation=2, epoch=6), active_turn_id=TURN, active_run_id=RUN,
        owner=active.owner,
    )  # fmt: skip
    facts = idle(session=RETIRED, live=live, active=active, open_turns=(active,))
    decision = restore(RESTORE, facts)
    back = answer(decision, Session)
    assert (back.id, back.is_live, back.retired_at, back.epoch) == (SESSION, True, None, 5)
    old, new = (change.session for change in written(decision, SessionSaved))
    assert (old.id, old.is_live, old.active_turn_id) == (NEW, False, None)
    assert old.epoch > 6
    assert new.id == back.id
    assert only(decision, TurnSaved).turn.error_code == "session_restored"
    dropped = {change.session_id for change in written(decision, ProviderStateDropped)}
    assert dropped == {SESSION, NEW}


def test_a_generation_can_be_restored_where_none_is_live() -> None:
    decision = restore(RESTORE, idle(session=RETIRED))
    assert answer(decision, Session).is_live


def test_restoring_the_live_generation_changes_nothing() -> None:
    decision = restore(RESTORE, idle())
    assert answer(decision, Session).id == SESSION
    assert decision.changes == ()


# ── delete ──────────────────────────────────────────────────────────────────────────────────

DELETE = Delete(tenant=TENANT, session_id=SESSION)


def test_a_deleted_session_leaves_a_tombstone_that_fences_its_run() -> None:
    facts = running(session={"metadata": b'{"a":1}'})
    assert facts.active is not None
    decision = delete(DELETE, replace(facts, open_turns=(facts.active,)))
    grave = only(decision, SessionSaved).session
    assert (grave.is_live, grave.deleted_at, grave.retired_at) == (False, NOW, NOW)
    assert (grave.epoch, grave.metadata, grave.active_turn_id) == (3, b"{}", None)
    assert only(decision, ContentErased).session_id == SESSION
    assert only(decision, ProviderStateDropped).session_id == SESSION
    assert decision.aborted == (RUN,)
    assert decision.woken == (SESSION,)


def test_a_session_with_forks_is_not_deleted_without_them() -> None:
    child = a_session(id=NEW, key=None, parent_id=SESSION)
    refused = refusal(delete(DELETE, idle(forks=(child,))), SessionHasForks)
    assert "delete them too (cascade)" in refused.message


def test_a_cascade_takes_the_forks_along_and_stops_their_runs() -> None:
    child = replace(
        a_session(id=NEW, key=None, parent_id=SESSION, epoch=3),
        active_turn_id=TurnId("turn_9"), active_run_id=RunId("run_9"), owner="wrk_9",
    )  # fmt: skip
    decision = delete(replace(DELETE, cascade=True), idle(forks=(child,)))
    graves = [change.session for change in written(decision, SessionSaved)]
    assert [(grave.id, grave.deleted_at) for grave in graves] == [(SESSION, NOW), (NEW, NOW)]
    assert graves[1].epoch == 4
    assert decision.aborted == ("run_9",)
    assert decision.woken == (SESSION, NEW)


def test_a_hidden_fork_keeps_nobody_from_deleting_and_goes_along() -> None:
    hidden = a_session(id=NEW, key=None, parent_id=SESSION, is_visible=False)
    decision = delete(DELETE, idle(forks=(hidden,)))
    assert len(written(decision, ContentErased)) == 2


def test_a_delete_sent_again_finds_the_tombstone() -> None:
    grave = idle(session={"is_live": False, "deleted_at": NOW})
    assert delete(replace(DELETE, again=True), grave).changes == ()
    refusal(delete(DELETE, grave), SessionNotFound)


# ── fork ────────────────────────────────────────────────────────────────────────────────────


def a_fork(**fields: Any) -> Fork:
    return replace(Fork(tenant=TENANT, session_id=SESSION, new_id=NEW), **fields)


def test_a_fork_is_a_keyless_pointer_into_the_history() -> None:
    decision = fork(a_fork(after_seq=3), idle(session=RICH, hidden=((2, 2), (5, 5))))
    child = only(decision, SessionAdded).session
    assert (child.key, child.parent_id, child.parent_seq, child.parent_record) == (
        None, SESSION, 3, 1,
    )  # fmt: skip
    assert (child.head_seq, child.hidden_count, child.item_count) == (3, 1, 2)
    assert child.metadata == b'{"a":1}'
    assert written(decision, SessionSaved) == []


def test_a_fork_of_the_head_leaves_out_what_is_still_being_written() -> None:
    facts = running(a_started_turn(first_seq=3, kept_seq=4, last_seq=4))
    assert answer(fork(a_fork(), facts), Session).parent_seq == 2


@pytest.mark.parametrize("after", [-1, 6])
def test_a_fork_after_an_item_that_is_not_there_is_refused(after: int) -> None:
    refusal(fork(a_fork(after_seq=after), idle(session=RICH)), ItemNotFound)


@pytest.mark.parametrize("after", [0, 5])
def test_a_fork_may_begin_before_the_first_and_behind_the_last_item(after: int) -> None:
    assert answer(fork(a_fork(after_seq=after), idle(session=RICH)), Session).head_seq == after


def test_a_fork_sent_again_answers_with_the_session_it_made() -> None:
    child = answer(fork(a_fork(), idle()), Session)
    again = fork(a_fork(again=True), idle(live=child))
    assert answer(again, Session) == child
    assert again.changes == ()


# ── hide and annotate ───────────────────────────────────────────────────────────────────────


def logged(facts: Facts) -> Facts:
    """Return facts with the log that a range is hidden in."""
    session = facts.session
    assert session is not None
    line = frozenset({session.id})
    log = Log(session=session, upto=session.head_seq, line=line, hidden=facts.hidden)
    return replace(facts, logs=(log,))


def a_hide(**fields: Any) -> Hide:
    return replace(Hide(tenant=TENANT, session_id=SESSION, from_seq=2, to_seq=3), **fields)


def test_hiding_is_a_record_and_takes_what_providers_remember_of_it_along() -> None:
    decision = hide(a_hide(), logged(idle(session=RICH, hidden=((3, 4),))))
    record = only(decision, RecordAdded).record
    assert (record.no, record.kind, record.from_seq, record.to_seq) == (2, "hide", 2, 3)
    assert answer(decision, Session).hidden_count == 3
    assert only(decision, ProviderStateDropped) == ProviderStateDropped(SESSION, from_seq=2)
    assert written(decision, ItemErased) == []


def test_erasing_blanks_the_sessions_own_items_and_never_its_parents() -> None:
    facts = idle(session=RICH | {"parent_id": NEW, "parent_seq": 2})
    decision = hide(a_hide(erase=True), logged(facts))
    erased = [(change.seq, change.body) for change in written(decision, ItemErased)]
    assert erased == [(3, ERASED_ITEM)]


@pytest.mark.parametrize(("first", "last"), [(0, 1), (3, 2), (5, 6)])
def test_hiding_items_that_are_not_there_is_refused(first: int, last: int) -> None:
    refusal(hide(a_hide(from_seq=first, to_seq=last), idle(session=RICH)), ItemNotFound)


def test_metadata_is_replaced() -> None:
    command = Annotate(tenant=TENANT, session_id=SESSION, metadata=b'{"b":2}')
    decision = annotate(command, idle(session=RICH))
    assert answer(decision, Session).metadata == b'{"b":2}'
    assert told(decision) == ["session.annotated"]


# ── nobody else's ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "facts",
    [
        Facts(now=NOW),
        idle(session={"is_live": False, "deleted_at": NOW}),
        idle(session={"tenant": Tenant("rival")}),
    ],
    ids=["unknown", "erased", "foreign"],
)
def test_an_unknown_an_erased_and_a_foreign_session_answer_alike(facts: Facts) -> None:
    annotation = Annotate(tenant=TENANT, session_id=SESSION, metadata=b"{}")
    refusals: list[HoldfastError] = [
        refusal(reset(a_reset(), facts), SessionNotFound),
        refusal(restore(RESTORE, facts), SessionNotFound),
        refusal(delete(DELETE, facts), SessionNotFound),
        refusal(fork(a_fork(), facts), SessionNotFound),
        refusal(hide(a_hide(), facts), SessionNotFound),
        refusal(annotate(annotation, facts), SessionNotFound),
    ]
    assert {error.message for error in refusals} == {f"no session {SESSION}"}
