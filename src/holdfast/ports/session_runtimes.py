"""The port to what runs for a session between its turns, such as a warm process of an agent."""

from typing import Protocol


class SessionRuntimes(Protocol):
    """Everything that runs for sessions in this process."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing ever runs for a session between its turns."""
        ...

    async def end_session(self, session_id: str) -> None:
        """End what runs for a session; the session itself may go on later."""
        ...

    async def remove_session(self, session_id: str) -> None:
        """End what runs for a session and delete what it has stored on this machine."""
        ...
