"""The only file of the door gate that knows the code: how a gateway is opened from a file.

Everything else goes through the door: HTTP, WebSocket, the public Python API, the configuration.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.app import open_application
from holdfast.settings import load
from holdfast.testing.platforms import TelegramSimulator
from tests.http_server import serving

ENVIRONMENT = {
    "UPSTREAM_KEY": "sk-upstream", "BOT_TOKEN": "42:TEST", "ADA_KEY": "sk-ada", "BOB_KEY": "sk-bob",
}  # fmt: skip


@asynccontextmanager
async def open_door(config: Path) -> AsyncIterator[int]:
    """Serve the gateway that a configuration file describes; return its port."""
    settings = load(config, environment=ENVIRONMENT)
    async with open_application(settings) as application, serving(application) as server:
        yield server.address[1]


class Platform:
    """A simulated Telegram, if a conversation uses it."""

    def __init__(self, *, is_used: bool) -> None:
        self._telegram = TelegramSimulator() if is_used else None

    @property
    def url(self) -> str:
        """The address to configure."""
        return self._telegram.url if self._telegram is not None else ""

    def __enter__(self) -> "Platform":
        if self._telegram is not None:
            self._telegram.up()
        return self

    def __exit__(self, *_: object) -> None:
        if self._telegram is not None:
            self._telegram.down()

    def say(self, text: str, hear: str) -> list[str]:
        """Write to the bot, wait until a message of it has a text, and return all of them."""
        telegram = self._telegram
        assert telegram is not None
        telegram.say(text)
        telegram.wait(lambda: any(hear in each for each in telegram.texts()))
        return telegram.texts()
