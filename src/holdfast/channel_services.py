"""Compose the channels of a gateway: their HTTP client, adapters, splitter and service."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.channels.open import open_channels
from holdfast.channels.service import ChannelService, Splitter
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.turns.turn_service import TurnService
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.providers.http.proxy import Proxy
from holdfast.providers.settings import proxy_for
from holdfast.schedules.service import Scheduler
from holdfast.settings import Settings


class ChannelServices:
    """What the channels of a process share, before and after its turns can run."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = PlainHttpCaller(platform_proxy)
        self._channels = open_channels(settings.channels, self._http)
        self.splitter = Splitter([channel for _, channel in self._channels])

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
        scheduler = Scheduler(gateway, turns, settings.schedules, key_of=service.conversation)
        try:
            await service.start()
            await scheduler.start()
            yield service, scheduler
        finally:
            await scheduler.stop()
            await service.stop_receiving()
            await turns.stop(settings.server.grace_seconds)
            await service.stop()
            await self._http.close()


def platform_proxy(url: str) -> Proxy | None:
    """Return the forward proxy for a chat platform or webhook, from the usual variables."""
    proxy = proxy_for(url, os.environ)
    return Proxy.parse(proxy) if proxy is not None else None
