"""The little of a web framework that we need: requests, replies, a table of routes."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.ids import DEFAULT_TENANT, Tenant, TurnId
from holdfast.engine.logging import log

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream; charset=utf-8")


class Wire(Protocol):
    """A connection over which a body of any length goes out."""

    @property
    def is_writable(self) -> bool:
        """Whether the client keeps up; otherwise what is to be sent has to wait."""
        ...

    def write(self, body: bytes) -> None:
        """Write a piece of the body out at once."""
        ...


class ClientLeft(Exception):
    """The client closed the connection."""


MAX_DIGITS = 18


class BodyTooLarge(InvalidInput):
    """The body is longer than a body may be."""

    code = "body_too_large"


class Request:
    """One HTTP request, and the way back to who sent it. The body is read once, when asked for."""

    id = ""
    tenant: Tenant = DEFAULT_TENANT
    is_admin = False
    route = "unknown"
    params: Mapping[str, str] = MappingProxyType({})
    bound: Sequence[Header] = ()
    """What an answer says of the session and turn that this request belongs to, once known."""
    content = b""
    """The body, once it has been read."""
    sent_bytes = 0
    """Bytes of a streamed body that were written out."""
    max_body_bytes: int
    _is_read = False

    def __init__(self, method: str, path: str, query_string: bytes, headers: list[Header]) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.began_at = time.monotonic()
        self.headers = headers
        # Of several headers of a name the last one counts, as in a dictionary made of them.
        self.by_name = dict(headers)

    async def receive(self) -> tuple[bytes, bool]:
        """Return what has come of the body, and whether there is more; or raise `ClientLeft`."""
        raise NotImplementedError

    async def send(self, message: dict[str, Any]) -> None:
        """Write out a head, or a piece of the body, as ASGI has them."""
        raise NotImplementedError

    @property
    def wire(self) -> Wire | None:
        """What the pieces of an answer can be written to at once, if there is such a thing."""
        return None

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> None:
        """Write out a whole answer."""
        listed = [*headers, (b"content-length", b"%d" % len(body))]
        await self.send({"type": "http.response.start", "status": status, "headers": listed})
        await self.send({"type": "http.response.body", "body": body})

    def frame(self, body: bytes) -> "Request":
        """Return a request with this one's headers and caller, and a body of its own."""
        request = Request("POST", self.path, b"", self.headers)
        request.id, request.tenant = self.id, self.tenant
        request.content, request._is_read = body, True
        return request

    def header(self, name: bytes) -> str | None:
        """Return a header's text, as UTF-8 where it is."""
        value = self.by_name.get(name)
        return header_text(value) if value is not None else None

    def raw_header(self, name: bytes) -> bytes | None:
        """Return a header's bytes; of several, the last one."""
        return self.by_name.get(name)

    def raw_headers(self, name: bytes) -> list[bytes]:
        """Return the bytes of every header of a name."""
        return [value for key, value in self.headers if key == name]

    def query(self) -> dict[str, str]:
        """Return the query parameters."""
        return dict(self._parameters())

    def query_list(self, name: str) -> list[str]:
        """Return every value of a parameter, also as clients write lists: `name[]`."""
        return [value for key, value in self._parameters() if key in (name, f"{name}[]")]

    def _parameters(self) -> list[tuple[str, str]]:
        try:
            pairs = parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True)
        except ValueError as exc:
            raise InvalidInput(f"the query cannot be read: {exc}") from exc
        if any("\0" in part for pair in pairs for part in pair):
            raise InvalidInput("the query has a NUL in it, which no parameter may have")
        return pairs

    async def body(self) -> bytes:
        """Return the whole body, bounded."""
        if self._is_read:
            return self.content
        most, size = self.max_body_bytes, 0
        length = self.by_name.get(b"content-length")
        # The wire has seen to it that this is a number.
        if length is not None and length.isdigit() and int(length[:MAX_DIGITS]) > most:
            raise BodyTooLarge(f"a request body has at most {most} bytes")
        pieces: list[bytes] = []
        is_more = True
        while is_more:
            piece, is_more = await self.receive()
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise BodyTooLarge(f"a request body has at most {most} bytes")
        # Most bodies come in one piece, and stay the bytes they came in.
        self.content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._is_read = True
        return self.content

    async def until_left(self) -> None:
        """Return when the client has gone."""
        with suppress(ClientLeft):
            while True:
                await self.receive()


class AsgiRequest(Request):
    """A request that any server brings, by ASGI."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query, headers = scope.get("query_string", b""), list(scope["headers"])
        super().__init__(scope["method"], scope["path"], query, headers)
        self._receive = receive
        self._send = send

    async def receive(self) -> tuple[bytes, bool]:
        """Return what has come of the body, and whether there is more; or raise `ClientLeft`."""
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        return message.get("body", b""), message.get("more_body", False)

    async def send(self, message: dict[str, Any]) -> None:
        """Write out a head, or a piece of the body, as ASGI has them."""
        await self._send(message)


def header_text(value: bytes) -> str:
    """Return a header's text: UTF-8 where it is, else as old clients write."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Reply:
    """A whole answer."""

    delivers: tuple[TurnId, int] | None = None
    """The turn and step that it answers, which is noted once all of it has left."""

    def __init__(
        self, body: bytes, *, status: int = 200, headers: Iterable[Header] = (JSON,)
    ) -> None:
        self.body = body
        self.status = status
        self.headers = list(headers)


class LongReply(ABC):
    """An answer that comes bit by bit."""

    delivers: tuple[TurnId, int] | None = None
    """The turn and step that it answers, which is noted once all of it has left."""

    def __init__(self, headers: Iterable[Header] = (SSE,)) -> None:
        self.status = 200
        self.on_left: Callable[[], Awaitable[None]] | None = None
        self.headers = [*headers, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

    async def send(self, request: Request) -> bool:
        """Write it out as it comes, until it ends or the client leaves; return whether it ended.

        What cannot be continued is broken off: a client must not take it for the end.
        """
        try:
            return await self._send(request)
        finally:
            await self.close()

    async def _send(self, request: Request) -> bool:
        pump = asyncio.create_task(self._pump(request), name="holdfast-stream")
        left = asyncio.create_task(request.until_left(), name="holdfast-client")
        try:
            await asyncio.wait({pump, left}, return_when=asyncio.FIRST_COMPLETED)
            if pump.done():
                return pump.result()
        finally:
            for task in (pump, left):
                task.cancel()
            await asyncio.gather(pump, left, return_exceptions=True)
        if self.on_left is not None:
            await self.on_left()
        return False

    async def _pump(self, request: Request) -> bool:
        send = request.send
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        try:
            last = await self.pour(send, request.wire)
        except HoldfastError as exc:
            log.info("stream.broken_off", code=exc.code, reason=exc.message)
            return False
        await send({"type": "http.response.body", "body": last})
        return True

    @abstractmethod
    async def pour(self, send: Send, wire: Wire | None) -> bytes:
        """Send the body but for its last piece, and return that; a wire may be written to."""

    @abstractmethod
    async def close(self) -> None:
        """Let go of what the body is made of, whether all of it was sent or not."""


class StreamReply(LongReply):
    """An answer that comes chunk by chunk."""

    def __init__(self, chunks: AsyncIterator[bytes], headers: Iterable[Header] = (SSE,)) -> None:
        super().__init__(headers)
        self.chunks = chunks

    async def pour(self, send: Send, wire: Wire | None) -> bytes:  # noqa: ARG002 - one at a time
        """Send the chunks."""
        async for chunk in self.chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        return b""

    async def close(self) -> None:
        """Leave none of it in the middle: it would hold on to what it holds."""
        if isinstance(self.chunks, AsyncGenerator):
            await self.chunks.aclose()


AnyReply = Reply | LongReply
Endpoint = Callable[[Request], Awaitable[AnyReply]]

_encode = msgspec.json.Encoder().encode


def json_reply(value: Any, *, status: int = 200, headers: Iterable[Header] = ()) -> Reply:
    """Return a value as a JSON answer."""
    return Reply(_encode(value), status=status, headers=[JSON, *headers])


class Routes:
    """Which endpoint serves which method and path."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Endpoint]] = {}
        self._patterns: dict[int, list[tuple[list[str], dict[str, Endpoint]]]] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Serve `method` on `path`; a segment in braces matches any one segment."""
        if "{" not in path:
            self._exact.setdefault(path, {})[method] = endpoint
            return
        segments = path.split("/")
        same_length = self._patterns.setdefault(len(segments), [])
        for known, methods in same_length:
            if known == segments:
                methods[method] = endpoint
                return
        same_length.append((segments, {method: endpoint}))

    def listed(self) -> list[tuple[str, str, Endpoint]]:
        """Return every method, path and endpoint that is served."""
        found = [
            (method, path, endpoint)
            for path, methods in self._exact.items()
            for method, endpoint in methods.items()
        ]
        for patterns in self._patterns.values():
            for segments, methods in patterns:
                found += [(method, "/".join(segments), one) for method, one in methods.items()]
        return sorted(found, key=lambda route: (route[1], route[0]))

    def find(self, request: Request) -> dict[str, Endpoint] | None:
        """Return the endpoints of a request's path by method; the request is told its route."""
        path = request.path
        exact = self._exact.get(path)
        if exact is not None:
            request.route = path
            return exact
        segments = path.split("/")
        for pattern, methods in self._patterns.get(len(segments), ()):
            params = _match(pattern, segments)
            if params is not None:
                request.params, request.route = params, "/".join(pattern)
                return methods
        return None


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for want, got in zip(pattern, segments, strict=True):
        if want.startswith("{"):
            if not got:
                return None
            params[want[1:-1]] = unquote(got)
        elif want != got:
            return None
    return params
