"""What a store records about channels besides the outbox: pairings, chats, dead updates."""

import msgspec

from holdfast.core.ids import Tenant


class PairingRow(msgspec.Struct, frozen=True):
    """An unknown sender's request to write to a channel, and whether it was approved."""

    channel: str
    sender: str
    tenant: Tenant
    name: str
    code: str
    chat: str
    created_at: float
    expires_at: float
    approved_at: float | None = None

    def is_open(self, now: float) -> bool:
        """Whether its code can still be approved."""
        return self.approved_at is None and self.expires_at > now


class ChatRow(msgspec.Struct, frozen=True):
    """A chat that wrote to a channel; `successor` is the id it continues under."""

    channel: str
    chat: str
    successor: str
    first_seen_at: float
    person: str = ""
    """The person of this direct chat, if the chat has another id: a phone number, a Slack `D…`."""


class DeadUpdateRow(msgspec.Struct, frozen=True):
    """An update that could not be handled."""

    channel: str
    update_id: str
    reason: str
    at: float


class ChannelHoldRow(msgspec.Struct, frozen=True):
    """The worker that receives for a polling channel."""

    channel: str
    owner: str
    since: float


class BotTurnsRow(msgspec.Struct, frozen=True):
    """Turns of bots in a chat since a person wrote there: digests of their messages, as JSON."""

    channel: str
    chat: str
    messages: str


class ReceiverRow(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a channel receives messages, and its last gap in which messages were lost."""

    channel: str
    kind: str
    received_at: float | None = None
    """When it was last known to work."""
    failing_since: float | None = None
    failed_at: float | None = None
    reason: str = ""
    keeps_seconds: float = 0.0
    """How long the platform keeps messages; 0 if that is long or unknown."""
    gap_from: float | None = None
    gap_until: float | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the last attempt to receive failed."""
        return self.failed_at is not None and self.failed_at > (self.received_at or 0.0)
