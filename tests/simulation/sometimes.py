"""Events that must happen sometimes: a simulation in which they never do proves nothing."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from holdfast.core.errors import (
    HoldfastError,
    IdempotencyMismatch,
    LaneFull,
    RunFenced,
    SessionBusy,
    SessionChanged,
    SessionHasForks,
    SessionRetired,
)
from holdfast.core.model.session import Session
from holdfast.core.model.turn import STEERING
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import (
    Accept,
    AppendBatch,
    Appended,
    Claim,
    Command,
    Compact,
    Delete,
    Ended,
    Extend,
    Finish,
    Hide,
    Pop,
    Popped,
    Queued,
    Renew,
    Repeated,
    RequestStop,
    Reset,
    Restore,
    Started,
)
from tests.simulation.disk import Written, outcome_of
from tests.simulation.feature_facts import feature_facts
from tests.simulation.replica import Answer
from tests.simulation.shown import is_void, summary_in_force, told
from tests.simulation.world import Story
from tests.written_rows import EventAdded, RecordAdded, TurnSaved, rows_of

EXPECTED = (
    "a process crashed",
    "a process froze",
    "a process stopped cleanly",
    "a crash hit a process that was stopping",
    "a stop interrupted a call",
    "a stop interrupted a stream",
    "a stop interrupted a tool",
    "a stop interrupted a compaction",
    "the clock was set forward",
    "the clock was set back",
    "a crash hit a process that was recovering",
    "a commit went through unheard",
    "a command that went through unheard was answered when sent again",
    "a turn left behind was adopted",
    "a turn was interrupted because its worker was lost",
    "a turn was given up after too many lost workers",
    "a retry resumed a torn turn",
    "a torn turn was written anew behind later ones",
    "a zombie wrote and was fenced",
    "a worker was taken for dead and born again",
    "a turn waited for its lane and got it",
    "a lane was handed to the turn behind",
    "a reset met a running turn",
    "a reset was refused because the session had changed",
    "a deletion met a running turn",
    "a deletion was refused because of forks",
    "an old generation came back",
    "a turn interrupted another",
    "a turn rolled another back",
    "a turn was rejected because the lane was busy",
    "a lane was full",
    "outputs joined the turn that waited for them",
    "outputs came too late",
    "a hold ran out",
    "a repeat was attached to a running turn",
    "a repeat was answered from the record",
    "an idempotency key was refused for another body",
    "a retired session was named by its id",
    "a session rolled over while idle",
    "a session rolled over at its daily hour",
    "an edit hid a part of the log",
    "an internal turn ran beside its key",
    "a fork was spoken to",
    "a stranger was turned away",
    "a half-finished answer was kept",
    "a batch was added to a turn that runs elsewhere",
    "a batch had its turn moved behind others",
    "a batch was added to a retired session",
    "a summary was asked for and made",
    "a turn had a summary made so that it fits",
    "an output was shown short",
    "a summary was undone",
    "a summary came too late and was fenced",
    "a summary was void because a part of it was hidden",
    "a fork was shown a summary of its parent",
    "a tool of the gateway ran",
    "a call was repeated because its tool is safe",
    "a call of unknown outcome was not repeated",
    "a provider was chained to",
    "a conversation was continued",
    "a provider forgot and was told anew",
    "input joined a running turn",
    "input that was to join a turn ran as the next one",
    "a burst of messages became one turn",
    "a turn went on behind an answer that was not the last",
    "a turn went on behind the last answer",
    "an item was hidden while a turn ran",
    "the last item was taken back",
    "the worker of a turn was asked to end it",
    "a call waited for an approval",
    "a call was allowed and ran",
    "a call was denied",
    "an approval was answered too late, or twice",
    "an approval was refused to a stranger",
    "an approval was never given",
    "a reset or a deletion met a call that waited for an approval",
    "a due time was claimed",
    "a due time was claimed by somebody else first",
    "a due time met a pause or a deletion",
    "a due time was skipped",
    "a run of a schedule took too long",
    "a run of a schedule lost its worker",
    "a schedule was deleted while it ran",
    "a stop ended turns",
    "a stop was delivered again",
    "an item was erased",
    "an item was erased while a turn ran",
    "an item was erased that a fork shared",
    "a summary was erased with an item",
    "the index followed an erasure",
    "a session was deleted with its forks",
    "a search found something",
    "a stopped answer was superseded",
    "the worker of a stopped answer granted its end",
    "a process took back what it had asked of the worker of a turn",
    "a repeat of a stopped request got its turn",
    "a refused request left a stopped answer alone",
    "a turn was queued behind an answer that was read on",
)


def facts_of(story: Story) -> Counter[str]:
    """Return how often each event happened in a story."""
    facts = Counter(story.facts)
    facts.update(_heard(story))
    facts.update(feature_facts(story))
    for written in story.journal:
        facts.update(_written(written))
        if isinstance(written.result, Decision):
            facts.update(_changed(written.result))
    return facts


def _heard(story: Story) -> Iterator[str]:
    for heard in story.heard:
        if heard.part.startswith("pry") and heard.error in ("session_not_found", "turn_not_found"):
            yield "a stranger was turned away"
        if heard.part == "fork" and isinstance(heard.answer, Answer):
            yield "a fork was spoken to"
        if heard.op.is_internal and isinstance(heard.answer, Answer):
            yield "an internal turn ran beside its key"
    for items in story.image.items.values():
        if any(item.is_partial for item in items):
            yield "a half-finished answer was kept"
    yield from _summed_up(story)
    yield from _tools_used(story)


def _tools_used(story: Story) -> Iterator[str]:
    begun = Counter(call.call_id for call in story.tools.calls)
    for count in begun.values():
        yield "a tool of the gateway ran"
        if count > 1:
            yield "a call was repeated because its tool is safe"
    for items in story.image.items.values():
        if any(b"outcome of this call is unknown" in item.body for item in items):
            yield "a call of unknown outcome was not repeated"


def _summed_up(story: Story) -> Iterator[str]:
    image = story.image
    for session in image.sessions.values():
        records = told(image, session, session.record_no, session.head_seq)
        for place, one in enumerate(records):
            if one.record.kind == "compaction" and is_void(one, records[place + 1 :]):
                yield "a summary was void because a part of it was hidden"
        summary = summary_in_force(records)
        is_told = any(call.session_id == session.id for call in story.model.calls)
        if summary is not None and summary.record.session_id != session.id and is_told:
            yield "a fork was shown a summary of its parent"


_REFUSED: tuple[tuple[type[Command[Any]], type[HoldfastError], str], ...] = (
    (Compact, RunFenced, "a summary came too late and was fenced"),
    (Extend, RunFenced, "a zombie wrote and was fenced"),
    (Finish, RunFenced, "a zombie wrote and was fenced"),
    (Renew, RunFenced, "a worker was taken for dead and born again"),
    (Accept, IdempotencyMismatch, "an idempotency key was refused for another body"),
    (Accept, SessionBusy, "a turn was rejected because the lane was busy"),
    (Accept, LaneFull, "a lane was full"),
    (Accept, SessionRetired, "a retired session was named by its id"),
    (Reset, SessionChanged, "a reset was refused because the session had changed"),
    (Delete, SessionHasForks, "a deletion was refused because of forks"),
)


def _written(written: Written) -> Iterator[str]:
    command, outcome = written.command, outcome_of(written)
    for asked, refused, fact in _REFUSED:
        if isinstance(command, asked) and isinstance(outcome, refused):
            yield fact
    match command, outcome:
        case Accept(), Started() | Queued() | Repeated():
            yield from _admitted(command, outcome)
        case AppendBatch(), Appended():
            yield "a batch was added to a turn that runs elsewhere"
            if not outcome.session.is_live:
                yield "a batch was added to a retired session"
        case Claim(), Started():
            yield "a turn waited for its lane and got it"
            if outcome.turn.position < STEERING // 2:
                yield "input that was to join a turn ran as the next one"
        case Finish(), Ended() if outcome.successor is not None:
            yield "a lane was handed to the turn behind"
        case Finish(), Ended() if command.again:
            yield "a command that went through unheard was answered when sent again"
        case _:
            pass
    yield from _meddled(command, outcome)
    yield from _aborted(written)


def _meddled(command: Command[Any], outcome: object) -> Iterator[str]:
    match command, outcome:
        case Hide(), Session() if outcome.active_run_id is not None:
            yield "an item was hidden while a turn ran"
        case Pop(), Popped() if outcome.item is not None:
            yield "the last item was taken back"
        case RequestStop(), True:
            yield "the worker of a turn was asked to end it"
        case _:
            pass


def _aborted(written: Written) -> Iterator[str]:
    decision = written.result
    if not isinstance(decision, Decision) or isinstance(decision.outcome, BaseException):
        return
    match written.command:
        case Reset() if decision.aborted:
            yield "a reset met a running turn"
        case Delete() if decision.aborted:
            yield "a deletion met a running turn"
        case Restore() if decision.changes:
            yield "an old generation came back"
        case _:
            pass


def _admitted(command: Accept, outcome: Started | Queued | Repeated) -> Iterator[str]:
    if command.again:
        yield "a command that went through unheard was answered when sent again"
    if command.parent is not None and isinstance(outcome, Started | Queued):
        if outcome.session.parent_id == command.session_id:
            yield "a turn went on behind an answer that was not the last"
        else:
            yield "a turn went on behind the last answer"
    match outcome:
        case Repeated() if outcome.is_settled:
            yield "a repeat was answered from the record"
        case Repeated():
            yield "a repeat was attached to a running turn"
        case Started() | Queued() if outcome.turn.id != command.turn_id:
            is_join = isinstance(outcome, Started) and outcome.turn.step > 0
            has_output = any(item.kind.endswith("_output") for item in command.items)
            if is_join and has_output:
                yield "outputs joined the turn that waited for them"
            else:
                yield "a retry resumed a torn turn"
        case _:
            if any(item.kind.endswith("_output") for item in command.items):
                yield "outputs came too late"


def _changed(decision: "Decision[object]") -> Iterator[str]:
    for change in rows_of(decision.changes):
        if isinstance(change, EventAdded):
            yield from _told(change)
        if isinstance(change, TurnSaved) and change.turn.merged_into is not None:
            is_steering = change.turn.position < STEERING // 2
            if is_steering:
                yield "input joined a running turn"
            else:
                yield "a burst of messages became one turn"
        if isinstance(change, RecordAdded):
            yield from _recorded(change)


def _recorded(change: RecordAdded) -> Iterator[str]:
    match change.record.kind:
        case "rewind":
            yield "an edit hid a part of the log"
        case "rollback":
            yield "a turn rolled another back"
        case "retry":
            yield "a torn turn was written anew behind later ones"
        case "move":
            yield "a batch had its turn moved behind others"
        case "elision":
            yield "an output was shown short"
        case "undo":
            yield "a summary was undone"
        case "compaction" if b'"reason":"asked"' in (change.record.body or b""):
            yield "a summary was asked for and made"
        case "compaction":
            yield "a turn had a summary made so that it fits"
        case _:
            pass


_CODES = {
    b'"worker_lost"': "a turn was interrupted because its worker was lost",
    b'"turn_abandoned"': "a turn was given up after too many lost workers",
    b'"interrupted_by_turn"': "a turn interrupted another",
    b'"tool_wait_expired"': "a hold ran out",
    b'"daily_rollover"': "a session rolled over at its daily hour",
    b'"approval_expired"': "an approval was never given",
    b'"schedule_timeout"': "a run of a schedule took too long",
    b'"schedule_deleted"': "a schedule was deleted while it ran",
}


def _told(change: EventAdded) -> Iterator[str]:
    for code, fact in _CODES.items():
        if code in change.event.body:
            yield fact
    if change.event.kind == "session.rolled_over":
        yield "a session rolled over while idle"
