"""Files of chat messages: accepted as references, downloaded by the run, stored with the turn."""

import asyncio
import base64
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import HoldfastError
from holdfast.core.model.delivery import Delivery, OutboxMessage
from holdfast.core.model.gateway_items import ATTACHMENT, GatewayAttachment, load_item
from holdfast.core.model.items import NewItem, StoredItem, read_item
from holdfast.core.transaction.outgoing import to_message
from holdfast.engine.logging import log
from holdfast.engine.sessions.active_run import ActiveRun
from holdfast.ports.channel import Attachment, ChannelMessages, Transcriber

LOAD_SECONDS = 60.0
"""The time limit for all files of a turn; the model only gets the names of later ones."""
MAX_FILES = 10
MAX_TEXT = 100_000
_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


class SpokenText(NamedTuple):
    """The transcript of a recording."""

    text: str


Content = bytes | SpokenText | str
"""A file, its transcript, or why there is neither."""
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/x-yaml")


async def load_attachments(run: ActiveRun, delivery: Delivery, channels: ChannelMessages) -> None:
    """Download the files of a turn's messages, and commit them before the model is called.

    The same commit notifies a person whose voice message could not be transcribed.
    """
    waiting = find_waiting(await run.own_items())
    if waiting:
        contents = await _load(waiting, channels)
        items = [content_item(*each) for each in contents]
        await run.commit_step(items, outbox=_unheard(delivery, contents))


def find_waiting(items: Sequence[StoredItem]) -> list[GatewayAttachment]:
    """Return the attachments whose content is not in the log yet."""
    item_ids = {item.item_id for item in items}
    waiting: list[GatewayAttachment] = []
    for item in items:
        if item.kind != ATTACHMENT:
            continue
        attachment = load_item(item.body)
        assert isinstance(attachment, GatewayAttachment)
        if content_id(attachment) not in item_ids:
            waiting.append(attachment)
    return waiting


async def _load(
    waiting: Sequence[GatewayAttachment], channels: ChannelMessages
) -> list[tuple[GatewayAttachment, Content]]:
    """Return the content of each attachment, or why there is none."""
    loaded: list[tuple[GatewayAttachment, Content]] = []
    bytes_left = channels.media_bytes(waiting[0].channel)
    until = asyncio.get_running_loop().time() + LOAD_SECONDS
    for number, attachment in enumerate(waiting):
        content: Content
        if number >= MAX_FILES:
            content = f"a message may have {MAX_FILES} files"
        elif attachment.kind == "audio" and channels.transcriber is None:
            content = "voice and audio cannot be transcribed here"
        elif attachment.size > bytes_left:
            content = "it is too large"
        else:
            content = await _download(attachment, channels, bytes_left, until)
        if isinstance(content, bytes):
            bytes_left -= len(content)
        if isinstance(content, bytes) and attachment.kind == "audio":
            content = await _transcribe(attachment, content, channels.transcriber)
        loaded.append((attachment, content))
    return loaded


async def _transcribe(
    attachment: GatewayAttachment, content: bytes, transcriber: Transcriber | None
) -> SpokenText | str:
    """Return the transcript of a recording, or why there is none."""
    assert transcriber is not None, "a recording is not downloaded without one"
    try:
        text = await transcriber.transcribe(_reference(attachment), content)
    except HoldfastError as exc:
        log.warning("channel.voice_not_transcribed", channel=attachment.channel, code=exc.code)
        return "it could not be transcribed"
    return SpokenText(text[:MAX_TEXT]) if text else "nothing is said in it"


async def _download(
    attachment: GatewayAttachment, channels: ChannelMessages, max_bytes: int, until: float
) -> bytes | str:
    try:
        async with asyncio.timeout_at(until):
            return await channels.download(attachment.channel, _reference(attachment), max_bytes)
    except TimeoutError:
        return "it did not arrive in time"
    except HoldfastError as exc:
        log.info("channel.file_not_read", channel=attachment.channel, code=exc.code)
        return "it could not be read"


def _reference(attachment: GatewayAttachment) -> Attachment:
    return Attachment(
        reference=attachment.reference,
        kind=attachment.kind,
        name=attachment.name,
        media_type=attachment.media_type,
        size=attachment.size,
    )


def _unheard(
    delivery: Delivery, contents: Sequence[tuple[GatewayAttachment, Content]]
) -> tuple[OutboxMessage, ...]:
    """Return a line to the person for the first voice message that was not understood."""
    for attachment, content in contents:
        if attachment.kind == "audio" and isinstance(content, str):
            text = f"Your voice message was not understood: {content}."
            return (replace(to_message(delivery, text), source=attachment.id),)
    return ()


def content_id(attachment: GatewayAttachment) -> str:
    """Return the id of the item that has an attachment's content."""
    return "msg_" + attachment.id.partition("_")[2]


def content_item(attachment: GatewayAttachment, content: Content) -> NewItem:
    """Return a file as a message for the model, or a line that says why it is missing."""
    name = attachment.name or attachment.kind
    if isinstance(content, SpokenText):
        part: dict[str, str] | None = _text(f"[Transcript of {name}:]\n{content.text}")
    else:
        part = None if isinstance(content, str) else _part(attachment, name, content)
    reason = content if isinstance(content, str) else "files of this type are not passed on"
    if part is None:
        parts = [_text(f"[The file {name} is missing: {reason}.]")]
    elif part["type"] == "input_text":
        parts = [part]
    else:
        parts = [_text(f"[The file {name}:]"), part]
    value = {
        "type": "message", "id": content_id(attachment), "role": "user", "content": parts,
    }  # fmt: skip
    return read_item(msgspec.json.encode(value))


def _text(text: str) -> dict[str, str]:
    return {"type": "input_text", "text": text}


def _part(attachment: GatewayAttachment, name: str, content: bytes) -> dict[str, str] | None:
    """Return a file in a form that a model accepts; its bytes decide the type, not its sender."""
    media_type = _media_type(content)
    if media_type is not None:
        data = f"data:{media_type};base64,{base64.b64encode(content).decode()}"
        if media_type == "application/pdf":
            return {"type": "input_file", "filename": name, "file_data": data}
        return {"type": "input_image", "image_url": data, "detail": "auto"}
    if attachment.media_type.startswith(_TEXT_TYPES):
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return None
        return _text(f"[The file {name}:]\n{text[:MAX_TEXT]}")
    return None


def _media_type(content: bytes) -> str | None:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _MAGIC if content.startswith(magic)), None)
