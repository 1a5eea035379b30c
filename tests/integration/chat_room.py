"""A gateway with a Slack, Telegram or Signal channel in the test's own loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.channels.open import open_channel
from holdfast.channels.service import ChannelService, MessageFormats
from holdfast.channels.settings import ChannelSettings
from holdfast.engine.sessions.gateway import Gateway
from holdfast.engine.settings import ToolSettings
from holdfast.ports.channel import Channel, Transcriber
from holdfast.ports.tools import Toolbox
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.simulator.platforms.signal import ACCOUNT
from holdfast.testing.platforms import SignalSimulator, SlackSimulator, TelegramSimulator
from tests.in_process import RunningGateway, ScriptedModel, open_gateway


class ChatRoom:
    """One platform and the gateway behind it."""

    def __init__(
        self,
        gateway: RunningGateway,
        service: ChannelService,
        channel: Channel,
        slack: SlackSimulator,
        telegram: TelegramSimulator,
        signal: SignalSimulator,
    ) -> None:
        self.gateway = gateway
        self.service = service
        self.channel = channel
        self.slack = slack
        self.telegram = telegram
        self.signal = signal

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that a simulated platform sees."""
        (kind,) = self.service.states
        await asyncio.to_thread(getattr(self, kind).wait, condition)

    async def until_text(self, text: str) -> None:
        """Wait for a text in a chat."""
        await self.until(lambda: any(text in one for one in self.texts()))

    def texts(self) -> list[str]:
        """Return what the bots' messages say now."""
        return [*self.slack.texts(), *self.telegram.texts(), *self.signal.texts()]


@asynccontextmanager
async def open_chat_room(
    kind: str,
    model: ScriptedModel | None = None,
    *,
    toolbox: Callable[[Gateway], Toolbox] | None = None,
    store_url: str = "memory:",
    tool_limits: ToolSettings | None = None,
    transcriber: Transcriber | None = None,
    **more: Any,
) -> AsyncIterator[ChatRoom]:
    """Run a gateway with one channel for the length of a block."""
    with SlackSimulator() as slack, TelegramSimulator() as telegram, SignalSimulator() as signal:
        urls = {"slack": slack.url, "telegram": telegram.url, "signal": signal.url}
        token = {"slack": "xoxb-TEST", "telegram": "42:TEST"}.get(kind, "")
        fields: dict[str, Any] = {
            "direct": "open", "collect_seconds": 0.0, "model": "scripted", "token": token, **more,
        }  # fmt: skip
        settings = ChannelSettings(
            name=kind, kind=kind, url=urls[kind], app_token="xapp-TEST", account=ACCOUNT, **fields  # type: ignore[arg-type]  # a kind
        )  # fmt: skip
        http = PlainHttpCaller()
        channel = open_channel(settings, http)
        async with open_gateway(
            model,
            toolbox=toolbox,
            channels=MessageFormats([(settings, channel)], transcriber),
            store_url=store_url,
            tools=tool_limits,
        ) as gateway:
            service = ChannelService(
                gateway.engine, gateway.turn_service, [(settings, channel)],
            )  # fmt: skip
            await service.start()
            try:
                yield ChatRoom(gateway, service, channel, slack, telegram, signal)
            finally:
                if model is not None:
                    model.gate.set()
                await service.stop()
                await gateway.turn_service.stop(1.0)
                await http.close()
