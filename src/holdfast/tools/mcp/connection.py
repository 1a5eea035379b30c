"""One connection to one server: started when it is needed, restarted with back-off.

The connection lives in a task of its own: it is opened and closed there, and used from others.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, TypeVar

import httpx2
import msgspec
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import (
    CallToolResult,
    EmbeddedResource,
    Implementation,
    TextContent,
    TextResourceContents,
)

from holdfast._version import __version__
from holdfast.engine.logging import log
from holdfast.ports.tools import ToolResult
from holdfast.tools.mcp.naming import ListedTool
from holdfast.tools.mcp.stdio import ServerProcess, open_process
from holdfast.tools.settings import McpSettings

FIRST_PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 60.0
"""Between two starts of a server that does not stay up; each pause is twice as long."""
LIST_SECONDS = 30.0
"""How long a list of tools is used before it is asked for again."""
PING_AFTER_SECONDS = 5.0
"""A connection that was idle for this long is tried before a call is sent through it."""
MAX_PAGES = 20
ResultT = TypeVar("ResultT")


class ServerUnavailable(Exception):
    """The server is not there; nothing was sent to it."""


class McpConnection:
    """A server's connection, and its tools."""

    def __init__(self, settings: McpSettings) -> None:
        self.settings = settings
        self.last_error: str | None = None
        self.last_used = monotonic()
        self.is_ready = False
        self.tools: list[ListedTool] = []
        self._listed_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._client: Client | None = None
        self._starting = asyncio.Lock()
        self._slots = asyncio.Semaphore(settings.concurrency)
        self._failures = 0
        self._retry_at = 0.0

    # ── using it ────────────────────────────────────────────────────────────────────────────

    async def list_tools(self) -> Sequence[ListedTool]:
        """Return the server's tools; start it if need be."""
        if self._listed_at is None or monotonic() - self._listed_at > LIST_SECONDS:
            async with asyncio.timeout(self.settings.start_seconds):
                self.tools = await self._safely(_list_all)
            self._listed_at = monotonic()
        return self.tools

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Run a tool. Cancelling the caller tells the server to stop."""
        async with self._slots:
            try:
                async with asyncio.timeout(self.settings.start_seconds):
                    client = await self._live_client()
            except (ServerUnavailable, TimeoutError) as exc:
                return ToolResult(error=f"The call was not run: {exc or 'no answer in time'}")
            try:
                result = await client.call_tool(name, arguments)
            except MCPError as exc:
                if self._has_ended():
                    return ToolResult(
                        error=f"The server {self.settings.name} ended during the call; "
                        "the outcome is unknown."
                    )
                return ToolResult(error=f"The server answered with an error: {exc}")
            except (httpx2.HTTPError, OSError, RuntimeError) as exc:
                await self._fail(exc)
                return ToolResult(
                    error=f"The connection to {self.settings.name} failed during the call; "
                    "the outcome is unknown."
                )
            finally:
                self.last_used = monotonic()
            return _result(result)

    async def _live_client(self) -> Client:
        """Return a client whose server answers; one that was idle is tried first."""
        client = await self._connect()
        if monotonic() - self.last_used > PING_AFTER_SECONDS:
            await self._safely(_ping)
            client = await self._connect()
        self.last_used = monotonic()
        return client

    async def _safely(self, ask: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        """Ask what may be asked twice: if the server is gone, once more after a restart."""
        for is_last in (False, True):
            client = await self._connect()
            try:
                answer = await ask(client)
            except (MCPError, httpx2.HTTPError, OSError, RuntimeError) as exc:
                if isinstance(exc, MCPError) and not self._has_ended():
                    raise ServerUnavailable(f"{self.settings.name}: {exc}") from exc
                await self._fail(exc)
                if is_last:
                    raise ServerUnavailable(f"{self.settings.name}: {exc}") from exc
            else:
                self.last_used = monotonic()
                return answer
        raise AssertionError  # the loop returns or raises

    # ── its life ────────────────────────────────────────────────────────────────────────────

    async def _connect(self) -> Client:
        """Return the client, started if it is not; wait for nobody during a pause."""
        async with self._starting:
            if self._client is not None and not self._has_ended():
                return self._client
            await self.close()
            left = self._retry_at - monotonic()
            if left > 0:
                raise ServerUnavailable(
                    f"{self.settings.name} is not available ({self.last_error}); "
                    f"next try in {left:.0f} s"
                )
            ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
            self._stop = asyncio.Event()
            self._task = asyncio.create_task(self._live(ready), name="holdfast-mcp")
            try:
                # Shielded: a caller that leaves must not stop the start for the others.
                async with asyncio.timeout(self.settings.start_seconds):
                    self._client = await asyncio.shield(ready)
            except (Exception, asyncio.CancelledError) as exc:
                await self._fail(exc)
                if isinstance(exc, asyncio.CancelledError):
                    raise
                raise ServerUnavailable(
                    f"{self.settings.name} did not start: {_words(exc)}"
                ) from exc
            self.is_ready, self._failures, self.last_error = True, 0, None
            log.info("mcp.server_started", server=self.settings.name)
            return self._client

    async def _live(self, ready: "asyncio.Future[Client]") -> None:
        """Hold the connection open until it is closed or has ended."""
        state = self._state = ServerProcess()
        try:
            async with self._open(state) as client:
                ready.set_result(client)
                stopped = asyncio.create_task(self._stop.wait())
                ended = asyncio.create_task(state.ended.wait())
                await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
                for task in (stopped, ended):
                    task.cancel()
        except Exception as exc:  # noqa: BLE001 - the top of a task; callers are told
            if not ready.done():
                detail = state.errors.decode("utf-8", "replace").strip().splitlines()
                ready.set_exception(ServerUnavailable("; ".join((_words(exc), *detail[-1:]))))
            else:
                log.info("mcp.server_ended", server=self.settings.name, reason=_words(exc))
        finally:
            if ready.done() and not ready.cancelled():
                ready.exception()  # somebody may have stopped waiting for it
            state.ended.set()

    @asynccontextmanager
    async def _open(self, state: ServerProcess) -> AsyncIterator[Client]:
        settings = self.settings
        async with contextlib.AsyncExitStack() as stack:
            if settings.command:
                transport: Any = open_process(settings, state)
            else:
                timeout = httpx2.Timeout(settings.start_seconds, read=None)
                http = httpx2.AsyncClient(headers=settings.headers(), timeout=timeout)
                await stack.enter_async_context(http)
                transport = streamable_http_client(settings.url, http_client=http)
            client = Client(
                transport,
                message_handler=self._hear,
                client_info=Implementation(name="holdfast", version=__version__),
                cache=None,
            )
            yield await stack.enter_async_context(client)

    async def _hear(self, message: Any) -> None:
        """Forget the list of tools when the server says that it has changed."""
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._listed_at = None

    def _has_ended(self) -> bool:
        return self._task is None or self._task.done() or self._state.ended.is_set()

    async def _fail(self, exc: BaseException) -> None:
        """Close a connection that failed; the next start has to wait."""
        self.last_error = _words(exc)
        self._failures += 1
        pause = min(FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1), MAX_PAUSE_SECONDS)
        # The first restart comes at once: most servers that ended were simply stopped.
        self._retry_at = monotonic() + (pause if self._failures > 1 else 0.0)
        log.warning("mcp.server_failed", server=self.settings.name, reason=type(exc).__name__)
        await self.close()

    async def close(self) -> None:
        """End the connection and the server's process."""
        self._client, self.is_ready, self._listed_at = None, False, None
        task, self._task = self._task, None
        if task is None:
            return
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.shield(asyncio.gather(task, return_exceptions=True))
                return
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _ping(client: Client) -> None:
    await client.send_ping()


async def _list_all(client: Client) -> list[ListedTool]:
    """Return all pages of a server's tools, a bounded number of them."""
    found: list[ListedTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            hints = tool.annotations
            found.append(
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
    return found


def _result(result: CallToolResult) -> ToolResult:
    """Return what a tool said as text; other content is named, not shown."""
    parts: list[str] = []
    for block in result.content:
        if isinstance(block, TextContent):
            parts.append(block.text)
        elif isinstance(block, EmbeddedResource) and isinstance(
            block.resource, TextResourceContents
        ):
            parts.append(block.resource.text)
        else:
            kind = getattr(block, "mime_type", None) or block.type
            parts.append(f"[{kind}: not shown]")
    if not parts and result.structured_content is not None:
        parts.append(msgspec.json.encode(result.structured_content).decode())
    text = "\n".join(parts)
    if result.is_error:
        return ToolResult(error=text or "the tool reported an error")
    return ToolResult(output=text)


def _words(exc: BaseException) -> str:
    """Return an error in few words; of a group of errors, the first."""
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return f"{exc}"[:300] or type(exc).__name__
