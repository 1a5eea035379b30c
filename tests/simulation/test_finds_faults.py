"""With any one guard switched off, the simulation finds a broken promise."""

import pytest

from tests.simulation.breakages import BREAKAGES
from tests.simulation.judge import judge
from tests.simulation.plan import storm_of

MAX_SEEDS = 150

# Which promises a missing guard must be seen to break.
BROKEN = {
    "fences off": {"I5"},
    "start unfenced": {"I1", "I4", "I5", "I6", "I8"},
    "reservation in two steps": {"I1"},
    "queue in memory": {"I2"},
    "leases without epochs": {"I5"},
    "lane of one process": {"I4"},
    "idempotency at the end": {"I3"},
    "summaries unfenced": {"I4", "I5", "I8"},
    "lanes believed": {"I4", "I5", "I6", "I8"},
    "calls run again": {"I3"},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_missing_guard_is_noticed(name: str) -> None:
    for seed in range(MAX_SEEDS):
        _, found = judge(storm_of(seed, name))
        if BROKEN[name] & {breach.split(" ")[0] for breach in found}:
            return
    pytest.fail(f"with {name}, {MAX_SEEDS} worlds kept {sorted(BROKEN[name])}")
