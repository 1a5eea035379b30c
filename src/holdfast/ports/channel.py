"""The port to chat platforms: receive, send and edit messages, show a typing indicator.

A third party implements `Channel` for its platform and checks it with
`holdfast.testing.channel_contract`. An adapter only translates. Who may write, what a command is,
when to retry and what is a duplicate is decided by its caller.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from holdfast.core.errors import HoldfastError
from holdfast.core.model.channels import PairingRow
from holdfast.core.model.delivery import OutboxRow


class ChatPlace(msgspec.Struct, frozen=True):
    """A conversation on a platform: a chat, and a thread or topic in it."""

    chat: str
    thread: str = ""


class Attachment(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a message: the platform's reference to it, never a URL."""

    reference: str
    kind: Literal["image", "audio", "file"]
    name: str = ""
    media_type: str = ""
    size: int = 0


class InboundMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that somebody wrote; `unique_id` is the same whenever it is delivered again."""

    unique_id: str
    place: ChatPlace
    sender: str
    text: str
    aliases: tuple[str, ...] = ()
    """Other ids of the sender, which the configuration may use."""
    sender_name: str = ""
    is_direct: bool = True
    group_kind: Literal["group", "channel"] = "group"
    """The word for a group conversation in the session key."""
    is_thread_shared: bool = False
    """Whether the thread shares the session of its chat and only decides where the answer goes."""
    is_mention: bool = False
    """Whether a group message addresses the bot: by name, or as a reply to it."""
    is_named: bool = False
    """Whether the message began with the bot's name, which `text` does not contain any more."""
    is_bot: bool = False
    is_own: bool = False
    is_anonymous: bool = False
    """Whether its sender is unknown: an anonymous admin, or a post of a channel."""
    sent_at: float | None = None
    """When the person sent it, by the platform's clock, in seconds since 1970."""
    message_id: str = ""
    """The platform's id of the message, needed for replies."""
    reply_to: str = ""
    """The platform's id of the message that it replies to."""
    quote: str = ""
    """Text of somebody else in the message: a quote or a forward."""
    attachments: tuple[Attachment, ...] = ()
    is_album: bool = False
    album: str = ""
    """The platform's id of the album whose parts are messages of their own."""
    is_edit: bool = False
    original_id: str = ""
    """For an edit: the unique id of the edited message."""
    first_sent_at: float | None = None
    """For an edit: when that message was sent, by the platform's clock, in seconds since 1970."""
    was_mention: bool | None = None
    """For an edit: whether the message addressed us before, too; None if that is not known."""
    answered_id: str = ""
    """The unique id of the message that it replies to, if it quotes that message."""
    moved_to: str = ""
    """The new id of the chat, for a message that only reports the move."""


class Button(msgspec.Struct, frozen=True):
    """A button below a message; `value` is returned when somebody presses it."""

    label: str
    value: str


class ButtonPress(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody pressed a button."""

    unique_id: str
    place: ChatPlace
    sender: str
    value: str
    sender_name: str = ""
    is_direct: bool = True
    is_bot: bool = False


class PressResult(msgspec.Struct, frozen=True):
    """A text for the person who pressed a button, and what happens to the buttons.

    `done`: the message of the button is edited through the outbox. `over`: the buttons are
    obsolete, so the adapter removes them and leaves the text. `refused`: they stay.
    """

    text: str
    outcome: Literal["done", "over", "refused"] = "refused"


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The features and limits of a platform."""

    max_units: int
    """The maximum length of one message."""
    counts_utf16: bool = False
    """Whether lengths are counted in UTF-16 code units; otherwise in characters."""
    can_edit: bool = False
    can_type: bool = False
    direct_edit_seconds: float = 1.0
    """The minimum time between two edits in a direct chat."""
    group_edit_seconds: float = 4.0
    sends_per_second: float = 1.0
    """Messages and edits that the platform accepts from one account, over all chats."""
    is_polled: bool = False
    """Whether at most one process may receive at a time."""
    command_prefix: str = "/"
    has_bare_commands: bool = False
    """Whether a message that consists of the bot's name and a command word is that command."""
    follows_threads: bool = False
    """Whether messages in a thread in which the bot takes part need no mention."""
    max_file_bytes: int = 0
    """The largest file that can be sent; 0 if files cannot be sent."""
    keeps_seconds: float = 0.0
    """How long the platform keeps messages that nobody receives; 0 if that is long or unknown."""
    escapes: str = ""
    """Characters that the platform counts as entities such as `&amp;`."""


class OutgoingFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file to send."""

    name: str
    media_type: str
    content: bytes


class DeliveryError(HoldfastError):
    """A message was not sent."""

    code = "delivery_failed"


class DeliveryDelayed(DeliveryError):
    """The platform is unavailable or asks to wait; that says nothing about the message."""

    code = "delivery_delayed"
    retryable = True

    def __init__(
        self, message: str, retry_after: float | None = None, *, is_uncertain: bool = False
    ) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.is_uncertain = is_uncertain
        """Whether the message may have arrived anyway."""


class DeliveryRefused(DeliveryError):
    """The platform refuses this message. `is_formatting`: it may accept it as plain text."""

    code = "delivery_refused"

    def __init__(self, message: str, *, is_formatting: bool = False) -> None:
        super().__init__(message)
        self.is_formatting = is_formatting


class DeliveryImpossible(DeliveryError):
    """Nothing can be sent to this chat: it no longer exists, or it blocked the bot."""

    code = "delivery_impossible"


class MessageGone(DeliveryRefused):
    """The message to edit no longer exists or cannot be edited: send a new one."""

    code = "message_gone"


class ChatMoved(DeliveryError):
    """The chat continues under another id."""

    code = "chat_moved"

    def __init__(self, successor: str) -> None:
        super().__init__(f"the chat continues as {successor}")
        self.successor = successor


class ReceiveConflict(HoldfastError):
    """Another process receives for the same account."""

    code = "receive_conflict"
    retryable = True


class WebhookRejected(HoldfastError):
    """A webhook request without a valid secret, signature or time."""

    code = "invalid_webhook"


class Inbox(Protocol):
    """Handles what a channel receives."""

    async def handle(self, message: InboundMessage) -> None:
        """Make a message durable; when this returns, it may be acknowledged.

        An exception means that it must not be acknowledged: the platform delivers it again.
        """
        ...

    async def press(self, press: ButtonPress) -> PressResult:
        """Handle a pressed button; exceptions mean the same as for `handle`."""
        ...

    async def reject(self, update_id: str, reason: str) -> None:
        """Record an update that cannot be read, so that it may be acknowledged."""
        ...


class Channel(Protocol):
    """One account on one platform."""

    @property
    def name(self) -> str:
        """The channel's name in the configuration."""
        ...

    @property
    def kind(self) -> str:
        """The platform."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """What the platform can do."""
        ...

    async def receive(self, inbox: Inbox) -> None:
        """Receive until cancelled; acknowledge each message only after `inbox` has handled it.

        Raise `ReceiveConflict` if another process receives, and `DeliveryDelayed` if the platform
        is unavailable: the caller waits and calls again.
        """
        ...

    async def send(
        self,
        place: ChatPlace,
        text: str,
        *,
        reply_to: str = "",
        plain: bool,
        buttons: Sequence[Button] = (),
    ) -> str:
        """Send Markdown, or plain text, and return the platform's id of the message.

        A platform without buttons leaves them out: the text says how to answer by text.
        """
        ...

    async def edit(
        self,
        place: ChatPlace,
        external_id: str,
        text: str,
        *,
        plain: bool,
        buttons: Sequence[Button] = (),
    ) -> None:
        """Replace a sent message; sending the same text again is not an error."""
        ...

    async def send_file(self, place: ChatPlace, file: OutgoingFile, *, reply_to: str = "") -> str:
        """Send a file and return its id on the platform; called only if `max_file_bytes` is set."""
        ...

    async def show_typing(self, place: ChatPlace) -> None:
        """Show a typing indicator for some seconds."""
        ...

    async def download(self, attachment: Attachment, max_bytes: int) -> bytes:
        """Return the content of an attachment."""
        ...

    async def webhook(self, headers: Mapping[str, str], body: bytes, inbox: Inbox) -> bytes:
        """Handle one webhook request and return the reply's body; raise `WebhookRejected`."""
        ...

    async def check(self) -> str:
        """Return the account's name on the platform; raise if the credentials are wrong."""
        ...

    async def check_webhook(self) -> None:
        """Raise if the platform reports that it does not deliver to the webhook."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class Transcriber(Protocol):
    """Turns recordings into text."""

    async def transcribe(self, attachment: Attachment, content: bytes) -> str:
        """Transcribe a recording within bounded time; raise `HoldfastError`."""
        ...


class ChannelMessages(Protocol):
    """What a run needs from the channels: answers split into parts, and the files of messages."""

    @property
    def transcriber(self) -> Transcriber | None:
        """What transcribes voice messages, if anything does."""
        ...

    def split(self, channel: str, text: str) -> Sequence[str]:
        """Return the parts of an answer, each short enough for the channel."""
        ...

    def media_bytes(self, channel: str) -> int:
        """Return the limit in bytes for all files of a turn's messages."""
        ...

    def file_bytes(self, channel: str) -> int:
        """Return the limit in bytes for all files of an answer; 0 if files are not sent."""
        ...

    async def download(self, channel: str, attachment: Attachment, max_bytes: int) -> bytes:
        """Return the content of a file; raise `DeliveryError`."""
        ...


class OperatorMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of an operator to a chat: a text, files, or both."""

    chat: str
    text: str = ""
    thread: str = ""
    files: tuple[OutgoingFile, ...] = ()
    key: str | None = None
    """If set, the message is sent once for this key."""


class ChannelDirectory(Protocol):
    """The channels of a process, as HTTP requests of operators and platforms use them."""

    async def listing(self) -> list[dict[str, object]]:
        """Return every channel with its state."""
        ...

    async def send(self, name: str, message: OperatorMessage) -> list[str]:
        """Queue a message to a chat; return the ids of its parts in the outbox."""
        ...

    async def check(self, name: str) -> dict[str, object]:
        """Return the account's name on the platform, or why it is unknown."""
        ...

    async def pairings(self, name: str) -> list[PairingRow]:
        """Return the pairing requests of a channel, oldest first."""
        ...

    async def approve(self, name: str, code: str) -> PairingRow:
        """Approve a pairing."""
        ...

    async def revoke(self, name: str, sender: str) -> bool:
        """Revoke a pairing."""
        ...

    async def revise(self, message_id: str, action: Literal["retry", "drop"]) -> OutboxRow:
        """Retry or drop a message."""
        ...

    async def webhook(self, name: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """Handle a webhook request of a platform."""
        ...
