"""The two commits of a turn on a busy lane write and cache what the general path does."""

from typing import Any

import pytest

from holdfast.core.ids import RunId, TurnId
from holdfast.core.model.turn import Successor, Turn
from holdfast.core.transaction.commands import Command, Ended, Finish, Queued, Started
from holdfast.stores.cache.lane_cache import LANE_BYTES, Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.optimistic.plain_turns import plan_end, plan_start
from tests.unit.core.builders import NOW, an_accept, idle
from tests.unit.core.plain_commands import NAMED, SAID, an_end
from tests.unit.core.plain_queue_commands import (
    NEXT,
    OTHER_HAND_OVERS,
    OTHER_QUEUED,
    PLAIN_HAND_OVERS,
    PLAIN_QUEUED,
    TWO,
    Busy,
    a_waiting_turn,
    behind,
)
from tests.unit.stores.sql.optimistic.comparison import compare_plans


def cached(lane: Busy) -> LaneCache:
    """Return a cache that knows a lane and the turns that wait in it."""
    lanes, (facts, waiting) = LaneCache(), lane
    lanes.expects_new_keys = False
    assert facts.session is not None
    size = sum(map(_size, waiting))
    lanes.put(Lane(facts.session, facts.active, facts.active_run, waiting, size, facts.waiting))
    return lanes


def _size(turn: Turn) -> int:
    return LANE_BYTES + len(turn.request) + len(turn.input or b"")


def check_general_path(command: Command[Any], lane: Busy) -> Planned | None:
    """Return the plan of a command on a cached lane, compared with that of the general path."""
    return compare_plans(command, cached(lane), cached(lane))


@pytest.mark.parametrize(("fields", "lane"), PLAIN_QUEUED)
def test_a_turn_that_waits_is_written_as_in_the_general_path(
    fields: dict[str, Any], lane: Busy
) -> None:
    planned = check_general_path(an_accept(**fields), lane)
    assert planned is not None
    assert planned.lane is not None
    assert [ask[0] for ask in planned.writes] == [sql.APPEND_ENTRY, sql.ENQUEUE]


@pytest.mark.parametrize(("fields", "lane"), OTHER_QUEUED)
def test_any_other_arrival_on_a_busy_lane_takes_the_general_path(
    fields: dict[str, Any], lane: Busy
) -> None:
    planned = check_general_path(an_accept(**fields), lane)
    assert planned is None or planned.lane is None


@pytest.mark.parametrize(("fields", "lane"), PLAIN_HAND_OVERS)
def test_an_end_that_hands_the_lane_over_is_written_as_in_the_general_path(
    fields: dict[str, Any], lane: Busy
) -> None:
    planned = check_general_path(an_end(lane[0], **fields), lane)
    assert planned is not None
    assert planned.lane is not None
    assert planned.lane.waiting == lane[1][1:]


@pytest.mark.parametrize(("fields", "lane"), OTHER_HAND_OVERS)
def test_any_other_end_on_a_busy_lane_takes_the_general_path(
    fields: dict[str, Any], lane: Busy
) -> None:
    planned = check_general_path(an_end(lane[0], **fields), lane)
    assert planned is None or planned.lane is None


def test_ids_of_clients_are_indexed_when_their_turn_starts() -> None:
    lane = behind(PLAIN_HAND_OVERS[0][1][0], a_waiting_turn(2, NAMED))
    planned = check_general_path(an_end(lane[0], **NEXT), lane)
    assert planned is not None
    assert [ask[0] for ask in planned.writes] == [
        sql.APPEND_ENTRY, sql.ADD_ENTRY, sql.HOLD_LANE, sql.ADD_ITEM_ID, sql.DEQUEUE,
    ]  # fmt: skip


def test_a_log_that_was_written_over_meanwhile_is_read() -> None:
    facts, _ = PLAIN_HAND_OVERS[5][1]
    lane = behind(facts, TWO)
    assert check_general_path(an_end(facts, **NEXT, shown_records=2), lane) is None


def test_turns_that_wait_are_given_the_lane_one_after_the_other() -> None:
    lanes = cached(behind(idle()))

    def carry_out(planned: Planned | None) -> Any:
        assert planned is not None
        assert planned.lane is not None
        lanes.put(planned.lane)
        return planned.decision.outcome

    started = carry_out(plan_start(an_accept(), NOW, lanes))
    assert isinstance(started, Started)
    names = [TurnId("turn_b"), TurnId("turn_c")]
    for name in names:
        waits = carry_out(plan_start(an_accept(turn_id=name), NOW, lanes))
        assert isinstance(waits, Queued)
    for name in names:
        end = Finish(
            fence=started.fence, outcome="completed", items=SAID,
            successor=Successor(name, RunId("run" + name.removeprefix("turn"))),
        )  # fmt: skip
        ended = carry_out(plan_end(end, NOW, lanes))
        assert isinstance(ended, Ended)
        assert ended.successor is not None
        started = ended.successor
        assert started.turn.id == name
    last = carry_out(
        plan_end(Finish(fence=started.fence, outcome="completed", items=SAID), NOW, lanes)
    )
    assert isinstance(last, Ended)
    known = lanes.find(last.session.id)
    assert known is not None
    assert known[0] == Lane(last.session)
