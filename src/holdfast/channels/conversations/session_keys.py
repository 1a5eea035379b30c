"""Session keys of chats: which chats and people share a conversation."""

from collections.abc import Mapping, Sequence, Set

from holdfast.channels.settings import ChannelSettings
from holdfast.core.ids import Key, read_key
from holdfast.ports.channel import InboundMessage

People = Mapping[str, Sequence[str]]
"""`[people]`: names, and the accounts (`telegram:123`) of each."""
SIGNAL_GROUP_LENGTH = 44
"""Length of a group's id on Signal: 32 bytes as base64."""
_THREAD_WORDS = {"group": "topic", "channel": "thread"}


def session_key(settings: ChannelSettings, people: People, message: InboundMessage) -> Key:
    """Return the key of the session that a message belongs to."""
    agent, kind, place = f"agent:{settings.agent}", settings.kind, message.place
    if not message.is_direct:
        key = f"{agent}:{kind}:{message.group_kind}:{place.chat}"
        if place.thread and not message.is_thread_shared:
            key += f":{_THREAD_WORDS[message.group_kind]}:{place.thread}"
        return read_key(key)
    if settings.dm_scope == "main":
        return read_key(f"{agent}:main")
    ids = (message.sender, *message.aliases)
    person = _person(people, {f"{kind}:{sender_id}" for sender_id in ids})
    if settings.dm_scope == "per-peer":
        return read_key(f"{agent}:direct:{person or message.sender}")
    if settings.dm_scope == "per-account-channel-peer":
        return read_key(f"{agent}:{kind}:{settings.name}:direct:{person or message.sender}")
    return read_key(f"{agent}:{kind}:direct:{person or message.sender}")


def is_direct_chat(kind: str, chat: str) -> bool:
    """Whether a chat id of the platform is that of a person."""
    if kind == "signal":
        return not (len(chat) == SIGNAL_GROUP_LENGTH and chat.endswith("="))
    return not chat.startswith(("C", "G") if kind == "slack" else "-")


def _person(people: People, ids: Set[str]) -> str | None:
    return next((name for name, accounts in people.items() if ids & set(accounts)), None)
