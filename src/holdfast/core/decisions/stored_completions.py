"""Decide about stored answers: annotate a chat completion, delete a response."""

from msgspec.structs import replace

from holdfast.core.errors import NotFound, TurnNotFound
from holdfast.core.transaction.changes import (
    CompletionRow,
    CompletionSaved,
    Decision,
    ResponseDropped,
    refuse,
)
from holdfast.core.transaction.commands import AnnotateCompletion, DropResponse
from holdfast.core.transaction.facts import Facts


class CompletionNotFound(NotFound):
    """No stored completion has this id."""

    code = "completion_not_found"


def annotate_completion(command: AnnotateCompletion, facts: Facts) -> Decision[CompletionRow]:
    """Replace a stored completion's metadata."""
    row = facts.completion
    if row is None or row.tenant != command.tenant:
        return refuse(CompletionNotFound("no such stored completion"))
    change = CompletionSaved(row.turn_id, row.step, command.metadata)
    return Decision(replace(row, metadata=command.metadata), (change,))


def drop_response(command: DropResponse, facts: Facts) -> Decision[bool]:
    """Delete a response; its session keeps the history."""
    turn, session = facts.turn, facts.session
    if (
        turn is None
        or session is None
        or turn.tenant != command.tenant
        or session.deleted_at is not None
        or command.step > turn.step
    ):
        return refuse(TurnNotFound(f"no turn {command.turn_id}"))
    dropped = ResponseDropped(turn.id, command.step, session.id, facts.now)
    return Decision(outcome=True, changes=(dropped,))
