"""Reads of the outbox, pairings and chats."""

from typing import Protocol

import msgspec

from holdfast.core.ids import SessionId, Tenant
from holdfast.core.model.channels import (
    ChannelHoldRow,
    ChatRow,
    DeadUpdateRow,
    PairingRow,
    ReceiverRow,
)
from holdfast.core.model.delivery import OutboxRow, OutboxState


class OutboxQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A page of the outbox; `after` is the id of the last message seen."""

    channel: str | None = None
    state: OutboxState | None = None
    after: str | None = None
    limit: int = 20


class OutboxCount(msgspec.Struct, frozen=True):
    """How many messages of a channel are in a state, and when the oldest was written."""

    channel: str
    state: OutboxState
    count: int
    oldest_at: float


class OpenRequest(msgspec.Struct, frozen=True):
    """An approval request that is shown in a chat and has no answer yet."""

    approval_id: str
    session_id: SessionId


class ChannelReader(Protocol):
    """Reads about channels; they include everything that was acknowledged."""

    async def messages(self, tenant: Tenant | None, query: OutboxQuery) -> list[OutboxRow]:
        """Return a page of the outbox, newest first; tenant `None` means all tenants."""
        ...

    async def message(self, message_id: str) -> OutboxRow | None:
        """Return one message."""
        ...

    async def is_recorded(self, tenant: Tenant, key: str) -> bool:
        """Whether something with this idempotency key was done."""
        ...

    async def file(self, message_id: str) -> bytes | None:
        """Return the bytes of a file that is to be sent, or `None` once it was sent."""
        ...

    async def session_of(
        self, tenant: Tenant, channel: str, chat: str, external_id: str, message_key: str
    ) -> SessionId | None:
        """Return the session of a message in a chat that the gateway sent or accepted.

        `message_key` is its idempotency key if the gateway accepted it.
        """
        ...

    async def open_requests(
        self, tenant: Tenant, channel: str, *, after: str, limit: int
    ) -> list[OpenRequest]:
        """Return the approval requests in a channel's chats that have no answer, by id.

        A page begins behind the id `after`; "" is the first one. The cost grows with the number of
        open requests, not with the number of messages or sessions.
        """
        ...

    async def has_waiting(self, channel: str, chat: str, thread: str) -> bool:
        """Whether a conversation has a message that is complete and not sent yet."""
        ...

    async def counts(self) -> list[OutboxCount]:
        """Return how many messages are not sent, by channel and state."""
        ...

    async def pairings(self, channel: str) -> list[PairingRow]:
        """Return the pairing requests of a channel, oldest first."""
        ...

    async def chat(self, channel: str, chat: str) -> ChatRow | None:
        """Return a chat that wrote to a channel."""
        ...

    async def chats(self, channel: str) -> list[ChatRow]:
        """Return every chat that wrote to a channel."""
        ...

    async def predecessor(self, channel: str, chat: str) -> str | None:
        """Return the id that a chat had before it moved, or None."""
        ...

    async def dead_updates(self, limit: int) -> list[DeadUpdateRow]:
        """Return updates that could not be handled, the newest first."""
        ...

    async def cursor(self, view: str) -> tuple[int, int] | None:
        """Return the cursor of a follower of the feed, or `None` if it never started."""
        ...

    async def receivers(self) -> list[ReceiverRow]:
        """Return for each channel whether it receives, and since when it has not."""
        ...

    async def holder(self, channel: str) -> ChannelHoldRow | None:
        """Return the worker that receives for a channel, if it is alive."""
        ...
