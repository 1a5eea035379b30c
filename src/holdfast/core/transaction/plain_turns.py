"""The common decisions, each in one step: without a `Draft`, which gives the same result.

A turn starts on an idle lane, ends with its answer, waits behind others, or is handed the lane by
the end before it; an external run appends its next batch. Each is one entry of the log per turn.
Everything else is decided step by step on a `Draft`.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.ids import SessionId
from holdfast.core.model.gateway_items import APPROVAL
from holdfast.core.model.item_ids import mint_name
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.reset_policy import NEVER
from holdfast.core.model.session import Session, Usage
from holdfast.core.model.turn import USER_ACTIVITY, Fence, Run, Turn
from holdfast.core.transaction.changes import (
    Change,
    Decision,
    Entry,
    Event,
    JournalAdded,
    JournalRow,
    LogAppended,
    QueueDropped,
    QueueSaved,
)
from holdfast.core.transaction.commands import (
    Accept,
    AppendBatch,
    Appended,
    Ended,
    Finish,
    Queued,
    Repeated,
    Started,
)
from holdfast.core.transaction.facts import Waiting
from holdfast.core.transaction.session_draft import MAX_ENTRY_BYTES, MAX_ENTRY_ITEMS

_ITEM_RANGE = b'{"first_seq":%d,"last_seq":%d}'
"""The detail of the events that end a turn or append a batch."""
_ATTEMPTS = b'{"attempts":%d}'
"""The detail of the event that starts a turn which waited."""
_CREATED = b'{"generation":%d}'
"""The detail of the event that creates a session."""

ACCEPT_OPTIONS = (
    "again", "is_internal", "idempotency_key", "rewind", "after_turn", "expected_id", "same_as",
    "abandons", "supersedes", "brought", "collect_seconds", "schedule",
)  # fmt: skip
FINISH_OPTIONS = (
    "again", "partial", "counted", "error_code", "error_message", "is_retryable", "provider_state",
    "completion", "pending_calls", "heals", "refused_from", "left_out", "placeholders",
    "history_hash", "outbox",
)  # fmt: skip
"""What a plain command leaves at its default."""
_accept_options = attrgetter(*ACCEPT_OPTIONS)
_finish_options = attrgetter(*FINISH_OPTIONS)


def _defaults(command: type[msgspec.Struct], options: Sequence[str]) -> tuple[Any, ...]:
    by_name = {field.name: field.default for field in msgspec.structs.fields(command)}
    return tuple(by_name[name] for name in options)


_NO_ACCEPT_OPTIONS = _defaults(Accept, ACCEPT_OPTIONS)
_NO_FINISH_OPTIONS = _defaults(Finish, FINISH_OPTIONS)
_NOTHING_USED = Usage()
_NOBODY = Waiting()
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[NewItem, ...]).decode


def start_plainly(
    command: Accept, session: Session, waiting: Waiting, now: float
) -> Decision[Started | Queued | Repeated] | None:
    """Accept a turn and give it the lane; None if anything else has to be decided about it.

    The caller has checked that the turn is no repeat.
    """
    if session.active_turn_id is not None or waiting.count or not session.is_live:
        return None
    if session.tenant != command.tenant or session.deleted_at is not None or session.has_failed:
        return None
    if _accept_options(command) != _NO_ACCEPT_OPTIONS or len(command.items) != 1:
        return None
    limits, parent = command.limits, command.parent
    if limits.full_bytes or limits.max_tenant_turns or command.reset.mode != "none":
        return None
    if command.seen_seq not in (None, session.head_seq):
        return None
    if parent is not None and (parent.seq, parent.record_no) != (
        session.head_seq, session.record_no,
    ):  # fmt: skip
        return None
    item = command.items[0]
    if item.is_instruction or item.kind == APPROVAL or command.on_busy == "steer":
        return None
    session_id, tenant, turn_id = session.id, session.tenant, command.turn_id
    worker = command.worker
    number, seq, epoch = session.turn_count + 1, session.head_seq + 1, session.version + 1
    is_active_user = command.source in USER_ACTIVITY
    # Positional arguments take less than half the time of keywords.
    turn = Turn(
        turn_id, session_id, tenant, number, number, command.source, worker, 0, 1, None,
        command.request, command.body_hash, None, None, seq, seq, seq, None, None, None, False, now,
        now, None, None, 0,
    )  # fmt: skip
    run = Run(
        command.run_id, turn_id, session_id, session.generation, epoch, worker, 0, seq + 1, None,
        None, None, None, None, now, None, None, None, None, None, None, None, None, None,
    )  # fmt: skip
    after = replace(
        session, epoch=epoch, version=epoch, head_seq=seq, event_no=session.event_no + 1,
        turn_count=number, active_turn_id=turn_id, active_run_id=run.id, owner=worker,
        hold_until=None, pending_calls=None,
        last_user_activity_at=now if is_active_user else session.last_user_activity_at,
    )  # fmt: skip
    stored = StoredItem(
        session_id, seq, number, item.kind,
        item.item_id or mint_name(item.kind, session_id, seq, now), item.call_id, item.fingerprint,
        False, item.body,
    )  # fmt: skip
    event = Event(session_id, after.event_no, tenant, "turn.started", turn_id, b"{}", now)
    entry = Entry(turn, True, [run], [stored], [], [event])
    started = Started(turn, after, run, Fence(session_id, session.generation, run.id, epoch))
    return Decision(started, (LogAppended(after, session, (entry,), now),))


def start_first_turn(
    command: Accept, generation: int, now: float
) -> Decision[Started | Queued | Repeated] | None:
    """Create a session and start its first turn; None if the turn is not plain.

    The caller has checked that the key has no live session and that the turn is no repeat.
    """
    if command.session_id is not None:
        return None
    if command.reset.mode != "none":
        command = replace(command, reset=NEVER)  # it concerns sessions that exist
    empty = Session(
        command.candidate_id, command.tenant, command.key, generation, version=0, event_no=1,
        created_at=now, started_by=command.source,
    )  # fmt: skip
    decision = start_plainly(command, empty, _NOBODY, now)
    if decision is None:
        return None
    change = decision.changes[0]
    assert type(change) is LogAppended
    detail = _CREATED % generation
    created = Event(empty.id, 1, empty.tenant, "session.created", None, detail, now)
    change.entries[0].events.insert(0, created)
    return Decision(decision.outcome, (LogAppended(change.session, None, change.entries, now),))


def number_items(
    items: Sequence[NewItem], session_id: SessionId, turn_number: int, last: int, now: float
) -> list[StoredItem] | None:
    """Return new items as stored behind the item `last`; None if they need several entries."""
    stored: list[StoredItem] = []
    size = 0
    for item in items:
        last += 1
        size += len(item.body)
        name = item.item_id or mint_name(item.kind, session_id, last, now)
        # Positional arguments take less than half the time of keywords.
        stored += (
            StoredItem(
                session_id, last, turn_number, item.kind, name, item.call_id, item.fingerprint,
                False, item.body,
            ),
        )  # fmt: skip
    return stored if size <= MAX_ENTRY_BYTES else None


def end_plainly(
    command: Finish, session: Session, turn: Turn, run: Run, waiting: Waiting, now: float
) -> Decision[Ended] | None:
    """End a turn with its answer and free the lane; None if anything else has to be decided.

    The caller has checked that the run holds the lane.
    """
    items, usage, last = command.items, command.usage, session.head_seq
    if command.outcome != "completed" or _finish_options(command) != _NO_FINISH_OPTIONS:
        return None
    if waiting.count or run.partial is not None or turn.first_seq is None:
        return None
    if command.after_seq not in (None, last) or len(items) > MAX_ENTRY_ITEMS:
        return None
    if usage is not None and not usage.is_countable:
        return None
    session_id = session.id
    stored = number_items(items, session_id, turn.number, last, now)
    if stored is None:
        return None
    last += len(items)
    turn = replace(
        turn, kept_seq=last, last_seq=last, outcome="completed", error_code=None,
        error_message=None, is_retryable=False, ended_at=now,
    )  # fmt: skip
    used = run if usage is None else usage
    run = replace(
        run, last_seq=last, record_no=session.record_no, outcome="completed", error_code=None,
        error_message=None, ended_at=now, result=command.result, input_tokens=used.input_tokens,
        cached_tokens=used.cached_tokens, output_tokens=used.output_tokens,
        reasoning_tokens=used.reasoning_tokens,
    )  # fmt: skip
    usage = usage or _NOTHING_USED
    after = replace(
        session, version=session.version + 1, head_seq=last, event_no=session.event_no + 1,
        active_turn_id=None, active_run_id=None, owner=None, hold_until=None, pending_calls=None,
        input_tokens=session.input_tokens + usage.input_tokens,
        cached_tokens=session.cached_tokens + usage.cached_tokens,
        output_tokens=session.output_tokens + usage.output_tokens,
        reasoning_tokens=session.reasoning_tokens + usage.reasoning_tokens,
    )  # fmt: skip
    event = Event(
        session_id, after.event_no, session.tenant, "turn.completed", turn.id,
        _ITEM_RANGE % (turn.first_seq, last), now,
    )  # fmt: skip
    entry, journal = Entry(turn, False, [run], stored, [], [event]), command.journal
    changes: tuple[Change, ...] = (LogAppended(after, session, (entry,), now),)
    if journal is not None:
        row = JournalRow(
            turn.id, turn.step, journal.first, journal.last, session_id, journal.body
        )  # fmt: skip
        changes += (JournalAdded(row, run.id),)
    return Decision(Ended(turn, after, run), changes)


def queue_plainly(
    command: Accept, session: Session, active: Turn, waiting: Waiting, now: float
) -> Decision[Started | Queued | Repeated] | None:
    """Let a turn wait behind the others of its lane; None if anything else has to be decided.

    The caller has checked that the turn is no repeat, and that `active` has the lane.
    """
    if session.active_run_id is None or session.owner != command.worker or not session.is_live:
        return None
    if session.tenant != command.tenant or session.deleted_at is not None:
        return None
    if command.on_busy != "enqueue" or _accept_options(command) != _NO_ACCEPT_OPTIONS:
        return None
    if command.seen_seq is not None or command.parent is not None:
        return None
    limits, items, last = command.limits, command.items, waiting.last_position or 0
    if limits.full_bytes or limits.max_tenant_turns or command.reset.mode != "none":
        return None
    if waiting.count >= limits.max_waiting or len(items) != 1:
        return None
    if items[0].is_instruction or items[0].kind == APPROVAL:
        return None
    is_same = command.body_hash == active.body_hash
    if is_same and command.has_streams and not command.is_compared:
        return None
    session_id, turn_id, number = session.id, command.turn_id, session.turn_count + 1
    # Positional arguments take less than half the time of keywords.
    turn = Turn(
        turn_id, session_id, session.tenant, number,
        max(session.turn_count, last, active.position) + 1, command.source, command.worker, 0, 0,
        _pack(items), command.request, command.body_hash, None, None, None, None, None, None, None,
        None, False, now, None, None, None, 0,
    )  # fmt: skip
    is_active_user = command.source in USER_ACTIVITY
    after = replace(
        session, version=session.version + 1, event_no=session.event_no + 1, turn_count=number,
        last_user_activity_at=now if is_active_user else session.last_user_activity_at,
    )  # fmt: skip
    event = Event(session_id, after.event_no, session.tenant, "turn.queued", turn_id, b"{}", now)
    entry = Entry(turn, True, [], [], [], [event])
    appended = LogAppended(after, session, (entry,), now)
    return Decision(Queued(turn, after, session.hold_until), (appended, QueueSaved(turn)))


def hand_over_plainly(
    command: Finish, session: Session, turn: Turn, run: Run, following: Turn, now: float
) -> Decision[Ended] | None:
    """End a turn with its answer and start the one that is first in the queue, `following`.

    None if anything else has to be decided. The caller has checked that the run holds the lane.
    """
    named, packed = command.successor, following.input
    if named is None or named.turn_id != following.id or packed is None:
        return None
    if following.first_seq is not None or following.rewind_after is not None:
        return None
    if following.source == "channel" or len(packed) > MAX_ENTRY_BYTES:
        return None  # It may have to wait for the rest of its burst.
    if b"is_instruction" in packed:
        return None
    ended, items = end_plainly(command, session, turn, run, _NOBODY, now), _unpack(packed)
    if ended is None or len(items) > MAX_ENTRY_ITEMS:
        return None
    outcome, change = ended.outcome, ended.changes[0]
    assert type(outcome) is Ended
    assert type(change) is LogAppended
    free, worker, session_id = change.session, run.worker, session.id
    last, number, epoch = free.head_seq + len(items), following.number, free.version + 1
    stored = number_items(items, session_id, number, free.head_seq, now)
    if stored is None:
        return None
    begun = replace(
        following, input=None, owner=worker, attempts=following.attempts + 1,
        first_seq=free.head_seq + 1, kept_seq=last, last_seq=last,
        started_at=following.started_at or now,
    )  # fmt: skip
    begun_run = Run(
        named.run_id, begun.id, session_id, session.generation, epoch, worker, begun.step, last + 1,
        None, None, None, None, None, now, None, None, None, None, None, None, None, None, None,
    )  # fmt: skip
    after = replace(
        free, epoch=epoch, version=epoch, head_seq=last, event_no=free.event_no + 1,
        active_turn_id=begun.id, active_run_id=named.run_id, owner=worker, has_failed=False,
    )  # fmt: skip
    detail = _ATTEMPTS % begun.attempts
    event = Event(
        session_id, after.event_no, session.tenant, "turn.started", begun.id, detail, now
    )  # fmt: skip
    entry = Entry(begun, False, [begun_run], stored, [], [event])
    fence = Fence(session_id, session.generation, named.run_id, epoch)
    started = Started(begun, after, begun_run, fence)
    appended = LogAppended(after, session, (change.entries[0], entry), now)
    return Decision(
        Ended(outcome.turn, after, outcome.run, started),
        (appended, QueueDropped(begun.id), *ended.changes[1:]),
    )


def continue_plainly(command: AppendBatch, now: float) -> Decision[Appended] | None:
    """Append a batch to its turn, given the last one; None if anything else has to be decided.

    The store refuses the entry if the session was written since the last batch.
    """
    known, items = command.known, command.items
    if known is None or known.is_repeat or command.again or not 0 < len(items) <= MAX_ENTRY_ITEMS:
        return None
    if command.idempotency_key is not None or command.replaces_upto is not None:
        return None
    if command.limits.full_bytes or command.limits.max_tenant_turns:
        return None
    session, turn, last = known.session, known.turn, known.session.head_seq
    if session.tenant != command.tenant or session.deleted_at is not None:
        return None
    if session.active_turn_id is not None or command.expected_id is not None:
        return None
    if turn.outcome is None or turn.tenant != command.tenant or turn.step >= command.ordinal:
        return None
    if turn.last_seq != last:
        return None
    session_id, first = session.id, last + 1
    stored = number_items(items, session_id, turn.number, last, now)
    if stored is None:
        return None
    last += len(items)
    turn = replace(turn, step=command.ordinal, kept_seq=last, last_seq=last, ended_at=now)
    is_active_user = command.source in USER_ACTIVITY
    after = replace(
        session, version=session.version + 1, head_seq=last, event_no=session.event_no + 1,
        last_user_activity_at=now if is_active_user else session.last_user_activity_at,
    )  # fmt: skip
    event = Event(
        session_id, after.event_no, session.tenant, "items.appended", turn.id,
        _ITEM_RANGE % (first, last), now,
    )  # fmt: skip
    entry = Entry(turn, False, [], stored, [], [event])
    return Decision(Appended(after, turn), (LogAppended(after, session, (entry,), now),))
