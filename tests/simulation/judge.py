"""Execute a plan and check the promises; explain a failure so that a person can replay it."""

from contextlib import nullcontext
from dataclasses import replace
from unittest import mock

from holdfast.stores.sql.search import follower
from tests.simulation.breakages import breakage
from tests.simulation.indexing import READ_ROWS
from tests.simulation.plan import Plan
from tests.simulation.promises import breaches
from tests.simulation.trace import line
from tests.simulation.world import Story, World

MAX_SHRINKING = 150


class PromiseBroken(AssertionError):
    """A promise was broken; the message says how to replay the world."""


def live(plan: Plan) -> Story:
    """Execute a plan."""
    broken = breakage(plan.breakage) if plan.breakage else None
    few_rows = mock.patch.object(follower, "READ_ROWS", READ_ROWS)
    with few_rows, broken.applied() if broken else nullcontext():
        return World(plan, broken).run()


def judge(plan: Plan) -> tuple[Story, list[str]]:
    """Execute a plan; return the story and every broken promise."""
    story = live(plan)
    return story, breaches(story)


def keep(plan: Plan, how_to_replay: str) -> Story:
    """Return the story of a plan that kept every promise; else raise with how to replay it."""
    story, found = judge(plan)
    if found:
        raise PromiseBroken(explain(plan, found, how_to_replay))
    return story


def explain(plan: Plan, found: list[str], how_to_replay: str) -> str:
    """Return the broken promises of the smallest plan that still breaks one, step by step."""
    small = shrink(plan)
    story, still = judge(small)
    return "\n".join(
        [
            "promises broken:",
            *(f"  {breach}" for breach in found),
            f"replay with: {how_to_replay}",
            "",
            f"a smaller world that breaks: {still}",
            f"  {replace(small, ops=(), faults=(), outages=(), clock_steps=())}",
            *(f"  {op}" for op in small.ops),
            *(f"  {fault}" for fault in small.faults),
            *(f"  {outage}" for outage in small.outages),
            *(f"  {step}" for step in small.clock_steps),
            "its trace:",
            *(f"  {line(event)}" for event in story.trace),
        ]
    )


def shrink(plan: Plan) -> Plan:
    """Return a plan with fewer ops, faults, outages and clock steps that still breaks one."""
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(plan):
            tries += 1
            if tries > MAX_SHRINKING:
                return plan
            if judge(candidate)[1]:
                plan, is_smaller = candidate, True
                break
    return plan


def _smaller(plan: Plan) -> list[Plan]:
    def without(name: str) -> list[Plan]:
        parts = getattr(plan, name)
        return [
            replace(plan, **{name: parts[:place] + parts[place + 1 :]})
            for place in range(len(parts))
        ]

    names = ("ops", "faults", "outages", "clock_steps")
    return [candidate for name in names for candidate in without(name)]
