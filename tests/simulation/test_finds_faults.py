"""With any one guard switched off, the simulation finds a broken promise."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulation.breakages import BREAKAGES
from tests.simulation.judge import judge
from tests.simulation.plan import Plan, storm_of
from tests.simulation.scenarios import CALM, stops

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
    "stopped calls run again": {"I3"},
    "stopped conversations continued": {"I9"},
    "denied calls run": {"approval"},
    "anybody approves": {"approval"},
    "due times not claimed": {"schedule"},
    "stops repeated": {"stop"},
    "erased words indexed": {"search"},
    "journals kept": {"erasure"},
    "copies kept": {"erasure"},
    "events erased with a summary": {"I8"},
    "neighbours erased": {"I8"},
    "readers superseded": {"supersede"},
    "waiting turns overtaken": {"supersede"},
    "turns ended before a refusal": {"supersede"},
    "shown text dropped": {"shown"},
    "withdrawn stops obeyed": {"supersede"},
    "turns ended twice": {"supersede"},
}


# Guards that matter after a clean stop in the middle of a certain work.
STOPPED = {
    "stopped calls run again": "tools of the gateway",
    "stopped conversations continued": "a conversation at the provider",
}


# Where a rare event that needs the guard comes soon.
FIRST_SEEDS = {
    "calls run again": 99,
    "summaries unfenced": 48,
    "events erased with a summary": 59,
    "neighbours erased": 46,
}


def _worlds(name: str) -> Iterator[Plan]:
    if name in CALM:
        return iter([replace(CALM[name], breakage=name)])
    if name in STOPPED:
        return (replace(plan, breakage=name) for plan in stops(STOPPED[name]))
    first = FIRST_SEEDS.get(name, 0)
    return (storm_of(seed, name) for seed in range(first, first + MAX_SEEDS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", BREAKAGES)
def test_a_missing_guard_is_noticed(name: str) -> None:
    worlds = list(_worlds(name))
    for plan in worlds:
        _, found = judge(plan)
        if BROKEN[name] & {breach.split(" ")[0] for breach in found}:
            return
    pytest.fail(f"with {name}, {len(worlds)} worlds kept {sorted(BROKEN[name])}")
