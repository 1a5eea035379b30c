"""The two decisions of nearly every turn: it starts on an idle lane, and it ends with its answer.

Each is one entry of the log, which is built here at once. Everything else that may happen to a
turn is decided step by step on a `Draft`, which comes to the same result for these turns.
"""

from collections.abc import Sequence
from operator import attrgetter

from msgspec.structs import replace

from holdfast.core.model.gateway_items import APPROVAL
from holdfast.core.model.item_ids import mint_name
from holdfast.core.model.items import NewItem, StoredItem
from holdfast.core.model.session import Session, Usage
from holdfast.core.model.turn import BLANK_RUN, BLANK_TURN, USER_ACTIVITY, Fence, Run, Turn
from holdfast.core.transaction.changes import Decision, Entry, Event, LogAppended
from holdfast.core.transaction.commands import (
    Accept,
    Ended,
    Finish,
    Queued,
    Repeated,
    Started,
)
from holdfast.core.transaction.facts import Facts

MAX_PLAIN_ITEMS = 8
MAX_PLAIN_BYTES = 64 * 1024
"""More items, or longer ones, may need several entries."""
_ITEM_RANGE = b'{"first_seq":%d,"last_seq":%d}'
"""The detail of the event that ends a turn."""

ACCEPT_OPTIONS = (
    "again", "is_internal", "idempotency_key", "rewind", "seen_seq", "parent", "after_turn",
    "expected_id", "same_as", "abandons", "brought", "collect_seconds", "schedule",
)  # fmt: skip
FINISH_OPTIONS = (
    "again", "partial", "counted", "error_code", "error_message", "is_retryable", "provider_state",
    "completion", "pending_calls", "heals", "journal", "refused_from", "left_out", "history_hash",
    "outbox",
)  # fmt: skip
"""What a plain command leaves at its default."""
_accept_options = attrgetter(*ACCEPT_OPTIONS)
_finish_options = attrgetter(*FINISH_OPTIONS)
_NO_ACCEPT_OPTIONS = (
    False, False, None, None, None, None, None, None, None, None, None, 0.0, None,
)  # fmt: skip
_NO_FINISH_OPTIONS = (
    False, (), None, None, None, False, None, None, (), None, None, None, (), b"", (),
)  # fmt: skip
_NOTHING_USED = Usage()
_FIRST_ATTEMPT = replace(BLANK_TURN, attempts=1)


def starts_plainly(command: Accept, facts: Facts) -> bool:
    """Whether a turn enters a known and idle lane, and nothing else is to be decided about it."""
    session, limits = facts.session, command.limits
    if session is None or _accept_options(command) != _NO_ACCEPT_OPTIONS:
        return False
    if facts.active is not None or session.active_turn_id is not None or facts.waiting.count:
        return False
    if session.tenant != command.tenant or not session.is_live or session.deleted_at is not None:
        return False
    if session.has_failed or facts.turn is not None or facts.repeat is not None:
        return False
    if limits.full_bytes or limits.max_tenant_turns or command.reset.mode != "none":
        return False
    if len(command.items) != 1 or command.on_busy == "steer":
        return False
    item = command.items[0]
    return not item.is_instruction and item.kind != APPROVAL


def start(command: Accept, session: Session, now: float) -> Decision[Started | Queued | Repeated]:
    """Accept a turn and give it the lane, for which `starts_plainly` was asked."""
    turn_id, run_id, worker = command.turn_id, command.run_id, command.worker
    number, seq, epoch = session.turn_count + 1, session.head_seq + 1, session.version + 1
    turn = replace(
        _FIRST_ATTEMPT, id=turn_id, session_id=session.id, tenant=session.tenant, number=number,
        position=number, source=command.source, owner=worker, request=command.request,
        body_hash=command.body_hash, first_seq=seq, kept_seq=seq, last_seq=seq, accepted_at=now,
        started_at=now,
    )  # fmt: skip
    run = replace(
        BLANK_RUN, id=run_id, turn_id=turn_id, session_id=session.id,
        generation=session.generation, epoch=epoch, worker=worker, first_seq=seq + 1,
        started_at=now,
    )  # fmt: skip
    after = replace(
        session, epoch=epoch, version=epoch, head_seq=seq, event_no=session.event_no + 1,
        turn_count=number, active_turn_id=turn_id, active_run_id=run_id, owner=worker,
        hold_until=None, pending_calls=None,
        last_user_activity_at=(
            now if command.source in USER_ACTIVITY else session.last_user_activity_at
        ),
    )  # fmt: skip
    event = Event(session.id, after.event_no, session.tenant, "turn.started", turn_id, b"{}", now)
    items = _stored(command.items, turn, session.head_seq, now)
    entry = Entry(turn, True, [run], items, events=[event])
    fence = Fence(session.id, session.generation, run_id, epoch)
    started = Started(turn, after, run, fence)
    return Decision(started, (LogAppended(after, session, (entry,), now),))


def ends_plainly(command: Finish, facts: Facts) -> bool:
    """Whether a run that holds its lane ends with an answer, and nobody waits behind it."""
    session, run, turn = facts.session, facts.active_run, facts.active
    if session is None or run is None or turn is None or command.outcome != "completed":
        return False
    if _finish_options(command) != _NO_FINISH_OPTIONS or facts.heads or facts.waiting.count:
        return False
    if run.partial is not None or turn.first_seq is None:
        return False
    if command.after_seq not in (None, session.head_seq) or len(command.items) > MAX_PLAIN_ITEMS:
        return False
    size = 0
    for item in command.items:
        size += len(item.body)
    usage = command.usage
    return size <= MAX_PLAIN_BYTES and (usage is None or usage.is_countable)


def end(command: Finish, session: Session, turn: Turn, run: Run, now: float) -> Decision[Ended]:
    """End a turn with its answer and free the lane, for which `ends_plainly` was asked."""
    last, usage = session.head_seq + len(command.items), command.usage
    turn = replace(
        turn, kept_seq=last, last_seq=last, outcome="completed", error_code=None,
        error_message=None, is_retryable=False, ended_at=now,
    )  # fmt: skip
    run = replace(
        run, last_seq=last, record_no=session.record_no, outcome="completed", error_code=None,
        error_message=None, ended_at=now, result=command.result,
        input_tokens=usage.input_tokens if usage else run.input_tokens,
        cached_tokens=usage.cached_tokens if usage else run.cached_tokens,
        output_tokens=usage.output_tokens if usage else run.output_tokens,
        reasoning_tokens=usage.reasoning_tokens if usage else run.reasoning_tokens,
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
    detail = _ITEM_RANGE % (turn.first_seq, last)
    event = Event(
        session.id, after.event_no, session.tenant, "turn.completed", turn.id, detail, now
    )
    items = _stored(command.items, turn, session.head_seq, now)
    entry = Entry(turn, False, [run], items, events=[event])
    return Decision(Ended(turn, after, run), (LogAppended(after, session, (entry,), now),))


def _stored(items: Sequence[NewItem], turn: Turn, seq: int, now: float) -> list[StoredItem]:
    """Return items of a turn as they stand in the log behind `seq`."""
    stored: list[StoredItem] = []
    session_id = turn.session_id
    for item in items:
        seq += 1
        name = item.item_id or mint_name(item.kind, session_id, seq, now)
        stored += (
            StoredItem(
                session_id, seq, turn.number, item.kind, name, item.call_id, item.fingerprint,
                False, item.body,
            ),
        )  # fmt: skip
    return stored
