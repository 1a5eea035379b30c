"""Server-sent events: events as text, comments while it is quiet, one last mark."""

from collections.abc import AsyncIterator

from holdfast.core.stream import StreamEvent
from holdfast.engine.stream_reader import StreamReader

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


async def sse(reader: StreamReader, keep_alive_seconds: float) -> AsyncIterator[bytes]:
    """Yield a response's events, as many at once as there are, and the mark that ends them."""
    while (events := await reader.take(keep_alive_seconds)) is not None:
        yield b"".join(map(event_text, events)) or KEEP_ALIVE
    yield DONE


def event_text(event: StreamEvent) -> bytes:
    """Return one event as it is written."""
    return b"event: %s\ndata: %s\n\n" % (event.type.encode(), event.body)
