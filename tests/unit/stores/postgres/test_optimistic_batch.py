"""Batches that are decided without reading: what they write, and in which order."""

from holdfast.core.ids import Key, SessionId, Tenant, TurnId
from holdfast.core.transaction.commands import Accept
from holdfast.stores.cache.lane_cache import LaneCache
from holdfast.stores.postgres.batch import waves
from holdfast.stores.postgres.optimistic_batch import decide_batch_from_cache
from holdfast.stores.postgres.row_locks import Locked
from holdfast.stores.sql import statements as sql
from holdfast.stores.sql.optimistic.plain_turns import ADD_FIRST_SESSION, KEY_AT
from tests.unit.core.builders import NOW, TENANT, an_accept


def first_turn(name: str, key: str | None, tenant: str = TENANT) -> Accept:
    return an_accept(
        candidate_id=SessionId(f"ses_{name}"),
        turn_id=TurnId(f"turn_{name}"),
        key=Key(key) if key is not None else None,
        tenant=Tenant(tenant),
    )


def test_new_sessions_come_in_the_order_of_their_keys_as_after_reading() -> None:
    commands = [
        first_turn("a", "z"), first_turn("b", "it's"), first_turn("c", 'a "b"'),
        first_turn("d", "é"), first_turn("e", "a", "other"),
    ]  # fmt: skip
    decided = decide_batch_from_cache(commands, NOW, LaneCache())
    assert decided is not None
    assert next(iter(decided.writes)) is ADD_FIRST_SESSION
    keys = [parameters[KEY_AT] for parameters in decided.writes[ADD_FIRST_SESSION]]
    (wave,) = waves(commands, Locked([], NOW))
    assert keys == [(commands[place].tenant, commands[place].key) for place in wave]


def test_a_session_without_a_key_takes_none_for_new() -> None:
    decided = decide_batch_from_cache([first_turn("a", None)], NOW, LaneCache())
    assert decided is not None
    assert ADD_FIRST_SESSION not in decided.writes
    assert list(decided.writes[sql.ADD_SESSION][0][:2])[1] == "ses_a"


def test_two_first_turns_of_one_key_are_decided_after_reading() -> None:
    lanes = LaneCache()
    both = [first_turn("a", "k"), first_turn("b", "k")]
    assert decide_batch_from_cache(both, NOW, lanes) is None
    assert not lanes.keys
