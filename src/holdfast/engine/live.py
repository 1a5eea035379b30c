"""A response while it is being made: its events, numbered, for as many readers as want them.

The run writes and never waits. A reader that is slow reads later; one that comes back asks for
what followed the last number it saw.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


class LiveEvent(msgspec.Struct, frozen=True, gc=False):
    """One event as it goes out: its type and its JSON, number included."""

    type: str
    body: bytes


class LiveResponse:
    """The events of one response, from its first to its terminal one."""

    def __init__(self, response_id: str) -> None:
        self.id = response_id
        self.is_ended = False
        self._events: list[LiveEvent] = []
        self._news = asyncio.Event()

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        """Number an event and give it to every reader."""
        number = len(self._events)
        body = _encode({"type": kind, "sequence_number": number, **_unnumbered(data)})
        self._events.append(LiveEvent(kind, body))
        self._wake()

    def end(self) -> None:
        """Say that nothing more will come."""
        self.is_ended = True
        self._wake()

    def events(self) -> list[LiveEvent]:
        """Return what has been published so far."""
        return self._events

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def read(self, starting_after: int = -1) -> AsyncIterator[LiveEvent]:
        """Yield every event after a number, those to come included."""
        place = starting_after + 1
        while True:
            news = self._news
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self.is_ended:
                return
            await news.wait()


def _unnumbered(data: dict[str, Any]) -> dict[str, Any]:
    if "sequence_number" not in data and "type" not in data:
        return data
    return {k: v for k, v in data.items() if k not in ("sequence_number", "type")}
