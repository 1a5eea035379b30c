"""What happened to approvals, schedules, stops and erasures in a story."""

from collections.abc import Iterator
from itertools import pairwise

from holdfast.core.decisions.accept import SUPERSEDED
from holdfast.core.decisions.schedules import ScheduleChanged
from holdfast.core.errors import HoldfastError
from holdfast.core.model.gateway_items import (
    APPROVAL_PREFIX,
    GATEWAY_KINDS,
    GatewayApproval,
    GatewayCall,
    GatewayCompletion,
    load_item,
)
from holdfast.core.model.items import StoredItem
from holdfast.core.model.schedule import ScheduleRow
from holdfast.core.model.synthetic_outputs import OUTCOME_UNKNOWN
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import (
    ContentErased,
    Decision,
    LogAppended,
    ScheduleDropped,
    ScheduleSaved,
)
from tests.simulation.disk import Written, outcome_of
from tests.simulation.world import Story
from tests.written_rows import EventAdded, ItemsAdded, rows_of


def feature_facts(story: Story) -> Iterator[str]:
    """Yield a line for each event."""
    yield from _heard(story)
    yield from _scheduled(story)
    yield from _stopped(story)
    yield from _superseded(story)
    for written in story.journal:
        outcome = outcome_of(written)
        if not isinstance(written.result, Decision) or isinstance(outcome, HoldfastError):
            continue
        yield from _ended(written.command, written.result)
        yield from _hidden(written.command, written.result)
        for row in rows_of(written.result.changes):
            if isinstance(row, ItemsAdded):
                yield from _asked(row.items)


def _heard(story: Story) -> Iterator[str]:
    for heard in story.heard:
        if heard.op.kind == "search" and heard.answer and heard.error is None:
            yield "a search found something"
        if heard.op.kind == "approve" and heard.part != "look":
            if heard.error == "approval_not_found":
                yield "an approval was answered too late, or twice"
            elif heard.error == "approval_forbidden":
                yield "an approval was refused to a stranger"
    yield from ("a call was allowed and ran" for call in story.tools.calls if call.needs_approval)
    if story.image.gone[-1][1].summaries:
        yield "a summary was erased with an item"


def _stopped(story: Story) -> Iterator[str]:
    stops: set[str] = set()
    for written in story.journal:
        command = written.command
        if isinstance(command, cmd.StopTurns) and isinstance(written.result, Decision):
            if command.idempotency_key in stops:
                yield "a stop was delivered again"
            elif written.result.outcome:
                yield "a stop ended turns"
            stops.add(command.idempotency_key)


def _superseded(story: Story) -> Iterator[str]:
    """Yield what happened to streams whose readers left, or read on."""
    for written in story.journal:
        command, outcome = written.command, outcome_of(written)
        if isinstance(command, cmd.Finish) and command.error_code == SUPERSEDED:
            yield "a stopped answer was superseded"
        if isinstance(command, cmd.SettleStop):
            if command.is_granted and outcome is True:
                yield "the worker of a stopped answer granted its end"
            elif not command.is_granted and outcome is False:
                yield "a process took back what it had asked of the worker of a turn"
    yield from _left(story)


def _left(story: Story) -> Iterator[str]:
    turns = story.image.turns
    for first, again in pairwise(story.sent):
        turn = turns.get(first.turn_id)
        if first.op.id != again.op.id or turn is None:
            continue
        if first.turn_id == again.turn_id:
            yield "a repeat of a stopped request got its turn"
        elif again.is_refused and turn.outcome == "completed":
            yield "a refused request left a stopped answer alone"
        elif again.turn_id and turn.outcome == "completed" and not first.op.leaves:
            yield "a turn was queued behind an answer that was read on"


def _asked(items: tuple[StoredItem, ...]) -> Iterator[str]:
    for item in items:
        stored = load_item(item.body) if item.kind in GATEWAY_KINDS else None
        match stored:
            case GatewayCall(code=str()):
                yield "a call waited for an approval"
            case GatewayApproval(approve=False):
                yield "a call was denied"
            case GatewayCompletion(approval_request_id=str(), error=error):
                if error == OUTCOME_UNKNOWN:
                    yield "the worker of an approved call was lost"
            case _:
                pass


def _ended(command: cmd.Command[object], decision: Decision[object]) -> Iterator[str]:
    """Yield what the end of a session met."""
    if not isinstance(command, cmd.Reset | cmd.Restore | cmd.Delete):
        return
    for change in decision.changes:
        before = change.before if isinstance(change, LogAppended) else None
        if before is not None and APPROVAL_PREFIX in (before.pending_calls or ""):
            yield "a reset or a deletion met a call that waited for an approval"
    if sum(isinstance(change, ContentErased) for change in decision.changes) > 1:
        yield "a session was deleted with its forks"


def _hidden(command: cmd.Command[object], decision: Decision[object]) -> Iterator[str]:
    if isinstance(command, cmd.IndexLog) and command.removed and decision.outcome:
        yield "the index followed an erasure"
    if not isinstance(command, cmd.Hide) or not command.erase:
        return
    yield "an item was erased"
    logs = [change for change in decision.changes if isinstance(change, LogAppended)]
    if logs and logs[0].session.active_run_id is not None:
        yield "an item was erased while a turn ran"
    if len(logs) > 1:
        yield "an item was erased that a fork shared"
    told = [row for row in rows_of(logs[:1]) if isinstance(row, EventAdded)]
    if len(told) > 1 + len(command.also):
        yield "an item was erased wherever its turn had been written"


def _scheduled(story: Story) -> Iterator[str]:
    rows: dict[str, ScheduleRow] = {}
    for written in story.journal:
        yield from _claimed(story, written, rows)
        if isinstance(written.result, Decision):
            for change in written.result.changes:
                if isinstance(change, ScheduleSaved):
                    rows[change.row.id] = change.row
                elif isinstance(change, ScheduleDropped):
                    rows.pop(change.id, None)


def _claimed(story: Story, written: Written, rows: dict[str, ScheduleRow]) -> Iterator[str]:
    command, outcome = written.command, outcome_of(written)
    if isinstance(command, cmd.SkipRun) and outcome is True and "skipped" in command.reason:
        yield "a due time was skipped"
    if not isinstance(command, cmd.Accept) or command.schedule is None:
        return
    match outcome:
        case cmd.Started() | cmd.Queued():
            yield "a due time was claimed"
            turn = story.image.turns.get(outcome.turn.id)
            if turn is not None and turn.attempts > 1:
                yield "a run of a schedule lost its worker"
        case ScheduleChanged():
            row = rows.get(command.schedule.schedule_id)
            if row is None or row.is_paused:
                yield "a due time met a pause or a deletion"
            else:
                yield "a due time was claimed by somebody else first"
        case cmd.Repeated():
            yield "a due time was claimed by somebody else first"
        case _:
            pass
