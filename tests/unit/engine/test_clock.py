"""Ids of the machine's own chance."""

import re

from holdfast.engine.clock import IDS_AT_ONCE, RandomIds


def test_no_chance_is_used_twice_however_many_ids_are_made() -> None:
    ids = RandomIds()
    made = [ids.new("turn") for _ in range(3 * IDS_AT_ONCE + 1)]
    assert all(re.fullmatch(r"turn_[0-9a-f]{11}[0-9a-f]{20}", one) for one in made)
    assert len({one[-20:] for one in made}) == len(made)
