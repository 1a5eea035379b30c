"""The event loop's clock, moved by hand: timers fire when a test says so."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import contextmanager


class LoopClock:
    """The time of an event loop that only `advance` moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def advance(self, seconds: float) -> None:
        """Let some seconds pass."""
        self.now += seconds


@contextmanager
def stopped_loop_clock() -> Iterator[LoopClock]:
    """Stop the clock of the running event loop for the length of a block."""
    loop = asyncio.get_running_loop()
    real = loop.time
    # A whole number: sums and differences of such times and short decimals are exact.
    clock = LoopClock(math.ceil(real()) + 0.0)
    loop.time = lambda: clock.now  # type: ignore[method-assign]  # it has no other way
    try:
        yield clock
    finally:
        loop.time = real  # type: ignore[method-assign]  # as above
