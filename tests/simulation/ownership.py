"""Check who may write, from the journal alone, independently of the engine.

A run owns its session from the commit that starts it to the first commit that ends it, starts
another, or takes the session away. Anything a run writes outside of that time is a breach.
"""

from collections.abc import Iterator, Sequence

from holdfast.core.model.turn import Fence
from holdfast.core.transaction.changes import Decision, LateWriteNoted
from holdfast.core.transaction.commands import Compact, Ended, Extend, Started
from tests.simulation.disk import Written
from tests.written_rows import ItemsAdded, RunAdded, RunSaved, SessionAdded, SessionSaved, rows_of


def late_writes(journal: Sequence[Written]) -> Iterator[str]:
    """Yield every successful write of a run that did not own its session at that commit."""
    owners: dict[str, str | None] = {}
    for written in journal:
        decision = written.result
        if not isinstance(decision, Decision):
            continue
        command = written.command
        fence = getattr(command, "fence", None)
        if isinstance(fence, Fence):
            yield from _judge(fence, decision, owners)
        for change in rows_of(decision.changes):
            if isinstance(change, SessionAdded | SessionSaved):
                owners[change.session.id] = change.session.active_run_id
        begun = _begun(decision)
        if begun is not None and not begun.session.is_live:
            yield f"I5 {begun.run.id} was started in the retired {begun.session.id}"


def _begun(decision: Decision[object]) -> Started | None:
    """Return the run that a commit started: of its own turn or of the next one."""
    outcome = decision.outcome
    if isinstance(outcome, Ended):
        return outcome.successor
    return outcome if isinstance(outcome, Started) else None


def _judge(
    fence: Fence, decision: Decision[object], owners: dict[str, str | None]
) -> Iterator[str]:
    owner = owners.get(fence.session_id)
    rows = rows_of(decision.changes)
    touches = [change for change in rows if not isinstance(change, LateWriteNoted)]
    if owner != fence.run_id and touches:
        yield f"I5 {fence.run_id} wrote to {fence.session_id}, which {owner} owned"
    for change in rows:
        if isinstance(change, LateWriteNoted) and change.run_id != fence.run_id:
            yield f"I5 {fence.run_id} changed the record of {change.run_id}"
        if isinstance(change, RunSaved) and change.run.id != fence.run_id:
            yield f"I5 {fence.run_id} changed the record of {change.run.id}"
        if isinstance(change, ItemsAdded) and owner != fence.run_id:
            yield f"I5 {fence.run_id} added items to {fence.session_id}"


def starts(journal: Sequence[Written]) -> dict[str, int]:
    """Return the place in the journal where each run was started."""
    return {
        row.run.id: place
        for place, written in enumerate(journal)
        if isinstance(written.result, Decision)
        for row in rows_of(written.result.changes)
        if isinstance(row, RunAdded)
    }


def swallowed(journal: Sequence[Written]) -> Iterator[str]:
    """Yield every summary that covers more than its run can have read."""
    seen: dict[str, int] = {}
    for written in journal:
        decision, command = written.result, written.command
        if not isinstance(decision, Decision) or isinstance(decision.outcome, BaseException):
            continue
        begun = _begun(decision)
        if begun is not None:
            seen[begun.run.id] = begun.session.head_seq
        elif isinstance(command, Extend):
            seen[command.fence.run_id] = decision.outcome.head_seq
        elif isinstance(command, Compact) and command.to_seq > seen[command.fence.run_id]:
            yield f"I8 {command.fence.run_id} summed up to item {command.to_seq}"
