"""A minimal HTTP/1.1 client on raw sockets, so that the client costs little CPU."""

import asyncio
from typing import Any

import msgspec

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
PATHS = {"chat": CHAT, "responses": RESPONSES}


class Reply(msgspec.Struct, frozen=True):
    """A whole response."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the decoded body."""
        return msgspec.json.decode(self.body)


class Connection:
    """A keep-alive connection that sends one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Connection":
        """Return a connection to a port on the loopback interface."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    async def post(self, path: str, body: bytes, *, key: str | None = None) -> int:
        """Send a request, read the whole response and return its status."""
        headers = {"x-session-key": key} if key is not None else {}
        return (await self.request("POST", path, body, headers)).status

    async def call(
        self, method: str, path: str, value: Any = None, *, key: str | None = None
    ) -> Reply:
        """Send a JSON request and return the response; raise unless it is a success."""
        body = b"" if value is None else msgspec.json.encode(value)
        headers = {"x-session-key": key} if key is not None else {}
        reply = await self.request(method, path, body, headers)
        if reply.status // 100 != 2:
            raise RuntimeError(f"{method} {path}: {reply.status} {reply.body[:500]!r}")
        return reply

    async def request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Reply:
        """Send a request and return the response."""
        self.send(method, path, body, headers)
        return await self.receive()

    def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        """Write a request without waiting for the response."""
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1"]
        if body:
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def drain(self) -> None:
        """Wait until the request is passed to the system."""
        await self._writer.drain()

    async def receive_head(self) -> tuple[int, dict[str, str]]:
        """Read the status and the headers of a response."""
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        pairs = (line.partition(":") for line in lines if line)
        return int(first[9:12]), {name.lower(): value.strip() for name, _, value in pairs}

    async def receive_chunk(self) -> bytes:
        """Read one chunk of a chunked body; the last one is empty."""
        size = int((await self._reader.readuntil(b"\r\n"))[:-2], 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def receive(self) -> Reply:
        """Read a complete response."""
        status, headers = await self.receive_head()
        if "content-length" in headers:
            body = await self._reader.readexactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            body = b""
            while chunk := await self.receive_chunk():
                body += chunk
        else:
            body = b""
        return Reply(status, headers, body)

    async def close(self) -> None:
        """Close the connection."""
        self._writer.close()
        await self._writer.wait_closed()


def turn_body(api: str, text: str, **more: Any) -> dict[str, Any]:
    """Return a request with one user message."""
    if api == "chat":
        return {"model": "stub", "messages": [{"role": "user", "content": text}]} | more
    return {"model": "stub", "input": text} | more
