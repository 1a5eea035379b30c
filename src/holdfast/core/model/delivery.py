"""Where the answer of a turn is sent, and the messages that the outbox stores until then."""

from typing import Literal

import msgspec

from holdfast.core.ids import SessionId, Tenant, WorkerId

OutboxState = Literal["open", "pending", "sending", "sent", "dead", "dropped"]
"""`open`: a placeholder whose turn still runs; `dead`: given up, but an operator may retry it."""
OUTBOX_PREFIX = "out_"
GATEWAY_KEY_PREFIX = "\x1f"
"""The prefix of idempotency keys that the gateway creates itself; no header can contain it."""
APPROVAL_ENDED = "ended"
"""Replaces the id of an approval request once it has ended: the message now says how."""
MAX_TARGET = 512
"""The longest chat or thread id; platforms use far shorter ones."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The conversation that a turn came from or reports to; stored with the turn's request."""

    channel: str
    chat: str
    thread: str = ""
    sender: str = ""
    """The platform's id of the person who wrote the message."""
    reply_to: str = ""
    """The platform's id of the message that is answered."""
    collect_seconds: float = 0.0
    """How long the turn waits for more messages of the same sender before it starts."""
    is_quiet: bool = False
    """Whether the text `NO_REPLY` means that nothing is sent."""

    @property
    def is_direct(self) -> bool:
        """Whether it is the direct chat of its sender; only messages of groups are quoted."""
        return not self.reply_to

    @property
    def place(self) -> tuple[str, str, str]:
        """The conversation in which the answer appears."""
        return self.channel, self.chat, self.thread

    @property
    def burst(self) -> tuple[str, str, str, str]:
        """What consecutive messages must share to become one turn."""
        return self.channel, self.chat, self.thread, self.sender


class OutboxFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to send; its bytes are stored with the message until it is sent."""

    name: str
    media_type: str
    content: bytes


class OutboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A new message for the outbox: Markdown, or a file."""

    channel: str
    chat: str
    text: str
    thread: str = ""
    reply_to: str = ""
    approval: str = ""
    """The id of the approval request that the message shows; platforms add buttons for it."""
    file: OutboxFile | None = None
    source: str = ""
    """What the message belongs to, if not to the turn: if it fails, the answer is not affected."""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """A fact for a webhook; `source` identifies it, so that each fact is sent once."""

    source: str
    message: OutboxMessage
    session_id: SessionId | None = None
    read_at_record: int | None = None
    """The session's last record when its text was read; None if the fact has no text of items."""


class OutboxRow(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the outbox, and the state of its delivery."""

    id: str
    tenant: Tenant
    channel: str
    chat: str
    thread: str
    source: str
    """The turn or record that the message belongs to."""
    part: int
    session_id: SessionId | None
    state: OutboxState
    text: str
    reply_to: str
    refusals: int
    """How often the platform refused this message; outages do not count."""
    next_at: float
    created_at: float
    owner: WorkerId | None
    """The worker that sends it, or that updates its placeholder."""
    external_id: str | None
    """The platform's id of the message, once known; from then on the message is edited."""
    is_maybe_duplicate: bool
    error: str | None
    settled_at: float | None
    approval: str = ""
    """The id of the approval request that the message shows, or `APPROVAL_ENDED`."""
    file_name: str = ""
    """The name of the file, if the message is one; empty for a text."""
    file_type: str = ""

    @property
    def is_request(self) -> bool:
        """Whether it shows an approval request that is still open, so that it needs buttons."""
        return self.approval not in ("", APPROVAL_ENDED)


STEP_PARTS = 1000
"""The most messages that a step of a turn may send; the numbers of each step start at a
multiple."""


def first_part(step: int) -> int:
    """Return the number of the first message that a step of a turn sends."""
    return step * STEP_PARTS


def outbox_id(source: str, part: int) -> str:
    """Return the id of a message, derived from its turn and part."""
    return f"{OUTBOX_PREFIX}{source.partition('_')[2] or source}_{part}"


def gateway_key(*parts: str) -> str:
    """Return an idempotency key in the namespace of the gateway."""
    return GATEWAY_KEY_PREFIX + ":".join(parts)
