"""Slack's events as messages: one text is one message, however many events tell of it."""

import re
from typing import Literal

import msgspec

from holdfast.ports.channel import Attachment, ButtonPress, ChatPlace, InboundMessage

ChannelType = Literal["im", "mpim", "channel", "group"]
_MESSAGES = frozenset({"", "bot_message", "file_share", "me_message", "thread_broadcast"})
"""Subtypes that somebody wrote; the others tell about joins, topics, pins and the like."""
_CONTROL = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")


class Account(msgspec.Struct, frozen=True):
    """Who we are in a workspace."""

    team: str
    user: str
    bot_id: str = ""
    name: str = ""


class SlackFile(msgspec.Struct):
    """A file of a message."""

    id: str = ""
    name: str | None = None
    mimetype: str | None = None
    size: int | None = None
    mode: str = ""


class SharedMessage(msgspec.Struct):
    """An attachment; `is_share` marks a message of somebody else that was forwarded."""

    is_share: bool = False
    text: str | None = None
    fallback: str | None = None


class EditMark(msgspec.Struct):
    """When a person edited a message."""

    ts: str = ""


class SlackMessage(msgspec.Struct, kw_only=True):
    """What is read of a message."""

    user: str | None = None
    bot_id: str | None = None
    username: str | None = None
    text: str | None = ""
    ts: str = ""
    thread_ts: str | None = None
    parent_user_id: str | None = None
    edited: EditMark | None = None
    files: list[SlackFile] = []
    attachments: list[SharedMessage] = []


class SlackEvent(SlackMessage, kw_only=True):
    """An event of the types `message` and `app_mention`."""

    type: str = ""
    subtype: str | None = None
    channel: str = ""
    channel_type: str | None = None
    message: SlackMessage | None = None
    previous_message: SlackMessage | None = None


class EventCallback(msgspec.Struct):
    """The payload of an envelope of type `events_api`, and of a webhook request."""

    type: str = ""
    challenge: str = ""
    event: msgspec.Raw = msgspec.Raw(b"{}")


class NamedId(msgspec.Struct):
    """The id of a person or conversation."""

    id: str = ""


class PressedButton(msgspec.Struct):
    """A button that was pressed."""

    value: str = ""
    action_ts: str = ""


class BlockActions(msgspec.Struct, kw_only=True):
    """The payload of an envelope of type `interactive`."""

    type: str = ""
    user: NamedId = msgspec.field(default_factory=NamedId)
    channel: NamedId = msgspec.field(default_factory=NamedId)
    message: SlackMessage = msgspec.field(default_factory=SlackMessage)
    actions: list[PressedButton] = []


def read_press(payload: BlockActions, account: Account) -> ButtonPress | None:
    """Return the button that was pressed; `None` for everything else."""
    if payload.type != "block_actions" or not payload.actions or not payload.user.id:
        return None
    button, channel = payload.actions[0], payload.channel.id
    is_direct = channel.startswith("D")
    return ButtonPress(
        unique_id=f"{account.team}:{channel}:{payload.message.ts}:{button.action_ts}",
        place=ChatPlace(payload.user.id if is_direct else channel, payload.message.thread_ts or ""),
        sender=payload.user.id,
        value=button.value,
        is_direct=is_direct,
    )


def read_event(event: SlackEvent, account: Account, channel_type: str) -> InboundMessage | None:
    """Return the message of an event; `None` for other events."""
    if event.type not in ("message", "app_mention") or not event.channel:
        return None
    if event.subtype == "message_changed":
        return _read_edit(event, account, channel_type)
    if (event.subtype or "") not in _MESSAGES or not event.ts:
        return None
    return _to_message(event, event, account, channel_type)


def _read_edit(event: SlackEvent, account: Account, channel_type: str) -> InboundMessage | None:
    """Return a person's edit; links that Slack unfolds change a message without editing it."""
    message, before = event.message, event.previous_message
    if message is None or message.edited is None:
        return None
    if before is not None and before.text == message.text:
        return None
    edited = _to_message(event, message, account, channel_type)
    unique_id = f"{edited.unique_id}:{message.edited.ts}"
    return msgspec.structs.replace(
        edited,
        unique_id=unique_id,
        is_edit=True,
        original_id=edited.unique_id,
        first_sent_at=edited.sent_at,
        sent_at=_seconds(message.edited.ts),
        was_mention=before is not None and _mentions(event, before, account),
    )


def _to_message(
    event: SlackEvent, message: SlackMessage, account: Account, channel_type: str
) -> InboundMessage:
    is_direct, is_group = channel_type == "im", channel_type == "mpim"
    sender = message.user or message.bot_id or ""
    is_own = sender == account.user or (
        message.bot_id is not None and message.bot_id == account.bot_id
    )
    thread = message.thread_ts or ("" if is_direct or is_group else message.ts)
    text = message.text or ""
    return InboundMessage(
        unique_id=f"{account.team}:{event.channel}:{message.ts}",
        # A direct chat is named by its person, whom operators and schedules know.
        place=ChatPlace(sender if is_direct else event.channel, thread),
        sender=sender,
        aliases=(event.channel,) if is_direct else (),
        sender_name=message.username or "",
        text=decode_text(_without_mention(text, account)),
        is_direct=is_direct,
        group_kind="group" if is_group else "channel",
        is_thread_shared=is_group,
        is_mention=_mentions(event, message, account),
        is_named=_named_at(text, account) > 0,
        is_bot=message.bot_id is not None,
        is_own=is_own,
        is_anonymous=not sender,
        sent_at=_seconds(message.ts),
        message_id=message.ts,
        reply_to=_answered(message),
        quote=_quote(message),
        attachments=tuple(_attachments(message)),
    )


def _seconds(ts: str) -> float | None:
    """Return the time that the id of a message is."""
    try:
        return float(ts)
    except ValueError:
        return None


def _answered(message: SlackMessage) -> str:
    thread = message.thread_ts or ""
    return "" if thread == message.ts else thread


def _mentions(event: SlackEvent, message: SlackMessage, account: Account) -> bool:
    if event.type == "app_mention" or message.parent_user_id == account.user:
        return True
    return any(match[1] == f"@{account.user}" for match in _CONTROL.finditer(message.text or ""))


def _without_mention(text: str, account: Account) -> str:
    """Return the text without our name at its beginning."""
    end = _named_at(text, account)
    return text[end:].lstrip(" ,:") if end else text


def _named_at(text: str, account: Account) -> int:
    """Return where our name at the beginning of a text ends; 0 if there is none."""
    match = _CONTROL.match(text, len(text) - len(text.lstrip()))
    return match.end() if match is not None and match[1] == f"@{account.user}" else 0


def decode_text(text: str) -> str:
    """Return Slack's text as people read it: names, links and characters instead of codes."""
    plain = _CONTROL.sub(_decode, text)
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _decode(match: "re.Match[str]") -> str:
    target, label = match[1], match[2]
    if target.startswith("@"):
        return f"@{label or target[1:]}"
    if target.startswith("#"):
        return f"#{label or target[1:]}"
    if target.startswith("!"):
        return f"@{label or target[1:].partition('^')[0]}"
    if not label or target in (label, f"mailto:{label}"):
        return label or target
    return f"{label} ({target})"


def _quote(message: SlackMessage) -> str:
    shared = [
        attachment.text or attachment.fallback or ""
        for attachment in message.attachments
        if attachment.is_share
    ]
    return decode_text("\n\n".join(text for text in shared if text))


def _attachments(message: SlackMessage) -> list[Attachment]:
    attachments: list[Attachment] = []
    for file in message.files:
        if not file.id or file.mode == "tombstone":
            continue
        media_type = file.mimetype or ""
        kind = media_type.partition("/")[0]
        attachments.append(
            Attachment(
                reference=file.id,
                kind="image" if kind == "image" else "audio" if kind == "audio" else "file",
                name=file.name or "",
                media_type=media_type,
                size=file.size or 0,
            )
        )
    return attachments
