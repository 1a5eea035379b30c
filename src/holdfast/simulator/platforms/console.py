"""A simulated platform that a person operates: lines are messages, answers are printed."""

import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.simulator.platforms.signal import SignalSimulator
from holdfast.simulator.platforms.slack import SlackSimulator
from holdfast.simulator.platforms.telegram import TelegramSimulator
from holdfast.simulator.platforms.webhooks import WebhookReceiver

PLATFORMS: dict[str, Callable[..., Any]] = {
    "telegram": TelegramSimulator,
    "slack": SlackSimulator,
    "signal": SignalSimulator,
    "webhooks": WebhookReceiver,
}
POLL_SECONDS = 0.2
_LINE = re.compile(r"(?:@(\d+) )?(.*)", re.DOTALL)


class PlatformConsole:
    """A simulated platform on a port; `@8 text` is a message from person 8, `text` from 7."""

    def __init__(self, platform: str, port: int) -> None:
        self._platform = platform
        self._simulator: Any = PLATFORMS[platform](port=port)
        self._shown: dict[str, str] = {}

    @property
    def url(self) -> str:
        """The address to configure."""
        return str(self._simulator.url)

    def table(self) -> list[str]:
        """Return the lines for the configuration file, and the variables to set."""
        url, simulator = f'url = "{self.url}"', self._simulator
        if self._platform == "telegram":
            return [
                "[[channel]]", 'name = "sim"', 'kind = "telegram"', url, 'token_env = "SIM_TOKEN"',
                f"# export SIM_TOKEN={simulator.token}",
            ]  # fmt: skip
        if self._platform == "slack":
            return [
                "[[channel]]", 'name = "sim"', 'kind = "slack"', url,
                'bot_token_env = "SIM_BOT_TOKEN"', 'app_token_env = "SIM_APP_TOKEN"',
                f"# export SIM_BOT_TOKEN={simulator.bot_token} SIM_APP_TOKEN={simulator.app_token}",
            ]  # fmt: skip
        if self._platform == "signal":
            account = f'account = "{simulator.account}"'
            return ["[[channel]]", 'name = "sim"', 'kind = "signal"', url, account]
        return [
            "[[webhook]]", 'name = "sim"', url, 'events = ["turn.completed", "turn.failed"]',
            'secret_env = "SIM_SECRET"', "private = true",
            f"# export SIM_SECRET='{simulator.secret}'",
        ]  # fmt: skip

    def run(
        self,
        lines: Iterable[str],
        write: Callable[[str], None],
        on_listening: Callable[[], None],
    ) -> None:
        """Serve until the process is interrupted; the end of `lines` only ends the messages."""
        stopped = threading.Event()
        with self._simulator:
            on_listening()
            printing = threading.Thread(target=self._print, args=(write, stopped), daemon=True)
            printing.start()
            try:
                for line in lines:
                    self._say(line.rstrip("\n"))
                stopped.wait()
            finally:
                stopped.set()
                printing.join()

    def _say(self, line: str) -> None:
        match = _LINE.fullmatch(line)
        if match is None or not match[2].strip() or self._platform == "webhooks":
            return
        person = int(match[1] or 7)
        self._simulator.say(match[2], user=f"U{person}" if self._platform == "slack" else person)

    def _print(self, write: Callable[[str], None], stopped: threading.Event) -> None:
        while not stopped.wait(POLL_SECONDS):
            for name, chat, text in self._messages():
                known = self._shown.get(name)
                if known != text:
                    write(f"{chat}: {text}" + ("" if known is None else " (edited)"))
                    self._shown[name] = text

    def _messages(self) -> list[tuple[str, str, str]]:
        """Return the id, the chat and the text of everything that arrived."""
        simulator = self._simulator
        if self._platform == "telegram":
            return [
                (str(message.message_id), str(message.chat_id), message.text)
                for message in simulator.sent
            ]
        if self._platform == "slack":
            return [(message.ts, message.channel, message.text) for message in simulator.posted]
        if self._platform == "signal":
            return [
                (str(message.timestamp), message.chat, message.text) for message in simulator.sent
            ]
        return [
            (str(number), str(message.status), message.body.decode("utf-8", "replace"))
            for number, message in enumerate(simulator.attempts)
        ]
