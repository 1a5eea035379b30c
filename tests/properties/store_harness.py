"""A real store in memory for the synchronous steps of a state machine."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.core.errors import HoldfastError
from holdfast.core.transaction.commands import Command, LaneLimits
from holdfast.stores.open import open_store
from holdfast.testing.clock import ManualClock
from holdfast.testing.store_client import StoreClient

ResultT = TypeVar("ResultT")
OutcomeT = TypeVar("OutcomeT")

FOREVER = 1e12


class StoreHarness:
    """A store, a manual clock, and clients that are alive until they are expired."""

    def __init__(self, *workers: str, limits: LaneLimits | None = None) -> None:
        self._runner = asyncio.Runner()
        self.clock = ManualClock()
        self.store = self.do(open_store("memory:", clock=self.clock))
        self.limits = limits or LaneLimits(can_run_again=True)
        self.callers = {name: StoreClient(self.store, name) for name in workers}
        for caller in self.callers.values():
            self.do(caller.enlist(FOREVER))

    def do(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Return what a coroutine returns."""
        return self._runner.run(work)

    def ask(self, command: Command[OutcomeT]) -> OutcomeT | HoldfastError:
        """Return the result of a command, or its error."""
        try:
            return self.do(self.store.submit(command))
        except HoldfastError as exc:
            return exc

    def close(self) -> None:
        """Close everything."""
        self.do(self.store.close())
        self._runner.close()
