"""Barriers hold calls at a stage that a test chooses, and release them one by one or together."""

import asyncio
from collections import deque
from dataclasses import dataclass, field

from holdfast.simulator.faults.matching import Counter
from holdfast.simulator.state.call import Call
from holdfast.simulator.state.json import Json
from holdfast.simulator.state.scenario import BarrierSpec, BarrierStage


@dataclass(slots=True)
class HeldCall:
    """A call that waits."""

    call: Call
    gate: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Barrier:
    """One barrier and the calls it holds, in order of arrival."""

    id: str
    spec: BarrierSpec
    counter: Counter
    held: deque[HeldCall] = field(default_factory=deque)
    total: int = 0
    is_open: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def as_json(self) -> Json:
        """Return the barrier as the control API shows it."""
        return {
            "id": self.id,
            "name": self.spec.name,
            "at": self.spec.at,
            "held": len(self.held),
            "total": self.total,
            "calls": [held.call.number for held in self.held],
        }


@dataclass(slots=True)
class Barriers:
    """All barriers, and the calls that hang forever."""

    barriers: dict[str, Barrier] = field(default_factory=dict)
    hangs: asyncio.Event = field(default_factory=asyncio.Event)
    """Set for a moment to release all calls that hang."""
    _count: int = 0

    def add(self, spec: BarrierSpec) -> Barrier:
        """Add a barrier; the next matching call is held."""
        barrier_id = spec.name or self._free_id()
        barrier = Barrier(barrier_id, spec, Counter(spec.when, spec.times))
        self.barriers[barrier_id] = barrier
        return barrier

    def _free_id(self) -> str:
        while True:
            self._count += 1
            barrier_id = f"barrier-{self._count}"
            if barrier_id not in self.barriers:
                return barrier_id

    def find(self, call: Call) -> list[Barrier]:
        """Return the barriers that will hold `call`, and count it for each."""
        if not self.barriers:
            return []
        return [barrier for barrier in self.barriers.values() if barrier.counter.count_match(call)]

    async def hold(self, barriers: list[Barrier], stage: BarrierStage, call: Call) -> None:
        """Wait at each of `barriers` that is at `stage`."""
        for barrier in barriers:
            if barrier.spec.at == stage and not barrier.is_open:
                await self._hold_at(barrier, call)

    async def _hold_at(self, barrier: Barrier, call: Call) -> None:
        held = HeldCall(call)
        barrier.held.append(held)
        barrier.total += 1
        async with barrier.changed:
            barrier.changed.notify_all()
        try:
            await held.gate.wait()
        finally:
            if held in barrier.held:
                barrier.held.remove(held)

    async def wait_held(self, barrier: Barrier, count: int, timeout_seconds: float) -> bool:
        """Wait until `barrier` holds at least `count` calls; False when time is up."""
        try:
            async with asyncio.timeout(timeout_seconds), barrier.changed:
                await barrier.changed.wait_for(lambda: len(barrier.held) >= count)
        except TimeoutError:
            return False
        return True

    def release(self, barrier: Barrier, count: int | None) -> int:
        """Release the first `count` calls (None: all) and return how many."""
        released = len(barrier.held) if count is None else min(count, len(barrier.held))
        for _ in range(released):
            barrier.held.popleft().gate.set()
        return released

    def remove(self, barrier: Barrier) -> int:
        """Remove the barrier and release its calls; later calls pass."""
        barrier.is_open = True
        self.barriers.pop(barrier.id, None)
        return self.release(barrier, None)

    def release_hanging(self) -> None:
        """Release every call that hangs now; later ones hang again."""
        self.hangs.set()
        self.hangs = asyncio.Event()

    def clear(self) -> int:
        """Remove all barriers."""
        return sum(self.remove(barrier) for barrier in list(self.barriers.values()))
