"""Where the answer of a turn is sent, and what the outbox holds until it was sent."""

from typing import Literal

import msgspec

from holdfast.core.ids import SessionId, Tenant, WorkerId

OutboxState = Literal["open", "pending", "sending", "sent", "dead", "dropped"]
"""`open` is a placeholder whose turn still runs; `dead` was given up and may be retried by hand."""
OUTBOX_PREFIX = "out_"
GATEWAY_KEY_PREFIX = "\x1f"
"""Begins the idempotency keys that the gateway makes itself: no header can contain it."""
APPROVAL_ENDED = "ended"
"""In place of an approval request: the message asked for it, and says now how it ended."""
MAX_TARGET = 512
"""Characters of a chat or thread id; platforms use far fewer."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conversation that a turn came from or reports to; stored with the turn's request."""

    channel: str
    chat: str
    thread: str = ""
    sender: str = ""
    """The platform's id of the person whose message the turn is."""
    reply_to: str = ""
    """The platform's id of the message that is answered."""
    collect_seconds: float = 0.0
    """How long the turn waits for more messages of the same sender before it starts."""
    is_quiet: bool = False
    """Whether the text `NO_REPLY` means that nothing is sent."""

    @property
    def is_direct(self) -> bool:
        """Whether it is the direct chat of its sender: only in groups a message is quoted."""
        return not self.reply_to

    @property
    def place(self) -> tuple[str, str, str]:
        """Where the answer is read."""
        return self.channel, self.chat, self.thread

    @property
    def burst(self) -> tuple[str, str, str, str]:
        """What consecutive messages must share to become one turn."""
        return self.channel, self.chat, self.thread, self.sender


class OutboxFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to send; its bytes are kept with the message until it was sent."""

    name: str
    media_type: str
    content: bytes


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way into the outbox: Markdown, or a file."""

    channel: str
    chat: str
    text: str
    thread: str = ""
    reply_to: str = ""
    approval: str = ""
    """The approval request that the message asks for; platforms show buttons for it."""
    file: OutboxFile | None = None
    source: str = ""
    """What the message belongs to, if not to the turn: its failure ends no part of the answer."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact on its way to a webhook; `source` names it, so that each is sent once."""

    source: str
    message: OutboxMessage
    session_id: SessionId | None = None


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the outbox and how far its delivery got."""

    id: str
    tenant: Tenant
    channel: str
    chat: str
    thread: str
    source: str
    """The turn, or the record, that the message belongs to."""
    part: int
    session_id: SessionId | None
    state: OutboxState
    text: str
    reply_to: str
    refusals: int
    """How often the platform refused this very message; outages do not count."""
    next_at: float
    created_at: float
    owner: WorkerId | None
    """Who sends it now, or who keeps its placeholder up to date."""
    external_id: str | None
    """The platform's id of the message, once it is known: from then on it is edited."""
    is_maybe_duplicate: bool
    error: str | None
    settled_at: float | None
    approval: str = ""
    """The approval request that the message asks for, or `APPROVAL_ENDED`."""
    file_name: str = ""
    """The name of the file that the message is; empty for a text."""
    file_type: str = ""

    @property
    def is_request(self) -> bool:
        """Whether it asks for an approval that may still be given: it is shown with buttons."""
        return self.approval not in ("", APPROVAL_ENDED)


STEP_PARTS = 1000
"""How many messages a step of a turn may send: where the parts of the next step begin."""


def first_part(step: int) -> int:
    """Return the number of the first message that a step of a turn sends."""
    return step * STEP_PARTS


def outbox_id(source: str, part: int) -> str:
    """Return the id of a message: a name made from its turn and part, not a second identity."""
    return f"{OUTBOX_PREFIX}{source.partition('_')[2] or source}_{part}"


def gateway_key(*parts: str) -> str:
    """Return an idempotency key in the namespace of the gateway."""
    return GATEWAY_KEY_PREFIX + ":".join(parts)
