"""Turns of chats: bursts that become one turn, edits of waiting messages, and stops.

A burst is consecutive messages of one sender in one chat: they wait a moment and become one turn.
An edit replaces the input of a waiting turn; a turn that has begun stays as it is.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.core.decisions.lane import end_turn, pack_items, unpack_items
from holdfast.core.decisions.lifecycle import cancel_open
from holdfast.core.ids import Tenant, TurnId
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.changes import (
    Change,
    Decision,
    IdempotencyRow,
    OutboxAdded,
)
from holdfast.core.transaction.commands import EditWaiting, StopTurns
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.outgoing import delivery_of, message_row
from holdfast.core.transaction.session_draft import Draft

MAX_WAIT_FACTOR = 10
"""A burst waits for at most this many times `collect_seconds`, even if the sender keeps writing."""


def collects(turn: Turn) -> bool:
    """Whether a waiting turn may have to wait for the rest of its burst, or be merged with it."""
    return turn.source == "channel" and turn.first_seq is None


def burst_of(first: Turn, waiting: Sequence[Turn]) -> list[Turn]:
    """Return `first` and the turns of the same sender right behind it; they run as one turn."""
    delivery = delivery_of(first)
    burst = [first]
    if delivery is None or not delivery.collect_seconds:
        return burst
    for turn in waiting:
        if turn.position <= first.position:
            continue
        other = delivery_of(turn) if collects(turn) else None
        if other is None or other.burst != delivery.burst or turn.rewind_after is not None:
            break
        burst.append(turn)
    return burst


def ready_at(burst: Sequence[Turn]) -> float:
    """Return when a burst is complete: a pause after its last message, but within a limit."""
    first = burst[0]
    latest, seconds = first.accepted_at, 0.0
    for turn in burst:
        delivery = delivery_of(turn)
        wait = delivery.collect_seconds if delivery is not None else 0.0
        latest, seconds = max(latest, turn.accepted_at + wait), max(seconds, wait)
    return min(latest, first.accepted_at + seconds * MAX_WAIT_FACTOR)


def merge(draft: Draft, burst: Sequence[Turn]) -> Turn:
    """End all but the first turn of a burst; return the first with the input of all."""
    first = burst[0]
    items = list(unpack_items(first.input))
    for turn in burst[1:]:
        items += unpack_items(turn.input)
        end_turn(draft, replace(turn, input=None, merged_into=first.id), "completed")
    if len(burst) > 1:
        draft.wake()
    return replace(first, input=pack_items(items))


def edit_waiting(command: EditWaiting, facts: Facts) -> Decision[bool | None]:
    """Replace the input of a waiting turn; a repeated edit changes nothing."""
    if facts.repeat is not None:
        return Decision(bool(facts.repeat.step))
    if facts.edited is None:
        return Decision(None)
    session, turn = facts.session, facts.turn
    waits = session is not None and turn is not None and _is_waiting(session, turn)
    # Of the turn, if there is one: the next edit may name this one as the message that it changes.
    owner = command.record_id if turn is None else turn.id
    row = IdempotencyRow(command.tenant, command.idempotency_key, b"", owner, int(waits), facts.now)
    if session is None or turn is None or not waits:
        return Decision(False, (row,))
    draft = Draft(session, now=facts.now)
    draft.save_turn(replace(turn, input=pack_items(command.items)), event="turn.edited")
    draft.add(row)
    return draft.decide(True)


def _is_waiting(session: Session, turn: Turn) -> bool:
    """Whether a turn is queued in a session and none of its items are in the log yet."""
    is_here = turn.session_id == session.id and session.active_turn_id != turn.id
    return is_here and turn.is_open and turn.first_seq is None and turn.input is not None


STOPPED_CODE = "stopped_by_user"


def stop_turns(command: StopTurns, facts: Facts) -> Decision[int]:
    """Cancel the running turn and the waiting ones; a repeat of the command cancels nothing."""
    if facts.repeat is not None:
        return Decision(facts.repeat.step)
    session = facts.session
    if session is None or not session.exists_for(command.tenant):
        return Decision(0, _record(command, facts.now, 0))
    count = len(facts.open_turns)
    if not count:
        return Decision(0, _record(command, facts.now, 0))
    draft = Draft(session, now=facts.now)
    cancel_open(draft, facts, code=STOPPED_CODE, message="stopped in the chat")
    for change in _record(command, facts.now, count):
        draft.add(change)
    return draft.decide(count)


def _record(command: StopTurns, now: float, count: int) -> tuple[Change, ...]:
    """Return the command's idempotency row, with the count of stopped turns, and its replies."""
    tenant: Tenant = command.tenant
    named = TurnId(command.record_id)
    key = IdempotencyRow(tenant, command.idempotency_key, b"", named, count, now)
    rows = [
        message_row(message, tenant=tenant, source=command.record_id, part=part, now=now)
        for part, message in enumerate(command.messages)
    ]
    return (key, *map(OutboxAdded, rows))
