"""The Telegram channel: long polling or webhook, acknowledged only after the commit."""

import contextlib
import hmac
import secrets
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NoReturn

import msgspec

from holdfast.channels.platform_calls import (
    CALL_SECONDS,
    UPLOAD_SECONDS,
    download_file,
    post,
    read_reply,
)
from holdfast.channels.platform_json import decode_json
from holdfast.channels.rendering.styles import to_telegram
from holdfast.channels.settings import ChannelSettings
from holdfast.channels.telegram.updates import (
    ALLOWED_UPDATES,
    CallbackQuery,
    Update,
    User,
    read_message,
    read_press,
)
from holdfast.ports.channel import (
    Attachment,
    Button,
    Capabilities,
    ChatMoved,
    ChatPlace,
    DeliveryDelayed,
    DeliveryError,
    DeliveryImpossible,
    DeliveryRefused,
    Inbox,
    MessageGone,
    OutgoingFile,
    ReceiveConflict,
    WebhookRejected,
)
from holdfast.ports.http_client import HttpCaller

POLL_SECONDS = 25
KEEPS_SECONDS = 24 * 3600.0
MAX_UNITS = 3900
"""Below Telegram's 4,096 UTF-16 units: rendering may add some."""
MAX_NOTICE = 200
"""Characters of the notice that a pressed button shows."""
MAX_FILE_BYTES = 50_000_000
MAX_PHOTO_BYTES = 10_000_000
PHOTO_TYPES = frozenset({"image/png", "image/jpeg", "image/webp"})
_NOT_EDITABLE = ("message to edit not found", "message can't be edited", "MESSAGE_ID_INVALID")
_NO_PHOTO = ("PHOTO_INVALID_DIMENSIONS", "IMAGE_PROCESS_FAILED", "PHOTO_SAVE_FILE_INVALID")
"""Errors of pictures that can still be sent as documents."""
_FORMATTING = ("can't parse entities", "message is too long", "text is empty")
"""Errors of a rendered text whose source can still be sent as it is."""
SECRET_HEADER = "x-telegram-bot-api-secret-token"


class _Parameters(msgspec.Struct):
    retry_after: float | None = None
    migrate_to_chat_id: int | None = None


class _Reply(msgspec.Struct):
    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    error_code: int = 0
    description: str = ""
    parameters: _Parameters = msgspec.field(default_factory=_Parameters)


class _SentMessage(msgspec.Struct):
    message_id: int


class _FilePath(msgspec.Struct):
    file_path: str = ""


class _WebhookInfo(msgspec.Struct):
    url: str = ""
    pending_update_count: int = 0
    last_error_message: str = ""


class _UpdateId(msgspec.Struct):
    update_id: int


class TelegramChannel:
    """One bot."""

    kind = "telegram"

    def __init__(self, settings: ChannelSettings, http: HttpCaller) -> None:
        self.name = settings.name
        self.capabilities = Capabilities(
            max_units=MAX_UNITS,
            counts_utf16=True,
            can_edit=True,
            can_type=True,
            direct_edit_seconds=1.0,
            group_edit_seconds=4.0,
            sends_per_second=25.0,
            keeps_seconds=KEEPS_SECONDS,
            max_file_bytes=MAX_FILE_BYTES,
            is_polled=settings.receive == "poll",
        )
        self._base = settings.base_url
        self._token = settings.token
        self._secret = settings.secret
        self._http = http
        self._bot: User | None = None

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    async def receive(self, inbox: Inbox) -> None:
        """Poll for updates; the next poll confirms what was handled.

        The offset is forgotten once it has confirmed everything, and with every failure: after a
        quiet week numbers start anew, and an old offset would confirm updates that nobody saw.
        """
        bot = await self._me()
        offset: int | None = None
        while True:
            parameters: dict[str, Any] = {
                "timeout": POLL_SECONDS,
                "allowed_updates": ALLOWED_UPDATES,
            }
            if offset is not None:
                parameters["offset"] = offset
            raw = await self._call("getUpdates", parameters, seconds=POLL_SECONDS + 10.0)
            offset = None
            for update in decode_json(raw, list[msgspec.Raw]):
                number = decode_json(update, _UpdateId).update_id
                await self._handle(bytes(update), bot, inbox)
                # Only now: an update that was not handled is delivered again.
                offset = number + 1

    async def _handle(self, raw: bytes, bot: User, inbox: Inbox) -> None:
        """Pass an update on; record one that cannot be read, and do not ask for it again."""
        try:
            update = decode_json(raw, Update)
        except msgspec.DecodeError as exc:
            await inbox.reject(
                f"{bot.id}:update:{blake2b(raw, digest_size=8).hexdigest()}", str(exc)
            )
            return
        if update.callback_query is not None:
            await self._press(update.callback_query, bot, inbox)
            return
        message = read_message(update, bot)
        if message is not None:
            await inbox.handle(message)

    async def _press(self, query: CallbackQuery, bot: User, inbox: Inbox) -> None:
        """Answer a button press; remove buttons that have no use any more."""
        press = read_press(query, bot)
        if press is None:
            return
        result = await inbox.press(press)
        answer = {"callback_query_id": query.id, "text": result.text[:MAX_NOTICE]}
        with contextlib.suppress(DeliveryError):
            await self._call("answerCallbackQuery", answer)
        if result.outcome == "over" and query.message is not None:
            place = {"chat_id": press.place.chat, "message_id": query.message.message_id}
            with contextlib.suppress(DeliveryError):
                await self._call("editMessageReplyMarkup", place)

    async def webhook(self, headers: Mapping[str, str], body: bytes, inbox: Inbox) -> bytes:
        """Handle one update that Telegram posts; its secret token is the proof."""
        secret = headers.get(SECRET_HEADER, "")
        if not self._secret or not hmac.compare_digest(secret.encode(), self._secret.encode()):
            raise WebhookRejected("the webhook's secret token is missing or wrong")
        await self._handle(body, await self._me(), inbox)
        return b"{}"

    async def _me(self) -> User:
        if self._bot is None:
            self._bot = msgspec.json.decode(await self._call("getMe", {}), type=User)
        return self._bot

    # ── sending ─────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        place: ChatPlace,
        text: str,
        *,
        reply_to: str = "",
        plain: bool,
        buttons: Sequence[Button] = (),
    ) -> str:
        """Send a message."""
        parameters = {"chat_id": place.chat, **_text(text, buttons, plain=plain)}
        if place.thread:
            parameters["message_thread_id"] = _topic(place)
        if reply_to:
            parameters["reply_parameters"] = _reply_parameters(reply_to)
        sent = await self._call("sendMessage", parameters)
        return str(msgspec.json.decode(sent, type=_SentMessage).message_id)

    async def send_file(self, place: ChatPlace, file: OutgoingFile, *, reply_to: str = "") -> str:
        """Send a picture as a photo and everything else, or what is no photo, as a document."""
        fields: dict[str, Any] = {"chat_id": place.chat}
        if place.thread:
            fields["message_thread_id"] = _topic(place)
        if reply_to:
            fields["reply_parameters"] = _reply_parameters(reply_to)
        if file.media_type in PHOTO_TYPES and len(file.content) <= MAX_PHOTO_BYTES:
            try:
                return await self._upload("sendPhoto", "photo", fields, file)
            except DeliveryRefused as exc:
                if not any(word in exc.message for word in _NO_PHOTO):
                    raise
        return await self._upload("sendDocument", "document", fields, file)

    async def _upload(
        self, method: str, field: str, fields: Mapping[str, Any], file: OutgoingFile
    ) -> str:
        content_type, body = multipart(fields, field, file)
        sent = await self._request(method, content_type, body, seconds=UPLOAD_SECONDS)
        return str(msgspec.json.decode(sent, type=_SentMessage).message_id)

    async def edit(
        self,
        place: ChatPlace,
        external_id: str,
        text: str,
        *,
        plain: bool,
        buttons: Sequence[Button] = (),
    ) -> None:
        """Edit a message."""
        parameters = {
            "chat_id": place.chat,
            "message_id": int(external_id),
            **_text(text, buttons, plain=plain),
        }
        try:
            await self._call("editMessageText", parameters)
        except DeliveryRefused as exc:
            if "message is not modified" not in exc.message:
                raise

    async def show_typing(self, place: ChatPlace) -> None:
        """Show that the bot is typing, for about five seconds."""
        parameters: dict[str, Any] = {"chat_id": place.chat, "action": "typing"}
        if place.thread:
            parameters["message_thread_id"] = _topic(place)
        await self._call("sendChatAction", parameters)

    async def download(self, attachment: Attachment, max_bytes: int) -> bytes:
        """Return a file; its URL holds the token and is never stored."""
        file = await self._call("getFile", {"file_id": attachment.reference})
        path = msgspec.json.decode(file, type=_FilePath).file_path
        url = f"{self._base}/file/bot{self._token}/{path}"
        return await download_file(self._http, url, max_bytes)

    async def check(self) -> str:
        """Return the bot's user name."""
        self._bot = None
        return f"@{(await self._me()).username}"

    async def check_webhook(self) -> None:
        """Raise if no webhook is registered, or if Telegram cannot deliver what waits."""
        webhook_info = await self._call("getWebhookInfo", {})
        info = msgspec.json.decode(webhook_info, type=_WebhookInfo)
        if not info.url:
            raise DeliveryRefused("no webhook is registered with Telegram: call setWebhook")
        if info.pending_update_count and info.last_error_message:
            waiting = f"{info.pending_update_count} updates wait"
            raise DeliveryDelayed(f"Telegram cannot deliver: {info.last_error_message}; {waiting}")

    async def close(self) -> None:
        """Do nothing: the HTTP client is shared."""

    # ── calls ───────────────────────────────────────────────────────────────────────────────

    async def _call(
        self, method: str, parameters: Mapping[str, Any], *, seconds: float = CALL_SECONDS
    ) -> bytes:
        """Return the result of a method."""
        body = msgspec.json.encode(parameters)
        return await self._request(method, "application/json", body, seconds=seconds)

    async def _request(
        self, method: str, content_type: str, body: bytes, *, seconds: float
    ) -> bytes:
        """Return the result of a method; every failure says whether it concerns the message."""
        result = await post(
            self._http,
            method,
            f"{self._base}/bot{self._token}/{method}",
            headers={"content-type": content_type},
            body=body,
            seconds=seconds,
            may_repeat=method.startswith("get"),
        )
        reply = read_reply(method, result, _Reply)
        if not reply.ok:
            _raise(method, reply)
        return bytes(reply.result)


def _topic(place: ChatPlace) -> int:
    if not (place.thread.isascii() and place.thread.isdigit()):
        raise DeliveryImpossible(f"{place.thread!r} is not the id of a topic on Telegram")
    return int(place.thread[:20])


def _reply_parameters(reply_to: str) -> dict[str, Any]:
    return {"message_id": int(reply_to), "allow_sending_without_reply": True}


def multipart(fields: Mapping[str, Any], name: str, file: OutgoingFile) -> tuple[str, bytes]:
    """Return a form with a file, and its content type; values with structure are JSON."""
    boundary = secrets.token_hex(16)
    parts: list[bytes] = []
    for field, value in fields.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n'
        parts.append(f"{head}{text}\r\n".encode())
    shown = "".join(char for char in file.name if char.isprintable() and char not in '"\\')
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{shown}"\r\n'
        f"Content-Type: {file.media_type}\r\n\r\n"
    )
    parts += [head.encode(), file.content, f"\r\n--{boundary}--\r\n".encode()]
    return f"multipart/form-data; boundary={boundary}", b"".join(parts)


def _text(text: str, buttons: Sequence[Button], *, plain: bool) -> dict[str, Any]:
    more: dict[str, Any] = {"link_preview_options": {"is_disabled": True}}
    if buttons:
        row = [{"text": button.label, "callback_data": button.value} for button in buttons]
        more["reply_markup"] = {"inline_keyboard": [row]}
    if plain:
        return {"text": text, **more}
    return {"text": to_telegram(text), "parse_mode": "HTML", **more}


def _raise(method: str, reply: _Reply) -> NoReturn:
    """Raise what an error of the Bot API means."""
    code, text = reply.error_code, f"{method}: {reply.description}"
    if code == 429:
        raise DeliveryDelayed(text, reply.parameters.retry_after or 1.0)
    if reply.parameters.migrate_to_chat_id is not None:
        raise ChatMoved(str(reply.parameters.migrate_to_chat_id))
    if code == 409:
        raise ReceiveConflict(text)
    if code in (401, 404):
        # A wrong token concerns everything that is sent: it waits until it is right.
        raise DeliveryDelayed(text, 30.0)
    if code == 403 or "chat not found" in reply.description:
        raise DeliveryImpossible(text)
    if code >= 500:
        raise DeliveryDelayed(text)
    if code == 413:
        raise DeliveryImpossible(text)
    if any(words in reply.description for words in _NOT_EDITABLE):
        raise MessageGone(text)
    is_formatting = any(words in reply.description for words in _FORMATTING)
    raise DeliveryRefused(text, is_formatting=is_formatting)
