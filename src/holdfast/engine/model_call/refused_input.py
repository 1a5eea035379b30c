"""Finds what a refusal of a run's input may be about."""

from collections.abc import Sequence

from holdfast.core.healing.refused_input import RefusedInput, find_refused_input
from holdfast.core.model.items import StoredItem
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.ports.store import Reader


async def refused_input(
    read: Reader, run: ActiveRun, history: Sequence[StoredItem] | None = None
) -> RefusedInput:
    """Return what a refusal of a run's input may be about, in what the model was shown."""
    turn = run.turn
    first, last = turn.first_seq, turn.last_seq
    assert first is not None
    assert last is not None
    if turn.step:
        # Later steps answer the outputs of tools that were called in earlier ones.
        runs = await read.runs(turn.id)
        ends = [one.last_seq for one in runs if one.step < turn.step and one.last_seq]
        first = max(ends) + 1 if ends else first
    if history is None:
        history = await read.context(run.session)
    return find_refused_input(history, first, last)
