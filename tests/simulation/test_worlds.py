"""Worlds by seed: the promises hold in every one, and everything that can go wrong does.

To see one world again: HOLDFAST_SEED=17 pytest tests/simulation/test_worlds.py -k replayed
"""

import os
from collections import Counter

import pytest

from tests.simulation.judge import keep
from tests.simulation.plan import plan_of, storm_of
from tests.simulation.sometimes import EXPECTED, facts_of

REPLAY = "HOLDFAST_SEED={} .venv/bin/pytest tests/simulation/test_worlds.py -k replayed"
STORM = "HOLDFAST_STORM={} .venv/bin/pytest tests/simulation/test_worlds.py -k replayed"

TOLD = 240
"""Worlds that are lived through to see what happens in them."""
TOLD_AT_MOST = 1200
"""Worlds in which each expected fact has to have happened: rare ones may need more than a few."""
CHUNK = 30
SOAK_CHUNK = 250


def keep_seeds(first: int, count: int) -> Counter[str]:
    """Live through so many worlds and return what happened in them."""
    facts: Counter[str] = Counter()
    for seed in range(first, first + count):
        facts.update(facts_of(keep(plan_of(seed), REPLAY.format(seed))))
    return facts


@pytest.mark.timeout(300)
def test_the_promises_hold_while_everything_that_can_go_wrong_does() -> None:
    facts: Counter[str] = Counter()
    for first in range(0, TOLD_AT_MOST, TOLD):
        facts.update(keep_seeds(first, TOLD))
        missing = [fact for fact in EXPECTED if not facts[fact]]
        if not missing:
            break
    assert missing == []


@pytest.mark.parametrize("first", range(1000, 1180, CHUNK))
def test_the_promises_hold_in_the_world_of_every_seed(first: int) -> None:
    keep_seeds(first, CHUNK)


@pytest.mark.parametrize("first", range(0, 120, CHUNK))
def test_the_promises_hold_in_every_storm(first: int) -> None:
    for seed in range(first, first + CHUNK):
        keep(storm_of(seed), STORM.format(seed))


@pytest.mark.parametrize("seed", [10507, 12051, 12614, 17458, 19821, 21984])
def test_the_promises_hold_in_a_world_in_which_a_long_run_once_broke_one(seed: int) -> None:
    keep_seeds(seed, 1)


@pytest.mark.parametrize("seed", [6478, 12532, 12914])
def test_the_promises_hold_in_a_storm_in_which_a_long_run_once_broke_one(seed: int) -> None:
    keep(storm_of(seed), STORM.format(seed))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 22_000, SOAK_CHUNK))
def test_the_promises_hold_over_many_seeds(first: int) -> None:
    keep_seeds(first, SOAK_CHUNK)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 14_000, SOAK_CHUNK))
def test_the_promises_hold_over_many_storms(first: int) -> None:
    for seed in range(first, first + SOAK_CHUNK):
        keep(storm_of(seed), STORM.format(seed))


def test_a_world_can_be_replayed() -> None:
    """Lives through the world that the environment names; without a name, through the first."""
    storm = os.environ.get("HOLDFAST_STORM")
    if storm is not None:
        keep(storm_of(int(storm)), STORM.format(storm))
        return
    seed = os.environ.get("HOLDFAST_SEED", "0")
    keep(plan_of(int(seed)), REPLAY.format(seed))
