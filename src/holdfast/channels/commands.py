"""Commands of a chat: `/new`, `/stop`, `/status` and the others, parsed from a message."""

from typing import Literal

import msgspec

CommandName = Literal["new", "reset", "stop", "status", "compact", "whoami", "help", "start"]
NAMES: tuple[CommandName, ...] = (
    "new", "reset", "stop", "status", "compact", "whoami", "help", "start",
)  # fmt: skip
_HELP = (
    "{0}new or {0}reset: start a new conversation; text behind it is its first message\n"
    "{0}stop: stop the running answer and those that wait\n"
    "{0}status: what this conversation is and does\n"
    "{0}compact: replace what was said so far by a summary\n"
    "{0}whoami: your id and the key of this conversation\n"
    "{0}help: this list"
)


def help_text(prefix: str) -> str:
    """Return the list of commands in the platform's notation."""
    return _HELP.format(prefix)


class ChatCommand(msgspec.Struct, frozen=True):
    """A command and the text after it."""

    name: CommandName
    rest: str = ""


def parse_command(
    text: str, prefix: str, triggers: tuple[str, ...] = (), *, is_bare: bool = False
) -> ChatCommand | None:
    """Return the command in a message; `None` for everything else.

    Commands begin with the platform's prefix (`/`, on Slack `!`), and may name the bot, as in
    `/new@bot`. Configured triggers request a reset. With `is_bare` the word alone is a command, but
    only as the whole message: "new ideas for Sunday?" is a question.
    """
    head, *behind = text.split(maxsplit=1) or [""]
    rest = behind[0].strip() if behind else ""
    if head in triggers:
        return ChatCommand("reset", rest)
    if is_bare and not rest and head.lower() in NAMES:
        head = prefix + head
    if not head.startswith(prefix):
        return None
    word = head[len(prefix) :].partition("@")[0].lower()
    for name in NAMES:
        if word == name:
            return ChatCommand(name, rest)
    return None
