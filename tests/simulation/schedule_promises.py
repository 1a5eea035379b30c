"""Schedules: N replicas, one run of a due time. The stop of a chat: all open turns, once."""

from collections.abc import Iterator

from holdfast.core.decisions.channels.turns import STOPPED_CODE
from holdfast.core.model.schedule import ScheduleClaim, ScheduleRow
from holdfast.core.model.turn import Turn
from holdfast.core.transaction import commands as cmd
from holdfast.core.transaction.changes import Decision, ScheduleDropped, ScheduleSaved
from tests.simulation.clients import said_by
from tests.simulation.disk import Written
from tests.simulation.model import text_of
from tests.simulation.world import Story
from tests.written_rows import TurnAdded, TurnSaved, rows_of

Breaches = Iterator[str]

MOVING = (cmd.Accept, cmd.SkipRun, cmd.SaveSchedule, cmd.PauseSchedule)
"""Commands that may change when a schedule is due next."""


class Claims:
    """The schedules of a story as the journal tells it, commit by commit."""

    def __init__(self) -> None:
        self.rows: dict[str, ScheduleRow] = {}
        self.turns: dict[str, Turn] = {}
        self.claimed: dict[tuple[str, float], str] = {}
        self.running: dict[str, str] = {}

    def add(self, written: Written) -> Breaches:
        """Check a commit against the state before it, then apply it."""
        decision, command = written.result, written.command
        if not isinstance(decision, Decision):
            return
        is_accepted = isinstance(decision.outcome, cmd.Started | cmd.Queued)
        if isinstance(command, cmd.Accept) and command.schedule is not None and is_accepted:
            yield from self._claim(command.turn_id, command.schedule)
        for row in rows_of(decision.changes):
            if isinstance(row, ScheduleSaved):
                is_moved = row.before is not None and row.before.next_run_at != row.row.next_run_at
                if is_moved and not isinstance(command, MOVING):
                    yield f"schedule {row.row.id} was moved by {type(command).__name__}"
                self.rows[row.row.id] = row.row
            elif isinstance(row, ScheduleDropped):
                self.rows.pop(row.id, None)
            elif isinstance(row, TurnAdded | TurnSaved):
                self.turns[row.turn.id] = row.turn

    def _claim(self, turn_id: str, claim: ScheduleClaim) -> Breaches:
        name, at = claim.schedule_id, claim.scheduled_at
        if self.claimed.get((name, at)) == turn_id:
            return  # the command was sent again
        row = self.rows.get(name)
        if (name, at) in self.claimed:
            yield f"schedule {name} ran twice at {at}: {self.claimed[name, at]} and {turn_id}"
        if row is None:
            yield f"schedule {turn_id} was accepted for {name}, which had been deleted"
        elif row.is_paused:
            yield f"schedule {turn_id} was accepted for {name}, which was paused"
        before = self.turns.get(self.running.get(name, ""))
        if before is not None and before.is_open:
            yield f"schedule {turn_id} of {name} began while {before.id} was running"
        self.claimed[name, at] = turn_id
        self.running[name] = turn_id


def due_times_run_once(story: Story) -> Breaches:
    """a due time is one turn, in the claim's own commit; never paused, never two."""
    claims = Claims()
    for written in story.journal:
        yield from claims.add(written)
    image = story.image
    for turn_id in claims.claimed.values():
        turn = image.turns.get(turn_id)
        if turn is None:
            yield f"I2 {turn_id} was claimed and is not there"
        elif turn.source != "cron":
            yield f"schedule {turn_id} is a turn of source {turn.source}"
    prompts = {said_by(op, op.id) for op in story.plan.ops if op.kind == "schedule"}
    said = [
        text
        for session in image.sessions.values()
        for item in image.visible(session)
        if item.session_id == session.id and (text := text_of(item.body)) in prompts
    ]
    if len(said) > len(claims.claimed):
        yield f"I3 {len(claims.claimed)} due times were claimed, and became {said}"


def schedules_come_to_rest(story: Story) -> Breaches:
    """I6: no run is left unsettled, and no due time of the past is left unclaimed."""
    image = story.image
    for schedule in image.schedules:
        if schedule.running_turn is not None:
            yield f"I6 {schedule.id} is still running {schedule.running_turn}"
        due = schedule.next_run_at
        if due is not None and not schedule.is_paused and due < image.now - 5.0:
            yield f"I6 {schedule.id} was due at {due}, and it is {image.now}"
    known = {schedule.id for schedule in image.schedules}
    for run in image.schedule_runs:
        turn = image.turns.get(run.turn_id)
        if run.schedule_id in known and not run.outcome:
            yield f"I6 the run {run.turn_id} of {run.schedule_id} was not settled"
        # Nothing of a deleted session can be read, though its turn may have ended before.
        is_deleted = turn is None or image.sessions[turn.session_id].deleted_at is not None
        if turn is not None and run.outcome and not is_deleted and run.outcome != turn.outcome:
            yield f"I12 the run {run.turn_id} is {run.outcome}, its turn is {turn.outcome}"


def stops_are_obeyed_once(story: Story) -> Breaches:
    """A stop ends every turn accepted before it; delivered again, it ends nothing more."""
    turns: dict[str, Turn] = {}
    done: set[str] = set()
    for written in story.journal:
        decision, command = written.result, written.command
        if not isinstance(decision, Decision) or isinstance(decision.outcome, BaseException):
            continue
        saved = [r.turn for r in rows_of(decision.changes) if isinstance(r, TurnAdded | TurnSaved)]
        ended = [turn for turn in saved if turn.error_code == STOPPED_CODE
                 and turns[turn.id].is_open]  # fmt: skip
        turns.update({turn.id: turn for turn in saved})
        if not isinstance(command, cmd.StopTurns):
            yield from (f"stop {turn.id} by {type(command).__name__}" for turn in ended)
            continue
        if command.idempotency_key in done and ended:
            yield f"stop {command.idempotency_key} was obeyed twice: {[t.id for t in ended]}"
        done.add(command.idempotency_key)
        stopped = {turn.session_id for turn in ended}
        left = [turn.id for turn in turns.values() if turn.session_id in stopped and turn.is_open]
        if left:
            yield f"stop {command.idempotency_key} left {left} open"
