"""A plan of a world: the requests of clients, their times, and the faults. One seed makes one plan.

A plan is a plain value, so that a failing one can be printed, replayed and shrunk.
"""

import random
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import msgspec

from holdfast.core.model.reset_policy import NEVER, ResetPolicy
from holdfast.core.model.turn import OnBusy, Source
from holdfast.engine.settings import LaneSettings
from tests.simulation.disk import Fault, FaultKind
from tests.simulation.model import Ending, EntryPoint, Script

START = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
TENANTS = ("ann", "bob")
SERVED: tuple[EntryPoint, ...] = ("turn_service", "request_task", "stream")
"""The entry points of turns that the turn service executes."""

OpKind = Literal[
    "turn", "append", "reset", "restore", "delete", "fork", "cancel", "edit", "read", "pry",
    "compact", "undo", "batches", "child", "hide", "pop", "erase", "search", "approve", "stop",
    "schedule", "fire", "pause", "resume", "unschedule", "stop_reading",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One operation of a client."""

    id: str
    kind: OpKind
    at: float
    tenant: str = TENANTS[0]
    key: str = "k0"
    source: Source = "user"
    on_busy: OnBusy = "enqueue"
    is_internal: bool = False
    entry_point: EntryPoint = "server"
    by_id: bool = False
    """Address the session by the id last seen for the key, instead of by the key."""
    idempotency_key: str | None = None
    same_as: str | None = None
    """The op whose body this one repeats: a duplicate."""
    script: Script | None = None
    tries: int = 1
    patience: float = 8.0
    """Seconds without an answer after which the client considers the connection dead."""
    hangs_up: bool = False
    """Whether its disconnect also cancels the work of the process."""
    tool_seconds: float = 0.2
    """How long its tools take if the model calls them."""
    expects: bool = False
    """A reset that names the session it means."""
    choice: int = 0
    """Which of several candidates: the generation to restore, the place of an edit."""
    collect_seconds: float = 0.0
    """How long a message of a chat waits for more of its sender."""
    leaves: bool = True
    """Whether the reader of a stream stops reading before the end of the answer."""
    resends: Literal["body", "history", "retry"] = "body"
    """What a reader sends after that: the same, a history, or a retry that is marked as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An outage of a process at a fixed time."""

    at: float
    replica: int
    kind: Literal["crash", "freeze", "stop"]
    seconds: float
    grace_seconds: float = 0.0
    """How long a process that is stopped lets its turns run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep:
    """A step of the wall clock that all processes share; negative seconds set it back."""

    at: float
    seconds: float


LANES = LaneSettings(
    max_waiting=3,
    max_wait_seconds=12.0,
    tool_wait_seconds=2.0,
    lease_seconds=1.5,
    max_attempts=3,
    poll_seconds=0.2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one world."""

    seed: str
    ops: tuple[Op, ...] = ()
    faults: tuple[Fault, ...] = ()
    outages: tuple[Outage, ...] = ()
    clock_steps: tuple[ClockStep, ...] = ()
    replicas: int = 1
    lanes: LaneSettings = LANES
    reset: ResetPolicy = NEVER
    latencies: tuple[float, ...] = (0.0,)
    window: int | None = None
    """The model's context window in tokens; unlimited if None."""
    elides: bool = False
    """Whether a request that does not fit is shortened by rule instead of by a model."""
    has_conversations: bool = False
    """Whether the provider has conversations, which a call changes in place."""
    indexes: bool = False
    """Whether processes follow the log to index it for searches."""
    has_schedules: bool = False
    """Whether processes run schedules."""
    max_tenant_turns: int = 0
    """How many turns of a tenant may be open; unlimited if 0."""
    sees_deaths: bool = True
    """Whether live processes learn at once who died; else they wait for leases to expire."""
    breakage: str | None = None
    """A guard that is disabled, to test that it is noticed."""

    @property
    def seconds_set_back(self) -> float:
        """By how much a later time of the clock may be smaller than an earlier one."""
        return -sum(min(step.seconds, 0.0) for step in self.clock_steps)


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    rng = random.Random(f"plan {seed}")
    replicas = rng.choice((1, 2, 2, 3))
    ops = _ops(rng, span=rng.choice((0.5, 3.0, 8.0)))
    plan = Plan(
        seed=str(seed),
        ops=ops,
        faults=_faults(rng, len(ops), rng.choice((0, 0, 1, 1, 2, 3))),
        outages=_outages(rng, replicas, rng.choice((0, 0, 0, 1, 2))),
        replicas=replicas,
        reset=_policy(rng),
        latencies=rng.choice(((0.0,), (0.0, 0.0, 0.01), (0.0, 0.02, 0.3))),
        sees_deaths=rng.random() < 0.7,
    )
    return _with_variations(plan)


def storm_of(seed: int, breakage: str | None = None) -> Plan:
    """Return a rougher plan: everything at once, on two processes, and always with faults."""
    rng = random.Random(f"storm {seed}")
    ops = _ops(rng, span=1.5)
    plan = Plan(
        seed=f"storm {seed}",
        ops=ops,
        faults=_faults(rng, len(ops), rng.choice((1, 2))),
        outages=_outages(rng, 2, rng.choice((1, 2))),
        replicas=2,
        latencies=(0.0, 0.0, 0.05),
        sees_deaths=rng.random() < 0.5,
        breakage=breakage,
    )
    return _with_variations(plan)


def _with_variations(plan: Plan) -> Plan:
    """Return a plan with what each seed adds on its own."""
    plan = _with_clock_steps(_with_tools(_with_compaction(_with_batches(plan))))
    plan = _with_bursts(_with_meddling(_with_stops(_with_conversations(plan))))
    return _with_stopped_readers(_with_schedules(_with_erasures(_with_approvals(plan))))


def _ops(rng: random.Random, *, span: float) -> tuple[Op, ...]:
    keys = ("k0",) if rng.random() < 0.6 else ("k0", "k1")
    count = rng.randint(4, 11)
    ops: list[Op] = []
    for number in range(count):
        op = _op(rng, f"o{number}", keys)
        op = replace(op, at=round(rng.uniform(0.0, span), 2) if rng.random() < 0.8 else 0.0)
        ops.append(op)
        if op.kind == "turn" and op.idempotency_key and rng.random() < 0.35:
            ops.append(_duplicate(rng, op, f"o{number}d"))
    return tuple(ops)


def _op(rng: random.Random, name: str, keys: tuple[str, ...]) -> Op:
    kind: OpKind = rng.choices(
        ("turn", "append", "reset", "restore", "delete", "fork", "cancel", "edit", "read", "pry"),
        (56, 8, 10, 8, 4, 5, 4, 4, 4, 3),
    )[0]
    op = Op(
        id=name,
        kind=kind,
        at=0.0,
        tenant=TENANTS[0] if rng.random() < 0.85 else TENANTS[1],
        key=rng.choice(keys),
        expects=rng.random() < 0.4,
        choice=rng.randrange(4),
        tries=rng.choice((1, 3, 4)),
        hangs_up=rng.random() < 0.3,
        patience=rng.choice((0.3, 3.0, 9.0, 9.0)),
    )
    if kind == "append":
        return replace(op, idempotency_key=f"batch-{name}" if rng.random() < 0.7 else None)
    return _turn(rng, op) if kind in ("turn", "edit") else op


def _turn(rng: random.Random, op: Op) -> Op:
    source: Source = rng.choices(("user", "background", "channel", "cron"), (65, 15, 10, 10))[0]
    ending: Ending = rng.choices(
        ("answer", "fail", "fail_retryable", "calls", "kill"), (70, 5, 8, 15, 2)
    )[0]
    entry_point: EntryPoint = "server"
    if op.kind == "turn":
        entry_point = rng.choices(
            ("server", "embedded", "turn_service", "stream"), (50, 15, 20, 15)
        )[0]
    is_internal = op.kind == "turn" and rng.random() < 0.06
    if entry_point == "embedded" or is_internal or (ending == "kill" and source == "user"):
        ending = "answer"
    script = Script(
        op=op.id,
        seconds=rng.choice((0.0, 0.05, 0.5, 2.0)),
        ending=ending,
        checkpoints=rng.choice((0, 0, 0, 1, 2)),
        partial=rng.random() < 0.25,
    )
    return replace(
        op,
        source="user" if entry_point == "embedded" else source,
        on_busy=rng.choices(("enqueue", "reject", "interrupt", "rollback"), (70, 8, 11, 11))[0],
        is_internal=is_internal,
        entry_point=entry_point,
        by_id=op.kind == "turn" and rng.random() < 0.15,
        idempotency_key=f"idem-{op.id}" if rng.random() < 0.6 else None,
        script=script,
        tool_seconds=rng.choice((0.0, 0.2, 1.0, 2.5)),
    )


def _with_batches(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, external agents append to sessions."""
    rng = random.Random(f"batches {plan.seed}")
    if rng.random() < 0.7:
        return plan
    last = max(op.at for op in plan.ops)
    ops = list(plan.ops)
    for number in range(rng.randint(1, 2)):
        spoken = rng.choice(plan.ops)
        op = Op(
            id=f"b{number}",
            kind="batches",
            at=round(rng.uniform(0.0, last), 2),
            tenant=spoken.tenant,
            key=spoken.key,
            tries=rng.choice((1, 4, 6)),
            tool_seconds=rng.choice((0.0, 0.2, 1.0)),
            patience=rng.choice((0.3, 3.0, 15.0)),
        )
        ops.append(op)
    return replace(plan, ops=tuple(ops))


def _with_compaction(plan: Plan) -> Plan:
    """Return a plan in which, every other time, long texts are compacted; else unchanged."""
    rng = random.Random(f"compaction {plan.seed}")
    if rng.random() < 0.5:
        return plan
    last = max(op.at for op in plan.ops)
    ops = [_long_winded(op) for op in plan.ops]
    for number in range(rng.randint(1, 3)):
        ops += _compaction(rng, f"c{number}", rng.choice(plan.ops), last)
    window = rng.choice((None, 90, 150))
    return replace(plan, ops=tuple(ops), window=window, elides=rng.random() < 0.5)


def _with_clock_steps(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, the clock is set; never if sessions end by the clock."""
    rng = random.Random(f"clock {plan.seed}")
    if plan.reset != NEVER or rng.random() < 0.6:
        return plan
    last = max(op.at for op in plan.ops)
    steps = tuple(
        ClockStep(
            at=round(rng.uniform(0.0, last + 2.0), 2),
            # Uneven, as real ones are: else a renewal after a step back could end a lease at the
            # same moment, to the last bit, as one before it.
            seconds=rng.choice((3.0, 60.0, 600.0, -1.0, -5.0)) * rng.uniform(0.9, 1.0),
        )
        for _ in range(rng.randint(1, 2))
    )
    return replace(plan, clock_steps=steps)


def _with_tools(plan: Plan) -> Plan:
    """Return a plan in which some turns use tools of the gateway."""
    rng = random.Random(f"tools {plan.seed}")
    # A repeat has the body of the request that it repeats.
    names = sorted({op.script.op for op in plan.ops if op.script is not None})
    steps = {name: rng.choice((0, 1, 2)) for name in names}
    return replace(plan, ops=tuple(_using_tools(op, steps) for op in plan.ops))


def _with_stops(plan: Plan) -> Plan:
    """Return a plan in which stops have grace periods; every other one has one more stop.

    That stop comes while an op is probably executed.
    """
    rng = random.Random(f"stops {plan.seed}")
    graces = (0.0, 0.0, 0.1, 0.5, 2.0)
    outages = [replace(outage, grace_seconds=rng.choice(graces)) for outage in plan.outages]
    if rng.random() < 0.5:
        served = [op for op in plan.ops if op.entry_point in SERVED or op.kind == "compact"]
        stop = Outage(
            at=round(rng.choice(served or plan.ops).at + rng.uniform(0.02, 0.5), 2),
            replica=rng.randrange(plan.replicas),
            kind="stop",
            seconds=rng.choice((0.1, 0.5, 2.0)),
            grace_seconds=rng.choice(graces),
        )
        outages.append(stop)
    return replace(plan, outages=tuple(outages))


def _with_conversations(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, all turns use a provider that has conversations.

    In every plan some turns run in the tasks of their requests.
    """
    rng = random.Random(f"conversations {plan.seed}")
    has_conversations = rng.random() < 0.3
    ops = tuple(
        replace(op, entry_point=_served(rng, op, is_always=has_conversations)) for op in plan.ops
    )
    return replace(plan, ops=ops, has_conversations=has_conversations)


def _with_meddling(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, input steers turns, and others change what they show.

    Others hide items while turns run, and continue from answers that are not the last ones.
    """
    rng = random.Random(f"meddling {plan.seed}")
    if rng.random() < 0.4:
        return plan
    ops = [_steering(op) if rng.random() < 0.4 else op for op in plan.ops]
    ops += [
        _steering(_beside(rng, op, f"{op.id}s"))
        for op in plan.ops
        if op.script is not None and op.script.tool_steps and rng.random() < 0.5
    ]
    for number in range(rng.randint(1, 3)):
        kind: OpKind = rng.choice(("child", "child", "hide", "pop", "cancel"))
        spoken = rng.choice(plan.ops)
        op = Op(id=f"m{number}", kind=kind, at=spoken.at, tenant=spoken.tenant, key=spoken.key)
        op = replace(_turn(rng, op), by_id=False) if kind == "child" else op
        ops.append(
            replace(
                op,
                at=round(spoken.at + rng.uniform(0.0, 2.0), 2),
                entry_point=rng.choice(SERVED),
                expects=True,
                choice=rng.randrange(4),
                tries=rng.choice((1, 3)),
                patience=rng.choice((0.3, 3.0, 9.0)),
            )
        )
    return replace(plan, ops=tuple(ops))


def _beside(rng: random.Random, op: Op, name: str) -> Op:
    """Return another turn like an op, a moment after it."""
    script = msgspec.structs.replace(op.script, op=name) if op.script is not None else None
    at = round(op.at + rng.uniform(0.02, 0.3), 2)
    once = f"idem-{name}" if rng.random() < 0.6 else None
    return replace(op, id=name, at=at, same_as=None, idempotency_key=once, script=script)


def _steering(op: Op) -> Op:
    is_able = op.kind == "turn" and op.entry_point in SERVED and not op.is_internal
    return replace(op, on_busy="steer") if is_able else op


def _with_bursts(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, a chat's messages wait for more of their sender."""
    rng = random.Random(f"bursts {plan.seed}")
    if rng.random() < 0.6:
        return plan
    seconds = rng.choice((0.2, 0.6))
    found = [op for op in plan.ops if op.kind == "turn" and op.entry_point in SERVED]
    ops = list(plan.ops)
    for op in found[:1]:
        for part in range(rng.randint(2, 4)):
            sent = _beside(rng, op, f"w{part}")
            ops.append(replace(sent, source="channel", on_busy=rng.choice(("enqueue", "steer"))))
    return replace(plan, ops=tuple(_collecting(op, seconds) for op in ops))


def _with_approvals(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, tools need approvals: given, denied, doubled, missing."""
    rng = random.Random(f"approvals {plan.seed}")
    asking = {
        op.script.op
        for op in plan.ops
        if op.script is not None and op.script.tool_steps and rng.random() < 0.6
    }
    if rng.random() < 0.3 or not asking:
        return plan
    ops: list[Op] = []
    for op in plan.ops:
        script = op.script
        if script is None or script.op not in asking:
            ops.append(op)
            continue
        ops.append(replace(op, script=msgspec.structs.replace(script, asks=True)))
        ops += [
            _about(rng, "approve", f"{op.id}y{number}", op, delays=(0.1, 0.3, 0.3, 1.5))
            for number in range(rng.choice((0, 1, 1, 2, 3)))
        ]
        if rng.random() < 0.3:
            kind: OpKind = rng.choice(("reset", "delete", "cancel"))
            ops.append(_about(rng, kind, f"{op.id}n", op, delays=(0.5, 1.0, 2.0)))
    return replace(plan, ops=tuple(ops))


def _with_erasures(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, items are erased, and clients search for them."""
    rng = random.Random(f"erasures {plan.seed}")
    if rng.random() < 0.5:
        return plan
    ops = list(plan.ops)
    for number in range(rng.randint(1, 4)):
        spoken = rng.choice(plan.ops)
        ops.append(_about(rng, "erase", f"e{number}", spoken, delays=(0.1, 0.5, 2.0, 4.0)))
        query = _about(rng, "search", f"q{number}", spoken, delays=(0.5, 2.0, 5.0))
        ops.append(replace(query, same_as=spoken.id))
    return replace(plan, ops=tuple(ops), indexes=True)


def _with_schedules(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, schedules run, and operators change them; or `/stop`."""
    rng = random.Random(f"schedules {plan.seed}")
    if rng.random() < 0.6:
        return plan
    ops = list(plan.ops)
    for number in range(rng.randint(1, 2)):
        spoken = rng.choice(plan.ops)
        first = _about(rng, "schedule", f"t{number}", spoken, delays=(0.0, 0.3))
        ending: Ending = "kill" if rng.random() < 0.15 else "answer"
        script = Script(op=first.id, seconds=rng.choice((0.0, 0.3, 2.5)), ending=ending)
        ops.append(replace(first, script=script, patience=3.0, tries=3))
        for more in range(rng.randint(1, 4)):
            kind: OpKind = rng.choice(("fire", "fire", "pause", "resume", "unschedule"))
            op = _about(rng, kind, f"{first.id}{more}", first, delays=(0.2, 0.5, 1.0, 2.0))
            ops.append(replace(op, same_as=first.id))
            if kind == "fire" and rng.random() < 0.5:
                end: OpKind = rng.choice(("pause", "unschedule"))
                after = _about(rng, end, f"{op.id}x", op, delays=(0.01, 0.03, 0.1))
                ops.append(replace(after, same_as=first.id))
    ops += [
        _about(rng, "stop", f"z{number}", rng.choice(plan.ops), delays=(0.1, 0.3, 1.0))
        for number in range(rng.choice((0, 1, 2)))
    ]
    # Several processes that look at the same time, and a disk that lets others come between.
    latencies = plan.latencies if any(plan.latencies) else (0.0, 0.02, 0.05)
    replicas = max(plan.replicas, 2)
    return replace(plan, ops=tuple(ops), has_schedules=True, replicas=replicas, latencies=latencies)


def _with_stopped_readers(plan: Plan) -> Plan:
    """Return a plan in which, sometimes, clients stop reading a streamed answer, and go on."""
    rng = random.Random(f"stopped readers {plan.seed}")
    if rng.random() < 0.6:
        return plan
    ops = list(plan.ops)
    for number in range(rng.randint(1, 2)):
        op = _about(rng, "stop_reading", f"h{number}", rng.choice(plan.ops), delays=(0.0, 0.5, 2.0))
        op = replace(
            op,
            key=f"h{number}" if rng.random() < 0.6 else op.key,
            entry_point="stream",
            script=Script(op=op.id, seconds=rng.choice((0.5, 1.0, 2.0))),
            leaves=rng.random() < 0.8,
            resends=rng.choice(("body", "history", "history", "retry")),
            idempotency_key=f"idem-{op.id}" if rng.random() < 0.15 else None,
            on_busy="reject" if rng.random() < 0.15 else "enqueue",
            by_id=rng.random() < 0.1,
            choice=rng.choice((2, 3, 5, 5, 7)),
            tool_seconds=rng.choice((0.0, 0.05, 0.3)),
        )
        ops.append(op)
        kind: OpKind | None = rng.choice((None, None, None, "turn", "reset", "cancel", "delete"))
        if kind is not None:
            beside = _about(rng, kind, f"{op.id}b", op, delays=(0.05, 0.2, 0.4))
            script = Script(op=beside.id, seconds=0.1) if kind == "turn" else None
            ops.append(replace(beside, script=script, entry_point="turn_service"))
    return replace(plan, ops=tuple(ops), max_tenant_turns=rng.choice((0, 0, 0, 0, 2, 4)))


def _about(
    rng: random.Random, kind: OpKind, name: str, spoken: Op, *, delays: tuple[float, ...]
) -> Op:
    """Return an op on the session of another op, some time after it."""
    return Op(
        id=name,
        kind=kind,
        at=round(spoken.at + rng.choice(delays) * rng.uniform(0.5, 1.0), 2),
        tenant=spoken.tenant,
        key=spoken.key,
        expects=rng.random() < 0.2,
        choice=rng.randrange(4),
        tries=rng.choice((1, 3)),
        patience=rng.choice((0.3, 3.0, 9.0)),
    )


def _collecting(op: Op, seconds: float) -> Op:
    is_chat = op.kind == "turn" and op.source == "channel" and op.entry_point in SERVED
    return replace(op, collect_seconds=seconds) if is_chat and not op.is_internal else op


def _served(rng: random.Random, op: Op, *, is_always: bool) -> EntryPoint:
    """Return the entry point of an op, which is one of the turn service if `is_always`."""
    is_server = op.kind in ("turn", "edit") and op.entry_point == "server"
    if op.entry_point == "turn_service" or (is_always and is_server):
        return rng.choice(("turn_service", "request_task"))
    return op.entry_point


def _using_tools(op: Op, steps: dict[str, int]) -> Op:
    script = op.script
    is_able = op.entry_point in SERVED and not op.is_internal
    if script is None or script.checkpoints or not is_able:
        return op
    return replace(op, script=msgspec.structs.replace(script, tool_steps=steps[script.op]))


def _long_winded(op: Op) -> Op:
    script = op.script
    return replace(op, script=msgspec.structs.replace(script, words=12)) if script else op


def _compaction(rng: random.Random, name: str, spoken: Op, last: float) -> list[Op]:
    """Return an op that compacts a session in use, and mostly a further op on that session."""
    at = rng.uniform(0.0, last + 3.0)
    more: OpKind | None = rng.choices(("undo", "fork", "edit", "reset", None), (4, 2, 2, 2, 2))[0]
    ending: Ending = "fail" if rng.random() < 0.2 else "answer"
    first = Op(
        id=name,
        kind="compact",
        at=round(at, 2),
        tenant=spoken.tenant,
        key=spoken.key,
        on_busy=rng.choices(("enqueue", "reject", "interrupt", "rollback"), (80, 8, 6, 6))[0],
        idempotency_key=f"idem-{name}" if rng.random() < 0.6 else None,
        script=Script(op=name, seconds=rng.choice((0.0, 0.1, 0.5, 2.0)), ending=ending),
        tries=rng.choice((1, 3, 4)),
        patience=rng.choice((0.3, 3.0, 9.0)),
        hangs_up=rng.random() < 0.3,
        choice=rng.randrange(4),
    )
    if more is None:
        return [first]
    after = Op(
        id=f"{name}x",
        kind=more,
        at=round(at + rng.choice((0.05, 0.3, 1.0, 3.0)), 2),
        tenant=spoken.tenant,
        key=spoken.key,
        script=Script(op=f"{name}x", seconds=0.1),
        tries=3,
        choice=rng.randrange(4),
    )
    return [first, after]


def _duplicate(rng: random.Random, op: Op, name: str) -> Op:
    """Return the same request again, at another time; sometimes with another body."""
    at = op.at if rng.random() < 0.4 else round(op.at + rng.uniform(0.0, 3.0), 2)
    same = rng.random() < 0.8
    return replace(op, id=name, at=at, same_as=op.id if same else None, hangs_up=False)


def _faults(rng: random.Random, ops: int, count: int) -> tuple[Fault, ...]:
    faults = []
    for _ in range(count):
        kind: FaultKind = rng.choices(
            ("crash", "crash_all", "unavailable", "freeze"), (35, 15, 30, 20)
        )[0]
        faults.append(
            Fault(
                write=rng.randint(1, 8 * ops),
                kind=kind,
                when=rng.choice(("before", "after")),
                seconds=rng.choice((0.1, 1.0, 2.0, 4.0)),
            )
        )
    return tuple(faults)


def _outages(rng: random.Random, replicas: int, count: int) -> tuple[Outage, ...]:
    return tuple(
        Outage(
            at=round(rng.uniform(0.0, 6.0), 2),
            replica=rng.randrange(replicas),
            kind=rng.choices(("crash", "freeze", "stop"), (3, 5, 2))[0],
            seconds=rng.choice((0.5, 2.0, 4.0)),
        )
        for _ in range(count)
    )


def _policy(rng: random.Random) -> ResetPolicy:
    match rng.choices(("none", "idle", "daily"), (70, 18, 12))[0]:
        case "idle":
            return ResetPolicy(mode="idle", idle_seconds=1.5)
        case "daily":
            return ResetPolicy(mode="daily", at=(START + timedelta(seconds=4)).time())
        case _:
            return NEVER
