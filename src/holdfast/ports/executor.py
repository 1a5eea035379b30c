"""Where blocking work runs: a thread in production, in place in a simulation."""

from collections.abc import Callable
from typing import Protocol, TypeVar

ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Runs one piece of blocking work at a time, in the order it was given."""

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what `work` returns; its exceptions pass through."""
        ...

    def close(self) -> None:
        """Stop taking work."""
        ...
