"""Slack's Web API: tokens, errors, limits, and the messages of the app."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl

from holdfast.simulator.platforms.server import PlatformAnswer, PlatformCall

TEAM, BOT_USER, BOT_ID, APP_ID = "T1", "UBOT", "B1", "A1"
MAX_TEXT = 4000
_LINK = re.compile(r"<([^<>|]*)(?:\|([^<>]*))?>")
_MARKS = re.compile(r"(?<![\w*_~`])([*_~`])(?=\S)(.+?)(?<=\S)\1(?![\w*_~`])", re.DOTALL)
_FORM_ONLY = frozenset(
    {"auth.test", "conversations.info", "conversations.replies", "files.info",
     "files.getUploadURLExternal", "users.info"}
)  # fmt: skip
"""Methods that read; they do not accept JSON bodies."""


@dataclass
class PostedMessage:
    """A message of the app, with its earlier texts."""

    ts: str
    channel: str
    texts: list[str]
    is_markdown: bool
    thread: str | None = None
    blocks: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """The names of files that the message shares, by id."""

    @property
    def text(self) -> str:
        """The text as a reader sees it; for files, their names."""
        if self.files and not self.texts[-1]:
            return " ".join(f"[{name}]" for name in self.files.values())
        text = self.texts[-1]
        if self.is_markdown:
            for _ in range(3):
                text = _MARKS.sub(r"\2", text)
        text = _LINK.sub(lambda match: match[2] or match[1], text)
        return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


class Workspace(Protocol):
    """The parts of the simulator that the Web API needs."""

    bot_token: str
    app_token: str

    @property
    def lock(self) -> Any:
        """Guards the workspace."""
        ...

    def run_call(
        self, method: str, arguments: dict[str, Any], perform: "Perform"
    ) -> PlatformAnswer:
        """Answer a call with `perform`, or as a fault says."""
        ...

    @property
    def socket_url(self) -> str:
        """The address of socket mode."""
        ...

    @property
    def server_url(self) -> str:
        """The address of the server."""
        ...

    def next_ts(self) -> str:
        """Return the timestamp of the next message."""
        ...

    def find(self, ts: str) -> dict[str, Any] | None:
        """Return a message of the workspace."""
        ...

    def direct_channel(self, user: str) -> str:
        """Return the direct chat of a person."""
        ...

    def publish(self, channel: str, message: dict[str, Any]) -> None:
        """Send the app the event for a message."""
        ...

    def edit(self, ts: str, text: str) -> None:
        """Edit a message, and send the app the event."""
        ...


Perform = Callable[[str, dict[str, Any]], PlatformAnswer]


class SlackWebApi:
    """The methods that the app calls."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self.posted: list[PostedMessage] = []
        self.notices: list[tuple[str, str]] = []
        """Ephemeral messages: the person and the text."""
        self.blocked: set[str] = set()
        self.files: dict[str, tuple[str, str, bytes]] = {}
        self.group_chats: set[str] = {"G1"}
        """Group conversations without a name (`mpim`)."""
        self._tickets: set[str] = set()
        self._uploads: dict[str, tuple[str, int]] = {}
        self._shared: set[str] = set()
        self.scopes = {"files:write"}
        """The optional scopes that the app has."""

    def channel_type(self, channel: str) -> str:
        """Return the type of a conversation as in events."""
        if channel.startswith("D"):
            return "im"
        return "mpim" if channel in self.group_chats else "channel"

    def redeem(self, ticket: str) -> bool:
        """Whether a ticket opens a connection; each works once."""
        with self._workspace.lock:
            if ticket not in self._tickets:
                return False
            self._tickets.remove(ticket)
            return True

    async def handle(self, call: PlatformCall) -> PlatformAnswer:
        """Answer one request."""
        if call.path.startswith("/files/"):
            return self._file(call)
        method = call.path.removeprefix("/api/")
        arguments, problem = _arguments(call, method)
        if problem is None:
            problem = self._refused_token(call, method)
        if problem is not None:
            return make_error(problem)
        return self._workspace.run_call(method, arguments, self._call)

    def _refused_token(self, call: PlatformCall, method: str) -> str | None:
        scheme, _, token = call.headers.get("authorization", "").partition(" ")
        if scheme != "Bearer" or not token:
            return "not_authed"
        workspace = self._workspace
        if token not in (workspace.bot_token, workspace.app_token):
            return "invalid_auth"
        is_app_method = method == "apps.connections.open"
        wanted = workspace.app_token if is_app_method else workspace.bot_token
        return None if token == wanted else "not_allowed_token_type"

    def _call(self, method: str, arguments: dict[str, Any]) -> PlatformAnswer:
        handlers: dict[str, Callable[[dict[str, Any]], PlatformAnswer]] = {
            "auth.test": self._auth_test,
            "apps.connections.open": self._open_connection,
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "chat.postEphemeral": self._post_ephemeral,
            "conversations.open": self._open_conversation,
            "conversations.info": self._conversation_info,
            "conversations.replies": self._replies,
            "users.info": self._user_info,
            "files.info": self._file_info,
            "files.getUploadURLExternal": self._upload_url,
            "files.completeUploadExternal": self._complete_upload,
        }
        handler = handlers.get(method)
        return handler(arguments) if handler is not None else make_error("unknown_method")

    def _auth_test(self, _: dict[str, Any]) -> PlatformAnswer:
        return _ok(team_id=TEAM, team="Test", user_id=BOT_USER, user="testbot", bot_id=BOT_ID)

    def _open_connection(self, _: dict[str, Any]) -> PlatformAnswer:
        ticket = f"ticket-{self._workspace.next_ts()}"
        self._tickets.add(ticket)
        return _ok(url=f"{self._workspace.socket_url}?ticket={ticket}&app_id={APP_ID}")

    # ── messages ────────────────────────────────────────────────────────────────────────────

    def _refusal(self, channel: str, arguments: dict[str, Any]) -> PlatformAnswer | None:
        if channel[:1] not in ("C", "D", "G"):
            return make_error("channel_not_found")
        if channel in self.blocked:
            return make_error("not_in_channel" if channel[0] == "C" else "channel_not_found")
        text = str(arguments.get("text", ""))
        if not text.strip() and not arguments.get("blocks"):
            return make_error("no_text")
        if len(text) > MAX_TEXT:
            return make_error("msg_too_long")
        if not _are_valid(arguments.get("blocks") or []):
            return make_error("invalid_blocks")
        return None

    def _post(self, arguments: dict[str, Any]) -> PlatformAnswer:
        channel = str(arguments.get("channel", ""))
        if channel.startswith("U"):
            channel = self._workspace.direct_channel(channel)
        refusal = self._refusal(channel, arguments)
        if refusal is not None:
            return refusal
        text, thread = str(arguments.get("text", "")), arguments.get("thread_ts")
        ts = self._workspace.next_ts()
        self.posted.append(
            PostedMessage(
                ts, channel, [text], arguments.get("mrkdwn", True) is not False, thread,
                arguments.get("blocks") or [],
            )
        )  # fmt: skip
        self._echo(channel, ts, text, thread)
        return _ok(channel=channel, ts=ts, message={"text": text, "ts": ts, "bot_id": BOT_ID})

    def _echo(self, channel: str, ts: str, text: str, thread: str | None) -> None:
        """Send the app the event for its own message, as Slack does."""
        message = {"user": BOT_USER, "bot_id": BOT_ID, "app_id": APP_ID, "text": text, "ts": ts}
        if thread:
            message["thread_ts"] = thread
        self._workspace.publish(channel, message)

    def _update(self, arguments: dict[str, Any]) -> PlatformAnswer:
        channel, ts = str(arguments.get("channel", "")), str(arguments.get("ts", ""))
        found = next((message for message in self.posted if message.ts == ts), None)
        if found is None or found.channel != channel:
            is_known = self._workspace.find(ts) is not None and found is None
            return make_error("cant_update_message" if is_known else "message_not_found")
        refusal = self._refusal(channel, arguments)
        if refusal is not None:
            return refusal
        text = str(arguments.get("text", ""))
        found.texts.append(text)
        found.is_markdown = arguments.get("mrkdwn", True) is not False
        if "blocks" in arguments:
            found.blocks = arguments["blocks"]
        self._workspace.edit(ts, text)
        return _ok(channel=channel, ts=ts, text=text)

    def _post_ephemeral(self, arguments: dict[str, Any]) -> PlatformAnswer:
        refusal = self._refusal(str(arguments.get("channel", "")), arguments)
        if refusal is not None:
            return refusal
        if not str(arguments.get("user", "")).startswith("U"):
            return make_error("user_not_in_channel")
        self.notices.append((str(arguments["user"]), str(arguments["text"])))
        return _ok(message_ts=self._workspace.next_ts())

    # ── people and conversations ────────────────────────────────────────────────────────────

    def _open_conversation(self, arguments: dict[str, Any]) -> PlatformAnswer:
        user = str(arguments.get("users", ""))
        if not user.startswith("U"):
            return make_error("user_not_found")
        return _ok(channel={"id": self._workspace.direct_channel(user)})

    def _conversation_info(self, arguments: dict[str, Any]) -> PlatformAnswer:
        channel = str(arguments.get("channel", ""))
        kind = self.channel_type(channel)
        return _ok(channel={"id": channel, "is_im": kind == "im", "is_mpim": kind == "mpim"})

    def _replies(self, arguments: dict[str, Any]) -> PlatformAnswer:
        parent = self._workspace.find(str(arguments.get("ts", "")))
        if parent is None or parent["channel"] != arguments.get("channel"):
            return make_error("thread_not_found")
        return _ok(messages=[{"type": "message", **parent}], has_more=False)

    def _user_info(self, arguments: dict[str, Any]) -> PlatformAnswer:
        user = str(arguments.get("user", ""))
        if not user.startswith("U"):
            return make_error("user_not_found")
        profile = {"display_name": f"User{user[1:]}", "real_name": f"User {user[1:]}"}
        return _ok(user={"id": user, "name": user.lower(), "profile": profile})

    # ── files ───────────────────────────────────────────────────────────────────────────────

    def _file(self, call: PlatformCall) -> PlatformAnswer:
        name = call.path.removeprefix("/files/")
        if call.method == "POST":
            with self._workspace.lock:
                title, length = self._uploads.get(name, ("", -1))
                if len(call.body) != length:
                    return PlatformAnswer(b"wrong length", status=400)
                self.files[name] = (title, call.headers.get("content-type", ""), call.body)
            return PlatformAnswer(b"OK - 1", headers={})
        if call.headers.get("authorization") != f"Bearer {self._workspace.bot_token}":
            return PlatformAnswer(b"<html>sign in</html>", status=302)
        found = self.files.get(name)
        return PlatformAnswer(found[2] if found else b"", status=200 if found else 404)

    def _file_info(self, arguments: dict[str, Any]) -> PlatformAnswer:
        name = str(arguments.get("file", ""))
        if name not in self.files:
            return make_error("file_not_found")
        title, media_type, content = self.files[name]
        url = f"{self._workspace.server_url}/files/{name}"
        value = {"id": name, "name": title, "mimetype": media_type, "size": len(content)}
        return _ok(file={**value, "url_private": url})

    def _upload_url(self, arguments: dict[str, Any]) -> PlatformAnswer:
        if "files:write" not in self.scopes:
            return make_error("missing_scope")
        name, length = str(arguments.get("filename", "")), int(arguments.get("length", 0))
        if not name or length <= 0:
            return make_error("invalid_arguments")
        file_id = f"F{len(self._uploads) + 1}UP"
        self._uploads[file_id] = (name, length)
        return _ok(upload_url=f"{self._workspace.server_url}/files/{file_id}", file_id=file_id)

    def _complete_upload(self, arguments: dict[str, Any]) -> PlatformAnswer:
        channel, thread = str(arguments.get("channel_id", "")), arguments.get("thread_ts")
        refusal = self._refusal(channel, {"text": "file"})
        if refusal is not None:
            return refusal
        names = [str(file["id"]) for file in arguments.get("files") or []]
        if not names or any(name not in self.files or name in self._shared for name in names):
            return make_error("file_not_found")
        self._shared.update(names)
        ts = self._workspace.next_ts()
        comment = str(arguments.get("initial_comment", ""))
        self.posted.append(
            PostedMessage(
                ts,
                channel,
                [comment],
                is_markdown=True,
                thread=thread,
                files={name: self.files[name][0] for name in names},
            )
        )
        self._echo(channel, ts, comment, thread)
        return _ok(files=[{"id": name} for name in names])


def _arguments(call: PlatformCall, method: str) -> tuple[dict[str, Any], str | None]:
    """Return the arguments of a call, and the error if they are invalid."""
    kind = call.headers.get("content-type", "").partition(";")[0].strip()
    if call.method != "POST":
        return {}, "method_not_supported_for_channel_type"
    if kind == "application/json":
        if method in _FORM_ONLY:
            return {}, "invalid_arguments"
        return call.json(), None
    if kind != "application/x-www-form-urlencoded":
        return {}, "invalid_post_type"
    found: dict[str, Any] = {}
    for name, value in parse_qsl(call.body.decode(), keep_blank_values=True):
        if name in ("blocks", "files"):
            try:
                found[name] = json.loads(value)
            except ValueError:
                return {}, f"invalid_{name}_format"
        else:
            found[name] = {"true": True, "false": False}.get(value, value)
    return found, None


def _are_valid(blocks: list[dict[str, Any]]) -> bool:
    """Whether blocks are of the types an app may send and within their limits."""
    if not isinstance(blocks, list) or len(blocks) > 50:
        return False
    for block in blocks:
        if block.get("type") == "section":
            text = block.get("text") or {}
            if text.get("type") not in ("mrkdwn", "plain_text"):
                return False
            if not 1 <= len(str(text.get("text", ""))) <= 3000:
                return False
        elif block.get("type") == "actions":
            elements = block.get("elements") or []
            if not 1 <= len(elements) <= 25 or not all(map(_is_button, elements)):
                return False
        else:
            return False
    return True


def _is_button(element: dict[str, Any]) -> bool:
    text = element.get("text") or {}
    return (
        element.get("type") == "button"
        and text.get("type") == "plain_text"
        and 1 <= len(str(text.get("text", ""))) <= 75
        and 1 <= len(str(element.get("action_id", ""))) <= 255
        and len(str(element.get("value", ""))) <= 2000
    )


def _ok(**values: Any) -> PlatformAnswer:
    return PlatformAnswer({"ok": True, **values})


def make_error(error: str, status: int = 200, retry_after: int | None = None) -> PlatformAnswer:
    """Return an error; with `retry_after` it is a rate limit."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    if retry_after is not None:
        status = 429
    return PlatformAnswer({"ok": False, "error": error}, status=status, headers=headers)
