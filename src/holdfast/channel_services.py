"""Compose what acts without an API client: channels, schedules and webhooks."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.channels.delivery import Deliverer
from holdfast.channels.open import open_channels
from holdfast.channels.service import ChannelService, MessageFormats
from holdfast.core.ids import Tenant
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnService
from holdfast.ports.channel import Transcriber
from holdfast.providers.http.guarded_client import GuardedClient
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.providers.http.proxy import Proxy
from holdfast.providers.settings import proxy_for
from holdfast.schedules.service import Scheduler
from holdfast.settings import Settings
from holdfast.tools.builtin import DESCRIPTIONS
from holdfast.webhooks.feed import WebhookFeed
from holdfast.webhooks.sender import WebhookSender


class ChannelServices:
    """What the channels of a process share, before and after its turns can run."""

    def __init__(self, settings: Settings, transcriber: Transcriber | None = None) -> None:
        self._settings = settings
        self._http = PlainHttpCaller(platform_proxy)
        self._channels = open_channels(settings.channels, self._http)
        self.formats = MessageFormats(self._channels, transcriber)

    def _tool_names(self, tenant: Tenant) -> set[str]:
        """Return the tools that a tenant's schedules may use, as `tools = [...]` names them."""
        has_search = self._settings.search.enabled
        builtin = {name for name in DESCRIPTIONS if has_search or not name.startswith("memory_")}
        servers = (server.name for server in self._settings.mcp if server.tenant == tenant)
        return builtin | {f"mcp:{name}" for name in servers}

    @asynccontextmanager
    async def run(
        self, gateway: Gateway, turns: TurnService
    ) -> AsyncIterator[tuple[ChannelService, Scheduler]]:
        """Receive and deliver until the block ends; then let the running turns finish."""
        settings = self._settings
        service = ChannelService(
            gateway,
            turns,
            self._channels,
            people=settings.people,
            reset=settings.reset_policy,
            triggers=settings.reset.triggers,
        )
        webhooks = _Webhooks(gateway, settings)
        scheduler = Scheduler(
            gateway, turns, settings.schedules, find_chat=service.find_chat,
            on_paused=webhooks.feed.on_paused, tool_names=self._tool_names,
        )  # fmt: skip
        try:
            await service.start()
            webhooks.start()
            await scheduler.start()
            yield service, scheduler
        finally:
            await scheduler.stop()
            await service.stop_receiving()
            await turns.stop(settings.server.grace_seconds)
            await service.stop()
            await webhooks.stop()
            await self._http.close()


class _Webhooks:
    """The webhooks of a process; they have senders of their own and hold up no chat."""

    def __init__(self, gateway: Gateway, settings: Settings) -> None:
        webhooks = settings.webhooks
        self._callers = {
            is_private: PlainHttpCaller(
                platform_proxy, guard=GuardedClient(is_private_allowed=is_private)
            )
            for is_private in {webhook.private for webhook in webhooks}
        }
        now = gateway.clock.now
        self._deliverer = Deliverer(
            gateway,
            {
                webhook.channel: WebhookSender(webhook, self._callers[webhook.private], now).send
                for webhook in webhooks
            },
            expire_seconds={webhook.channel: webhook.outbox_hours * 3600 for webhook in webhooks},
            on_settled=lambda row, outcome: gateway.meter.channel_sent(row.channel, outcome),
        )
        self.feed = WebhookFeed(gateway, webhooks, self._deliverer.wake)
        self._has_any = bool(webhooks)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Follow the log and deliver, if there is any webhook."""
        if self._has_any:
            self._tasks = [
                asyncio.create_task(self.feed.run(), name="holdfast-webhooks"),
                asyncio.create_task(self._deliverer.run(), name="holdfast-webhook-outbox"),
            ]

    async def stop(self) -> None:
        """Stop; unsent messages stay in the outbox."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for caller in self._callers.values():
            await caller.close()


def platform_proxy(url: str) -> Proxy | None:
    """Return the forward proxy for a chat platform or webhook, from the usual variables."""
    proxy = proxy_for(url, os.environ)
    return Proxy.parse(proxy) if proxy is not None else None
