"""The scheduler: one loop with virtual time, whose next task step is chosen by the seed.

A task belongs to the life in which it was started: the outside world, or one simulated process. The
steps of a frozen life wait until it thaws; those of an ended life never run.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar, cast

ResultT = TypeVar("ResultT")
Pick = Callable[[int], int]
"""Given how many task steps are ready, returns the index of the next one."""

_LIFE: ContextVar["Life | None"] = ContextVar("life", default=None)


class Life:
    """The life of a process: running, frozen or over."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_over = False
        self.is_frozen = False
        self._parked: list[asyncio.Handle] = []

    @property
    def is_running(self) -> bool:
        """Whether its tasks may take a step now."""
        return not (self.is_over or self.is_frozen)

    def context(self) -> Context:
        """Return a context whose tasks, and their children, belong to this life."""
        context = copy_context()
        context.run(_LIFE.set, self)
        return context

    def begin(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, ResultT], name: str
    ) -> asyncio.Task[ResultT]:
        """Start a task of this life."""
        return loop.create_task(work, name=name, context=self.context())

    def park(self, handle: asyncio.Handle) -> None:
        """Keep a step for later."""
        self._parked.append(handle)

    def thaw(self, loop: asyncio.AbstractEventLoop) -> None:
        """Continue; run everything that became due in the meantime."""
        self.is_frozen = False
        self._release(loop)

    def wind_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """At the end, let even dead processes run the steps that close them."""
        self.is_frozen = self.is_over = False
        self._release(loop)

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        parked, self._parked = self._parked, []
        cast(Any, loop)._ready.extend(parked)


class _Ready(deque[asyncio.Handle]):
    """The loop's ready queue, from which `pick` selects the next task step."""

    def __init__(self, pick: Pick, nothing: asyncio.Handle) -> None:
        super().__init__()
        self._pick = pick
        self._nothing = nothing

    def popleft(self) -> asyncio.Handle:
        while self:
            handle = self._choose()
            life = cast(Any, handle)._context.get(_LIFE)
            if life is None or life.is_running:
                return handle
            life.park(handle)
        return self._nothing

    def _choose(self) -> asyncio.Handle:
        if len(self) < 2 or not _is_step(self[0]):
            return super().popleft()
        steps = [place for place, handle in enumerate(self) if _is_step(handle)]
        chosen = steps[self._pick(len(steps))] if len(steps) > 1 else 0
        if not chosen:
            return super().popleft()
        self.rotate(-chosen)
        handle = super().popleft()
        self.rotate(chosen)
        return handle


def _is_step(handle: asyncio.Handle) -> bool:
    callback = cast(Any, handle)._callback
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


def seeded_loop(seed: str) -> asyncio.AbstractEventLoop:
    """Return a loop with virtual time whose task steps run in the order of the seed."""
    rng = random.Random(seed)
    return picking_loop(lambda count: int(rng.random() * count))


def picking_loop(pick: Pick) -> asyncio.AbstractEventLoop:
    """Return a loop with virtual time in which `pick` selects the next task step."""
    return _VirtualLoop(pick)


class _VirtualLoop(asyncio.BaseEventLoop):
    """A loop without I/O: when no task is ready, time jumps to the next timer."""

    def __init__(self, pick: Pick) -> None:
        super().__init__()
        self._set_time(0.0)
        self._selector = self
        nothing = asyncio.Handle(lambda: None, (), self)
        nothing.cancel()
        self._ready = _Ready(pick, nothing)

    def time(self) -> float:
        """Return the time now."""
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Advance the time; there is no I/O to wait for."""
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing will ever come")
        if timeout > 0:
            self._set_time(max(self._now, cast(Any, self)._scheduled[0].when()))
        return []

    def _set_time(self, now: float) -> None:
        self._now = now
        # Timers of a later time, however little later, wait until the time has advanced: otherwise
        # two tasks that sleep for less than the resolution keep each other running for ever.
        self._clock_resolution = math.ulp(now)

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: there are no I/O events."""


class TooManyOrders(AssertionError):
    """A program has more orders than allowed."""


def every_order(program: Callable[[], Coroutine[Any, Any, None]], *, at_most: int = 20_000) -> int:
    """Run a program once for each possible order of its task steps; return how many.

    The program must be the same each time except for that order.
    """
    picked: list[int] = []
    for count in range(1, at_most + 1):
        options: list[int] = []
        _run_once(program, picked, options)
        picked = _next_order(picked + [0] * (len(options) - len(picked)), options)
        if not picked:
            return count
    raise TooManyOrders(f"more than {at_most} orders")


def _run_once(
    program: Callable[[], Coroutine[Any, Any, None]], picked: list[int], options: list[int]
) -> None:
    def pick(count: int) -> int:
        options.append(count)
        return picked[len(options) - 1] if len(options) <= len(picked) else 0

    loop = picking_loop(pick)
    try:
        loop.run_until_complete(program())
    finally:
        loop.close()


def _next_order(picked: list[int], options: list[int]) -> list[int]:
    """Return the choices of the next order, depth first; empty after the last one."""
    while picked:
        if picked[-1] + 1 < options[len(picked) - 1]:
            return [*picked[:-1], picked[-1] + 1]
        picked = picked[:-1]
    return []
