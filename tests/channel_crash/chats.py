"""Simulated platforms for crash tests: people write, answers arrive, calls are cut."""

from collections.abc import Callable
from typing import Any, Protocol

from holdfast.simulator.platforms.signal import user_uuid
from holdfast.testing.platforms import (
    PlatformAnswer,
    SignalSimulator,
    SlackSimulator,
    TelegramSimulator,
)
from tests.acceptance.channel_stories import APP_TOKEN, BOT_TOKEN, SIGNAL, SLACK, TELEGRAM

Fault = Callable[[str, dict[str, Any]], PlatformAnswer | None]


class ChatPlatform(Protocol):
    """One simulated platform."""

    @property
    def config(self) -> str:
        """The platform's fields of the `[[channel]]` table."""
        ...

    @property
    def simulator(self) -> Any:
        """The simulator, a context manager."""
        ...

    def say(self, text: str, person: int) -> None:
        """Send a direct message as a person."""
        ...

    def answers(self, person: int) -> list[str]:
        """Return the messages to a person, with their current text."""
        ...

    def session_key(self, person: int) -> str:
        """Return the key of a person's session."""
        ...

    def chat(self, person: int) -> str:
        """Return the platform's id of a person's direct chat."""
        ...


class TelegramChats:
    """Telegram."""

    config = TELEGRAM

    def __init__(self) -> None:
        self.simulator = TelegramSimulator(BOT_TOKEN)

    def say(self, text: str, person: int) -> None:
        """Write to the bot."""
        self.simulator.say(text, user=person)

    def answers(self, person: int) -> list[str]:
        """Return the bot's messages."""
        return self.simulator.texts(person)

    def session_key(self, person: int) -> str:
        """Return the key of a private chat."""
        return f"agent:main:telegram:direct:{person}"

    def chat(self, person: int) -> str:
        """Return the id of a private chat."""
        return str(person)


class SignalChats:
    """Signal, with a daemon that numbers its events."""

    config = SIGNAL

    def __init__(self) -> None:
        self.simulator = SignalSimulator()

    def say(self, text: str, person: int) -> None:
        """Write to the account."""
        self.simulator.say(text, user=person)

    def answers(self, person: int) -> list[str]:
        """Return the account's messages."""
        return self.simulator.texts(user_uuid(person))

    def session_key(self, person: int) -> str:
        """Return the key of a direct chat."""
        return f"agent:main:signal:direct:{user_uuid(person)}"

    def chat(self, person: int) -> str:
        """Return the id of a person."""
        return user_uuid(person)


class SlackChats:
    """Slack, in socket mode."""

    config = SLACK

    def __init__(self) -> None:
        self.simulator = SlackSimulator(BOT_TOKEN, APP_TOKEN)

    def say(self, text: str, person: int) -> None:
        """Write to the app."""
        self.simulator.say(text, user=f"U{person}")

    def answers(self, person: int) -> list[str]:
        """Return the app's messages."""
        return self.simulator.texts(self.simulator.direct_channel(f"U{person}"))

    def session_key(self, person: int) -> str:
        """Return the key of a direct chat."""
        return f"agent:main:slack:direct:U{person}"

    def chat(self, person: int) -> str:
        """Return the id of a direct chat."""
        return self.simulator.direct_channel(f"U{person}")


PLATFORMS: dict[str, Callable[[], ChatPlatform]] = {
    "telegram": TelegramChats,
    "signal": SignalChats,
    "slack": SlackChats,
}
SEND_METHODS = {
    "telegram": ("sendMessage", "editMessageText"),
    "signal": ("send",),
    "slack": ("chat.postMessage", "chat.update"),
}
"""Methods that deliver something to a person."""
FILE_METHODS = {
    "telegram": ("sendDocument",),
    "signal": ("send",),
    "slack": ("files.getUploadURLExternal", "files.completeUploadExternal"),
}
"""Methods that deliver a file."""
