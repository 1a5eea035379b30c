"""A reader that stopped: its answer is superseded by its next request, once, and loses nothing."""

from collections.abc import Iterator
from typing import NamedTuple

from holdfast.core.decisions.accept import SUPERSEDED
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.changes import Decision
from holdfast.core.transaction.commands import Finish
from tests.simulation.model import text_of
from tests.simulation.stopping import Sent
from tests.simulation.world import Story
from tests.written_rows import TurnAdded, TurnSaved, rows_of

Breaches = Iterator[str]
CALM_SECONDS = 0.02
"""If the disk is slower than this, the worker of a run may be too late to end it itself."""


class End(NamedTuple):
    """The end of a superseded turn, by its place in the journal."""

    turn: Turn
    place: int
    waits_since: int
    """When the first turn was accepted that waits behind it."""
    known: frozenset[str]
    """The turns that were accepted before."""


def stopped_answers_are_superseded(story: Story) -> Breaches:
    """A turn is superseded once, by a request that may do it, and with everything shown."""
    turns: dict[str, Turn] = {}
    added: dict[str, int] = {}
    for place, written in enumerate(story.journal):
        if not isinstance(written.result, Decision):
            continue
        for row in rows_of(written.result.changes):
            if not isinstance(row, TurnAdded | TurnSaved):
                continue
            turn, before = row.turn, turns.get(row.turn.id)
            if before is not None and before.error_code == SUPERSEDED:
                if (turn.ended_at, turn.outcome) != (before.ended_at, before.outcome):
                    yield f"supersede {turn.id} was ended twice"
            elif turn.error_code == SUPERSEDED:
                waits = [added[other.id] for other in turns.values() if _waits(other, turn)]
                end = End(turn, place, min(waits, default=place), frozenset(added))
                yield from _is_replaced(story, end)
                if isinstance(written.command, Finish) or _is_calm(story):
                    yield from _is_kept(story, turn)
            turns[turn.id] = turn
            added.setdefault(turn.id, place)


def _waits(other: Turn, turn: Turn) -> bool:
    return other.session_id == turn.session_id and other.is_open and other.started_at is None


def _is_replaced(story: Story, end: End) -> Breaches:
    """Some request of the session replaced the turn, which its readers had left."""
    turn = end.turn
    session = story.image.sessions[turn.session_id]
    readers = [sent for sent in story.sent if sent.turn_id == turn.id and sent.read_from]
    rivals = [
        sent for sent in story.sent
        if (sent.op.tenant, sent.op.key) == (session.tenant, session.key)
        and sent.turn_id not in end.known and sent.at <= end.place
    ]  # fmt: skip
    reasons = [_why_not(sent, readers, end) for sent in rivals]
    if turn.outcome != "cancelled" or turn.source != "user":
        yield f"supersede {turn.id} of {turn.source} is {turn.outcome}"
    if None not in reasons:
        yield f"supersede {turn.id} was ended: {reasons or 'for nobody'}"


def _why_not(sent: Sent, readers: list[Sent], end: End) -> str | None:
    """Return why a request could not supersede the turn of these readers, or None."""
    before = [reader for reader in readers if reader.read_from and reader.read_from <= sent.at]
    # A reset after the end of the turn may make a request's condition false.
    is_met = (b"x-expected-session-id", end.turn.session_id.encode()) in sent.headers
    if sent.is_repeat and any(reader.op.id == sent.op.id for reader in readers):
        return "its own repeat"
    if sent.is_refused and not (is_met and sent.error == "session_changed"):
        return f"refused with {sent.error}"
    if any(reader.caller != sent.caller for reader in before):
        return "another caller"
    if any(reader.left_at is None or reader.left_at > end.place for reader in before):
        return "its reader reads on"
    if not any(reader.has_output for reader in readers):
        return "nothing was shown"
    return "somebody waits" if end.waits_since < sent.at else None


def _is_kept(story: Story, turn: Turn) -> Breaches:
    """The log has what readers saw of a turn."""
    session = story.image.sessions[turn.session_id]
    runs = [run for run in story.image.runs.values() if run.turn_id == turn.id]
    if session.deleted_at is not None or len(runs) > 1:
        return
    own = [
        text_of(item.body)
        for item in story.image.items.get(session.id, [])
        if item.turn_number == turn.number
    ]
    for sent in story.sent:
        is_there = any(text.startswith(sent.text) for text in own)
        if sent.turn_id == turn.id and sent.text and not is_there:
            yield f"shown {sent.text!r} of {turn.id} is not in {own}"


def _is_calm(story: Story) -> bool:
    plan = story.plan
    is_quick = max(plan.latencies) <= CALM_SECONDS
    return is_quick and not (plan.faults or plan.outages or plan.clock_steps)
