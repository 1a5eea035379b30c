"""The parts of the soak: each long test belongs to exactly one of them."""

from zlib import crc32

FAULT_SHARES = 5
PART_NAMES = (
    "gateways under attack",
    "failover of PostgreSQL",
    "simulated worlds and crashes",
    *(f"faults, share {share} of {FAULT_SHARES}" for share in range(1, FAULT_SHARES + 1)),
)


def part_of(test_id: str) -> int:
    """Return the number of the part, from 1, that runs the test.

    Faults are spread by a hash of their own, so a new one moves no other to another part.
    """
    if test_id.startswith("tests/faults/"):
        return 4 + crc32(test_id.encode()) % FAULT_SHARES
    if test_id.startswith(("tests/simulation/", "tests/channel_crash/")):
        return 3
    if test_id.startswith("tests/failover/"):
        return 2
    return 1
