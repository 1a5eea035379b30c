"""Updates of the Bot API as messages."""

from typing import Any

import msgspec

from holdfast.ports.channel import Attachment, ButtonPress, ChatPlace, InboundMessage

ALLOWED_UPDATES = ["message", "edited_message", "callback_query"]


class User(msgspec.Struct):
    """A user or bot."""

    id: int
    is_bot: bool = False
    first_name: str = ""
    username: str = ""


class Chat(msgspec.Struct):
    """A chat; `type` is private, group, supergroup or channel."""

    id: int
    type: str = "private"
    title: str = ""


class Entity(msgspec.Struct):
    """A marked range of a text, counted in UTF-16 units."""

    type: str
    offset: int
    length: int
    user: User | None = None


class File(msgspec.Struct):
    """A photo size, document, voice or audio."""

    file_id: str
    file_size: int = 0
    file_name: str = ""
    mime_type: str = ""


class Quote(msgspec.Struct):
    """The quoted part of a message that is answered."""

    text: str = ""


class Sticker(msgspec.Struct):
    """A sticker, by the emoji that it stands for."""

    emoji: str = ""


class Location(msgspec.Struct):
    """A point on the map."""

    latitude: float
    longitude: float


class Venue(msgspec.Struct):
    """A place with a name."""

    title: str = ""
    address: str = ""


class Contact(msgspec.Struct):
    """A contact in a message."""

    first_name: str = ""
    last_name: str = ""
    phone_number: str = ""


class Poll(msgspec.Struct):
    """A question to a group."""

    question: str = ""


class Dice(msgspec.Struct):
    """A random number, shown as a game."""

    emoji: str = ""
    value: int = 0


class Message(msgspec.Struct):
    """What is read of a message; one with nothing of this is a note of the service."""

    message_id: int
    chat: Chat
    date: int = 0
    sender: User | None = msgspec.field(default=None, name="from")
    sender_chat: Chat | None = None
    text: str = ""
    caption: str = ""
    entities: list[Entity] = []
    caption_entities: list[Entity] = []
    message_thread_id: int | None = None
    is_topic_message: bool = False
    edit_date: int | None = None
    media_group_id: str | None = None
    migrate_to_chat_id: int | None = None
    migrate_from_chat_id: int | None = None
    reply_to_message: "Message | None" = None
    quote: Quote | None = None
    forward_origin: dict[str, Any] | None = None
    photo: list[File] = []
    document: File | None = None
    voice: File | None = None
    audio: File | None = None
    video: File | None = None
    video_note: File | None = None
    animation: File | None = None
    sticker: Sticker | None = None
    location: Location | None = None
    venue: Venue | None = None
    contact: Contact | None = None
    poll: Poll | None = None
    dice: Dice | None = None


class CallbackQuery(msgspec.Struct):
    """A press of a button below a message of the bot."""

    id: str
    sender: User = msgspec.field(name="from")
    message: Message | None = None
    data: str = ""


class Update(msgspec.Struct):
    """One update."""

    update_id: int
    message: Message | None = None
    edited_message: Message | None = None
    callback_query: CallbackQuery | None = None


def read_press(query: CallbackQuery, bot: User) -> ButtonPress | None:
    """Return the button that was pressed; `None` where its message is not known."""
    message = query.message
    if message is None or not query.data:
        return None
    return ButtonPress(
        unique_id=f"{bot.id}:callback:{query.id}",
        place=ChatPlace(str(message.chat.id), _thread(message)),
        sender=str(query.sender.id),
        sender_name=_name(query.sender),
        value=query.data,
        is_direct=message.chat.type == "private",
        is_bot=query.sender.is_bot,
    )


def read_message(update: Update, bot: User) -> InboundMessage | None:
    """Return the message of an update; `None` for what is not a message to us."""
    message = update.message or update.edited_message
    if message is None:
        return None
    if message.migrate_from_chat_id is not None:
        return _moved(message, bot)
    text = message.text or message.caption or _describe(message)
    attachments = tuple(_attachments(message))
    if not (text or attachments or message.migrate_to_chat_id):
        return None  # a note of the service: somebody joined, a title was changed
    if _is_for_another_bot(message, text, bot):
        return None
    chat, sender = message.chat, message.sender
    unique_id = f"{bot.id}:{chat.id}:{message.message_id}"
    is_edit, is_forward = update.edited_message is not None, message.forward_origin is not None
    replied = message.reply_to_message
    quote = _quote(message)
    return InboundMessage(
        unique_id=f"{unique_id}:{message.edit_date}" if is_edit else unique_id,
        place=ChatPlace(str(chat.id), _thread(message)),
        sender=str(sender.id) if sender is not None else "",
        sender_name=_name(sender),
        text="" if is_forward else _without_mention(text, message, bot),
        is_direct=chat.type == "private",
        is_mention=not is_forward and _mentions(message, text, bot),
        is_bot=sender is not None and sender.is_bot,
        is_own=sender is not None and sender.id == bot.id,
        is_anonymous=sender is None or message.sender_chat is not None,
        sent_at=float(message.date) if message.date and not is_edit else None,
        message_id=str(message.message_id),
        reply_to=str(replied.message_id) if replied is not None else "",
        answered_id=f"{bot.id}:{chat.id}:{replied.message_id}" if replied is not None else "",
        quote=text if is_forward else quote,
        attachments=attachments,
        is_album=message.media_group_id is not None,
        album=message.media_group_id or "",
        is_edit=is_edit,
        original_id=unique_id if is_edit else "",
        first_sent_at=float(message.date) if message.date and is_edit else None,
        moved_to=str(message.migrate_to_chat_id or ""),
    )


def _moved(message: Message, bot: User) -> InboundMessage:
    """Return the note of a group that it continues an older one: the other one may come later."""
    old = str(message.migrate_from_chat_id)
    return InboundMessage(
        unique_id=f"{bot.id}:{message.chat.id}:{message.message_id}",
        place=ChatPlace(old),
        sender="",
        text="",
        is_direct=False,
        moved_to=str(message.chat.id),
    )


def _describe(message: Message) -> str:
    """Return in words what a message without text shows; empty if it shows nothing."""
    if message.sticker is not None:
        return f"[sticker {message.sticker.emoji}".rstrip() + "]"
    if message.venue is not None:
        return f"[place: {message.venue.title}, {message.venue.address}]"
    if message.location is not None:
        return f"[location: {message.location.latitude}, {message.location.longitude}]"
    if message.contact is not None:
        contact = message.contact
        name = f"{contact.first_name} {contact.last_name}".strip()
        return f"[contact: {name}, {contact.phone_number}]"
    if message.poll is not None:
        return f"[poll: {message.poll.question}]"
    if message.dice is not None:
        return f"[dice {message.dice.emoji}: {message.dice.value}]"
    return ""


def _thread(message: Message) -> str:
    is_topic = message.is_topic_message and message.message_thread_id is not None
    return str(message.message_thread_id) if is_topic else ""


def _name(user: User | None) -> str:
    return (user.first_name or user.username) if user is not None else ""


def _quote(message: Message) -> str:
    if message.quote is not None and message.quote.text:
        return message.quote.text
    replied = message.reply_to_message
    # In a topic every message answers the one that opened the topic.
    if replied is None or replied.message_id == message.message_thread_id:
        return ""
    return replied.text or replied.caption


def _entities(message: Message) -> list[Entity]:
    return message.entities or message.caption_entities


def _cut(text: str, entity: Entity) -> str:
    encoded = text.encode("utf-16-le")
    part = encoded[entity.offset * 2 : (entity.offset + entity.length) * 2]
    return part.decode("utf-16-le", "replace")


def _mentions(message: Message, text: str, bot: User) -> bool:
    replied = message.reply_to_message
    if replied is not None and replied.sender is not None and replied.sender.id == bot.id:
        return True
    name = f"@{bot.username}".lower()
    for entity in _entities(message):
        if entity.type == "text_mention" and entity.user is not None and entity.user.id == bot.id:
            return True
        words = _cut(text, entity).lower()
        if entity.type == "mention" and words == name:
            return True
        if entity.type == "bot_command" and words.endswith(name):
            return True
    return False


def _is_for_another_bot(message: Message, text: str, bot: User) -> bool:
    """Whether a message of a group is a command that names another bot, as in `/stop@other`."""
    if message.chat.type == "private":
        return False
    for entity in _entities(message):
        if entity.type == "bot_command" and entity.offset == 0:
            name = _cut(text, entity).partition("@")[2]
            return bool(name) and name.lower() != bot.username.lower()
    return False


def _without_mention(text: str, message: Message, bot: User) -> str:
    """Return the text without our name at its beginning."""
    name = f"@{bot.username}"
    is_at_start = any(e.type == "mention" and e.offset == 0 for e in _entities(message))
    if is_at_start and text.lower().startswith(name.lower()):
        return text[len(name) :].lstrip(" ,:")
    return text


def _attachments(message: Message) -> list[Attachment]:
    attachments: list[Attachment] = []
    if message.photo:
        photo = max(message.photo, key=lambda size: size.file_size)
        attachments.append(
            Attachment(
                reference=photo.file_id, kind="image", media_type="image/jpeg", size=photo.file_size
            )
        )
    # An animation has a document of the same file beside it.
    document = message.animation or message.document
    for file, kind in (
        (document, "file"),
        (message.voice, "audio"),
        (message.audio, "audio"),
        (message.video, "file"),
        (message.video_note, "file"),
    ):
        if file is not None:
            is_image = file.mime_type.startswith("image/")
            attachments.append(
                Attachment(
                    reference=file.file_id,
                    kind="image" if is_image else ("audio" if kind == "audio" else "file"),
                    name=file.file_name,
                    media_type=file.mime_type,
                    size=file.file_size,
                )
            )
    return attachments
