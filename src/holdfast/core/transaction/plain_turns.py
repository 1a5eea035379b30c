"""The two decisions of nearly every turn: it starts on an idle lane, and it ends with its answer.

Each is one entry of the log, which is built here at once; that of a first turn also creates its
session. Everything else that may happen to a turn is decided step by step on a `Draft`, which comes
to the same result for these turns.
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
)
from holdfast.core.transaction.commands import (
    Accept,
    Ended,
    Finish,
    Queued,
    Repeated,
    Started,
)
from holdfast.core.transaction.facts import Waiting

MAX_PLAIN_ITEMS = 8
MAX_PLAIN_BYTES = 64 * 1024
"""More items, or longer ones, may need several entries."""
_ITEM_RANGE = b'{"first_seq":%d,"last_seq":%d}'
"""The detail of the event that ends a turn."""
_CREATED = b'{"generation":%d}'
"""Body of the event `session.created`."""

ACCEPT_OPTIONS = (
    "again", "is_internal", "idempotency_key", "rewind", "seen_seq", "parent", "after_turn",
    "expected_id", "same_as", "abandons", "supersedes", "brought", "collect_seconds", "schedule",
)  # fmt: skip
FINISH_OPTIONS = (
    "again", "partial", "counted", "error_code", "error_message", "is_retryable", "provider_state",
    "completion", "pending_calls", "heals", "refused_from", "left_out", "history_hash", "outbox",
)  # fmt: skip
"""What a plain command leaves at its default."""
accept_options = attrgetter(*ACCEPT_OPTIONS)
_finish_options = attrgetter(*FINISH_OPTIONS)


def _defaults(command: type[msgspec.Struct], options: Sequence[str]) -> tuple[Any, ...]:
    by_name = {field.name: field.default for field in msgspec.structs.fields(command)}
    return tuple(by_name[name] for name in options)


NO_ACCEPT_OPTIONS = _defaults(Accept, ACCEPT_OPTIONS)
_NO_FINISH_OPTIONS = _defaults(Finish, FINISH_OPTIONS)
_NOTHING_USED = Usage()


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
    if accept_options(command) != NO_ACCEPT_OPTIONS or len(command.items) != 1:
        return None
    limits = command.limits
    if limits.full_bytes or limits.max_tenant_turns or command.reset.mode != "none":
        return None
    item = command.items[0]
    if item.is_instruction or item.kind == APPROVAL or command.on_busy == "steer":
        return None
    session_id, tenant, turn_id, worker = (
        session.id,
        session.tenant,
        command.turn_id,
        command.worker,
    )
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
    if command.session_id is not None or accept_options(command) != NO_ACCEPT_OPTIONS:
        return None
    limits, items = command.limits, command.items
    if limits.full_bytes or limits.max_tenant_turns or len(items) != 1:
        return None
    item = items[0]
    if item.is_instruction or item.kind == APPROVAL or command.on_busy == "steer":
        return None
    session_id, tenant, turn_id = command.candidate_id, command.tenant, command.turn_id
    run_id, worker, source = command.run_id, command.worker, command.source
    # Positional arguments take less than half the time of keywords.
    session = Session(
        session_id, tenant, command.key, generation, True, True, None, None, 0, 0, 1, 1, 1, 0, 2, 1,
        0, turn_id, run_id, worker, None, None, now, now if source in USER_ACTIVITY else None, None,
        None, 0, 0, 0, 0, b"{}", False, source,
    )  # fmt: skip
    turn = Turn(
        turn_id, session_id, tenant, 1, 1, source, worker, 0, 1, None, command.request,
        command.body_hash, None, None, 1, 1, 1, None, None, None, False, now, now, None, None, 0,
    )  # fmt: skip
    run = Run(
        run_id, turn_id, session_id, generation, 1, worker, 0, 2, None, None, None, None, None, now,
        None, None, None, None, None, None, None, None, None,
    )  # fmt: skip
    stored = StoredItem(
        session_id, 1, 1, item.kind, item.item_id or mint_name(item.kind, session_id, 1, now),
        item.call_id, item.fingerprint, False, item.body,
    )  # fmt: skip
    events = [
        Event(session_id, 1, tenant, "session.created", None, _CREATED % generation, now),
        Event(session_id, 2, tenant, "turn.started", turn_id, b"{}", now),
    ]
    entry = Entry(turn, True, [run], [stored], [], events)
    started = Started(turn, session, run, Fence(session_id, generation, run_id, 1))
    return Decision(started, (LogAppended(session, None, (entry,), now),))


def number_items(
    items: Sequence[NewItem], session_id: SessionId, turn_number: int, last: int, now: float
) -> list[StoredItem] | None:
    """Return new items as stored behind the item `last`; None if they are too long."""
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
    return stored if size <= MAX_PLAIN_BYTES else None


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
    if command.after_seq not in (None, last) or len(items) > MAX_PLAIN_ITEMS:
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
