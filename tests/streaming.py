"""Streams over a socket: a client that stalls and disconnects, a model with gated output."""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.model.session import Usage
from holdfast.ports.provider import Answer, AnyEvent, EventSink, ModelCall, ModelEvent
from tests.http_server import Address, HttpServer
from tests.in_process import ScriptedModel, text_of

Event = dict[str, Any]
SECONDS = 20.0
RECEIVE_BUFFER_BYTES = 4 * 1024
PIECE_BYTES = 4 * 1024


class Stream:
    """One streaming request; events are read as they come, and the client may stall or leave."""

    def __init__(
        self,
        server: HttpServer,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.is_answered = asyncio.Event()
        self.is_complete = False
        self.comments = 0
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._server = server
        self._address: Address | None = None
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._text = bytearray()
        content = b"" if body is None else msgspec.json.encode(body)
        lines = {
            "host": f"127.0.0.1:{server.address[1]}",
            "content-type": "application/json",
            "content-length": str(len(content)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        request = f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + content
        self._task = asyncio.create_task(self._run(request))

    async def _run(self, request: bytes) -> None:
        try:
            reader, writer = await self._connect()
            try:
                writer.write(request)
                await self._read_head(reader)
                await self._read_chunks(reader)
            finally:
                writer.transport.abort()
        except (asyncio.IncompleteReadError, ConnectionError):
            """The server closed the connection in mid-stream; `is_complete` shows it."""
        finally:
            self._chunks.put_nowait(None)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # A small window: the server soon notices that a stalled client does not read.
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, self._server.address)
        self._address = client.getsockname()[:2]
        return await asyncio.open_connection(sock=client, limit=PIECE_BYTES)

    async def _read_head(self, reader: asyncio.StreamReader) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
        self.status = int(first.split(" ")[1])
        self.headers = dict(line.split(": ", 1) for line in lines)
        self.is_answered.set()

    async def _read_chunks(self, reader: asyncio.StreamReader) -> None:
        if "content-length" in self.headers:
            body = await reader.readexactly(int(self.headers["content-length"]))
            self._chunks.put_nowait(body)
            self.is_complete = True
            return
        while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
            while size:
                await self.may_read.wait()
                piece = await reader.readexactly(min(size, PIECE_BYTES))
                size -= len(piece)
                self._chunks.put_nowait(piece)
            await reader.readexactly(2)
        self.is_complete = True

    async def leave(self) -> None:
        """Close the connection, and wait until the server has noticed."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._address is not None:
            async with asyncio.timeout(SECONDS):
                await self._server.until_done(self._address)

    async def text(self) -> str | None:
        """Return the next block of text, or `None` at the end."""
        searched = 0
        while (end := self._text.find(b"\n\n", searched)) < 0:
            searched = max(len(self._text) - 1, 0)  # a large block comes in many pieces
            async with asyncio.timeout(SECONDS):
                chunk = await self._chunks.get()
            if chunk is None:
                await asyncio.gather(self._task)
                return None
            self._text += chunk
        block = self._text[:end].decode()
        del self._text[: end + 2]
        return block

    async def next(self) -> Event | None:
        """Return the next event; `None` at `[DONE]` or the end of the stream."""
        while (block := await self.text()) is not None:
            if block.startswith(":"):
                self.comments += 1
                continue
            data = block.split("data: ", 1)[1]
            if data == "[DONE]":
                return None
            event: Event = msgspec.json.decode(data)
            assert block.startswith(f"event: {event['type']}\n")
            return event
        return None

    async def take(self, count: int) -> list[Event]:
        """Return the next events."""
        events = [await self.next() for _ in range(count)]
        assert None not in events
        return [event for event in events if event is not None]

    async def rest(self) -> list[Event]:
        """Return all remaining events, up to the end of the stream."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        # The final chunk follows `[DONE]`: `is_complete` is known only then.
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(self._task, return_exceptions=True)
        return events


class DiscardingSink:
    """A listener that ignores every event."""

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Ignore the events."""
        return True

    async def drain(self) -> None:
        """Return at once."""


class TalkingModel(ScriptedModel):
    """Streams its answer event by event; with `is_gated`, each event waits for `allow`."""

    def __init__(self, *words: str, is_gated: bool = False) -> None:
        super().__init__()
        self.words = words or ("one ", "two ", "three")
        self.is_gated = is_gated
        self.sent = asyncio.Semaphore(0)
        self._allowed = asyncio.Semaphore(0)

    def allow(self, count: int = 1) -> None:
        """Allow this many more events."""
        for _ in range(count):
            self._allowed.release()

    def allow_all(self) -> None:
        """Allow all remaining events."""
        self.is_gated = False
        self.allow(1000)

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Stream the words."""
        self.calls.append(call)
        self.shown.append([text_of(msgspec.json.decode(body)) for body in call.items])
        self.entered.release()
        await self.gate.wait()
        item_id = f"msg_{len(self.calls)}"
        for kind, data in model_events(item_id, self.words):
            if self.is_gated:
                await self._allowed.acquire()
            if not sink.write([ModelEvent(kind, data)]):
                await sink.drain()
            self.sent.release()
        if self.is_gated:
            await self._allowed.acquire()
        item = model_message(item_id, "".join(self.words))
        return Answer(items=[msgspec.json.encode(item)], usage=Usage(1, 0, 2, 0))

    async def answer(self, call: ModelCall) -> Answer:
        """Return the whole answer."""
        return await self.stream(call, DiscardingSink())


def model_message(item_id: str, text: str) -> dict[str, Any]:
    """Return a complete message item."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": item_id, "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    }  # fmt: skip


def model_events(item_id: str, words: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Return the provider events of a streamed message."""
    at = {"item_id": item_id, "output_index": 0, "content_index": 0}
    item = model_message(item_id, "".join(words))
    empty = {**item["content"][0], "text": ""}
    begun = {**item, "status": "in_progress", "content": []}
    return [
        ("response.output_item.added", {"output_index": 0, "item": begun}),
        ("response.content_part.added", {**at, "part": empty}),
        *(("response.output_text.delta", {**at, "delta": word, "logprobs": []}) for word in words),
        ("response.output_text.done", {**at, "text": "".join(words), "logprobs": []}),
        ("response.content_part.done", {**at, "part": item["content"][0]}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
    ]


def numbers(events: list[Event]) -> list[int]:
    """Return the sequence numbers of events."""
    return [event["sequence_number"] for event in events]


def kinds(events: list[Event]) -> list[str]:
    """Return the types of events, without the prefix `response.`."""
    return [event["type"].removeprefix("response.") for event in events]
