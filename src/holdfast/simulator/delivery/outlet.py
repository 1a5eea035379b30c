"""The port to a transport: send an answer as asked, or break it off."""

from typing import Protocol

from holdfast.simulator.faults.effects import Ending
from holdfast.simulator.state.call import StreamedEvent


class Outlet(Protocol):
    """Sends one answer to its client. After `break_off` nothing more can be sent."""

    async def send_body(
        self, status: int, headers: dict[str, str], body: bytes, *, keep: int | None = None
    ) -> None:
        """Send a whole JSON answer, or announce it whole and send only its first `keep` bytes."""
        ...

    async def open_stream(self, headers: dict[str, str]) -> None:
        """Begin a stream of events with status 200."""
        ...

    def encode(self, event: StreamedEvent) -> bytes:
        """Return an event in the encoding of this transport."""
        ...

    async def send_events(self, events: list[StreamedEvent]) -> None:
        """Send events without a pause."""
        ...

    async def send_piece(self, piece: bytes) -> None:
        """Send encoded events, or a part of one."""
        ...

    async def end_stream(self, *, done: bool) -> None:
        """End the stream properly; `done` adds the closing mark if the transport has one."""
        ...

    async def break_off(self, ending: Ending) -> None:
        """End the answer here, in the way of `ending`."""
        ...

    async def wait_gone(self) -> None:
        """Return when the client has disconnected."""
        ...
