"""Small, fixed plans: a crash is tried at every single write, a clean stop at every moment."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.simulation.model import Script
from tests.simulation.plan import Op, OpKind, Outage, Plan

DOWN_SECONDS = 0.3
"""How long a process is down."""
MOMENT_SECONDS = 0.03
"""The time between two moments at which a stop is tried."""
MOMENTS = 60
"""How many moments of a scenario are tried."""


def _turn(name: str, at: float, **more: Any) -> Op:
    more = {"idempotency_key": f"idem-{name}", "script": Script(op=name, seconds=0.2), **more}
    return Op(id=name, kind="turn", at=at, tries=6, patience=6.0, **more)


def _with_tools(name: str) -> Script:
    return Script(op=name, seconds=0.1, tool_steps=1)


def _asking(name: str) -> Script:
    return Script(op=name, seconds=0.1, tool_steps=1, asks=True)


def _schedule(name: str, choice: int) -> Op:
    script = Script(op=name, seconds=0.2)
    return Op(id=name, kind="schedule", at=0.0, tries=6, choice=choice, script=script)


def _operate(name: str, kind: OpKind, at: float) -> Op:
    return Op(id=f"{name}{at}", kind=kind, at=at, tries=6, patience=3.0, same_as=name)


def _background(name: str, at: float) -> Op:
    return _turn(name, at, source="background")


def _compact(name: str, at: float) -> Op:
    script = Script(op=name, seconds=0.2)
    once = f"idem-{name}"
    return Op(
        id=name, kind="compact", at=at, tries=6, choice=1, script=script, idempotency_key=once
    )  # fmt: skip


def _in_conversation(name: str, at: float, **more: Any) -> Op:
    return _turn(name, at, entry_point="request_task", **more)


def _stop_reading(name: str, **more: Any) -> Op:
    more = {"resends": "history", "choice": 5, "patience": 6.0, "tool_seconds": 0.05, **more}
    script = Script(op=name, seconds=1.0)
    return Op(id=name, kind="stop_reading", at=0.0, entry_point="stream", script=script, **more)


SCENARIOS: dict[str, Plan] = {
    "first contact of two": Plan(
        seed="first contact of two", replicas=2, ops=(_turn("a", 0.0), _turn("b", 0.0))
    ),
    "answers in steps, torn in the middle": Plan(
        seed="torn",
        ops=(
            _turn("a", 0.0, script=Script(op="a", seconds=0.3, checkpoints=2, partial=True)),
            _turn("b", 0.1),
        ),
    ),
    "queued in the background": Plan(
        seed="queued", ops=(_turn("a", 0.0), _background("b", 0.05), _background("c", 0.1))
    ),
    "a reset in the middle": Plan(
        seed="reset",
        replicas=2,
        ops=(
            _turn("a", 0.0),
            _background("b", 0.05),
            Op(id="r", kind="reset", at=0.15),
            _turn("c", 0.3),
        ),
    ),
    "tools of the client": Plan(
        seed="tools",
        ops=(
            _turn("a", 0.0, script=Script(op="a", seconds=0.1, ending="calls"), tool_seconds=0.3),
            _turn("b", 0.2),
        ),
    ),
    "tools of the gateway": Plan(
        seed="gateway tools",
        replicas=2,
        ops=(
            _turn("a", 0.0, entry_point="turn_service", script=_with_tools("a")),
            _turn("b", 0.1, entry_point="stream", source="background", script=_with_tools("b")),
        ),
    ),
    "a conversation at the provider": Plan(
        seed="conversation",
        replicas=2,
        has_conversations=True,
        ops=(
            _in_conversation("a", 0.0),
            _in_conversation("b", 0.4),
            _in_conversation("c", 3.0, script=Script(op="c", seconds=0.5)),
            _in_conversation("d", 3.2, on_busy="rollback"),
        ),
    ),
    "interrupt and rollback": Plan(
        seed="cut in",
        ops=(
            _turn("a", 0.0, script=Script(op="a", seconds=1.0, checkpoints=1)),
            _turn("b", 0.7, on_busy="interrupt"),
            _turn("c", 0.8, on_busy="rollback"),
        ),
    ),
    "asked twice": Plan(
        seed="twice",
        replicas=2,
        ops=(
            _turn("a", 0.0),
            _turn("a2", 0.1, idempotency_key="idem-a", same_as="a"),
            _turn("a3", 0.6, idempotency_key="idem-a", same_as="a"),
        ),
    ),
    "appended, forked, restored, erased": Plan(
        seed="lifecycle",
        ops=(
            Op(id="a", kind="append", at=0.0, idempotency_key="batch-a", tries=5),
            _turn("b", 0.1),
            Op(id="f", kind="fork", at=0.5),
            Op(id="r", kind="reset", at=0.9),
            _turn("c", 1.1),
            Op(id="s", kind="restore", at=1.5),
            Op(id="d", kind="delete", at=1.8),
            _turn("e", 2.0),
        ),
    ),
    "an approval in the middle": Plan(
        seed="approval",
        replicas=2,
        ops=(
            _turn("a", 0.0, entry_point="turn_service", script=_asking("a")),
            Op(id="n", kind="approve", at=0.1, expects=True),
            Op(id="y", kind="approve", at=0.2, tries=4, patience=3.0),
            Op(id="z", kind="approve", at=0.2, choice=1, tries=4, patience=3.0),
            _turn("b", 0.3),
        ),
    ),
    "a schedule that is paused and resumed": Plan(
        seed="schedule",
        replicas=2,
        has_schedules=True,
        latencies=(0.0, 0.02),
        ops=(
            _schedule("s", 0),
            _operate("s", "fire", 0.3),
            _operate("s", "pause", 0.32),
            _operate("s", "resume", 0.9),
            _operate("s", "fire", 1.0),
            _operate("s", "unschedule", 1.05),
        ),
    ),
    "erased, moved and indexed": Plan(
        seed="erasure",
        replicas=2,
        indexes=True,
        ops=(
            Op(id="b0", kind="batches", at=0.0, tries=6, tool_seconds=0.3),
            Op(id="b1", kind="batches", at=0.1, tries=6, tool_seconds=0.3),
            Op(id="f", kind="fork", at=0.2),
            Op(id="e", kind="erase", at=1.0, choice=2, tries=4),
            Op(id="q", kind="search", at=1.2, same_as="b0"),
        ),
    ),
    "an answer that is stopped": Plan(seed="stopped", replicas=2, ops=(_stop_reading("a"),)),
    "summed up in the middle": Plan(
        seed="summary",
        ops=(
            _turn("a", 0.0, script=Script(op="a", seconds=0.1, words=12)),
            _turn("b", 0.3, script=Script(op="b", seconds=0.1, words=12)),
            _compact("s", 0.6),
            _turn("c", 0.7),
            Op(id="u", kind="undo", at=1.6),
            _turn("d", 1.8),
        ),
    ),
}


CALM: dict[str, Plan] = {
    "denied calls run": Plan(
        seed="denied",
        ops=(
            _turn("a", 0.0, entry_point="turn_service", script=_asking("a")),
            Op(id="n", kind="approve", at=0.2, choice=1),
        ),
    ),
    "anybody approves": Plan(
        seed="stranger",
        ops=(
            _turn("a", 0.0, entry_point="turn_service", script=_asking("a")),
            Op(id="n", kind="approve", at=0.2, expects=True),
        ),
    ),
    "stops repeated": Plan(
        seed="stops",
        ops=(
            _turn("a", 0.0),
            Op(id="z", kind="stop", at=0.1, expects=True),
            _turn("b", 0.2, script=Script(op="b", seconds=1.0)),
        ),
    ),
    "due times not claimed": Plan(
        seed="due", replicas=2, has_schedules=True, latencies=(0.4,), ops=(_schedule("s", 1),)
    ),
    "readers superseded": Plan(seed="reads on", ops=(_stop_reading("a", leaves=False),)),
    "waiting turns overtaken": Plan(
        seed="overtaken", ops=(_stop_reading("a", tool_seconds=0.3), _turn("b", 0.1))
    ),
    "turns ended before a refusal": Plan(
        seed="refused", ops=(_stop_reading("a", idempotency_key="idem-a"),)
    ),
    "shown text dropped": Plan(seed="shown", ops=(_stop_reading("a"),)),
    "withdrawn stops obeyed": Plan(
        seed="withdrawn 30",
        replicas=2,
        latencies=(0.0, 0.3),
        ops=(_stop_reading("a", on_busy="reject"),),
    ),
    "turns ended twice": Plan(seed="ended", ops=(_stop_reading("a"),)),
    "erased words indexed": SCENARIOS["erased, moved and indexed"],
    "copies kept": SCENARIOS["erased, moved and indexed"],
    "journals kept": Plan(
        seed="journals",
        ops=(
            _turn("a", 0.0, entry_point="stream", script=Script(op="a", seconds=0.3)),
            Op(id="d", kind="delete", at=1.0),
        ),
    ),
}
"""Worlds without a fault that show a missing guard."""
LONG = {
    "an approval in the middle",
    "a schedule that is paused and resumed",
    "erased, moved and indexed",
}
"""Scenarios of which every crash and every stop is tried in long runs only."""


def stops(name: str) -> Iterator[Plan]:
    """Yield a scenario with a clean stop of each of its processes at every moment."""
    plan = SCENARIOS[name]
    for moment, place in itertools.product(range(1, MOMENTS), range(plan.replicas)):
        stop = Outage(
            at=moment * MOMENT_SECONDS,
            replica=place,
            kind="stop",
            seconds=DOWN_SECONDS,
            grace_seconds=0.0 if moment % 3 else 0.1,
        )
        yield replace(plan, outages=(stop,))
