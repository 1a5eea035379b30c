"""The soak is cut into parts that together are the whole."""

from collections import Counter

import pytest

from tests.faults.faults import FAULTS
from tests.soak.parts import FAULT_SHARES, PART_NAMES, part_of


def test_faults_are_spread_over_all_shares() -> None:
    found = Counter(
        part_of(f"tests/faults/test_faults.py::test_a_fault_is_noticed[{fault.name}]")
        for fault in FAULTS
    )
    assert set(found) == set(range(4, 4 + FAULT_SHARES))
    assert max(found.values()) < 2 * len(FAULTS) / FAULT_SHARES


@pytest.mark.parametrize(
    ("test_id", "part"),
    [
        ("tests/soak/test_http_fuzz.py::test_fuzz", 1),
        ("tests/failover/test_campaign.py::test_campaign", 2),
        ("tests/simulation/test_worlds.py::test_the_promises_hold", 3),
        ("tests/channel_crash/test_crash_points.py::test_crash", 3),
    ],
)
def test_a_test_belongs_to_the_part_of_its_folder(test_id: str, part: int) -> None:
    assert part_of(test_id) == part <= len(PART_NAMES)
