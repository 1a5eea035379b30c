"""Reset, restore, delete and fork sessions.

Reset, restore and delete raise the epoch of every session they touch, so that no earlier run can
write any more, not even after its generation was restored.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.decisions.lane import end_turn, stop_active
from holdfast.core.errors import (
    IdempotencyMismatch,
    ItemNotFound,
    SessionBusy,
    SessionChanged,
    SessionDeleted,
    SessionHasForks,
    SessionNotFound,
    SessionNotKeyed,
)
from holdfast.core.ids import RunId, SessionId, TurnId
from holdfast.core.model.records import Span, visible_spans
from holdfast.core.model.session import Session, begin_session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.changes import (
    Change,
    ContentErased,
    Decision,
    ProviderStateDropped,
    refuse,
)
from holdfast.core.transaction.commands import Annotate, Delete, ForgetState, Fork, Reset, Restore
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.outgoing import queue_parts
from holdfast.core.transaction.session_draft import Draft


def retire(draft: Draft, *, reason: str) -> None:
    """Retire a session: its key no longer leads to it; it stays listed, readable and restorable."""
    session = draft.session
    draft.raise_epoch()
    draft.set(is_live=False, retired_at=draft.now)
    draft.free_lane()
    draft.add(ProviderStateDropped(session.id))
    draft.add_event("session.retired", reason=reason)


def begin_next(session: Session, new_id: SessionId, facts: Facts) -> Draft:
    """Return the draft of the next generation of a session's key."""
    fresh = begin_session(
        new_id,
        session.tenant,
        now=facts.now,
        key=session.key,
        generation=facts.next_generation,
        previous=session,
    )
    draft = Draft(fresh, now=facts.now, is_new=True)
    draft.add_event("session.created", generation=fresh.generation, previous_session_id=session.id)
    return draft


def reset(command: Reset, facts: Facts) -> Decision[Session]:
    """Start the next generation; every turn that is still open ends as cancelled."""
    session = facts.session
    repeated = _answer_repeat(command, facts)
    if repeated is not None:
        return repeated
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if session.key is None:
        return refuse(SessionNotKeyed(f"session {session.id} has no key to continue under"))
    expected = session.id if command.expected_id is None else command.expected_id
    if not session.is_live or expected != session.id:
        live_id = session.id if session.is_live else facts.live_id
        return refuse(SessionChanged(expected, live_id))
    old = Draft(session, now=facts.now)
    cancel_open(old, facts, code="session_reset", message=command.reason)
    retire(old, reason=command.reason)
    fresh = begin_next(session, command.new_id, facts)
    # The key of a reset or a fork stands for the session that it creates.
    fresh.bind_key(command.idempotency_key, command.body_hash, TurnId(command.new_id))
    queue_parts(fresh, command.messages, fresh.session.id)
    return _decide_both(old, fresh)


def _answer_repeat(command: Reset | Fork, facts: Facts) -> Decision[Session] | None:
    """Answer a repeat with the session that the first command created; None for a first one."""
    if command.again and facts.live is not None and facts.live.id == command.new_id:
        return Decision(facts.live)
    row = facts.repeat
    if row is None:
        return None
    if row.body_hash != (command.body_hash or b""):
        return refuse(
            IdempotencyMismatch(f"idempotency key {row.key!r} was used with another request")
        )
    created = facts.created
    if created is None or not created.exists_for(command.tenant):
        return refuse(SessionDeleted("the session that this request created was deleted"))
    return Decision(created)


def restore(command: Restore, facts: Facts) -> Decision[Session]:
    """Make an old generation live again; the live one is retired, as by a reset."""
    session = facts.session
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if session.key is None:
        return refuse(SessionNotKeyed(f"session {session.id} has no key to restore it under"))
    if session.is_live:
        return Decision(session)
    restored = Draft(session, now=facts.now)
    restored.raise_epoch()
    restored.set(is_live=True, retired_at=None)
    restored.free_lane()
    restored.add(ProviderStateDropped(session.id))
    restored.add_event("session.restored", generation=session.generation)
    if facts.live is None:
        return restored.decide(restored.session)
    old = Draft(facts.live, now=facts.now)
    cancel_open(old, facts, code="session_restored")
    retire(old, reason="session_restored")
    return _decide_both(old, restored)


def _decide_both(old: Draft, new: Draft) -> Decision[Session]:
    """Combine two drafts in one decision; the old session releases the key first."""
    first, second = old.decide(old.session), new.decide(new.session)
    return Decision(
        new.session,
        (*first.changes, *second.changes),
        (old.session.id,),
        (*first.aborted, *second.aborted),
    )


def delete(command: Delete, facts: Facts) -> Decision[Session]:
    """Erase a session's content and leave a tombstone that rejects late writers."""
    session = facts.session
    if session is None or session.tenant != command.tenant:
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if session.deleted_at is not None:
        if command.again:
            return Decision(session)
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if command.idle_seconds is not None and not _is_idle(facts, session, command.idle_seconds):
        return refuse(SessionBusy(f"session {session.id} was used in the meantime"))
    visible_forks = [fork for fork in facts.forks if fork.is_visible]
    if visible_forks and not command.cascade:
        return refuse(
            SessionHasForks(
                f"{len(visible_forks)} other session(s) share the history of session "
                f"{session.id}: delete them too (cascade), or keep it"
            )
        )
    draft = Draft(session, now=facts.now)
    cancel_open(draft, facts, code="session_deleted")
    _mark_deleted(draft)
    changes: list[Change] = [*draft.changes()]
    aborted: list[RunId] = [*draft.decide(None).aborted]
    for fork in facts.forks:
        child = Draft(fork, now=facts.now)
        if fork.active_run_id is not None:
            aborted.append(fork.active_run_id)
        _mark_deleted(child)
        changes.extend(child.changes())
    woken = (session.id, *(fork.id for fork in facts.forks))
    return Decision(draft.session, tuple(changes), woken, tuple(aborted))


def _is_idle(facts: Facts, session: Session, seconds: float) -> bool:
    if facts.open_turns:
        return False
    times = [session.created_at]
    if facts.turn is not None:
        times += [facts.turn.accepted_at, facts.turn.ended_at or 0.0]
    return max(times) < facts.now - seconds


def _mark_deleted(draft: Draft) -> None:
    session = draft.session
    draft.raise_epoch()
    draft.set(
        is_live=False,
        deleted_at=draft.now,
        retired_at=session.retired_at or draft.now,
        metadata=b"{}",
    )
    draft.free_lane()
    draft.add(ProviderStateDropped(session.id))
    draft.add(ContentErased(session.id))


def cancel_open(draft: Draft, facts: Facts, *, code: str, message: str = "") -> None:
    """End every open turn as cancelled; `code` is the stable error code of the cause."""
    for turn in facts.open_turns:
        if facts.active is not None and turn.id == facts.active.id:
            stop_active(draft, facts, "cancelled", code=code, message=message)
        else:
            end_turn(draft, turn, "cancelled", code=code, message=message)
    draft.wake()


def fork(command: Fork, facts: Facts) -> Decision[Session]:
    """Create a session that points into this one's history; nothing is copied."""
    session = facts.session
    repeated = _answer_repeat(command, facts)
    if repeated is not None:
        return repeated
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    after = command.after_seq
    if after is None:
        after = settled_seq(session, facts.active)
    if not 0 <= after <= session.head_seq:
        return refuse(ItemNotFound(f"session {session.id} has no item {after}"))
    child = fork_of(session, command.new_id, after, now=facts.now, hidden=facts.hidden)
    draft = Draft(child, now=facts.now, is_new=True)
    draft.add_event("session.created", generation=1, parent_session_id=session.id, after_seq=after)
    draft.bind_key(command.idempotency_key, command.body_hash, TurnId(command.new_id))
    return draft.decide(draft.session)


def fork_of(
    session: Session, new_id: SessionId, after: int, *, now: float, hidden: Sequence[Span]
) -> Session:
    """Return a keyless session whose history begins with a pointer into this one's."""
    shown = sum(last - first + 1 for first, last in visible_spans(hidden, 1, after))
    return replace(
        begin_session(new_id, session.tenant, now=now, started_by=session.started_by),
        parent_id=session.id,
        parent_seq=after,
        parent_record=session.record_no,
        head_seq=after,
        hidden_count=after - shown,
        metadata=session.metadata,
    )


def finished_seq(session: Session, active: Turn | None) -> int:
    """Return the end of the history before the turn in progress."""
    if active is not None and active.first_seq is not None:
        return active.first_seq - 1
    return session.head_seq


def settled_seq(session: Session, active: Turn | None) -> int:
    """Return the end of the history that no run is writing; a held turn's items are included."""
    return session.head_seq if session.is_held else finished_seq(session, active)


def annotate(command: Annotate, facts: Facts) -> Decision[Session]:
    """Replace a session's metadata."""
    session = facts.session
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if command.again and session.metadata == command.metadata:
        return Decision(session)
    draft = Draft(session, now=facts.now)
    draft.set(metadata=command.metadata)
    draft.add_event("session.annotated")
    return draft.decide(draft.session)


def forget_state(command: ForgetState, facts: Facts) -> Decision[Session]:
    """Drop all provider state: the next turn sends the whole history."""
    session = facts.session
    if session is None or not session.exists_for(command.tenant):
        return refuse(SessionNotFound(f"no session {command.session_id}"))
    if session.active_turn_id is not None:
        return refuse(SessionBusy(f"session {session.id} is busy"))
    if not facts.has_provider_state:
        return Decision(session)
    draft = Draft(session, now=facts.now)
    draft.add(ProviderStateDropped(session.id))
    draft.add_event("provider_state.dropped")
    return draft.decide(draft.session)
