"""Compare the direct plan of a command with that of the general path."""

from typing import Any

from holdfast.core.transaction.commands import Command
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.optimistic.decisions import decide_from_cache
from holdfast.stores.sql.optimistic.plain_turns import PLANNERS, Planner
from tests.unit.core.builders import NOW
from tests.unit.core.plain_commands import same


def compare_plans(
    command: Command[Any],
    here: LaneCache,
    there: LaneCache,
    general_path: Planner = decide_from_cache,
) -> Planned | None:
    """Return the plan of a command, which equals that of the general path, as does the cache.

    `here` and `there` are two caches with the same lanes.
    """
    planned = PLANNERS[type(command)](command, NOW, here)
    general = general_path(command, NOW, there)
    if planned is None or general is None:
        assert planned is None
        assert general is None
        return None
    assert same(planned.decision, general.decision)
    assert planned.writes == general.writes
    if planned.lane is not None:
        here.put(planned.lane)
        there.note(general.decision.changes)
        session_id = planned.lane.session.id
        assert here.find(session_id) == there.find(session_id)
        assert (here.keys, here.held_bytes) == (there.keys, there.held_bytes)
    return planned
