"""A Telegram Bot API that keeps its rules: offsets, conflicts, limits, blocks and migrations."""

import asyncio
import contextlib
import html
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

from holdfast.simulator.platforms.server import PlatformAnswer, PlatformCall
from holdfast.simulator.platforms.simulated_platform import SimulatedChatPlatform
from holdfast.simulator.state.forms import FormFile

MAX_UNITS = 4096
MAX_PHOTO_BYTES, MAX_DOCUMENT_BYTES = 10 * 1024 * 1024, 50 * 1024 * 1024
PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"RIFF")
UPLOADS = {"sendPhoto": "photo", "sendDocument": "document"}
_TAGS = re.compile(r"</?(b|i|s|u|code|pre|blockquote)>|<a href=\"[^\"]*\">|</a>")


@dataclass
class SentMessage:
    """A message that the bot sent, with every text that it had."""

    message_id: int
    chat_id: int
    texts: list[str]
    parse_mode: str | None
    reply_to: int | None = None
    thread: int | None = None
    buttons: dict[str, str] = field(default_factory=dict)
    """The data of each button, by its label."""
    sent_at: float = field(default_factory=time.monotonic)
    file: FormFile | None = None
    """The photo or document that the message is."""

    @property
    def text(self) -> str:
        """The text as a reader sees it; of a file its name."""
        if self.file is not None:
            return f"[{self.file.name}]"
        if self.parse_mode != "HTML":
            return self.texts[-1]
        return html.unescape(_TAGS.sub("", self.texts[-1]))


class TelegramSimulator(SimulatedChatPlatform[int]):
    """One bot and its chats."""

    def __init__(self, token: str = "42:TEST", port: int = 0) -> None:
        super().__init__(port)
        self.token = token
        self.bot = {"id": 42, "is_bot": True, "first_name": "Bot", "username": "testbot"}
        self._updates: list[dict[str, Any]] = []
        self._history: list[dict[str, Any]] = []
        """Every update, confirmed or not."""
        self._next_update, self._next_message = 1000, 1
        self._poller: asyncio.Event | None = None
        self.sent: list[SentMessage] = []
        self.files: dict[str, bytes] = {}
        """Contents of files, by id."""
        self.file_status = 200
        """The status with which downloads of files are answered."""
        self.notices: list[str] = []
        """What was shown to users who pressed buttons."""
        self.webhook: dict[str, Any] = {
            "url": "https://example.org", "pending_update_count": 0,
        }  # fmt: skip
        """What the Bot API tells of its deliveries to the webhook."""
        self.blocked: set[int] = set()
        self.migrated: dict[int, int] = {}
        self.confirmed: list[int] = []

    # ── what people do ──────────────────────────────────────────────────────────────────────

    def say(self, text: str, *, user: int = 7, chat: int | None = None, **more: Any) -> int:
        """Have a user write a message; return its id."""
        chat = user if chat is None else chat
        kind = "private" if chat > 0 else "supergroup"
        with self._lock:
            message_id = self._next_message
            self._next_message += 1
            message = {
                "message_id": message_id,
                "date": int(time.time()),
                "chat": {"id": chat, "type": kind},
                "from": {"id": user, "is_bot": False, "first_name": f"User{user}"},
                "text": text,
                **more,
            }
            if "caption" in more:
                del message["text"]
            self._add({"message": message})
            return message_id

    def edit(self, message_id: int, text: str, *, user: int = 7) -> None:
        """Have a user edit a message."""
        message = {
            "message_id": message_id, "date": 1, "edit_date": int(time.time()),
            "chat": {"id": user, "type": "private"},
            "from": {"id": user, "is_bot": False, "first_name": f"User{user}"}, "text": text,
        }  # fmt: skip
        with self._lock:
            self._add({"edited_message": message})

    def press(self, sent: SentMessage, label: str, *, user: int = 7) -> None:
        """Have a user press a button of a message."""
        kind = "private" if sent.chat_id > 0 else "supergroup"
        with self._lock:
            message = {
                "message_id": sent.message_id, "date": 1, "text": sent.text,
                "chat": {"id": sent.chat_id, "type": kind}, "from": self.bot,
            }  # fmt: skip
            sender = {"id": user, "is_bot": False, "first_name": f"User{user}"}
            query = {
                "id": f"q{self._next_update}", "from": sender, "message": message,
                "data": sent.buttons[label], "chat_instance": "1",
            }  # fmt: skip
            self._add({"callback_query": query})

    def deliver_again(self, count: int = 1) -> None:
        """Deliver the last updates once more, under new numbers."""
        with self._lock:
            for update in [*self._history[-count:]]:
                body = {key: value for key, value in update.items() if key != "update_id"}
                self._add(body)

    def migrate(self, chat: int, successor: int) -> None:
        """Turn a group into a supergroup with another id."""
        with self._lock:
            self.migrated[chat] = successor
            self._next_message += 1
            message = {
                "message_id": self._next_message, "date": 1,
                "chat": {"id": chat, "type": "group"}, "migrate_to_chat_id": successor,
                "from": {"id": 7, "is_bot": False, "first_name": "User7"},
            }  # fmt: skip
            self._add({"message": message})

    def restart_numbers(self) -> None:
        """Number the next updates from 5, as after a week without updates."""
        with self._lock:
            self._next_update = 5

    def end_poll(self) -> None:
        """Answer the open poll without updates, as after its timeout."""
        with self._lock:
            self._wake_poller()

    def _add(self, body: dict[str, Any]) -> None:
        update = {"update_id": self._next_update, **body}
        self._next_update += 1
        self._updates.append(update)
        self._history.append(update)
        self._wake_poller()
        self._lock.notify_all()

    def _wake_poller(self) -> None:
        loop, poller = self._server.loop, self._poller
        if loop is not None and poller is not None and loop.is_running():
            loop.call_soon_threadsafe(poller.set)

    def texts(self, chat: int | None = None) -> list[str]:
        """Return what the bot's messages say now."""
        return [message.text for message in self.sent if chat in (None, message.chat_id)]

    def _make_error(self, **fields: Any) -> PlatformAnswer:
        return _error(**fields)

    # ── the API ─────────────────────────────────────────────────────────────────────────────

    async def _handle(self, call: PlatformCall) -> PlatformAnswer:
        prefix = f"/bot{self.token}/"
        file_prefix = f"/file/bot{self.token}/files/"
        if call.path.startswith(file_prefix):
            if self.file_status != 200:
                return PlatformAnswer(b"", status=self.file_status)
            content = self.files.get(call.path.removeprefix(file_prefix))
            return PlatformAnswer(content or b"", status=200 if content is not None else 404)
        if not call.path.startswith(prefix):
            return _error(401, "Unauthorized")
        method = call.path.removeprefix(prefix)
        if method in UPLOADS:
            body, files = call.form()
            file = files.get(UPLOADS[method])
            return self.run_call(
                method, body, lambda method, body: self._send_file(method, body, file)
            )
        body = call.json()
        if method != "getUpdates":
            return self.run_call(method, body, self._call)
        fault = self.record_call(method, body)
        if fault is not None and not fault.takes_effect:
            return fault
        answer = await self._get_updates(body)
        return fault or answer

    def _call(self, method: str, body: dict[str, Any]) -> PlatformAnswer:
        if method == "getMe":
            return _ok(self.bot)
        if method == "getWebhookInfo":
            return _ok(self.webhook)
        if method == "sendChatAction":
            return _ok(True)
        if method == "answerCallbackQuery":
            if len(str(body.get("text", ""))) > 200:
                return _error(400, "Bad Request: MESSAGE_TOO_LONG")
            self.notices.append(str(body.get("text", "")))
            return _ok(True)
        if method == "getFile":
            if body.get("file_id") not in self.files:
                return _error(400, "Bad Request: invalid file_id")
            return _ok({"file_id": body["file_id"], "file_path": f"files/{body['file_id']}"})
        if method == "sendMessage":
            return self._send(body)
        if method in ("editMessageText", "editMessageReplyMarkup"):
            return self._edit(method, body)
        return _error(404, "Not Found: method not found")

    async def _get_updates(self, body: dict[str, Any]) -> PlatformAnswer:
        if self._poller is not None:
            # The older request is ended, as the real server does.
            self._poller.set()
            self._poller = None
            return _error(409, "Conflict: terminated by other getUpdates request")
        poller = self._poller = asyncio.Event()
        offset = body.get("offset")
        with self._lock:
            if offset is not None:
                gone = [update for update in self._updates if update["update_id"] < offset]
                self.confirmed += [update["update_id"] for update in gone]
                self._updates = [
                    update for update in self._updates if update["update_id"] >= offset
                ]
            self._lock.notify_all()
            found = self._updates[:100]
        try:
            if not found and body.get("timeout"):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(poller.wait(), float(body["timeout"]))
                found = self._updates[:100]
            return _ok(found)
        finally:
            if self._poller is poller:
                self._poller = None

    def _refusal(self, chat: int, text: str, parse_mode: str | None) -> PlatformAnswer | None:
        if chat in self.migrated:
            more = {"migrate_to_chat_id": self.migrated[chat]}
            return _error(400, "Bad Request: group chat was upgraded to a supergroup chat", **more)
        if chat in self.blocked:
            return _error(403, "Forbidden: bot was blocked by the user")
        shown = html.unescape(_TAGS.sub("", text)) if parse_mode == "HTML" else text
        if not shown.strip():
            return _error(400, "Bad Request: message text is empty")
        if len(shown.encode("utf-16-le")) // 2 > MAX_UNITS:
            return _error(400, "Bad Request: message is too long")
        if parse_mode == "HTML" and not _is_balanced(text):
            return _error(400, "Bad Request: can't parse entities: unclosed tag")
        return None

    def _send(self, body: dict[str, Any]) -> PlatformAnswer:
        text = str(body.get("text", ""))
        try:
            chat = int(body["chat_id"])
        except ValueError:
            return _error(400, "Bad Request: chat not found")
        refusal = self._refusal(chat, text, body.get("parse_mode"))
        if refusal is not None:
            return refusal
        message_id = self._next_message
        self._next_message += 1
        buttons = _buttons(body)
        if buttons is None:
            return _error(400, "Bad Request: BUTTON_DATA_INVALID")
        reply = body.get("reply_parameters") or {}
        self.sent.append(
            SentMessage(
                message_id, chat, [text], body.get("parse_mode"), reply.get("message_id"),
                body.get("message_thread_id"), buttons,
            )
        )  # fmt: skip
        return _ok({"message_id": message_id, "chat": {"id": chat}, "date": 1, "text": text})

    def _send_file(
        self, method: str, body: dict[str, Any], file: FormFile | None
    ) -> PlatformAnswer:
        chat = int(body["chat_id"])
        refusal = self._refusal(chat, "file", None)
        if refusal is not None:
            return refusal
        if file is None or not file.content:
            return _error(400, "Bad Request: file must be non-empty")
        is_photo = method == "sendPhoto"
        if len(file.content) > (MAX_PHOTO_BYTES if is_photo else MAX_DOCUMENT_BYTES):
            return _error(413, "Request Entity Too Large")
        if is_photo and not file.content.startswith(PICTURES):
            return _error(400, "Bad Request: IMAGE_PROCESS_FAILED")
        message_id = self._next_message
        self._next_message += 1
        reply = json.loads(body.get("reply_parameters", "{}"))
        thread = body.get("message_thread_id")
        self.sent.append(
            SentMessage(
                message_id, chat, [""], None, reply.get("message_id"),
                int(thread) if thread else None, file=file,
            )
        )  # fmt: skip
        return _ok({"message_id": message_id, "chat": {"id": chat}, "date": 1})

    def _edit(self, method: str, body: dict[str, Any]) -> PlatformAnswer:
        chat, text = int(body["chat_id"]), str(body.get("text", ""))
        found = next(
            (message for message in self.sent if message.message_id == body["message_id"]), None
        )
        if found is None or found.chat_id != chat:
            return _error(400, "Bad Request: message to edit not found")
        if method == "editMessageReplyMarkup":
            text, body = found.texts[-1], {**body, "parse_mode": found.parse_mode}
        refusal = self._refusal(chat, text, body.get("parse_mode"))
        if refusal is not None:
            return refusal
        buttons = _buttons(body)
        if buttons is None:
            return _error(400, "Bad Request: BUTTON_DATA_INVALID")
        is_same = found.texts[-1] == text and found.parse_mode == body.get("parse_mode")
        if is_same and buttons == found.buttons:
            return _error(400, "Bad Request: message is not modified")
        found.texts.append(text)
        found.parse_mode = body.get("parse_mode")
        found.buttons = buttons
        return _ok({"message_id": found.message_id, "chat": {"id": chat}, "date": 1})


def _buttons(body: dict[str, Any]) -> dict[str, str] | None:
    """Return the data of the buttons by label; `None` where a limit is broken."""
    rows = (body.get("reply_markup") or {}).get("inline_keyboard") or []
    found = {
        str(button["text"]): str(button.get("callback_data", "")) for row in rows for button in row
    }
    are_valid = all(1 <= len(data.encode()) <= 64 for data in found.values())
    return found if are_valid else None


def _ok(result: Any) -> PlatformAnswer:
    return PlatformAnswer({"ok": True, "result": result})


def _error(code: int, description: str, **parameters: Any) -> PlatformAnswer:
    body: dict[str, Any] = {"ok": False, "error_code": code, "description": description}
    if parameters:
        body["parameters"] = parameters
    return PlatformAnswer(body, status=code)


def _is_balanced(text: str) -> bool:
    """Whether every tag is known, closed, and closed in order."""
    stack: list[str] = []
    for match in re.finditer(r"<[^>]*>|<", text):
        tag = match[0]
        if not _TAGS.fullmatch(tag):
            return False
        name = tag.strip("</>").split(" ")[0]
        if tag.startswith("</"):
            if not stack or stack.pop() != name:
                return False
        else:
            stack.append(name)
    return not stack
