"""The port to processes that live for a session between its turns, such as a warm agent."""

from typing import Protocol


class SessionRuntimes(Protocol):
    """Everything in this process that stays alive for sessions between turns."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing stays alive for any session between its turns."""
        ...

    async def end_session(self, session_id: str) -> None:
        """Stop what runs for a session; the session itself may continue later."""
        ...

    async def remove_session(self, session_id: str) -> None:
        """Stop what runs for a session and delete its files on this machine."""
        ...
