"""Server-sent events: events as text, comments while it is quiet, one last mark."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.core.openai.stream_events import StreamEvent
from holdfast.engine.streaming.stream_reader import PushCallback
from holdfast.http.server.types import SSE, Header, LongReply, Send, Wire

DONE = b"data: [DONE]\n\n"
_EVENT = b"event: %b\ndata: %b\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

Tell = Callable[[Sequence[StreamEvent]], bytes]
"""Writes events as text; those of which nothing is told make none."""


class Source(Protocol):
    """Where the events of a response come from; see `StreamReader`."""

    is_over: bool
    """Whether the last of them has been taken."""

    async def take(
        self, seconds: float, push: PushCallback | None = None
    ) -> Sequence[StreamEvent] | None:
        """Return the next events; none if there were none for so long; `None` at the end."""
        ...

    async def close(self) -> None:
        """Take no more."""
        ...


def event_texts(events: Sequence[StreamEvent]) -> bytes:
    """Return events as they are written."""
    if len(events) == 1:
        return _EVENT % (events[0].type.encode(), events[0].body)
    return b"".join([_EVENT % (one.type.encode(), one.body) for one in events])


class EventReply(LongReply):
    """A response's events, as many at once as there are, and the mark that ends them."""

    def __init__(
        self,
        source: Source,
        keep_alive_seconds: float,
        headers: Iterable[Header] = (),
        *,
        tell: Tell = event_texts,
    ) -> None:
        super().__init__((SSE, *headers))
        self._source = source
        self._keep_alive_seconds = keep_alive_seconds
        self._tell = tell

    async def pour(self, send: Send, wire: Wire | None) -> bytes:
        """Send the events, by the shortest way while the client keeps up."""
        source, tell, seconds = self._source, self._tell, self._keep_alive_seconds
        push = _push_callback(wire, tell) if wire is not None else None
        while (events := await source.take(seconds, push)) is not None:
            text = tell(events) if events else KEEP_ALIVE
            if source.is_over:
                return text + DONE
            if text:
                await send({"type": "http.response.body", "body": text, "more_body": True})
        return DONE

    async def close(self) -> None:
        """Read no further."""
        await self._source.close()


def _push_callback(wire: Wire, tell: Tell) -> PushCallback:
    def push(events: Sequence[StreamEvent]) -> bool:
        if not wire.is_writable:
            return False
        text = tell(events)
        if text:
            wire.write(text)
        return True

    return push
