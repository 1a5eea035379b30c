"""A batch that continues the last one writes and caches what the general path does."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.transaction.commands import Appended
from holdfast.stores.cache.lane_cache import Lane, LaneCache
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.command_plans import Planned
from tests.unit.core.plain_batch_commands import OTHER_BATCHES, PLAIN_BATCHES, a_batch, last_batch
from tests.unit.core.plain_commands import NAMED
from tests.unit.stores.sql.optimistic.comparison import compare_plans


def cached(known: Appended | None, **fields: Any) -> LaneCache:
    """Return a cache that knows the lane as the last batch left it, or with other fields."""
    lanes = LaneCache()
    if known is not None and known.session.is_live:
        lanes.put(Lane(replace(known.session, **fields)))
    return lanes


def check_general_path(fields: dict[str, Any], known: Appended | None) -> Planned | None:
    """Return the plan of a batch, compared with that of the general path."""
    return compare_plans(a_batch(known, **fields), cached(known), cached(known))


@pytest.mark.parametrize(("fields", "known"), PLAIN_BATCHES)
def test_a_batch_that_continues_is_written_as_in_the_general_path(
    fields: dict[str, Any], known: Appended
) -> None:
    planned = check_general_path(fields, known)
    assert planned is not None
    assert planned.writes[0][0] is sql.APPEND_ENTRY
    assert (planned.lane is not None) == known.session.is_live


@pytest.mark.parametrize(("fields", "known"), OTHER_BATCHES)
def test_any_other_batch_takes_the_general_path(
    fields: dict[str, Any], known: Appended | None
) -> None:
    planned = check_general_path(fields, known)
    assert planned is None or planned.lane is None


def test_ids_of_clients_are_indexed() -> None:
    planned = check_general_path({"items": (NAMED,)}, last_batch())
    assert planned is not None
    assert [ask[0] for ask in planned.writes] == [sql.APPEND_ENTRY, sql.ADD_ITEM_ID]


@pytest.mark.parametrize("fields", [{"version": 5}, {"version": 7, "head_seq": 5}])
def test_a_lane_that_is_cached_in_another_state_is_forgotten(fields: dict[str, Any]) -> None:
    known = last_batch()
    here, there = cached(known, **fields), cached(known, **fields)
    planned = compare_plans(a_batch(known), here, there)
    assert planned is not None
    assert planned.lane is None
    here.note(planned.decision.changes)
    assert here.find(known.session.id) is None
