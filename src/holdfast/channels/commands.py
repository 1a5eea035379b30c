"""Commands of a chat: `/new`, `/stop`, `/status` and the others, parsed from a message."""

from typing import Literal

import msgspec

CommandName = Literal["new", "reset", "stop", "status", "whoami", "help", "start"]
NAMES: tuple[CommandName, ...] = (
    "new", "reset", "stop", "status", "whoami", "help", "start",
)  # fmt: skip
HELP = (
    "/new or /reset: start a new conversation; text behind it is its first message\n"
    "/stop: stop the running answer and those that wait\n"
    "/status: what this conversation is and does\n"
    "/whoami: your id and the key of this conversation\n"
    "/help: this list"
)


class ChatCommand(msgspec.Struct, frozen=True):
    """A command and the text behind it."""

    name: CommandName
    rest: str = ""


def parse_command(text: str, prefix: str, triggers: tuple[str, ...] = ()) -> ChatCommand | None:
    """Return the command that a message is; `None` for everything else.

    Commands begin with the platform's prefix (`/`, on Slack `!`), and may name the bot, as in
    `/new@bot`. Configured triggers ask for a reset.
    """
    head, _, rest = text.strip().partition(" ")
    head, _, below = head.partition("\n")
    rest = f"{below}\n{rest}".strip() if below else rest.strip()
    if head in triggers:
        return ChatCommand("reset", rest)
    if not head.startswith(prefix):
        return None
    word = head[len(prefix) :].partition("@")[0].lower()
    for name in NAMES:
        if word == name:
            return ChatCommand(name, rest)
    return None
