"""Requests, replies and the route table: what endpoints and the server share."""

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
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.ids import DEFAULT_TENANT, Tenant, TurnId
from holdfast.engine.logging import log
from holdfast.http.server.connection import client_network
from holdfast.http.server.memory_budget import UNCOUNTED_BYTES, Holding, MemoryBudget

Header = tuple[bytes, bytes]
ValueT = TypeVar("ValueT")

JSON = (b"content-type", b"application/json")
SSE = (b"content-type", b"text/event-stream; charset=utf-8")
NDJSON = (b"content-type", b"application/x-ndjson")
MAX_DIGITS = 18
STEP_BYTES = 1024 * 1024
"""How far the bytes that are reserved for a body are ahead of those that have arrived."""


class ClientDisconnected(Exception):
    """The client closed the connection."""


class BodyTooLarge(InvalidInput):
    """The request body is larger than `limits.body_bytes`."""

    code = "body_too_large"


class Request:
    """One HTTP request and its connection. The body is read at most once, on demand."""

    id = ""
    tenant: Tenant = DEFAULT_TENANT
    is_admin = False
    sender = ""
    """The id of the caller's API key; empty if there are no keys."""
    route = "unknown"
    raw_path = ""
    """The path as it was sent: a `%2F` in it belongs to an id, and does not end its segment."""
    params: Mapping[str, str] = MappingProxyType({})
    session_headers: Sequence[Header] = ()
    """Reply headers that name the request's session and turn, once they are known."""
    answer_headers: Sequence[Header] = ()
    """Headers to add to an answer without error; those of turns are in their replies already."""
    content = b""
    """The body, once it has been read."""
    digest = b""
    """The hash of a body that was dropped after it was decoded."""
    received_bytes = 0
    """Size of the body that was read; it stays known after the body is dropped."""
    sent_bytes = 0
    """Bytes of a streamed body that were written."""
    is_http_1_0 = False
    """Whether the client uses HTTP/1.0, which needs no Host header and has no chunked encoding."""
    is_half_closed = False
    """Whether the client has shut down its sending side; it may also be completely gone."""
    disconnected = False
    """Whether the client has closed the connection."""
    on_disconnected: Callable[[], None] | None = None
    """Called when the client has closed the connection."""
    is_delivered = False
    """Whether the answer reached the client, as far as the server knows."""
    max_body_bytes: int
    budget: MemoryBudget | None = None
    is_read = False
    """Whether the body has been read to its end."""
    held: Holding | None = None
    """What a large body counts towards the bytes that the process may hold."""
    endpoint: "Endpoint | None" = None
    """What answers the request."""
    reply_held: Holding | None = None
    """What a large reply counts until it is written."""

    def __init__(self, method: str, path: str, query_string: bytes, headers: list[Header]) -> None:
        self.method = method
        self.path = path
        self.query_string = query_string
        self.started_at = time.monotonic()
        self.headers = headers
        # The last of several headers with one name wins.
        self.by_name = dict(headers)

    # ── the connection; implemented by the server ───────────────────────────────────────────

    @property
    def client_host(self) -> str:
        """The address of the client; empty if unknown."""
        return ""

    @property
    def party(self) -> str:
        """Who has a part of the process's memory: the tenant of a key, or else the address."""
        return self.tenant if self.sender else f"address {client_network(self.client_host)}"

    async def receive(self) -> tuple[bytes, bool]:
        """Return the next bytes of the body and whether more follow.

        Raise `ClientDisconnected` when the client is gone.
        """
        raise NotImplementedError

    async def answer(self, status: int, headers: Sequence[Header], body: bytes) -> bool:
        """Write a complete response; return whether the client was still connected."""
        raise NotImplementedError

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Write the head of a streamed response."""
        raise NotImplementedError

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Write a chunk of a streamed body; wait while the client does not keep up."""
        raise NotImplementedError

    def push(self, encode: Callable[[ValueT], bytes], value: ValueT) -> bool:
        """Encode a value and write it as a chunk, without waiting.

        Return False, and encode nothing, if the stream has not started or the client does not keep
        up. A value may have no representation; then nothing is written.
        """
        raise NotImplementedError

    # ── what was sent ───────────────────────────────────────────────────────────────────────

    def with_body(self, body: bytes) -> "Request":
        """Return a request with this one's headers and caller, and another body."""
        request = Request("POST", self.path, b"", self.headers)
        request.id, request.tenant, request.budget = self.id, self.tenant, self.budget
        request.content, request.is_read = body, True
        return request

    def header(self, name: bytes) -> str | None:
        """Return a header as text, decoded as UTF-8 if possible."""
        value = self.by_name.get(name)
        return header_text(value) if value is not None else None

    def raw_header(self, name: bytes) -> bytes | None:
        """Return a header's bytes; the last one if there are several."""
        return self.by_name.get(name)

    def raw_headers(self, name: bytes) -> list[bytes]:
        """Return the values of every header with this name."""
        return [value for key, value in self.headers if key == name]

    def query(self) -> dict[str, str]:
        """Return the query parameters."""
        return dict(self._parameters())

    def query_list(self, name: str) -> list[str]:
        """Return every value of a parameter, written as `name` or `name[]`."""
        return [value for key, value in self._parameters() if key in (name, f"{name}[]")]

    def _parameters(self) -> list[tuple[str, str]]:
        try:
            pairs = parse_qsl(self.query_string.decode("latin-1"), keep_blank_values=True)
        except ValueError as exc:
            raise InvalidInput(f"the query string is not valid: {exc}") from exc
        if any("\0" in part for pair in pairs for part in pair):
            raise InvalidInput("the query string contains a NUL character")
        return pairs

    async def body(self) -> bytes:
        """Return the whole body, up to `max_body_bytes`."""
        if self.is_read:
            return self.content
        limit, size = self.max_body_bytes, 0
        declared = self.by_name.get(b"content-length")
        # The parser has rejected any Content-Length that is not a number.
        is_declared = declared is not None and declared.isdigit()
        length = int(declared[:MAX_DIGITS]) if declared is not None and is_declared else limit
        if length > limit:
            raise BodyTooLarge(f"a request body has at most {limit} bytes")
        pieces: list[bytes] = []
        has_more = True
        while has_more:
            piece, has_more = await self.receive()
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise BodyTooLarge(f"a request body has at most {limit} bytes")
            if size > UNCOUNTED_BYTES:
                await self._hold(size, length if has_more else size)
        if self.held is not None:
            self.held.finish(size)
        # Most bodies arrive in one piece: do not copy them.
        self.content = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.is_read, self.received_bytes = True, size
        return self.content

    async def _hold(self, size: int, length: int) -> None:
        """Count the bytes that have arrived, in steps, towards those that the process may hold."""
        if self.budget is None:
            return
        if self.held is None:
            self.held = self.budget.open(self.party)
        if size > self.held.size and not self.held.try_grow(size := min(size + STEP_BYTES, length)):
            await self.wait_for(self.held, size)

    async def wait_for(self, held: Holding, size: int) -> None:
        """Wait until a holding may grow; raise `ClientDisconnected` when the client is gone."""
        previous, self.on_disconnected = (
            self.on_disconnected,
            lambda: held.abandon(ClientDisconnected),
        )
        try:
            if self.disconnected or (self.is_half_closed and self.reply_held is held):
                raise ClientDisconnected
            await held.grow(size)
        finally:
            self.on_disconnected = previous

    def release_body(self) -> None:
        """Drop the body: its items are stored, or the request has ended."""
        self.content = b""
        if self.held is not None:
            self.held.close()
            self.held = None

    async def wait_disconnected(self, *, or_half_closed: bool = False) -> None:
        """Return when the client has disconnected, or has shut down its sending side."""
        with suppress(ClientDisconnected):
            while not (or_half_closed and self.is_half_closed):
                await self.receive()


def header_text(value: bytes) -> str:
    """Return a header value as text: UTF-8, or Latin-1 if it is not valid UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


class Reply(msgspec.Struct):
    """A complete response."""

    body: bytes
    status: int = 200
    headers: list[Header] = msgspec.field(default_factory=lambda: [JSON])
    delivers: tuple[TurnId, int] | None = None
    """The turn and step that this reply answers; marked as delivered once it was sent."""


class StreamingReply(ABC):
    """A response whose body is sent piece by piece."""

    delivers: tuple[TurnId, int] | None = None
    """The turn and step that this reply answers; marked as delivered once it was sent."""

    def __init__(self, headers: Iterable[Header] = (SSE,)) -> None:
        self.status = 200
        self.on_disconnect: Callable[[], Awaitable[None]] | None = None
        self.until_ended: Callable[[Request], Awaitable[None]] | None = None
        """Waits for a reason to end the stream early, such as a revoked key."""
        self.headers = [*headers, (b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")]

    async def send(self, request: Request) -> bool:
        """Send the body until it ends or the client disconnects; return whether it ended.

        If the body cannot be continued, close the connection without the final chunk, so that
        the client does not take the truncated stream for a complete one.
        """
        task, is_stopped = asyncio.current_task(), False
        assert task is not None
        cancels_before = task.cancelling()

        def stop(_: object = None) -> None:
            nonlocal is_stopped
            if not is_stopped:
                is_stopped = True
                task.cancel()

        try:
            request.on_disconnected = stop
            has_watchers = not request.is_read or self.until_ended is not None
            watchers = self._watchers(request, stop) if has_watchers else []
            is_sent = False
            try:
                if not request.disconnected:
                    is_sent = await self._send_body(request)
            except asyncio.CancelledError:
                if not is_stopped or task.cancelling() > cancels_before + 1:
                    raise
            finally:
                request.on_disconnected = None
                if is_stopped:
                    task.uncancel()
                if watchers:
                    await _cancel(watchers, stop)
            if is_stopped and not request.disconnected:
                await request.send(b"", is_last=True)
            elif request.disconnected and not is_sent and self.on_disconnect is not None:
                await self.on_disconnect()
            return is_sent
        finally:
            await self.close()

    def _watchers(
        self, request: Request, stop: Callable[[object], None]
    ) -> "list[asyncio.Task[None]]":
        """Start the tasks that call `stop` to end the stream early, beside a lost connection."""
        awaited = [self.until_ended] if self.until_ended is not None else []
        if not request.is_read:
            # The rest of a body has to be read, or the loss of the connection is not noticed.
            awaited.append(Request.wait_disconnected)
        tasks = [asyncio.ensure_future(wait(request)) for wait in awaited]
        for task in tasks:
            task.add_done_callback(stop)
        return tasks

    async def _send_body(self, request: Request) -> bool:
        await request.start(self.status, self.headers)
        try:
            last = await self.write_body(request)
        except HoldfastError as exc:
            log.info("request.stream_aborted", code=exc.code)
            return False
        await request.send(last, is_last=True)
        return True

    @abstractmethod
    async def write_body(self, request: Request) -> bytes:
        """Send all of the body except its last chunk, and return that one."""

    @abstractmethod
    async def close(self) -> None:
        """Release the source of the body, whether all of it was sent or not."""


async def _cancel(tasks: "list[asyncio.Task[None]]", callback: Callable[[object], None]) -> None:
    for task in tasks:
        task.remove_done_callback(callback)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class IteratorReply(StreamingReply):
    """A streamed response whose chunks come from an async iterator."""

    def __init__(self, chunks: AsyncIterator[bytes], headers: Iterable[Header] = (SSE,)) -> None:
        super().__init__(headers)
        self.chunks = chunks
        self.on_close: Callable[[], None] | None = None

    async def write_body(self, request: Request) -> bytes:
        """Send the chunks."""
        async for chunk in self.chunks:
            await request.send(chunk)
        return b""

    async def close(self) -> None:
        """Close the generator now: it may hold a lane or a subscription."""
        if self.on_close is not None:
            self.on_close()
            self.on_close = None
        if isinstance(self.chunks, AsyncGenerator):
            await self.chunks.aclose()


AnyReply = Reply | StreamingReply
Endpoint = Callable[[Request], Awaitable[AnyReply]]

_encode = msgspec.json.Encoder().encode


def json_reply(value: Any, *, status: int = 200, headers: Iterable[Header] = ()) -> Reply:
    """Return a value as a JSON response."""
    return Reply(_encode(value), status=status, headers=[JSON, *headers])


class Routes:
    """Map methods and paths to endpoints."""

    def __init__(self) -> None:
        self.exact: dict[str, dict[str, Endpoint]] = {}
        """Endpoints by path and method, of paths that have no parameters."""
        self._patterns: dict[int, list[tuple[list[str], dict[str, Endpoint]]]] = {}

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Serve `method` on `path`; a segment in braces matches any single segment."""
        if "{" not in path:
            self.exact.setdefault(path, {})[method] = endpoint
            return
        segments = path.split("/")
        same_length = self._patterns.setdefault(len(segments), [])
        for known, methods in same_length:
            if known == segments:
                methods[method] = endpoint
                return
        same_length.append((segments, {method: endpoint}))

    def entries(self) -> list[tuple[str, str, Endpoint]]:
        """Return every served method, path and endpoint, sorted."""
        routes = [
            (method, path, endpoint)
            for path, methods in self.exact.items()
            for method, endpoint in methods.items()
        ]
        for patterns in self._patterns.values():
            for segments, methods in patterns:
                path = "/".join(segments)
                routes += [(method, path, endpoint) for method, endpoint in methods.items()]
        return sorted(routes, key=lambda route: (route[1], route[0]))

    def find(self, request: Request) -> dict[str, Endpoint] | None:
        """Return the endpoints of the request's path by method, and set the request's route."""
        path = request.path
        exact = self.exact.get(path)
        if exact is not None:
            request.route = path
            return exact
        segments = [unquote(segment) for segment in (request.raw_path or path).split("/")]
        for pattern, methods in self._patterns.get(len(segments), ()):
            params = _match(pattern, segments)
            if params is not None:
                request.params, request.route = params, "/".join(pattern)
                return methods
        return None


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    params: dict[str, str] = {}
    for expected, actual in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            if not actual:
                return None
            params[expected[1:-1]] = actual
        elif expected != actual:
            return None
    return params
