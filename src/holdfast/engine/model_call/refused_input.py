"""Finds the items that a refusal of a run's input may refer to."""

from collections.abc import Sequence

from holdfast.core.healing.refused_input import RefusedInput, find_refused_input
from holdfast.core.model.items import StoredItem
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.ports.store import Reader


async def refused_input(
    read: Reader, run: ActiveRun, history: Sequence[StoredItem] | None = None
) -> RefusedInput:
    """Divide the input of a run's model call by what a refusal may refer to."""
    turn = run.turn
    first, last = turn.first_seq, turn.last_seq
    assert first is not None
    assert last is not None
    if turn.step:
        # Later steps answer the outputs of tools that were called in earlier steps.
        runs = await read.runs(turn.id)
        ends = [one.last_seq for one in runs if one.step < turn.step and one.last_seq]
        first = max(ends) + 1 if ends else first
    if history is None:
        history = await read.context(run.session)
    return find_refused_input(history, first, last)
