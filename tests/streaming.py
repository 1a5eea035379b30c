"""Streams in the test's own loop: a client that stalls and leaves, a model told when to speak."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.model.session import Usage
from holdfast.http.app import Application
from holdfast.http.server.types import AsgiRequest, Request
from holdfast.ports.provider import Answer, AnyEvent, EventSink, ModelCall, ModelEvent
from tests.in_process import ScriptedModel, text_of

Event = dict[str, Any]
SECONDS = 20.0


class Stream:
    """One streaming request; events are read as they come, and the client may leave or stall."""

    def __init__(
        self,
        application: Application,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.is_complete = False
        self.comments = 0
        self.sent_bytes = 0
        self.may_send = asyncio.Event()
        self.may_send.set()
        self._body = b"" if body is None else msgspec.json.encode(body)
        self._is_asked = False
        self._left = asyncio.Event()
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._text = b""
        path, _, query = path.partition("?")
        given = {"content-type": "application/json", **(headers or {})}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(k.lower().encode(), v.encode()) for k, v in given.items()],
        }
        self._task = asyncio.create_task(self._run(application, scope))

    async def _run(self, application: Application, scope: dict[str, Any]) -> None:
        try:
            await application.serve(self._request(scope))
        finally:
            self._chunks.put_nowait(None)

    def _request(self, scope: dict[str, Any]) -> Request:
        return AsgiRequest(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.may_send.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode(): v.decode() for k, v in message["headers"]}
            return
        self.sent_bytes += len(message["body"])
        self._chunks.put_nowait(message["body"])
        self.is_complete = not message.get("more_body", False)

    async def leave(self) -> None:
        """Close the connection, and wait until the server has noticed."""
        self._left.set()
        async with asyncio.timeout(SECONDS):
            await self._task

    async def text(self) -> str | None:
        """Return the next block of text, or `None` at the end."""
        while b"\n\n" not in self._text:
            async with asyncio.timeout(SECONDS):
                chunk = await self._chunks.get()
            if chunk is None:
                await self._task
                return None
            self._text += chunk
        block, _, self._text = self._text.partition(b"\n\n")
        return block.decode()

    async def next(self) -> Event | None:
        """Return the next event; `None` at the mark that ends a stream, or at the end itself."""
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
        """Return every event that is left."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


class Deaf:
    """Somebody who lets a model talk."""

    def write(self, events: Sequence[AnyEvent]) -> bool:
        """Hear nothing."""
        return True

    async def drain(self) -> None:
        """There is always room for more of that."""


class TalkingModel(ScriptedModel):
    """Says its answer event by event, each when it is allowed to; all at once if not `is_gated`."""

    def __init__(self, *words: str, is_gated: bool = False) -> None:
        super().__init__()
        self.words = words or ("one ", "two ", "three")
        self.is_gated = is_gated
        self.said = asyncio.Semaphore(0)
        self._allowed = asyncio.Semaphore(0)

    def allow(self, count: int = 1) -> None:
        """Let it say so many more events."""
        for _ in range(count):
            self._allowed.release()

    def let_go(self) -> None:
        """Let it say everything."""
        self.is_gated = False
        self.allow(1000)

    async def stream(self, call: ModelCall, sink: EventSink) -> Answer:
        """Say the words."""
        self.calls.append(call)
        self.shown.append([text_of(msgspec.json.decode(body)) for body in call.items])
        self.entered.release()
        await self.door.wait()
        item_id = f"msg_{len(self.calls)}"
        for kind, data in model_events(item_id, self.words):
            if self.is_gated:
                await self._allowed.acquire()
            if not sink.write([ModelEvent(kind, data)]):
                await sink.drain()
            self.said.release()
        if self.is_gated:
            await self._allowed.acquire()
        item = model_message(item_id, "".join(self.words))
        return Answer(items=[msgspec.json.encode(item)], usage=Usage(1, 0, 2, 0))

    async def answer(self, call: ModelCall) -> Answer:
        """Say it in one piece."""
        return await self.stream(call, Deaf())


def model_message(item_id: str, text: str) -> dict[str, Any]:
    """Return a whole message."""
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {
        "id": item_id, "type": "message", "role": "assistant", "status": "completed",
        "content": [part],
    }  # fmt: skip


def model_events(item_id: str, words: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events in which a message is said."""
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
    """Return the numbers of events."""
    return [event["sequence_number"] for event in events]


def kinds(events: list[Event]) -> list[str]:
    """Return the types of events, without what they all begin with."""
    return [event["type"].removeprefix("response.") for event in events]
