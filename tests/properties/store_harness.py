"""A real store in memory that a step of a state machine can speak to without being a coroutine."""

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
    """A store, a clock moved by hand, and callers that live until they are buried."""

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
        """Return what a command answers, or why it was refused."""
        try:
            return self.do(self.store.submit(command))
        except HoldfastError as exc:
            return exc

    def close(self) -> None:
        """Let everything go."""
        self.do(self.store.close())
        self._runner.close()
