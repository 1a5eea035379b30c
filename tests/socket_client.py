"""A WebSocket client in the test's own loop."""

import asyncio
from typing import Any

import msgspec

from holdfast.http.app import Application
from tests.streaming import SECONDS, Event

ENDS = ("response.completed", "response.failed", "response.incomplete", "error")


class SocketClient:
    """One WebSocket connection to an application in the same loop."""

    def __init__(
        self,
        application: Application,
        path: str = "/v1/responses",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.close_code: int | None = None
        self.refused: int | None = None
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._outbox: asyncio.Queue[Event | None] = asyncio.Queue()
        self._inbox.put_nowait({"type": "websocket.connect"})
        scope = {
            "type": "websocket",
            "path": path,
            "query_string": b"",
            "extensions": {"websocket.http.response": {}},
            "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        }
        self._task = asyncio.create_task(self._run(application, scope))

    async def _run(self, application: Application, scope: dict[str, Any]) -> None:
        try:
            await application(scope, self._inbox.get, self._take)
        finally:
            self._outbox.put_nowait(None)

    async def _take(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "websocket.accept":
                return
            case "websocket.close":
                self.close_code = message["code"]
            case "websocket.http.response.start":
                self.refused = message["status"]
            case "websocket.http.response.body":
                self._outbox.put_nowait(msgspec.json.decode(message["body"]))
            case _:
                self._outbox.put_nowait(msgspec.json.decode(message["text"]))

    def send(self, frame: Any) -> None:
        """Send a frame: a value, or text as it is."""
        text = frame if isinstance(frame, str) else msgspec.json.encode(frame).decode()
        self._inbox.put_nowait({"type": "websocket.receive", "text": text})

    def create(self, said: Any, **more: Any) -> None:
        """Ask for a response."""
        self.send({"type": "response.create", "model": "scripted", "input": said, **more})

    async def next(self) -> Event | None:
        """Return the next frame, or `None` when the connection is over."""
        async with asyncio.timeout(SECONDS):
            return await self._outbox.get()

    async def response(self) -> list[Event]:
        """Return the frames up to the end of a response, or to an error."""
        events: list[Event] = []
        while (event := await self.next()) is not None:
            events.append(event)
            if event["type"] in ENDS:
                break
        return events

    async def leave(self) -> None:
        """Close the connection, and wait until the server has noticed."""
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})
        async with asyncio.timeout(SECONDS):
            await self._task
