"""A connection in socket mode: envelopes arrive in order and are acknowledged one by one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

import aiohttp
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.async_client import AsyncBaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest

from holdfast.engine.logging import log
from holdfast.ports.channel import DeliveryDelayed

CONNECT_SECONDS = 10.0
CLOSE_SECONDS = 3.0
CHECK_SECONDS = 1.0
LOST_SECONDS = 15.0
"""How long a reconnect may take before the connection counts as lost."""
MAX_WAITING = 1000
"""The most envelopes in memory; Slack redelivers further ones later."""
OpenUrl = Callable[[], Awaitable[str]]

# The library logs addresses with tickets in them, and the content of messages.
_silent = logging.getLogger("holdfast.slack_sdk")
_silent.addHandler(logging.NullHandler())
_silent.setLevel(logging.CRITICAL + 1)
_silent.propagate = False


class _Client(SocketModeClient):
    """The library's client, with connection URLs from our own Web API calls."""

    def __init__(self, open_url: OpenUrl, proxy: Callable[[str], str | None]) -> None:
        super().__init__(app_token="", logger=_silent, auto_reconnect_enabled=False)
        self._open_url = open_url
        self._proxy_of = proxy

    async def issue_new_wss_url(self) -> str:
        url = await self._open_url()
        # The library would use a proxy for every host, even for those that need none.
        self.proxy = self._proxy_of(url)
        return url


class SocketConnection:
    """One connection; `async with` opens and closes it."""

    def __init__(self, open_url: OpenUrl, proxy: Callable[[str], str | None]) -> None:
        self._client = _Client(open_url, proxy)
        self._client.socket_mode_request_listeners.append(self._enqueue)
        self._waiting: asyncio.Queue[SocketModeRequest] = asyncio.Queue(MAX_WAITING)

    async def _enqueue(self, _: AsyncBaseSocketModeClient, envelope: SocketModeRequest) -> None:
        # The library runs listeners concurrently; the queue keeps the order.
        try:
            self._waiting.put_nowait(envelope)
        except asyncio.QueueFull:
            log.warning("channel.envelopes_left", waiting=MAX_WAITING)

    async def __aenter__(self) -> "SocketConnection":
        try:
            # Request the URL here: the library would retry forever without reporting anything.
            self._client.wss_uri = await self._client.issue_new_wss_url()
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._client.connect()  # type: ignore[no-untyped-call]  # of the library
        except TimeoutError as exc:
            await self._close()
            raise DeliveryDelayed("the socket could not be opened") from exc
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close()

    async def _close(self) -> None:
        client = self._client
        tasks = [client.message_processor, client.current_session_monitor, client.message_receiver]
        try:
            # Bounded: a dead peer does not answer the close frame.
            async with asyncio.timeout(CLOSE_SECONDS):
                await client.close()  # type: ignore[no-untyped-call]  # of the library
        except TimeoutError:
            log.info("channel.socket_not_closed")
        left = [task for task in tasks if task is not None]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await client.aiohttp_client_session.close()

    async def next(self) -> SocketModeRequest | None:
        """Return the next envelope, or `None` if the connection is lost.

        The library replaces a connection when Slack asks for it; that may take a moment.
        """
        lost_for = 0.0
        while lost_for < LOST_SECONDS:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    return await self._waiting.get()
            except TimeoutError:
                if await self._client.is_connected():
                    lost_for = 0.0
                elif not self._client.connect_operation_lock.locked():
                    return None
                else:
                    lost_for += CHECK_SECONDS
        return None

    async def acknowledge(self, envelope: SocketModeRequest) -> None:
        """Tell Slack that an envelope was handled; if that fails, it is redelivered."""
        try:
            await self._client.send_socket_mode_response({"envelope_id": envelope.envelope_id})
        except (ConnectionError, aiohttp.ClientError, RuntimeError) as exc:
            log.info("channel.not_acknowledged", error=type(exc).__name__)
