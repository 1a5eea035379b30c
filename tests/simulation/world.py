"""Execute a plan: processes, clients, a model and a disk in one loop; then collect the results."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import Key, SessionId, Tenant
from holdfast.core.model.items import message
from holdfast.stores.sql.store import SqlDriver
from tests.simulation.breakages import Breakage
from tests.simulation.clients import Clients, Heard
from tests.simulation.disk import Disk, Fault, SimulatedDriver, SimulatedTokens, Written
from tests.simulation.image import Image, read_image
from tests.simulation.model import Model, ModelFailure, Script
from tests.simulation.plan import START, ClockStep, Op, Outage, Plan
from tests.simulation.replica import Answer, ConnectionLost, Replica, TurnRequest
from tests.simulation.schedule import seeded_loop
from tests.simulation.stopping import Sent
from tests.simulation.tools import ToolWitness
from tests.simulation.upstream import CHAINED, CONVERSED, Memory

EXPECTED = (HoldfastError, ConnectionLost, ModelFailure)
LONGEST_SECONDS = 400.0
"""No client waits for longer than this."""
STOP_SECONDS = 30.0
"""A clean stop ends within this time, though its process may freeze and its disk be slow."""
SETTLE_SECONDS = 30.0
"""After the last fault, everything must have ended within this time."""


class VirtualClock:
    """The loop's time as wall-clock time; only the wall clock can be set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._start = START.timestamp()
        self._stepped = 0.0

    def now(self) -> float:
        """Return the time now."""
        return self._start + self._loop.time() + self._stepped

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back."""
        self._stepped += seconds


class CountedIds:
    """Sequential ids."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, prefix: str) -> str:
        """Return the next id."""
        self._count += 1
        return f"{prefix}_{self._count:05d}"


@dataclass
class Story:
    """The record of a world, and its final state."""

    plan: Plan
    image: Image
    journal: list[Written]
    heard: list[Heard]
    probes: list[Heard]
    model: Model
    facts: Counter[str]
    blames: list[str]
    trace: list[str | Written] = field(default_factory=list)
    deaths: dict[str, float] = field(default_factory=dict)
    """When each process that was killed died, by the loop's time."""
    tools: ToolWitness = field(default_factory=ToolWitness)
    sent: list[Sent] = field(default_factory=list)
    """The requests of clients that stop reading."""
    writes: int = 0
    """How often the store was written while clients were active."""


class World:
    """All parts of a world, in one loop."""

    def __init__(self, plan: Plan, breakage: Breakage | None = None) -> None:
        self.plan = plan
        self._breakage = breakage
        self.loop = seeded_loop(f"order {plan.seed}")
        self.clock = VirtualClock(self.loop)
        self.ids = CountedIds()
        self.tokens = SimulatedTokens()
        self.model = Model()
        self.memory = Memory()
        self.tools = ToolWitness()
        self.facts: Counter[str] = Counter()
        self.blames: list[str] = []
        self.trace: list[str | Written] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._names = 0
        self._moments = 0
        self._outside = copy_context()
        faults: dict[int, list[Fault]] = {}
        for fault in plan.faults:
            faults.setdefault(fault.write, []).append(fault)
        self.disk = Disk(
            self.clock,
            random.Random(f"disk {plan.seed}"),
            faults,
            without=breakage.without if breakage else "",
            is_checked=not (breakage and breakage.is_unchecked),
            latencies=plan.latencies,
            trace=self.trace,
        )
        self.replicas: list[Replica] = []
        self.dead: list[Replica] = []
        self.deaths: dict[str, float] = {}
        self._stopping: set[Replica] = set()
        self.clients = Clients(self)

    def wrap(self, driver: SimulatedDriver) -> SqlDriver:
        """Return the driver for processes: unchanged, or broken on purpose."""
        broken = self._breakage
        return broken.wrap(driver) if broken and broken.wrap else driver

    def next_moment(self) -> int:
        """Return a number that increases with every event."""
        self._moments += 1
        return self._moments

    def say(self, what: str) -> None:
        """Add a line to the trace."""
        self.trace.append(f"{self.loop.time():8.3f} {what}")

    def blame(self, what: str, error: BaseException | None = None) -> None:
        """Record something that must never happen."""
        self.blames.append(what)
        self.say(what)

    # ── processes ───────────────────────────────────────────────────────────────────────────

    def begin_replica(self) -> Replica:
        """Start one more process."""
        self._names += 1
        replica = Replica(self, f"p{self._names}")
        replica.start()
        return replica

    def strike(self, replica: Replica, fault: Fault) -> None:
        """Apply a fault to a process, or to all of them."""
        self.say(f"{replica.name} {fault.kind} {fault.when} write {fault.write}")
        if fault.kind == "freeze":
            self._freeze(replica, fault.seconds)
            return
        struck = list(self.replicas) if fault.kind == "crash_all" else [replica]
        for one in struck:
            self._crash(one, fault.seconds)

    def _freeze(self, replica: Replica, seconds: float) -> None:
        if replica.life.is_running:
            replica.freeze()
            self.facts["a process froze"] += 1
            self._later(seconds, self._thaw, replica)

    def _later(self, seconds: float, what: Callable[..., None], *more: Any) -> None:
        """Schedule an action that runs even if processes are frozen or dead by then."""
        self.loop.call_later(seconds, what, *more, context=self._outside)

    def _thaw(self, replica: Replica) -> None:
        self.say(f"{replica.name} thaws")
        replica.life.thaw(self.loop)

    def _crash(self, replica: Replica, seconds: float) -> None:
        if replica not in self.replicas:
            return
        if not replica.is_ready:
            self.facts["a crash hit a process that was recovering"] += 1
        if replica.is_stopping:
            self.facts["a crash hit a process that was stopping"] += 1
        self.facts["a process crashed"] += 1
        self._end(replica, seconds)

    def _end(self, replica: Replica, seconds: float) -> None:
        """End a process, and start another one in its place after a time."""
        place = self.replicas.index(replica)
        self.dead.append(replica)
        self.deaths.setdefault(replica.name, self.loop.time())
        replica.kill()
        if self.plan.sees_deaths:
            self.tokens.release(replica.name)
        self._later(seconds, self._restart, replica, place)

    def _restart(self, replica: Replica, place: int) -> None:
        if self.replicas[place] is replica and not self.disk.is_over:
            self.replicas[place] = self.begin_replica()
            self.say(f"{self.replicas[place].name} follows {replica.name}")

    async def _suffer(self, outage: Outage) -> None:
        await asyncio.sleep(outage.at)
        replica = self.replicas[outage.replica]
        self.say(f"{replica.name} {outage.kind}")
        match outage.kind:
            case "freeze":
                self._freeze(replica, outage.seconds)
            case "crash":
                self._crash(replica, outage.seconds)
            case "stop":
                await self._stop(replica, outage)

    async def _set_clock(self, step: ClockStep) -> None:
        await asyncio.sleep(step.at)
        self.say(f"the clock steps by {step.seconds:g} seconds")
        self.clock.step(step.seconds)
        way = "forward" if step.seconds > 0 else "back"
        self.facts[f"the clock was set {way}"] += 1

    async def _stop(self, replica: Replica, outage: Outage) -> None:
        """Stop a process cleanly; then end it with whatever it was still doing."""
        if not replica.is_ready or replica in self._stopping:
            return
        self._stopping.add(replica)
        self.facts["a process stopped cleanly"] += 1
        if await self._has_stopped(replica, outage.grace_seconds):
            self._end(replica, outage.seconds)

    async def _has_stopped(self, replica: Replica, grace_seconds: float) -> bool:
        """Stop a process cleanly; return False if it was killed meanwhile."""
        try:
            await replica.call(
                lambda: replica.stop(grace_seconds), timeout=STOP_SECONDS, hangs_up=False
            )
        except ConnectionLost:
            if not replica.life.is_over:
                self.blame(f"I6 {replica.name} does not stop")
            return False
        return True

    # ── the course of the world ─────────────────────────────────────────────────────────────

    def run(self) -> Story:
        """Execute the plan and return the story."""
        self.loop.set_exception_handler(lambda _, context: None)
        self.loop.set_task_factory(self._begin_task)
        try:
            story = self.loop.run_until_complete(self._live())
            self.loop.run_until_complete(self._wind_up())
            # A timer that is due in the last step, such as that of a journal, starts a task.
            while asyncio.all_tasks(self.loop):
                self.loop.run_until_complete(self._wind_up())
            self._look_for_broken_tasks(story)
            return story
        finally:
            self.loop.close()
            self.disk.close()

    def _begin_task(self, loop: asyncio.AbstractEventLoop, work: Any, **more: Any) -> Any:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
        self._tasks.append(task)
        return task

    async def _live(self) -> Story:
        self.replicas = [self.begin_replica() for _ in range(self.plan.replicas)]
        await asyncio.sleep(0.1)
        works = [self.clients.perform(op) for op in self.plan.ops]
        tasks = [asyncio.ensure_future(work) for work in works]
        outages = [asyncio.ensure_future(self._suffer(outage)) for outage in self.plan.outages]
        outages += [asyncio.ensure_future(self._set_clock(one)) for one in self.plan.clock_steps]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=LONGEST_SECONDS)
            for task in late:
                self.blame("I6 a client waits for ever")
                task.cancel()
        if outages:
            await asyncio.wait(outages)
        writes = self.disk.writes
        await self._settle()
        self.facts["a commit went through unheard"] += self.disk.unheard
        self.facts["a provider was chained to"] += self.memory.chained[CHAINED]
        self.facts["a conversation was continued"] += self.memory.chained[CONVERSED]
        self.facts["a provider forgot and was told anew"] += self.memory.forgotten
        probes = await self._probe()
        await self._index()
        await self._leave()
        return Story(
            self.plan,
            read_image(self.disk),
            self.disk.journal,
            self.clients.heard,
            probes,
            self.model,
            self.facts,
            self.blames,
            self.trace,
            self.deaths,
            self.tools,
            self.clients.sent,
            writes,
        )

    async def _settle(self) -> None:
        """Inject no more faults, and give every process time to recover."""
        self.disk.faults.clear()
        self.disk.latencies = (0.0,)
        deadline = self.loop.time() + SETTLE_SECONDS
        while self.loop.time() < deadline:
            await asyncio.sleep(self.plan.lanes.lease_seconds)
            await self._pause_schedules()
            if all(r.is_ready and r.life.is_running for r in self.replicas) and self._is_quiet():
                return

    async def _pause_schedules(self) -> None:
        """Pause what is due later: it must not come due while the world ends.

        What is due now has to be claimed. A process that dies meanwhile is asked again later.
        """
        names = self.disk.rows(
            "select tenant, name from schedules where is_paused = 0 "
            f"and next_run_at > {self.clock.now()!r}"
        )
        replica = self.replicas[0]
        for tenant, name in names:
            pause = partial(replica.scheduler.pause, Tenant(tenant), name, is_paused=True)
            with suppress(ConnectionLost):
                await replica.call(pause, timeout=STOP_SECONDS, hangs_up=False)

    def _is_quiet(self) -> bool:
        """Whether nothing is open or due, no dead worker is left, and live processes have noticed.

        A process that was frozen and expired meanwhile has to notice it, and to start again under a
        new name.
        """
        open_turns = self.disk.tables().open_turns
        leases = [row[0] for row in self.disk.rows("select alive_until from workers")]
        active = self.disk.rows(
            "select 1 from schedules where running_turn is not null "
            "or is_paused = 0 and next_run_at is not null"
        )
        is_all_alive = len(leases) == len(self.replicas) and all(leases)
        return not open_turns and not active and is_all_alive

    async def _probe(self) -> list[Heard]:
        """Send one turn to every live session; each must answer at once."""
        found = self.disk.rows(
            "select id, tenant, key from sessions where is_live = 1 and is_visible = 1 order by id"
        )
        rng = random.Random(f"probe {self.plan.seed}")
        probes = []
        for number, (session_id, tenant, key) in enumerate(found):
            op = Op(id=f"probe{number}", kind="turn", at=0.0, tenant=tenant, key=key or "")
            request = TurnRequest(
                tenant=Tenant(tenant),
                session_id=SessionId(session_id) if key is None else None,
                key=Key(key) if key is not None else None,
                items=(message("user", f"{tenant}|{key}|probe{number}"),),
                script=Script(op=op.id),
            )
            heard = await self.clients.ask(op, rng, lambda r, q=request: r.turn(q), session_id)  # type: ignore[misc]
            self.clients.heard.remove(heard)
            probes.append(heard)
            if not isinstance(heard.answer, Answer) or heard.answer.status != "completed":
                self.blame(f"I6 probe of {session_id} got {heard.error or heard.answer}")
        return probes

    async def _index(self) -> None:
        """Let the index follow the log to its end."""
        if self.plan.indexes:
            replica = self.replicas[0]
            await replica.call(replica.indexer.catch_up, timeout=STOP_SECONDS, hangs_up=False)

    async def _leave(self) -> None:
        """Stop every process cleanly."""
        for replica in self.replicas:
            if replica.is_ready:
                await self._has_stopped(replica, 0.0)

    async def _wind_up(self) -> None:
        """Let every remaining task run its last step."""
        self.disk.is_over = True
        for replica in [*self.replicas, *self.dead]:
            replica.life.wind_up(self.loop)
        for _ in range(20):
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=1.0)
        raise AssertionError(f"tasks that do not end: {left}")

    def _look_for_broken_tasks(self, story: Story) -> None:
        for task in self._tasks:
            if not task.done() or task.cancelled():
                continue
            error = task.exception()
            if error is not None and not isinstance(error, EXPECTED):
                self.blame(f"task {task.get_name()} broke: {error!r}", error)
