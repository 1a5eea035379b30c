"""The Slack channel: socket mode or webhook, acknowledged only after the commit."""

import contextlib
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from holdfast.channels.platform_json import decode_json, encode_json
from holdfast.channels.rendering.splitting import split_markdown
from holdfast.channels.rendering.styles import escape_slack, to_slack
from holdfast.channels.settings import ChannelSettings
from holdfast.channels.slack.events import (
    Account,
    BlockActions,
    EventCallback,
    SlackEvent,
    SlackMessage,
    decode_text,
    read_event,
    read_press,
)
from holdfast.channels.slack.web_api import MISSING_SCOPE, WebApi
from holdfast.ports.channel import (
    Attachment,
    Button,
    Capabilities,
    ChatPlace,
    DeliveryDelayed,
    DeliveryError,
    DeliveryImpossible,
    DeliveryRefused,
    InboundMessage,
    Inbox,
    OutgoingFile,
    WebhookRejected,
)
from holdfast.ports.http_client import HttpCaller

MAX_UNITS = 3500
"""Below the 4,000 characters that Slack accepts, because rendering may add some."""
MAX_SECTION = 3000
"""The most characters in one section of a message with buttons."""
EDIT_SECONDS = 3.0
SENDS_PER_SECOND = 50 / 60
"""Slack allows about fifty calls of `chat.update` a minute."""
KEEPS_SECONDS = 300.0
"""Slack redelivers an event for about five minutes."""
MAX_FILE_BYTES = 1_000_000_000
MAX_REMEMBERED = 2000
MAX_STAMP = 15
"""The most digits in the timestamp of a signed request."""
MAX_CLOCK_DIFFERENCE = 300.0
"""Maximum seconds between the timestamp of a signed request and our clock."""
SHORT_CONNECTION_SECONDS = 10.0


class _AuthTest(msgspec.Struct):
    team_id: str
    user_id: str
    bot_id: str = ""
    user: str = ""
    team: str = ""


class _Connection(msgspec.Struct):
    url: str


class _Posted(msgspec.Struct):
    ts: str


class _Id(msgspec.Struct):
    id: str
    is_im: bool = False
    is_mpim: bool = False


class _Conversation(msgspec.Struct):
    channel: _Id


class _Profile(msgspec.Struct):
    display_name: str = ""
    real_name: str = ""


class _User(msgspec.Struct):
    name: str = ""
    profile: _Profile = msgspec.field(default_factory=_Profile)


class _UserInfo(msgspec.Struct):
    user: _User


class _File(msgspec.Struct):
    url_private: str = ""
    size: int = 0


class _FileInfo(msgspec.Struct):
    file: _File


class _Upload(msgspec.Struct):
    upload_url: str
    file_id: str


class _Replies(msgspec.Struct):
    messages: list[SlackMessage] = []


class _Anything(msgspec.Struct):
    ok: bool = True


class SlackChannel:
    """One app in one workspace."""

    kind = "slack"

    def __init__(
        self, settings: ChannelSettings, http: HttpCaller, now: Callable[[], float] = time.time
    ) -> None:
        self.name = settings.name
        self.capabilities = Capabilities(
            max_units=MAX_UNITS,
            can_edit=True,
            direct_edit_seconds=EDIT_SECONDS,
            group_edit_seconds=EDIT_SECONDS,
            sends_per_second=SENDS_PER_SECOND,
            keeps_seconds=KEEPS_SECONDS,
            max_file_bytes=MAX_FILE_BYTES,
            command_prefix="!",
            has_bare_commands=True,
            follows_threads=True,
            escapes="&<>",
        )
        self._api = WebApi(settings.base_url, settings.token, http)
        self._http = http
        self._app_token = settings.app_token
        self._secret = settings.secret
        self._now = now
        self._account: Account | None = None
        self._direct: dict[str, str] = {}
        """Ids of direct chats, by person."""
        self._types: dict[str, str] = {}
        """Types of conversations, for events that do not include them."""
        self._names: dict[str, str] = {}
        self._threads: dict[str, str] = {}
        """Threads under our own messages whose first text was already fetched."""

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    async def receive(self, inbox: Inbox) -> None:
        """Handle envelopes one by one until the connection is lost."""
        from holdfast.channels.slack.socket_mode import SocketConnection

        await self._me()
        started = time.monotonic()
        async with SocketConnection(self._open_socket, self._socket_proxy) as connection:
            while (envelope := await connection.next()) is not None:
                if envelope.type == "events_api":
                    event = encode_json(envelope.payload.get("event"))
                    await self._handle(event, inbox)
                elif envelope.type == "interactive":
                    await self._press(encode_json(envelope.payload), inbox)
                # Acknowledge only now: an envelope that was not handled is redelivered.
                await connection.acknowledge(envelope)
        if time.monotonic() - started < SHORT_CONNECTION_SECONDS:
            raise DeliveryDelayed("the socket was closed as soon as it was open")

    async def _open_socket(self) -> str:
        token = self._app_token
        opened = await self._api.call("apps.connections.open", {}, _Connection, token=token)
        return opened.url

    def _socket_proxy(self, url: str) -> str | None:
        return self._http.proxy_url(url.replace("ws", "http", 1))

    async def webhook(self, headers: Mapping[str, str], body: bytes, inbox: Inbox) -> bytes:
        """Handle one event that Slack posts, authenticated by its signature."""
        self._verify(headers, body)
        if body.startswith(b"payload="):
            form = parse_qs(body.decode("utf-8", "replace"))
            for payload in form.get("payload", []):
                await self._press(payload.encode(), inbox)
            return b""
        try:
            callback = decode_json(body, EventCallback)
        except msgspec.DecodeError:
            return b"{}"  # signed, but of a type that we did not subscribe to
        if callback.type == "url_verification":
            return msgspec.json.encode({"challenge": callback.challenge})
        await self._handle(bytes(callback.event), inbox)
        return b"{}"

    def _verify(self, headers: Mapping[str, str], body: bytes) -> None:
        stamp = headers.get("x-slack-request-timestamp", "")
        signature = headers.get("x-slack-signature", "")
        is_time = stamp.isascii() and stamp.isdigit() and len(stamp) <= MAX_STAMP
        is_recent = is_time and abs(self._now() - int(stamp)) <= MAX_CLOCK_DIFFERENCE
        signed = b"v0:" + stamp.encode() + b":" + body
        digest = hmac.new(self._secret.encode(), signed, hashlib.sha256).hexdigest()
        is_valid = hmac.compare_digest(signature.encode(), f"v0={digest}".encode())
        if not self._secret or not is_recent or not is_valid:
            raise WebhookRejected("the webhook's signature is missing, wrong or old")

    async def _handle(self, raw: bytes, inbox: Inbox) -> None:
        try:
            event = decode_json(raw, SlackEvent)
        except msgspec.DecodeError:
            return  # no version of the API sends a message in this form
        account = await self._me()
        message = read_event(event, account, await self._type_of(event))
        if message is None:
            return
        if message.is_direct and not message.is_own:
            _remember(self._direct, message.sender, event.channel)
        message = await self._named(message)
        is_reply_to_us = event.parent_user_id == account.user and not message.is_own
        if is_reply_to_us and not message.quote:
            message = await self._with_parent(message, event)
        await inbox.handle(message)

    async def _with_parent(self, message: InboundMessage, event: SlackEvent) -> InboundMessage:
        """Add the text of our message to the first reply in the thread under it.

        A schedule or an operator may have sent it: then the thread begins a conversation.
        """
        place = f"{event.channel}:{event.thread_ts}"
        if place in self._threads:
            return message
        arguments = {"channel": event.channel, "ts": event.thread_ts, "limit": "1"}
        try:
            replies = await self._api.call(
                "conversations.replies", arguments, _Replies, is_read=True
            )
        except DeliveryError:
            return message
        _remember(self._threads, place, "")
        text = decode_text(replies.messages[0].text or "") if replies.messages else ""
        account = await self._me()
        return msgspec.structs.replace(message, quote=text, answered_id=f"{account.team}:{place}")

    async def _press(self, raw: bytes, inbox: Inbox) -> None:
        """Act on a button press; remove buttons that have become useless.

        Slack itself shows nothing after a press, so the result is shown to this person only.
        """
        try:
            actions = decode_json(raw, BlockActions)
        except msgspec.DecodeError:
            return  # a view or shortcut: not for us
        press = read_press(actions, await self._me())
        if press is None:
            return
        name = await self._name_of(press.sender)
        result = await inbox.press(msgspec.structs.replace(press, sender_name=name))
        channel, message = actions.channel.id, actions.message
        if result.outcome != "done":
            notice = {"channel": channel, "user": press.sender, "text": escape_slack(result.text)}
            if message.thread_ts:
                notice["thread_ts"] = message.thread_ts
            with contextlib.suppress(DeliveryError):
                await self._api.call("chat.postEphemeral", notice, _Anything)
        if result.outcome == "over":
            update = {
                "channel": channel,
                "ts": message.ts,
                "text": message.text or "",
                "blocks": [],
            }
            with contextlib.suppress(DeliveryError):
                await self._api.call("chat.update", update, _Anything)

    async def _type_of(self, event: SlackEvent) -> str:
        """Return the type of the event's conversation, which mentions do not include."""
        if event.channel_type:
            _remember(self._types, event.channel, event.channel_type)
            return event.channel_type
        if event.channel.startswith("D"):
            return "im"
        cached = self._types.get(event.channel)
        if cached is not None:
            return cached
        arguments = {"channel": event.channel}
        try:
            info = await self._api.call(
                "conversations.info", arguments, _Conversation, is_read=True
            )
        except DeliveryError:
            return (
                "channel"  # a scope is missing, or Slack is slow: most conversations are channels
            )
        kind = "im" if info.channel.is_im else "mpim" if info.channel.is_mpim else "channel"
        return _remember(self._types, event.channel, kind)

    async def _named(self, message: InboundMessage) -> InboundMessage:
        """Return a message with the name of its sender, if Slack provides it."""
        if message.sender_name or message.is_own or message.is_bot or message.is_anonymous:
            return message
        return msgspec.structs.replace(message, sender_name=await self._name_of(message.sender))

    async def _name_of(self, user: str) -> str:
        cached = self._names.get(user)
        if cached is not None:
            return cached
        try:
            info = await self._api.call("users.info", {"user": user}, _UserInfo, is_read=True)
        except DeliveryError:
            return _remember(self._names, user, "")
        profile = info.user.profile
        name = profile.display_name or profile.real_name or info.user.name
        return _remember(self._names, user, name)

    async def _me(self) -> Account:
        if self._account is None:
            identity = await self._api.call("auth.test", {}, _AuthTest, is_read=True)
            name = f"@{identity.user} in {identity.team}"
            self._account = Account(identity.team_id, identity.user_id, identity.bot_id, name)
        return self._account

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
        """Send a message; in a channel it goes to the thread of its place."""
        del reply_to  # the thread determines the place
        arguments: dict[str, Any] = {
            "channel": await self._conversation(place.chat),
            "unfurl_links": False,
            "unfurl_media": False,
            **_text(text, buttons, plain=plain),
        }
        if place.thread:
            arguments["thread_ts"] = place.thread
        return (await self._api.call("chat.postMessage", arguments, _Posted)).ts

    async def edit(
        self,
        place: ChatPlace,
        external_id: str,
        text: str,
        *,
        plain: bool,
        buttons: Sequence[Button] = (),
    ) -> None:
        """Edit a message; without buttons, those that it had are removed."""
        arguments = {
            "channel": await self._conversation(place.chat),
            "ts": external_id,
            "blocks": [],
            **_text(text, buttons, plain=plain),
        }
        await self._api.call("chat.update", arguments, _Anything)

    async def send_file(
        self,
        place: ChatPlace,
        file: OutgoingFile,
        *,
        reply_to: str = "",  # noqa: ARG002 - the thread says it
    ) -> str:
        """Upload a file and share it; only the last step shows anything to anybody."""
        channel = await self._conversation(place.chat)
        try:
            ticket = await self._open_upload(file)
            await self._api.upload(ticket.upload_url, file.content)
        except DeliveryDelayed as exc:
            exc.is_uncertain = False  # nothing is visible yet
            raise
        arguments: dict[str, Any] = {
            "files": [{"id": ticket.file_id, "title": file.name}],
            "channel_id": channel,
        }
        if place.thread:
            arguments["thread_ts"] = place.thread
        await self._api.call("files.completeUploadExternal", arguments, _Anything)
        return ticket.file_id

    async def _open_upload(self, file: OutgoingFile) -> _Upload:
        arguments = {"filename": file.name, "length": str(len(file.content))}
        try:
            ticket = await self._api.call(
                "files.getUploadURLExternal", arguments, _Upload, is_read=True
            )
        except DeliveryDelayed as exc:
            if MISSING_SCOPE in exc.message:
                # A retry would block the conversation until the app is installed again.
                hint = "add the scope files:write and install the app again"
                raise DeliveryImpossible(f"{exc.message}; {hint}") from exc
            raise
        if not self._is_slack(ticket.upload_url):
            raise DeliveryRefused("the address for uploads is not on Slack's own hosts")
        return ticket

    async def _conversation(self, chat: str) -> str:
        """Return the id of a chat; for a person, that of the direct chat with that person."""
        if not chat.startswith(("U", "W")):
            return chat
        cached = self._direct.get(chat)
        if cached is not None:
            return cached
        opened = await self._api.call(
            "conversations.open", {"users": chat}, _Conversation, is_read=True
        )
        return _remember(self._direct, chat, opened.channel.id)

    async def show_typing(self, place: ChatPlace) -> None:
        """Do nothing: Slack shows no typing for messages of apps."""

    async def download(self, attachment: Attachment, max_bytes: int) -> bytes:
        """Return a file; its address is requested each time and never stored."""
        arguments = {"file": attachment.reference}
        file = (await self._api.call("files.info", arguments, _FileInfo, is_read=True)).file
        if file.size > max_bytes:
            raise DeliveryRefused(f"the file has {file.size} bytes")
        if not self._is_slack(file.url_private):
            raise DeliveryRefused("the file is not on Slack's own hosts")
        return await self._api.download(file.url_private, max_bytes)

    def _is_slack(self, url: str) -> bool:
        """Whether our token may be sent to an address."""
        ours, theirs = urlsplit(self._api.base_url), urlsplit(url)
        if (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc):
            return True
        return theirs.scheme == "https" and (theirs.hostname or "").endswith(".slack.com")

    async def check(self) -> str:
        """Return the bot's name after checking both tokens."""
        self._account = None
        account = await self._me()
        if self._app_token:
            await self._open_socket()
        return account.name

    async def check_webhook(self) -> None:
        """Raise if the token is invalid; Slack does not report failed deliveries."""
        self._account = None
        await self._me()

    async def close(self) -> None:
        """Do nothing: `receive` closes its connection, and the HTTP client is shared."""


def _remember(cache: dict[str, str], name: str, value: str) -> str:
    """Cache a value, in bounded memory."""
    if len(cache) >= MAX_REMEMBERED:
        cache.clear()
    cache[name] = value
    return value


def _text(text: str, buttons: Sequence[Button], *, plain: bool) -> dict[str, Any]:
    if plain:
        # Used even if the blocks are refused: the text explains how to answer in words.
        return {"text": escape_slack(text), "mrkdwn": False}
    rendered = to_slack(text)
    if not buttons:
        return {"text": rendered, "mrkdwn": True}
    return {"text": rendered, "mrkdwn": True, "blocks": _blocks(rendered, buttons)}


def _blocks(rendered: str, buttons: Sequence[Button]) -> list[dict[str, Any]]:
    """Return the blocks of a text with buttons below it."""
    parts = split_markdown(rendered, MAX_SECTION)
    sections = [{"type": "section", "text": {"type": "mrkdwn", "text": part}} for part in parts]
    elements = [
        {
            "type": "button",
            "action_id": f"holdfast_{number}",
            "text": {"type": "plain_text", "text": button.label},
            "value": button.value,
        }
        for number, button in enumerate(buttons)
    ]
    return [*sections, {"type": "actions", "elements": elements}]
