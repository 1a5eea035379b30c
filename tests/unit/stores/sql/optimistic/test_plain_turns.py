"""The two commits of a plain turn write and cache what the general path does."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.ids import RunId, SessionId, TurnId, WorkerId
from holdfast.core.transaction.commands import Accept, Command, Finish, Started
from holdfast.core.transaction.facts import Facts
from holdfast.stores.cache.lane_cache import Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.optimistic.plain_turns import PLANNERS, plan_end, plan_start
from tests.unit.core.builders import (
    NOW,
    a_fence,
    a_started_turn,
    a_turn,
    an_accept,
    idle,
    running,
)
from tests.unit.core.plain_commands import (
    NAMED,
    OTHER_ENDS,
    OTHER_STARTS,
    PLAIN_ENDS,
    PLAIN_STARTS,
    SAID,
    an_end,
)
from tests.unit.stores.sql.optimistic.comparison import compare_plans


def cached(facts: Facts) -> LaneCache:
    """Return a cache that knows the lane of the facts, and takes no other key for a new one."""
    lanes = LaneCache()
    lanes.expects_new_keys = False
    if facts.session is not None:
        queued = tuple(a_turn(position=place + 1) for place in range(facts.waiting.count))
        lane = Lane(facts.session, facts.active, facts.active_run, queued, 0, facts.waiting)
        lanes.put(lane)
    return lanes


def check_general_path(command: Command[Any], facts: Facts) -> Planned | None:
    """Return the plan of a command on a cached lane, compared with that of the general path."""
    return compare_plans(command, cached(facts), cached(facts))


@pytest.mark.parametrize(("fields", "lane"), PLAIN_STARTS)
@pytest.mark.parametrize("run_id", ["run_new", "run_other"])
def test_a_plain_start_is_written_as_in_the_general_path(
    fields: dict[str, Any], lane: dict[str, Any], run_id: str
) -> None:
    command = an_accept(**({"run_id": RunId(run_id)} | fields))
    planned = check_general_path(command, idle(**lane))
    assert planned is not None
    assert planned.lane is not None


@pytest.mark.parametrize(("fields", "facts"), OTHER_STARTS)
def test_any_other_start_takes_the_general_path(fields: dict[str, Any], facts: Facts) -> None:
    planned = check_general_path(an_accept(**fields), facts)
    assert planned is None or planned.lane is None


@pytest.mark.parametrize(
    "fields",
    [
        {"retry_count": 1},
        {"on_busy": "rollback"},
        {"key": None, "session_id": SessionId("ses_unknown")},
    ],
)
def test_a_start_that_may_need_a_read_is_not_planned_from_the_cache(fields: dict[str, Any]) -> None:
    assert check_general_path(an_accept(**fields), idle()) is None


def test_an_id_of_a_client_is_indexed_with_the_start() -> None:
    planned = plan_start(an_accept(items=(NAMED,)), NOW, cached(idle()))
    assert planned is not None
    assert [ask[0] for ask in planned.writes] == [sql.APPEND_ENTRY, sql.HOLD_LANE, sql.ADD_ITEM_ID]


MORE_ENDS: list[tuple[dict[str, Any], Facts]] = [
    ({}, running(a_started_turn(merged_into=TurnId("turn_0")))),
    ({}, running(a_started_turn(input=b"\x90", rewind_after=1, rewind_upto=2))),
    ({}, running(a_started_turn(started_at=NOW - 50))),
    ({}, running(run_fields={"id": RunId("run_second"), "step": 2, "worker": WorkerId("wrk_9")})),
    ({}, running(session={"epoch": 2, "version": 5})),
    ({"shown_records": 2}, running(session={"record_no": 2})),
]


@pytest.mark.parametrize(("fields", "facts"), [*PLAIN_ENDS, *MORE_ENDS])
def test_a_plain_end_is_written_as_in_the_general_path(
    fields: dict[str, Any], facts: Facts
) -> None:
    planned = check_general_path(an_end(facts, **fields), facts)
    session = facts.session
    assert session is not None
    shown = fields.get("shown_records")
    if shown is not None and session.record_no > shown:
        # What was written over the log meanwhile has to be read.
        assert planned is None
    else:
        assert planned is not None
        assert planned.lane is not None


@pytest.mark.parametrize(("fields", "facts"), OTHER_ENDS)
def test_any_other_end_takes_the_general_path(fields: dict[str, Any], facts: Facts) -> None:
    planned = check_general_path(an_end(facts, **fields), facts)
    assert planned is None or planned.lane is None


@pytest.mark.parametrize("field", ["generation", "epoch", "run_id"])
def test_a_run_that_lost_its_lane_is_not_planned_from_the_cache(field: str) -> None:
    facts = running()
    other: dict[str, Any] = {field: RunId("run_x") if field == "run_id" else 99}
    ending = replace(an_end(facts), fence=replace(a_fence(facts), **other))
    assert plan_end(ending, NOW, cached(facts)) is None


def test_a_session_that_is_not_cached_is_read() -> None:
    assert plan_start(an_accept(), NOW, cached(Facts(now=NOW))) is None
    assert plan_end(an_end(running()), NOW, LaneCache()) is None


def test_the_common_turn_is_planned_in_one_step() -> None:
    assert PLANNERS[Accept] is plan_start
    assert PLANNERS[Finish] is plan_end
    lanes = cached(idle())
    start = plan_start(an_accept(), NOW, lanes)
    assert start is not None
    assert start.lane is not None
    lanes.put(start.lane)
    started = start.decision.outcome
    assert isinstance(started, Started)
    end = plan_end(Finish(fence=started.fence, outcome="completed", items=SAID), NOW, lanes)
    assert end is not None
    assert end.lane is not None
    assert end.lane.session.active_turn_id is None
