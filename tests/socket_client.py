"""A WebSocket client in the test's own loop."""

import asyncio
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.http_server import Address, HttpServer
from tests.streaming import SECONDS, Event

ENDS = ("response.completed", "response.failed", "response.incomplete", "error")


class SocketClient:
    """One WebSocket connection to a server; frames are queued in both directions."""

    def __init__(
        self,
        server: HttpServer,
        path: str = "/v1/responses",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.close_code: int | None = None
        self.rejected: int | None = None
        """The HTTP status of a rejected handshake."""
        self._server = server
        self._address: Address | None = None
        self._unsent: asyncio.Queue[str] = asyncio.Queue()
        self._received: asyncio.Queue[Event | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(path, headers or {}))

    async def _run(self, path: str, headers: dict[str, str]) -> None:
        url = self._server.url.replace("http://", "ws://") + path
        try:
            async with connect(url, additional_headers=headers, proxy=None, max_size=None) as ws:
                self._address = ws.local_address[:2]
                sender = asyncio.create_task(self._send_queued(ws))
                try:
                    async for frame in ws:
                        self._received.put_nowait(msgspec.json.decode(frame))
                except ConnectionClosed:
                    """A close code other than 1000; it is read below."""
                finally:
                    sender.cancel()
                    await asyncio.gather(sender, return_exceptions=True)
                self.close_code = ws.close_code
        except InvalidStatus as exc:
            self.rejected = exc.response.status_code
            self._received.put_nowait(msgspec.json.decode(exc.response.body or b"null"))
        finally:
            self._received.put_nowait(None)

    async def _send_queued(self, ws: ClientConnection) -> None:
        try:
            while True:
                await ws.send(await self._unsent.get())
        except ConnectionClosed:
            return

    def send(self, frame: Any) -> None:
        """Send a frame: a value as JSON, or text unchanged."""
        text = frame if isinstance(frame, str) else msgspec.json.encode(frame).decode()
        self._unsent.put_nowait(text)

    def create(self, text: Any, **more: Any) -> None:
        """Request a response."""
        self.send({"type": "response.create", "model": "scripted", "input": text, **more})

    async def next(self) -> Event | None:
        """Return the next frame, or `None` when the connection is closed."""
        async with asyncio.timeout(SECONDS):
            return await self._received.get()

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
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._address is not None:
            async with asyncio.timeout(SECONDS):
                await self._server.until_done(self._address)
