"""The port to blocking work: a thread in production, inline in a simulation."""

from collections.abc import Callable
from typing import Protocol, TypeVar

ResultT = TypeVar("ResultT")


class Executor(Protocol):
    """Runs blocking jobs one at a time, in the order of submission."""

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """Return what `work` returns; its exceptions pass through."""
        ...

    def close(self) -> None:
        """Accept no more jobs."""
        ...
