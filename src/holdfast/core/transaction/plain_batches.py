"""The decision on a batch that continues the last one of an external run, in one step.

It is one entry of the log. First batches, blocks that have to move to the head and repeats are
decided on a `Draft`, which gives the same result for the others.
"""

from msgspec.structs import replace

from holdfast.core.model.turn import USER_ACTIVITY
from holdfast.core.transaction.changes import Decision, Entry, Event, LogAppended
from holdfast.core.transaction.commands import AppendBatch, Appended
from holdfast.core.transaction.plain_turns import MAX_PLAIN_ITEMS, number_items

_ITEM_RANGE = b'{"first_seq":%d,"last_seq":%d}'
"""The detail of the event."""


def continue_plainly(command: AppendBatch, now: float) -> Decision[Appended] | None:
    """Append a batch to its turn, given the last one; None if anything else has to be decided.

    The store refuses the entry if the session was written since the last batch.
    """
    known, items = command.known, command.items
    if known is None or known.is_repeat or command.again or not 0 < len(items) <= MAX_PLAIN_ITEMS:
        return None
    if command.idempotency_key is not None or command.replaces_upto is not None:
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
