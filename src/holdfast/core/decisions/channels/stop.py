"""Stop the running and waiting turns of a conversation because a person asked for it."""

from holdfast.core.decisions.lifecycle import cancel_open
from holdfast.core.ids import Tenant, TurnId
from holdfast.core.transaction.changes import (
    Change,
    Decision,
    IdempotencyRow,
    OutboxAdded,
)
from holdfast.core.transaction.commands import StopTurns
from holdfast.core.transaction.facts import Facts
from holdfast.core.transaction.outgoing import message_row
from holdfast.core.transaction.session_draft import Draft

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
