"""Read messages from envelopes of signal-cli."""

import msgspec

from holdfast.channels.platform_json import decode_json
from holdfast.ports.channel import Attachment, ChatPlace, InboundMessage

PLACEHOLDER = "\ufffc"
"""Marks the place of a mention in a text."""


LONG_TEXT = "text/x-signal-plain"
"""The type of the file that has all of a text which is too long for a message."""


class Mention(msgspec.Struct):
    """A mention; its position is counted in UTF-16 units."""

    name: str | None = None
    number: str | None = None
    uuid: str | None = None
    start: int = 0
    length: int = 1


class SignalQuote(msgspec.Struct, rename="camel"):
    """The message that is replied to."""

    id: int = 0
    author_number: str | None = None
    author_uuid: str | None = None
    text: str | None = None
    mentions: list[Mention] | None = None


class SignalFile(msgspec.Struct, rename="camel"):
    """An attachment; without an id the daemon could not store it."""

    id: str | None = None
    content_type: str | None = None
    filename: str | None = None
    size: int | None = None


class GroupInfo(msgspec.Struct, rename="camel"):
    """The group of a message."""

    group_id: str = ""
    type: str = "DELIVER"


class DataMessage(msgspec.Struct, rename="camel"):
    """The fields that are read from a message."""

    timestamp: int
    message: str | None = None
    quote: SignalQuote | None = None
    mentions: list[Mention] | None = None
    attachments: list[SignalFile] | None = None
    group_info: GroupInfo | None = None


class EditMessage(msgspec.Struct, rename="camel"):
    """A later version of a message."""

    target_sent_timestamp: int
    data_message: DataMessage


class Envelope(msgspec.Struct, rename="camel"):
    """The fields read from an envelope; receipts, typing, calls and stories have no message."""

    source: str | None = None
    source_number: str | None = None
    source_uuid: str | None = None
    source_name: str | None = None
    server_delivered_timestamp: int = 0
    data_message: DataMessage | None = None
    edit_message: EditMessage | None = None


class ReceivedEvent(msgspec.Struct):
    """One event of the stream; with a subscription it is nested one level deeper."""

    envelope: Envelope | None = None
    account: str | None = None
    result: "ReceivedEvent | None" = None


def read_event(raw: bytes) -> Envelope | None:
    """Return the envelope of an event, if it has one; raise `DecodeError` if it cannot be read."""
    event = decode_json(raw, ReceivedEvent)
    return event.envelope or (event.result.envelope if event.result is not None else None)


def read_message(envelope: Envelope, account: str) -> InboundMessage | None:
    """Return the message of an envelope; `None` for anything that is not a message to us.

    A person is identified by the UUID, which is stable; the number may change or be hidden.
    """
    edit = envelope.edit_message
    data = edit.data_message if edit is not None else envelope.data_message
    sender = envelope.source_uuid or envelope.source_number or envelope.source
    if data is None or sender is None or not (data.message or data.attachments):
        return None
    group = data.group_info.group_id if data.group_info is not None else ""
    number = envelope.source_number or ""
    files = data.attachments or ()
    sent_at = edit.target_sent_timestamp if edit is not None else data.timestamp
    return InboundMessage(
        unique_id=f"{sender}:{data.timestamp}",
        place=ChatPlace(group or sender),
        sender=sender,
        aliases=(number,) if number and number != sender else (),
        sender_name=envelope.source_name or "",
        text=_text(data.message, data.mentions, account),
        is_direct=not group,
        is_mention=_mentions(data, account),
        is_own=account in (number, sender),
        sent_at=data.timestamp / 1000,
        message_id=f"{sent_at}:{sender}",
        reply_to=_reply_to(data.quote, account),
        quote=_text(data.quote.text, data.quote.mentions, "") if data.quote is not None else "",
        attachments=tuple(_attachment(file, group or sender) for file in files),
        is_album=len(files) > 1,
        is_edit=edit is not None,
        original_id=f"{sender}:{sent_at}" if edit is not None else "",
        answered_id=_answered_id(data.quote),
    )


def _is_us(number: str | None, uuid: str | None, account: str) -> bool:
    return account in (number, uuid)


def _mentions(data: DataMessage, account: str) -> bool:
    quote = data.quote
    if quote is not None and _is_us(quote.author_number, quote.author_uuid, account):
        return True
    return any(_is_us(mention.number, mention.uuid, account) for mention in data.mentions or ())


def _text(message: str | None, mentions: list[Mention] | None, account: str) -> str:
    """Return the text with names in place of mentions, and without a leading mention of us."""
    units = (message or "").encode("utf-16-le")
    for mention in sorted(mentions or (), key=lambda one: one.start, reverse=True):
        start, end = mention.start * 2, (mention.start + mention.length) * 2
        is_first = not units[:start].decode("utf-16-le", "replace").strip()
        is_us = _is_us(mention.number, mention.uuid, account)
        name = "" if is_us and is_first else f"@{mention.name or mention.number or mention.uuid}"
        units = units[:start] + name.encode("utf-16-le") + units[end:]
    text = units.decode("utf-16-le", "replace").replace(PLACEHOLDER, "")
    return text.lstrip(" ,:") if mentions else text


def _reply_to(quote: SignalQuote | None, account: str) -> str:
    """Return the id of the message that is replied to; ours are identified by their time alone."""
    if quote is None or not quote.id:
        return ""
    if _is_us(quote.author_number, quote.author_uuid, account):
        return str(quote.id)
    return f"{quote.id}:{quote.author_uuid or quote.author_number}"


def _answered_id(quote: SignalQuote | None) -> str:
    if quote is None or not quote.id:
        return ""
    return f"{quote.author_uuid or quote.author_number}:{quote.id}"


def _attachment(file: SignalFile, chat: str) -> Attachment:
    media_type = file.content_type or ""
    is_known = media_type.startswith(("image/", "audio/"))
    return Attachment(
        reference=f"{chat}|{file.id or ''}",
        kind=media_type.partition("/")[0] if is_known else "file",  # type: ignore[arg-type]  # image or audio
        name=file.filename or ("whole message.txt" if media_type == LONG_TEXT else ""),
        media_type=media_type,
        size=file.size or 0,
    )
