"""The first turn of a session is written and cached as after reading that there is none."""

from typing import Any

import pytest

from holdfast.core.ids import RunId
from holdfast.core.transaction.commands import Accept, Command, Finish, Started
from holdfast.core.transaction.facts import Facts
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned, plan
from holdfast.stores.sql.optimistic.decisions import decide_from_cache
from holdfast.stores.sql.optimistic.plain_turns import (
    ADD_FIRST_SESSION,
    PLANNERS,
    plan_end,
    plan_start,
)
from holdfast.stores.sql.plan import Row
from tests.unit.core.builders import NOW, a_session, an_accept
from tests.unit.core.first_turns import OTHER_FIRSTS, PLAIN_FIRSTS
from tests.unit.core.plain_commands import NAMED, SAID

ARRIVAL: type[Command[Any]] = Accept


def read_first(command: Accept, lanes: LaneCache) -> tuple[Planned, int]:
    """Return the plan of a command for which nothing is found, and how often that was read."""
    steps, reads, rows = plan(command, NOW, lanes), 0, list[Row]()
    try:
        ask = next(steps)
        while True:
            reads += 1
            # The last generation is an aggregate: it has a row where there are none.
            rows = [(None,)] if ask[0] is sql.LAST_GENERATION else []
            ask = steps.send(rows)
    except StopIteration as stop:
        planned: Planned = stop.value
        return planned, reads


@pytest.mark.parametrize("fields", PLAIN_FIRSTS)
@pytest.mark.parametrize("more", [{}, {"run_id": RunId("run_other")}, {"key": None}])
def test_a_plain_first_turn_is_written_as_after_reading(
    fields: dict[str, Any], more: dict[str, Any]
) -> None:
    here, there = LaneCache(), LaneCache()
    command = an_accept(**(fields | more))
    planned = PLANNERS[Accept](command, NOW, here)
    general, reads = read_first(command, there)
    assert planned is not None
    assert planned.lane is not None
    assert reads == (2 if command.key is not None else 0)
    assert planned.decision == general.decision
    assert [ask[1] for ask in planned.writes] == [ask[1] for ask in general.writes]
    assert planned.writes[1:] == general.writes[1:]
    gate = ADD_FIRST_SESSION if command.key is not None else sql.ADD_SESSION
    assert (planned.writes[0][0], general.writes[0][0]) == (gate, sql.ADD_SESSION)
    here.put(planned.lane)
    session_id = command.candidate_id
    assert here.find(session_id) == there.find(session_id)
    assert (here.keys, here.held_bytes) == (there.keys, there.held_bytes)
    assert here.expects_new_keys


@pytest.mark.parametrize("fields", OTHER_FIRSTS)
def test_any_other_first_turn_is_read_first(fields: dict[str, Any]) -> None:
    assert PLANNERS[Accept](an_accept(**fields), NOW, LaneCache()) is None


def test_the_session_is_the_gate_of_a_key_alone() -> None:
    lanes = LaneCache()
    keyed = plan_start(an_accept(), NOW, lanes)
    keyless = plan_start(an_accept(key=None), NOW, lanes)
    assert keyed is not None
    assert keyless is not None
    assert [ask[0] for ask in keyed.writes] == [ADD_FIRST_SESSION, sql.ADD_ENTRY, sql.HOLD_LANE]
    assert keyed.writes[0][0].is_fenced
    assert keyless.writes[0][0] is sql.ADD_SESSION


def test_an_id_of_a_client_is_indexed_with_the_first_turn() -> None:
    planned = plan_start(an_accept(items=(NAMED,)), NOW, LaneCache())
    assert planned is not None
    assert planned.writes[-1][0] is sql.ADD_ITEM_ID


def test_after_a_key_that_has_a_session_the_next_one_is_read_first() -> None:
    lanes = LaneCache()
    lanes.learn(Facts(now=NOW, session=a_session(is_live=False)))
    assert PLANNERS[Accept](an_accept(), NOW, lanes) is None
    # Without a key there is nothing to be found.
    assert PLANNERS[Accept](an_accept(key=None), NOW, lanes) is not None
    lanes.learn(Facts(now=NOW, next_generation=2))
    assert PLANNERS[Accept](an_accept(), NOW, lanes) is None
    lanes.learn(Facts(now=NOW))
    assert PLANNERS[Accept](an_accept(), NOW, lanes) is not None


def test_a_key_is_new_again_after_its_first_turn_was_rolled_back() -> None:
    lanes = LaneCache()
    lanes.begin()
    first = plan_start(an_accept(), NOW, lanes)
    assert first is not None
    assert first.lane is not None
    lanes.put(first.lane)
    assert lanes.keys
    lanes.rollback()
    assert not lanes.keys
    assert PLANNERS[Accept](an_accept(), NOW, lanes) is not None


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANNERS, ARRIVAL, decide_from_cache)
    assert PLANNERS[Accept](an_accept(), NOW, LaneCache()) is None
    assert PLANNERS[Accept](an_accept(key=None), NOW, LaneCache()) is None


def test_the_turn_ends_in_one_step_as_well() -> None:
    lanes = LaneCache()
    first = plan_start(an_accept(), NOW, lanes)
    assert first is not None
    assert first.lane is not None
    lanes.put(first.lane)
    started = first.decision.outcome
    assert isinstance(started, Started)
    end = plan_end(Finish(fence=started.fence, outcome="completed", items=SAID), NOW, lanes)
    assert end is not None
    assert end.lane is not None
    assert end.lane.session.active_turn_id is None
