"""Server-sent events: encode events, send comments while idle, end with `[DONE]`."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from holdfast.core.openai.stream_events import StreamEvent
from holdfast.engine.streaming.live_response import PushCallback
from holdfast.http.server.types import SSE, Header, Request, StreamingReply

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_EVENT = b"event: %b\ndata: %b\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

EventEncoder = Callable[[Sequence[StreamEvent]], bytes]
"""Encodes events as bytes; empty if the events have no representation."""


class EventSource(Protocol):
    """The events of a response; see `StreamReader`."""

    is_over: bool
    """Whether the last event has been taken."""

    async def take(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; an empty list after `seconds` without any; `None` at the end."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


def encode_events(events: Sequence[StreamEvent]) -> bytes:
    """Return events in the format of server-sent events."""
    if len(events) == 1:
        event = events[0]
        if event.encoded is None and event.delta is not None:
            event.encoded = _encode(event.delta)
        return _EVENT % (event.type.encode(), event.encoded or event.body)
    return b"".join(
        [_EVENT % (event.type.encode(), event.encoded or event.body) for event in events]
    )


class EventReply(StreamingReply):
    """Stream a response's events in batches, followed by `[DONE]`."""

    def __init__(
        self,
        source: EventSource,
        keep_alive_seconds: float,
        headers: Iterable[Header] = (),
        *,
        encode: EventEncoder = encode_events,
    ) -> None:
        super().__init__((SSE, *headers))
        self._source = source
        self._keep_alive_seconds = keep_alive_seconds
        self._encode = encode

    async def write_body(self, request: Request) -> bytes:
        """Send the events; while the client keeps up, the source pushes them to the socket."""
        source, encode, seconds = self._source, self._encode, self._keep_alive_seconds
        push = partial(request.push, encode)
        while (events := await source.take(seconds, push)) is not None:
            # The first events share a write with the head, and with those that follow at once.
            if events and not request.sent_bytes and not source.is_over and push(events):
                continue
            chunk = encode(events) if events else KEEP_ALIVE
            if source.is_over:
                return chunk + DONE
            if chunk:
                await request.send(chunk)
        return DONE

    async def close(self) -> None:
        """Stop reading the source."""
        await self._source.close()
