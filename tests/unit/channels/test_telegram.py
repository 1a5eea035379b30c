"""The Telegram adapter passes the channel contract."""

from collections.abc import AsyncIterator

import pytest

from holdfast.channels.settings import ChannelSettings
from holdfast.channels.telegram.channel import TelegramChannel
from holdfast.ports.channel import ChatPlace
from holdfast.providers.http.plain_calls import PlainHttpCaller
from holdfast.testing.channel_contract import ChannelContract
from holdfast.testing.platforms import TelegramSimulator
from tests.unit.channels.simulated import SimulatedChannel


class TelegramPlatform(SimulatedChannel[TelegramChannel]):
    """A bot and its simulated platform."""

    simulator: TelegramSimulator
    place = ChatPlace("7")

    def is_acknowledged(self) -> bool:
        return bool(self.simulator.confirmed)

    def block(self) -> None:
        self.simulator.blocked.add(7)


@pytest.fixture
async def platform() -> AsyncIterator[TelegramPlatform]:
    """A bot that is connected to a simulated Telegram."""
    with TelegramSimulator() as simulator:
        settings = ChannelSettings(
            name="support", kind="telegram", url=simulator.url, token="42:TEST"
        )
        http = PlainHttpCaller()
        yield TelegramPlatform(simulator, TelegramChannel(settings, http))
        await http.close()


class TestTelegram(ChannelContract): ...
