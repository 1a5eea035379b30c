"""Who may write to the bot: decided before anything of a message is stored."""

from collections.abc import Collection
from typing import Literal

from holdfast.channels.settings import ChannelSettings
from holdfast.ports.channel import InboundMessage

Verdict = Literal["allow", "pair", "ignore"]


def judge(
    settings: ChannelSettings, message: InboundMessage, paired: Collection[str]
) -> Verdict:  # fmt: skip
    """Return whether a message is handled, answered with a pairing code, or ignored."""
    if message.is_own or message.is_anonymous:
        return "ignore"
    if message.is_bot:
        return "allow" if message.sender in settings.bots else "ignore"
    ids = {message.sender, *message.aliases}
    is_known = message.sender in paired or not ids.isdisjoint(settings.allow)
    if not message.is_direct:
        if settings.groups == "off":
            return "ignore"
        return "allow" if is_known or message.place.chat in settings.allow_groups else "ignore"
    if settings.direct == "off":
        return "ignore"
    if settings.direct == "open" or is_known:
        return "allow"
    return "pair" if settings.direct == "pairing" else "ignore"


def is_addressed(settings: ChannelSettings, message: InboundMessage) -> bool:
    """Whether a message of a group is meant for the bot."""
    return message.is_direct or settings.groups == "always" or message.is_mention
