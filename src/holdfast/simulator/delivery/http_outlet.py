"""Send answers over HTTP as JSON or server-sent events, and break them on request."""

import asyncio
import fcntl
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from holdfast.simulator.faults.effects import Ending
from holdfast.simulator.state.call import StreamedEvent
from holdfast.simulator.state.json import encode

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
FLUSH_ROUNDS = 1000
_SIOCOUTQNSD = 0x894B
"""Linux: how many bytes of a TCP socket's queue have not been sent yet."""
DONE = b"data: [DONE]\n\n"


class Transport(Protocol):
    """The parts of a transport that breaking a connection needs."""

    def get_extra_info(self, name: str) -> Any: ...
    def get_write_buffer_size(self) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


def reset(transport: Transport) -> None:
    """Close the connection with a RST instead of a FIN."""
    found = transport.get_extra_info("socket")
    if found is not None:
        with socket.socket(fileno=os.dup(found.fileno())) as twin:
            # Linger of zero seconds: the kernel discards unsent data and resets.
            twin.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


async def flush(transport: Transport) -> None:
    """Wait until everything written was sent, so that a RST cuts at the right byte."""
    # uvloop counts a write only from the next loop iteration on: yield before reading the count.
    await asyncio.sleep(0)
    for _ in range(FLUSH_ROUNDS):
        if not transport.get_write_buffer_size() and not _unsent_bytes(transport):
            return
        await asyncio.sleep(0.001)


def _unsent_bytes(transport: Transport) -> int:
    """Return how many bytes the kernel has not sent; a RST would discard them."""
    found = transport.get_extra_info("socket")
    if found is None:
        return 0
    try:
        answer = fcntl.ioctl(found.fileno(), _SIOCOUTQNSD, struct.pack("i", 0))
    except OSError:
        return 0
    return int(struct.unpack("i", answer)[0])


def encode_sse(event: StreamedEvent) -> bytes:
    """Return an event as server-sent events write it."""
    if event.name is None:
        return b"data: " + encode(event.data) + b"\n\n"
    return b"event: " + event.name.encode() + b"\ndata: " + encode(event.data) + b"\n\n"


class HttpOutlet:
    """One HTTP answer."""

    def __init__(self, receive: Receive, send: Send, transport: Transport, request_id: str) -> None:
        self._receive = receive
        self._send = send
        self._transport = transport
        self._request_id = request_id
        self._is_gone = False

    async def send_body(
        self, status: int, headers: dict[str, str], body: bytes, *, keep: int | None = None
    ) -> None:
        """Send a JSON answer; with `keep`, send only its first bytes after announcing all of it."""
        announced = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ]
        await self._start(status, headers, announced)
        part = body if keep is None else body[:keep]
        await self._send(
            {"type": "http.response.body", "body": part, "more_body": keep is not None}
        )

    async def open_stream(self, headers: dict[str, str]) -> None:
        """Begin a stream of server-sent events."""
        announced = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-cache"),
        ]
        await self._start(200, headers, announced)

    async def _start(
        self, status: int, headers: dict[str, str], announced: list[tuple[bytes, bytes]]
    ) -> None:
        announced.append((b"x-request-id", self._request_id.encode()))
        announced += [(k.encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": announced})

    def encode(self, event: StreamedEvent) -> bytes:
        """Return an event as server-sent events write it."""
        return encode_sse(event)

    async def send_events(self, events: list[StreamedEvent]) -> None:
        """Send events in one piece."""
        await self.send_piece(b"".join(map(encode_sse, events)))

    async def send_piece(self, piece: bytes) -> None:
        """Send encoded events, or a part of one."""
        if piece:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    async def end_stream(self, *, done: bool) -> None:
        """End the stream properly."""
        await self._send(
            {"type": "http.response.body", "body": DONE if done else b"", "more_body": False}
        )

    async def break_off(self, ending: Ending) -> None:
        """End here: properly, with a bare FIN, or with a RST."""
        if ending == "clean":
            await self.end_stream(done=False)
            return
        if ending == "reset":
            await flush(self._transport)
            reset(self._transport)
        else:
            self._transport.close()
        await self.wait_gone()

    async def wait_gone(self) -> None:
        """Return when the client has disconnected."""
        while not self._is_gone:
            message = await self._receive()
            self._is_gone = message["type"] == "http.disconnect"
