"""Server-sent events: encode events, send comments while idle, end with `[DONE]`."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.openai.response import error_of
from holdfast.core.openai.stream_events import StreamEvent
from holdfast.engine.streaming.live_response import PushCallback
from holdfast.http.server.types import SSE, Header, Request, StreamingReply

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_EVENT = b"event: %b\ndata: %b\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

PIECE_BYTES = 64 * 1024
"""How much of a large event is written at once."""


class EventFormat(Protocol):
    """Writes a response's events as one API has them."""

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        """Return events as bytes; empty if they have no representation."""
        ...

    def pieces(self, event: StreamEvent) -> Sequence[bytes]:
        """Return a large event as bytes that belong together, without a copy of its JSON."""
        ...

    def error(self, error: HoldfastError, number: int, /) -> bytes:
        """Return the error that ends a stream which cannot be continued."""
        ...


class EventSource(Protocol):
    """The events of a response; see `StreamReader`."""

    is_over: bool
    """Whether the last event has been taken."""

    async def take(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; an empty list after `seconds` without any; `None` at the end."""
        ...

    @property
    def position(self) -> int:
        """The number of the last event that was taken or pushed."""
        ...

    def note_progress(self) -> None:
        """Record that the client goes on reading what was taken."""
        ...

    async def close(self) -> None:
        """Stop reading."""
        ...


class ResponseEvents:
    """The events of the Responses API."""

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        """Return events in the format of server-sent events."""
        if len(events) == 1:
            event = events[0]
            if event.encoded is None and event.delta is not None:
                event.encoded = _encode(event.delta)
            return _EVENT % (event.type.encode(), event.encoded or event.body)
        return b"".join(
            [_EVENT % (event.type.encode(), event.encoded or event.body) for event in events]
        )

    def pieces(self, event: StreamEvent) -> Sequence[bytes]:
        """Return an event around its JSON, which all readers share."""
        return b"event: %b\ndata: " % event.type.encode(), event.body, b"\n\n"

    def error(self, error: HoldfastError, number: int) -> bytes:
        """Return an `error` event."""
        value = {"type": "error", "sequence_number": number, "param": None, **error_of(error)}
        return _EVENT % (b"error", _encode(value))


RESPONSE_EVENTS = ResponseEvents()


class EventReply(StreamingReply):
    """Stream a response's events in batches, followed by `[DONE]`."""

    def __init__(
        self,
        source: EventSource,
        keep_alive_seconds: float,
        headers: Iterable[Header] = (),
        *,
        encode: EventFormat = RESPONSE_EVENTS,
    ) -> None:
        super().__init__((SSE, *headers))
        self._source = source
        self._keep_alive_seconds = keep_alive_seconds
        self._encode = encode

    async def write_body(self, request: Request) -> bytes:
        """Send the events; while the client keeps up, the source pushes them to the socket.

        A stream that cannot be continued says so.
        """
        source, encode, seconds = self._source, self._encode, self._keep_alive_seconds
        push = partial(request.push, encode)
        try:
            while (events := await source.take(seconds, push)) is not None:
                if events and (events[-1].data is not None or events[-1].size > PIECE_BYTES):
                    await self._send_pieces(request, events)
                    continue
                # The first events share a write with the head, and with those that follow at once.
                if events and not request.sent_bytes and not source.is_over and push(events):
                    continue
                chunk = encode(events) if events else KEEP_ALIVE
                if source.is_over:
                    return chunk + DONE
                if chunk:
                    await request.send(chunk)
        except HoldfastError as error:
            await request.send(encode.error(error, source.position + 1))
            raise
        return DONE

    async def _send_pieces(self, request: Request, events: Sequence[StreamEvent]) -> None:
        """Send events of which the last one is large, as the socket takes them."""
        if len(events) > 1 and (chunk := self._encode(events[:-1])):
            await request.send(chunk)
        for piece in self._encode.pieces(events[-1]):
            for start in range(0, len(piece), PIECE_BYTES):
                await request.send(piece[start : start + PIECE_BYTES])
                self._source.note_progress()

    async def close(self) -> None:
        """Stop reading the source."""
        await self._source.close()
