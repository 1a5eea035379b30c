"""One connection to one server: started on demand, restarted with back-off.

The connection has its own task: it is opened and closed there, and used by others.
"""

import asyncio
import base64
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolResult,
    EmbeddedResource,
    ErrorData,
    ImageContent,
    Implementation,
    TextContent,
    TextResourceContents,
)

from holdfast._version import __version__
from holdfast.core.model.synthetic_outputs import MAY_HAVE_RUN
from holdfast.engine.logging import log
from holdfast.ports.tools import ToolImage, ToolResult
from holdfast.tools.mcp.http_exchange import CURRENT_CALL, CallExchange, ObservedClient
from holdfast.tools.mcp.naming import MAX_TOOLS, ListedTool
from holdfast.tools.mcp.stdio import INVALID_ANSWER, ServerProcess, open_process
from holdfast.tools.mcp.tool_lists import checked_lists
from holdfast.tools.settings import McpSettings

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
"""Longest pause between two starts of a server that does not stay up; pauses double up to it."""
LIST_SECONDS = 30.0
"""How long a list of tools is used before it is fetched again."""
PROBE_AFTER_SECONDS = 5.0
"""A connection that was idle for longer is probed before a call is sent through it."""
PROBE_SECONDS = 5.0
"""A server that does not answer a probe for this long is restarted."""
CLOSE_SECONDS = 5.0
MAX_PAGES = 20
SESSION_TERMINATED = "Session terminated"
"""The client library's message for a session that its HTTP server no longer has."""
_IMAGE_TYPE = re.compile(r"image/[a-z0-9.+-]{1,64}")
ResultT = TypeVar("ResultT")
_CALL_ERRORS = (MCPError, httpx2.HTTPError, OSError, RuntimeError, ValueError)
"""Exceptions of a call without a result."""
UNKNOWN = f"The outcome of this call is unknown. {MAY_HAVE_RUN}"
_REQUEST_ERRORS = (
    MCPError, httpx2.HTTPError, OSError, RuntimeError, TimeoutError, ValueError,
)  # fmt: skip
"""Exceptions of a request without a proper answer."""


class ServerUnavailable(Exception):
    """The server is not connected; nothing was sent to it."""


class McpConnection:
    """A server's connection, and its tools."""

    def __init__(self, settings: McpSettings) -> None:
        self.settings = settings
        self.last_error: str | None = None
        self.last_used = monotonic()
        self.calls = 0
        """Calls that run or wait for a slot."""
        self._in_flight = 0
        """Calls that were sent to the server and are not answered yet."""
        self.tools: list[ListedTool] = []
        self.malformed: dict[str, None] = {}
        """Names of listed tools that are omitted because they are malformed."""
        self._listed_at: float | None = None
        self._list_version = 0
        """How often the server has announced that its list changed."""
        self._task: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Client] | None = None
        self._state = ServerProcess()
        self._stop = asyncio.Event()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._probing: asyncio.Task[None] | None = None
        self._is_suspect = False
        """Whether the last call got no proper answer; then the server is probed before the next."""
        self._failures = 0
        self._retry_at = 0.0

    @property
    def is_ready(self) -> bool:
        """Whether the server is connected."""
        ready = self._ready
        return (
            ready is not None
            and ready.done()
            and not ready.cancelled()
            and ready.exception() is None
            and not self._has_ended()
        )

    # ── using it ────────────────────────────────────────────────────────────────────────────

    async def list_tools(self) -> Sequence[ListedTool]:
        """Return the server's tools; start it if needed."""
        if self._listed_at is None or (
            # Some servers answer nothing else during a call.
            monotonic() - self._listed_at > LIST_SECONDS and not self._in_flight
        ):
            version = self._list_version
            self.malformed = {}
            self.tools = await self._request(_list_all, self.settings.start_seconds)
            # If the list changed while it was read, read it again the next time.
            self._listed_at = monotonic() if version == self._list_version else None
        return self.tools

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a tool. Cancelling the caller tells the server to stop."""
        self.calls += 1
        try:
            async with self._slots:
                try:
                    return await self._call(name, arguments)
                except ServerUnavailable as exc:
                    return ToolResult(error=f"The call was not run: {exc}")
        finally:
            self.calls -= 1
            self.last_used = monotonic()

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        client = await self._live_client()
        exchange = CallExchange()
        try:
            return _result(await self._send_call(client, name, arguments, exchange))
        except _CALL_ERRORS as exc:
            if not _is_terminated(exc, exchange):
                return await self._failed_result(exc, exchange, client)
        # The server rejected the call together with its session: retry it in a new session.
        await self._fail(ServerUnavailable(SESSION_TERMINATED), client)
        client, exchange = await self._connect(), CallExchange()
        try:
            return _result(await self._send_call(client, name, arguments, exchange))
        except _CALL_ERRORS as exc:
            return await self._failed_result(exc, exchange, client)

    async def _send_call(
        self, client: Client, name: str, arguments: dict[str, Any], exchange: CallExchange
    ) -> CallToolResult:
        CURRENT_CALL.set(exchange)
        self._in_flight += 1
        # After a cancelled or failed call, probe the server before the next one.
        self._is_suspect = True
        try:
            result = await client.call_tool(name, arguments)
            self._note_success()
            return result
        finally:
            self._in_flight -= 1
            CURRENT_CALL.set(None)

    async def _failed_result(
        self, exc: Exception, exchange: CallExchange, client: Client
    ) -> ToolResult:
        """Return what is known of a failed call: only an answer of its server tells the outcome."""
        name = self.settings.name
        if exchange.failure is not None:
            await self._fail(exc, client)
            return ToolResult(
                error=f"The call was not run: {name} cannot be reached ({exchange.failure})"
            )
        if isinstance(exc, MCPError) and self._is_answer(exc.error, exchange):
            return ToolResult(error=f"The server answered with an error: {exc}")
        if isinstance(exc, ValueError) or _is_unreadable(exc):
            return ToolResult(error=f"The server {name} sent an invalid answer. {UNKNOWN}")
        if self._has_ended() and self.settings.command:
            return ToolResult(
                error=f"The server {name} {self._state.end} during the call. {UNKNOWN}"
            )
        if exchange.status is not None and exchange.status >= 400:
            return ToolResult(error=f"{name} failed with HTTP {exchange.status}. {UNKNOWN}")
        if not isinstance(exc, MCPError):
            await self._fail(exc, client)
        return ToolResult(error=f"{name} gave no proper answer ({_words(exc)}). {UNKNOWN}")

    def _is_answer(self, error: ErrorData, exchange: CallExchange) -> bool:
        """Whether the server itself has answered with this error, so that the call has ended."""
        if not self.settings.command:
            return exchange.is_answer(error.code)
        return error.code != CONNECTION_CLOSED and error.message != INVALID_ANSWER

    async def _live_client(self) -> Client:
        """Return a client whose server answers; probe it after idling or a failure."""
        client = await self._connect()
        is_idle = monotonic() - self.last_used > PROBE_AFTER_SECONDS
        if (self._is_suspect or is_idle) and not self._in_flight:
            # Shielded: a hanging server must be restarted even if the call's own timeout is
            # shorter.
            await asyncio.shield(self._probe())
            client = await self._connect()
        return client

    def _probe(self) -> "asyncio.Task[None]":
        """Return the task that probes the server, shared by concurrent calls."""
        if self._probing is None or self._probing.done():
            seconds = min(PROBE_SECONDS, self.settings.start_seconds)
            self._probing = asyncio.create_task(self._request(_ping, seconds), name="holdfast-mcp")
            self._probing.add_done_callback(_ignore_failure)
        return self._probing

    async def _request(
        self, ask: Callable[[Client], Awaitable[ResultT]], seconds: float
    ) -> ResultT:
        """Send an idempotent request; if it fails, restart the server and send it once more."""
        for is_last in (False, True):
            client = await self._connect()
            try:
                async with asyncio.timeout(seconds):
                    answer = await ask(client)
            except _REQUEST_ERRORS as exc:
                if not self._may_restart(exc):
                    raise ServerUnavailable(f"{self.settings.name}: {_words(exc)}") from exc
                await self._fail(exc, client)
                if is_last:
                    raise ServerUnavailable(f"{self.settings.name}: {_words(exc)}") from exc
            else:
                self._note_success()
                self.last_used = monotonic()
                return answer
        raise AssertionError  # the loop returns or raises

    def _may_restart(self, exc: BaseException) -> bool:
        """Whether a failed request justifies a restart; never while a call may still run."""
        if self._has_ended():
            return True
        # An HTTP server reports with an error that it no longer has our session.
        is_answer = isinstance(exc, ValueError) or (
            isinstance(exc, MCPError) and bool(self.settings.command)
        )
        return not is_answer and not self._in_flight

    # ── its life ────────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> Client:
        """Return the client, and start its server if needed; during a pause, raise at once."""
        if self._ready is None or self._has_ended():
            await self._disconnect()
            seconds_left = self._retry_at - monotonic()
            if seconds_left > 0:
                raise ServerUnavailable(
                    f"{self.settings.name} is not available ({self.last_error}); "
                    f"next try in {seconds_left:.0f} s"
                )
        if self._ready is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._stop = asyncio.Event()
            self._state = ServerProcess()
            self._task = asyncio.create_task(self._live(self._ready), name="holdfast-mcp")
        # Shielded: a cancelled caller must not stop the start for the others.
        return await asyncio.shield(self._ready)

    async def _live(self, ready: "asyncio.Future[Client]") -> None:
        """Start the server and keep its connection until it is closed or ends."""
        state, stop = self._state, self._stop
        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(self.settings.start_seconds):
                    client = await stack.enter_async_context(self._open(state))
                log.info("mcp.server_started", server=self.settings.name)
                ready.set_result(client)
                waiting = [asyncio.create_task(each.wait()) for each in (stop, state.ended)]
                try:
                    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in waiting:
                        task.cancel()
        except Exception as exc:  # noqa: BLE001 - the top of a task; callers get the error
            if ready.done():
                log.info("mcp.server_ended", server=self.settings.name, reason=_words(exc))
            else:
                detail = state.errors.decode("utf-8", "replace").strip().splitlines()
                reason = "; ".join((_words(exc), *detail[-1:]))
                self._note_failure(reason, type(exc).__name__)
                name = self.settings.name
                ready.set_exception(ServerUnavailable(f"{name} did not start: {reason}"))
        finally:
            state.ended.set()
            if not ready.done():
                ready.set_exception(ServerUnavailable(f"{self.settings.name} was closed"))
            ready.exception()  # nobody may be waiting for it any more

    @asynccontextmanager
    async def _open(self, state: ServerProcess) -> AsyncIterator[Client]:
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            if settings.command:
                streams: Any = open_process(settings, state)
            else:
                timeout = httpx2.Timeout(settings.start_seconds, read=None)
                http = ObservedClient(headers=settings.headers(), timeout=timeout)
                await stack.enter_async_context(http)
                streams = streamable_http_client(settings.url, http_client=http)
            transport: Any = checked_lists(streams, self._note_malformed)
            client = Client(
                transport,
                message_handler=self._handle_notice,
                client_info=Implementation(name="holdfast", version=__version__),
                cache=None,
            )
            yield await stack.enter_async_context(client)

    async def _handle_notice(self, message: Any) -> None:
        """Invalidate the list of tools when the server announces a change."""
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._list_version += 1
            self._listed_at = None

    def _note_malformed(self, name: str) -> None:
        if len(self.malformed) < MAX_TOOLS:
            self.malformed[name] = None

    def _has_ended(self) -> bool:
        return self._task is None or self._task.done() or self._state.ended.is_set()

    async def _fail(self, exc: BaseException, client: Client) -> None:
        """Close a connection that failed, unless it was replaced meanwhile."""
        if self.is_ready and self._ready is not None and self._ready.result() is not client:
            return
        self._note_failure(_words(exc), type(exc).__name__)
        await self._disconnect()

    def _note_success(self) -> None:
        self._is_suspect, self._failures, self.last_error = False, 0, None

    def _note_failure(self, reason: str, kind: str) -> None:
        self.last_error = reason
        self._failures += 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1), MAX_PAUSE_SECONDS)
        # The first restart is immediate: most servers that ended were simply stopped.
        self._retry_at = monotonic() + (pause if self._failures > 1 else 0.0)
        log.warning("mcp.server_failed", server=self.settings.name, reason=kind)

    async def close(self) -> None:
        """End the connection and the server's process for good."""
        if self._probing is not None:
            # A probe would start the server again.
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
        await self._disconnect()

    async def _disconnect(self) -> None:
        ready, self._ready, self._listed_at = self._ready, None, None
        task, self._task = self._task, None
        if task is None:
            return
        self._stop.set()
        if ready is not None and ready.done():
            await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _ignore_failure(task: "asyncio.Task[None]") -> None:
    """Retrieve a task's exception, because nobody may be waiting for it."""
    if not task.cancelled():
        task.exception()


async def _ping(client: Client) -> None:
    """Send a request that exists in all versions of the protocol; newer ones lack `ping`."""
    await client.list_tools()


def _is_terminated(exc: Exception, exchange: CallExchange) -> bool:
    """Whether a server rejected a call because it no longer has our session."""
    if not isinstance(exc, MCPError) or exchange.status not in (None, 404):
        return False
    return exc.error.code == INVALID_REQUEST and exc.error.message == SESSION_TERMINATED


def _is_unreadable(exc: Exception) -> bool:
    """Whether an answer came that is no message of the protocol."""
    return isinstance(exc, MCPError) and exc.error.code == PARSE_ERROR


async def _list_all(client: Client) -> list[ListedTool]:
    """Return all pages of a server's tools, up to a limit."""
    tools: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            hints = tool.annotations
            tools.append(
                ListedTool(
                    name=tool.name,
                    description=tool.description or "",
                    schema=tool.input_schema,
                    is_read_only=bool(hints and hints.read_only_hint),
                    is_idempotent=bool(hints and hints.idempotent_hint),
                )
            )
        cursor = page.next_cursor
        if not cursor:
            break
    return tools


def _result(result: CallToolResult) -> ToolResult:
    """Return a tool's result as text and images; other content is only mentioned."""
    parts: list[str] = []
    images: list[ToolImage] = []
    for block in result.content:
        if isinstance(block, TextContent):
            parts.append(block.text)
        elif isinstance(block, EmbeddedResource) and isinstance(
            block.resource, TextResourceContents
        ):
            parts.append(block.resource.text)
        else:
            if isinstance(block, ImageContent):
                images += _image(block)
            kind = getattr(block, "mime_type", None) or block.type
            parts.append(f"[{kind}: not shown]")
    if not parts and result.structured_content is not None:
        parts.append(msgspec.json.encode(result.structured_content).decode())
    text = "\n".join(parts)
    if result.is_error:
        return ToolResult(error=text or "the tool reported an error")
    return ToolResult(output=text, images=tuple(images))


def _image(block: ImageContent) -> list[ToolImage]:
    """Return an image, or nothing if it cannot be shown."""
    is_image = _IMAGE_TYPE.fullmatch(block.mime_type) is not None
    try:
        content = base64.b64decode(block.data, validate=True)
    except ValueError:
        return []
    return [ToolImage(block.mime_type, content)] if content and is_image else []


def _words(exc: BaseException) -> str:
    """Return an error as a short text; of an exception group, the first one."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return f"{exc}"[:300] or type(exc).__name__
