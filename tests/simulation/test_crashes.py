"""A crash at every store write of small worlds, and a second one; a clean stop at every moment."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.simulation.disk import Fault
from tests.simulation.judge import keep
from tests.simulation.plan import Plan
from tests.simulation.scenarios import DOWN_SECONDS, LONG, SCENARIOS, stops
from tests.simulation.world import Story

WHENS = ("before", "after")

each_scenario = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.soak) if name in LONG else name for name in SCENARIOS],
)


def crash(write: int, when: str, kind: str = "crash") -> Fault:
    """Return a crash at a write."""
    return Fault(write=write, kind=kind, when=when, seconds=DOWN_SECONDS)  # type: ignore[arg-type]


def live_with(name: str, *faults: Fault) -> Story:
    """Live through a scenario with faults; every promise must hold."""
    plan: Plan = replace(SCENARIOS[name], faults=faults)
    return keep(plan, f"live_with({name!r}, *{faults})")


def first_crashes(name: str) -> Iterator[Fault]:
    """Yield a crash of one process, and of all, before and after every write."""
    calm = live_with(name)
    assert not calm.facts["a process crashed"]
    kinds = ("crash", "crash_all") if SCENARIOS[name].replicas > 1 else ("crash",)
    for write in range(1, calm.writes + 1):
        for when in WHENS:
            for kind in kinds:
                yield crash(write, when, kind)


@pytest.mark.timeout(300)
@each_scenario
def test_a_crash_at_any_write_breaks_no_promise(name: str) -> None:
    crashes = 0
    for fault in first_crashes(name):
        crashes += live_with(name, fault).facts["a process crashed"] > 0
    assert crashes > 8


@pytest.mark.timeout(300)
@each_scenario
def test_a_clean_stop_at_any_moment_breaks_no_promise(name: str) -> None:
    for plan in stops(name):
        story = keep(plan, f"{name!r} with {plan.outages}")
        assert story.facts["a process stopped cleanly"] == 1


def crash_twice(name: str, *, step: int) -> int:
    """Crash at every write, and again at the writes that follow, recovery's own among them."""
    during_recovery = 0
    for fault in first_crashes(name):
        if fault.kind == "crash_all":
            continue
        after = live_with(name, fault).writes
        for write in range(fault.write + 1, after + 1, step):
            for when in WHENS:
                story = live_with(name, fault, crash(write, when))
                during_recovery += story.facts["a crash hit a process that was recovering"]
    return during_recovery


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["queued in the background"])
def test_a_second_crash_during_recovery_breaks_no_promise(name: str) -> None:
    assert crash_twice(name, step=3) > 0


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_second_crash_at_any_write_breaks_no_promise(name: str) -> None:
    assert crash_twice(name, step=1) > 0
