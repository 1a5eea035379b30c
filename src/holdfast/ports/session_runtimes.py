"""The port to what lives for a session between its turns: a warm agent, and its files."""

from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple, Protocol

from holdfast.core.model.session import ProviderState


class RuntimeSession(NamedTuple):
    """What the store knows of a session that may have a runtime."""

    is_erased: bool = False
    states: Collection[ProviderState] = ()


FindSession = Callable[[str], Awaitable[RuntimeSession | None]]
"""Returns a session of any tenant by its id; None if the store has never had it."""


class SessionRuntimes(Protocol):
    """Everything on this machine that stays for sessions between their turns."""

    @property
    def is_empty(self) -> bool:
        """Whether no upstream has runtimes."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Stop what runs for a session; the session itself may continue later."""
        ...

    def running_sessions(self) -> Collection[str]:
        """Return the sessions that have a process between their turns."""
        ...

    async def stored_sessions(self) -> Collection[str]:
        """Return the sessions that have files on this machine."""
        ...

    async def clean_session(self, session_id: str, find: FindSession) -> None:
        """Delete what the provider state of a session does not name, or all if it is erased.

        Nothing of a session is touched that the store does not know: it may be another store's.
        """
        ...
