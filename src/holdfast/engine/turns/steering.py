"""Steering: input that joins a running turn at its next model call.

It was accepted as a turn of its own and waits before all others. If no further call comes, it
runs as the next turn.
"""

from holdfast.core.ids import TurnId
from holdfast.core.model.turn import STEERING
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.streaming.journal_writer import JournalWriter
from holdfast.ports.store import TurnReader

MAX_JOINING = 100
"""How many inputs join at one model call."""


async def waiting_input(read: TurnReader, run: ActiveRun) -> tuple[TurnId, ...]:
    """Return the turns that wait to join a run, in the order in which they arrived."""
    views = await read.turns(run.session.id, after=run.turn.number, limit=MAX_JOINING)
    return tuple(
        view.turn.id
        for view in views
        if view.turn.is_open and view.turn.position < STEERING // 2 and not view.turn.attempts
    )


def has_waiting(run: ActiveRun) -> bool:
    """Whether turns were accepted behind the run's turn before its run began."""
    return run.session.turn_count > run.turn.number


async def join_waiting_input(
    read: TurnReader, run: ActiveRun, writer: JournalWriter | None
) -> None:
    """Have input that waits join a turn whose client has sent the outputs of its tools."""
    joining = await waiting_input(read, run) if has_waiting(run) else ()
    if not joining:
        return
    if writer is not None:
        await writer.settle()
    await run.commit_step((), merges=joining)
    if writer is not None:
        writer.begin_step()
