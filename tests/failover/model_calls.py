"""How often the model was called for each turn, counted while the campaign runs."""

import asyncio
from collections import Counter
from types import TracebackType
from typing import Any, Self

from holdfast.testing.simulator.process import ProviderSimulator

LOOK_SECONDS = 5.0


class ModelCalls:
    """Counts the calls by the last message; the simulator keeps only its newest requests."""

    SCENARIO: dict[str, Any] = {  # noqa: RUF012 - read only
        "record_limit": 5_000,
        "fault": [{"kind": "slow", "before_seconds": 0.2, "between_seconds": 0.02}],
    }
    """Turns take a while, so that a fault meets many of them at every stage."""

    def __init__(self, simulator: ProviderSimulator) -> None:
        self._simulator = simulator
        self._counts: Counter[str] = Counter()
        self._last = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def repeated(self) -> int:
        """Return how many calls were made beyond the first one of each turn."""
        await self._look()
        return sum(self._counts.values()) - len(self._counts)

    async def _count(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        for request in await asyncio.to_thread(self._simulator.requests, after=self._last):
            self._last = request.number
            self._counts[request.body["messages"][-1]["content"]] += 1
