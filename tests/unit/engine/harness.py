"""A gateway on an in-memory store, with a clock and ids that tests control."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.core.errors import StoreUnavailable
from holdfast.core.model.turn import Turn
from holdfast.core.transaction.commands import Accept, Command, Finish, Queued, Repeated, Started
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.engine.sessions.gateway import Gateway, Handler
from holdfast.engine.settings import LaneSettings
from holdfast.ports.store import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import ManualClock
from holdfast.testing.ids import SequentialIds
from holdfast.testing.store_client import StoreClient, answered

OutcomeT = TypeVar("OutcomeT")


class UnsureStore:
    """A store that executes commands and drops the answers that `is_silent` selects."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.is_silent: Callable[[Command[Any]], bool] = lambda _: False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def submit(self, command: Command[OutcomeT]) -> OutcomeT:
        """Execute the command, then drop its answer if it is selected."""
        outcome = await self._inner.submit(command)
        if self.is_silent(command):
            raise StoreUnavailable("the answer was lost")
        return outcome


class EngineHarness:
    """A gateway, and shortcuts to use it."""

    def __init__(self, gateway: Gateway, store: UnsureStore, clock: ManualClock) -> None:
        self.gateway = gateway
        self.store = store
        self.clock = clock
        self.caller = StoreClient(gateway.store, "c")

    def arrival(self, *texts: str, **more: Any) -> Accept:
        """Return the command that accepts texts under the key `k`."""
        more.setdefault("limits", self.gateway.limits)
        if "session_id" not in more:
            more.setdefault("key", "k")
        return self.caller.arrival(*texts, **more)

    async def accept(self, *texts: str, **more: Any) -> Started | Queued | Repeated:
        """Accept texts as a turn."""
        return await self.gateway.accept(self.arrival(*texts, **more))

    async def enter(self, *texts: str, **more: Any) -> ActiveRun:
        """Accept texts as a turn, and wait for its lane."""
        admission = await self.accept(*texts, **more)
        assert not isinstance(admission, Repeated), admission
        return await self.gateway.enter(admission)

    async def finish(self, run: ActiveRun, *texts: str, **more: Any) -> None:
        """End a run, by default as completed."""
        more.setdefault("outcome", "completed")
        await run.finish(Finish(fence=run.fence, items=answered(*texts), **more))
        self.gateway.leave(run)

    async def until_waiting(self, count: int = 1) -> None:
        """Wait until so many turns wait for a lane."""
        async with asyncio.timeout(30):
            while sum(map(len, self.gateway._registry.lanes.values())) < count:
                await let_others_run()

    async def turn(self, turn: Turn | str) -> Turn:
        """Return the current state of a turn."""
        turn_id: Any = turn if isinstance(turn, str) else turn.id
        view = await self.gateway.read.turn(self.caller.tenant, turn_id)
        assert view is not None
        return view.turn


@asynccontextmanager
async def open_engine(
    *, handler: Handler | None = None, settings: LaneSettings | None = None
) -> AsyncIterator[EngineHarness]:
    """Open a gateway; its worker sweeps only when a test calls it."""
    clock = ManualClock()
    store = UnsureStore(await open_store("memory:", clock=clock))
    settings = settings or LaneSettings()
    limits = settings.limits(can_run_again=handler is not None)
    gateway = Gateway(store, clock=clock, ids=SequentialIds("g"), settings=settings, limits=limits)
    await gateway.start(handler)
    try:
        yield EngineHarness(gateway, store, clock)
    finally:
        await gateway.stop()
        await store.close()


async def let_others_run() -> None:
    """Run every task that is ready, until all of them wait."""
    for _ in range(50):
        await asyncio.sleep(0)
