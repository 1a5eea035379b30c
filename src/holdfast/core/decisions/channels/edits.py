"""Edits of messages: they replace the input of waiting turns; turns that have begun stay."""

from msgspec.structs import replace

from holdfast.core.decisions.lane import pack_items
from holdfast.core.model.session import Session
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.changes import Decision, IdempotencyRow
from holdfast.core.transaction.commands import EditWaiting
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.session_draft import Draft


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
