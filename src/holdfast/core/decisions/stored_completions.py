"""Stored chat completions: which can be listed, and what their clients note on them."""

from msgspec.structs import replace

from holdfast.core.errors import NotFound
from holdfast.core.transaction.changes import CompletionRow, CompletionSaved, Decision, refuse
from holdfast.core.transaction.commands import AnnotateCompletion
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
