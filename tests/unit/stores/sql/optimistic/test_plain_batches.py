"""A batch that continues the last one writes and caches what the general path does."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.decisions.append import continue_turn
from holdfast.core.transaction.commands import AppendBatch, Appended
from holdfast.core.transaction.facts import Facts
from holdfast.stores.cache.lane_cache import Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.change_writer import writes
from holdfast.stores.sql.command_plans import Planned
from holdfast.stores.sql.optimistic.plain_turns import plan_batch
from tests.unit.core.builders import NOW
from tests.unit.core.plain_batch_commands import OTHER_BATCHES, PLAIN_BATCHES, a_batch, last_batch
from tests.unit.core.plain_commands import NAMED
from tests.unit.stores.sql.optimistic.comparison import compare_plans


def cached(known: Appended | None, **fields: Any) -> LaneCache:
    """Return a cache that knows the lane as the last batch left it, or with other fields."""
    lanes = LaneCache()
    if known is not None and known.session.is_live:
        lanes.put(Lane(replace(known.session, **fields)))
    return lanes


def plan_from_facts(command: AppendBatch, now: float, _: LaneCache) -> Planned:
    """Return the plan of a batch after its session and turn were read."""
    known = command.known
    assert known is not None
    decision = continue_turn(command, Facts(now=now, session=known.session, turn=known.turn))
    return Planned(decision, writes(decision.changes))


def check_general_path(fields: dict[str, Any], known: Appended) -> Planned | None:
    """Return the plan of a batch, compared with that of the general path."""
    return compare_plans(a_batch(known, **fields), cached(known), cached(known), plan_from_facts)


@pytest.mark.parametrize(("fields", "known"), PLAIN_BATCHES)
def test_a_batch_that_continues_is_written_as_in_the_general_path(
    fields: dict[str, Any], known: Appended
) -> None:
    planned = check_general_path(fields, known)
    assert planned is not None
    assert planned.writes[0][0] is sql.APPEND_ENTRY
    assert (planned.lane is not None) == known.session.is_live


@pytest.mark.parametrize(("fields", "known"), OTHER_BATCHES)
def test_any_other_batch_is_read_first(fields: dict[str, Any], known: Appended | None) -> None:
    assert plan_batch(a_batch(known, **fields), NOW, cached(known)) is None


def test_ids_of_clients_are_indexed() -> None:
    planned = check_general_path({"items": (NAMED,)}, last_batch())
    assert planned is not None
    assert [ask[0] for ask in planned.writes] == [sql.APPEND_ENTRY, sql.ADD_ITEM_ID]


@pytest.mark.parametrize("fields", [{"version": 5}, {"version": 7, "head_seq": 5}])
def test_a_lane_that_is_cached_in_another_state_is_forgotten(fields: dict[str, Any]) -> None:
    known = last_batch()
    here, there = cached(known, **fields), cached(known, **fields)
    planned = compare_plans(a_batch(known), here, there, plan_from_facts)
    assert planned is not None
    assert planned.lane is None
    here.note(planned.decision.changes)
    assert here.find(known.session.id) is None
