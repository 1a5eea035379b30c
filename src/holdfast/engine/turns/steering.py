"""Steering: input that joins a running turn at the turn's next model call.

It is accepted as a turn of its own, first in the queue. If there is no further model call, it runs
as the next turn.
"""

from itertools import takewhile

from holdfast.core.ids import TurnId
from holdfast.core.model.request import find_request
from holdfast.core.model.turn import STEERING, Turn
from holdfast.core.transaction.outgoing import delivery_of
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.engine.turns.tool_progress import commit_step
from holdfast.ports.store import TurnReader

MAX_JOINING = 100
"""The most inputs that join at one model call."""


async def waiting_input(read: TurnReader, run: ActiveRun) -> tuple[TurnId, ...]:
    """Return the turns that wait to join a run, in the order in which they arrived."""
    views = await read.turns(run.session.id, after=run.turn.number, limit=MAX_JOINING)
    waiting = [
        view.turn
        for view in views
        if view.turn.is_open and view.turn.position < STEERING // 2 and not view.turn.attempts
    ]
    # Stop at the first turn that may not join: it must run before those behind it.
    return tuple(turn.id for turn in takewhile(lambda each: may_join(each, run.turn), waiting))


def may_join(waiting: Turn, running: Turn) -> bool:
    """Whether the answer of a running turn reaches the sender of a waiting one.

    A turn that asks for no answer of the gateway's models, such as a compaction, does not join, nor
    does one that edits the history. A chat message joins only a turn that answers in the same
    place: a session may have several chats, API clients and schedules.
    """
    request = find_request(waiting.request)
    if request is None or waiting.rewind_after is not None:
        return False
    if request.delivery is None:
        return True
    target, place = request.delivery, delivery_of(running)
    return place is not None and running.source == "channel" and place.place == target.place


def has_waiting(run: ActiveRun) -> bool:
    """Whether turns were accepted after the run's turn, but before its run started."""
    return run.session.turn_count > run.turn.number


async def join_waiting_input(
    read: TurnReader, run: ActiveRun, writer: JournalWriter | None
) -> None:
    """Add waiting input to a turn that continues with tool outputs of its client."""
    joining = await waiting_input(read, run) if has_waiting(run) else ()
    if joining:
        await commit_step(run, writer, (), merges=joining)
