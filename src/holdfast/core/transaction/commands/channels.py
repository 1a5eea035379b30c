"""Commands of channels: the outbox, commands of a chat, pairings, and receivers."""

from typing import Literal

from holdfast.core.ids import Key, Tenant, TurnId, WorkerId
from holdfast.core.model.channels import PairingRow
from holdfast.core.model.delivery import Delivery, Fact, OutboxMessage, OutboxRow
from holdfast.core.model.items import NewItem
from holdfast.core.model.turn import Fence
from holdfast.core.transaction.commands.command import Command
from holdfast.core.transaction.commands.workers import LogPosition

DeliveryOutcome = Literal["sent", "delayed", "refused", "impossible"]
"""`delayed` says nothing about the message itself; `impossible` means that no retry can help."""


class OpenPlaceholder(Command[OutboxRow], frozen=True, kw_only=True):
    """Reserve the first message of a running turn's answer, to be edited while the turn runs.

    If an earlier attempt of the same turn has opened it, that one is returned.
    """

    fence: Fence
    worker: WorkerId
    delivery: Delivery
    step: int = 0
    """The step of the turn whose answer it is."""


class KeepPlaceholder(Command[bool], frozen=True, kw_only=True):
    """Record the platform's id of a placeholder before its first edit. False if it is not open.

    Without an id, it records that a placeholder may have been sent whose id is lost.
    """

    id: str
    worker: WorkerId
    external_id: str | None


class QueueMessages(Command[bool], frozen=True, kw_only=True):
    """Write messages to the outbox, once per idempotency key. False if that was done before.

    It was done before if any of its keys was used, and takes all of them.

    Without messages, it only records that the key was handled.
    """

    tenant: Tenant
    record_id: str
    """The id of the record that the messages belong to; minted by the caller."""
    idempotency_key: str | None = None
    more_keys: tuple[str, ...] = ()
    """Further keys; only beside `idempotency_key`."""
    messages: tuple[OutboxMessage, ...] = ()
    body_hash: bytes = b""
    """The hash of the key's request: the same key with another hash is refused."""


class QueueFacts(Command[bool], frozen=True, kw_only=True):
    """Write facts of the feed to the outbox and move the follower's cursor past them.

    False if another follower moved the cursor first, or if a text may have been erased since it was
    read: the caller reads again. Without `after`, the cursor is set for the first time.
    """

    tenant: Tenant
    view: str
    after: LogPosition | None
    upto: LogPosition
    facts: tuple[Fact, ...] = ()


class ClaimDeliveries(Command[tuple[OutboxRow, ...]], frozen=True, kw_only=True):
    """Claim messages that are due, oldest first, at most one of each conversation.

    A message whose worker died while sending it is claimed again. It is marked as a possible
    duplicate, unless its id at the platform is known.
    """

    worker: WorkerId
    channels: tuple[str, ...]
    limit: int = 32
    orphaned_after_seconds: float = 5.0
    """How long another worker may take to finish its placeholder after the turn has ended."""


class SettleDelivery(Command[OutboxRow | None], frozen=True, kw_only=True):
    """Record the result of sending a message. None if this worker no longer owns it."""

    id: str
    worker: WorkerId
    outcome: DeliveryOutcome
    external_id: str | None = None
    error: str | None = None
    is_uncertain: bool = False
    """Whether the message may have arrived although the platform did not confirm it."""
    delay_seconds: float = 1.0
    max_refusals: int = 10
    expire_seconds: float = 24 * 3600.0
    approval: str = ""
    """The approval request whose buttons the message was sent with."""


class ReviseDelivery(Command[OutboxRow], frozen=True, kw_only=True):
    """Send a dead message again, or drop an unsent message."""

    id: str
    action: Literal["retry", "drop"]


class PruneOutbox(Command[bool], frozen=True, kw_only=True):
    """Delete messages that were settled long ago; return whether there are more."""

    worker: WorkerId
    older_than_seconds: float


class StopTurns(Command[int], frozen=True, kw_only=True):
    """Cancel the running turn of a key and those that wait behind it; return how many."""

    tenant: Tenant
    key: Key
    record_id: TurnId
    idempotency_key: str
    messages: tuple[OutboxMessage, ...] = ()


class EditWaiting(Command[bool | None], frozen=True, kw_only=True):
    """Replace the input of a turn that has not started; return whether it was replaced.

    Either way, the edit then counts as handled. `None` if the message is not known: nothing
    is recorded, because it may still come.
    """

    tenant: Tenant
    key: Key
    edited_key: str
    """The idempotency key of the message that was edited."""
    items: tuple[NewItem, ...]
    record_id: TurnId
    idempotency_key: str


class RequestPairing(Command[PairingRow], frozen=True, kw_only=True):
    """Give an unknown sender a pairing code; a valid code is returned again, without a message."""

    tenant: Tenant
    channel: str
    sender: str
    name: str
    code: str
    chat: str
    record_id: str
    idempotency_key: str
    valid_seconds: float = 3600.0
    max_open: int = 100


class ApprovePairing(Command[PairingRow], frozen=True, kw_only=True):
    """Allow the sender who was given a code to write to the channel."""

    channel: str
    code: str


class RevokePairing(Command[bool], frozen=True, kw_only=True):
    """Revoke a pairing; return whether there was one."""

    channel: str
    sender: str


class HoldChannel(Command[bool], frozen=True, kw_only=True):
    """Become or stay the only receiver of a polling channel. False while another one is alive."""

    channel: str
    worker: WorkerId


class ReleaseChannel(Command[None], frozen=True, kw_only=True):
    """Stop receiving, so that another worker may begin at once."""

    channel: str
    worker: WorkerId


class RememberChat(Command[None], frozen=True, kw_only=True):
    """Record that a chat wrote to a channel, or that it continues under another id."""

    channel: str
    chat: str
    successor: str = ""
    aliases: tuple[str, ...] = ()
    """Other ids of a direct chat, whose person is `chat`."""


class DeadLetterUpdate(Command[None], frozen=True, kw_only=True):
    """Record that an update could not be handled, so that later ones can be received."""

    channel: str
    update_id: str
    reason: str


class CountBotTurn(Command[bool], frozen=True, kw_only=True):
    """Count a message of a bot, once. False if bots had `limit` turns since a person wrote."""

    channel: str
    chat: str
    message: str
    """A digest of the message's unique id."""
    limit: int


class ForgetBotTurns(Command[None], frozen=True, kw_only=True):
    """Record that a person wrote to a chat, so that bots may write there again."""

    channel: str
    chat: str


class NoteReceiver(Command[None], frozen=True, kw_only=True):
    """Record that a channel receives, or with `reason`, why it cannot."""

    channel: str
    kind: str
    keeps_seconds: float
    reason: str = ""
