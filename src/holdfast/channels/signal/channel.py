"""The Signal channel: JSON-RPC calls and the event stream of a signal-cli daemon.

signal-cli acknowledges messages to Signal's server by itself when it passes them on. An event that
could not be made durable is kept here and retried. Daemons that number their events are asked for
those after the last one that was handled, so that a crash loses nothing there either.
"""

import asyncio
import base64
import binascii
import itertools
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from hashlib import blake2b
from typing import Any, NoReturn
from urllib.parse import quote

import msgspec

from holdfast.channels.conversations.session_keys import is_direct_chat
from holdfast.channels.platform_calls import (
    CALL_SECONDS,
    FILE_SECONDS,
    UPLOAD_SECONDS,
    post,
    read_reply,
)
from holdfast.channels.settings import ChannelSettings
from holdfast.channels.signal.envelopes import read_event, read_message
from holdfast.channels.signal.styles import to_signal
from holdfast.ports.channel import (
    Attachment,
    Button,
    Capabilities,
    ChatPlace,
    DeliveryDelayed,
    DeliveryImpossible,
    DeliveryRefused,
    Inbox,
    OutgoingFile,
    WebhookRejected,
)
from holdfast.ports.http_client import HttpCaller, HttpUnavailable

MAX_FILE_BYTES = 100_000_000
SILENCE_SECONDS = 45.0
"""A stream that is silent for longer is dead: the daemon sends a comment every 15 seconds."""
MAX_UNITS = 2000
"""The longest text in UTF-16 units; the daemon turns longer ones into an attachment."""
REPLAY_SECONDS = 600.0
"""A new process ignores replayed events that are older: an earlier process handled them."""
ANY_EVENT = "0"
"""An event id that no daemon uses; it then replays all events that it still has."""
MAX_PENDING = 1000
MAX_IDLE_SECONDS = 60.0
"""How long the stream stays open while nothing can be handled."""
RATE_LIMIT_SECONDS = 60.0
CAPTCHA_SECONDS = 900.0
"""How often sending is tried while a captcha waits to be solved; Signal's own limit is a day."""
RPC_BYTES = 4096
"""What a reply with a file has beside it, at most."""
WRONG_ACCOUNT_SECONDS = 30.0
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602
IO_ERROR, UNTRUSTED_KEY, RATE_LIMIT = -3, -4, -5


class _SendResult(msgspec.Struct, rename="camel"):
    type: str = "SUCCESS"
    retry_after_seconds: float | None = None
    token: str | None = None
    """Names the captcha that must be solved before the account may send again."""


class _Sent(msgspec.Struct):
    timestamp: int = 0
    results: list[_SendResult] = []


class _ErrorData(msgspec.Struct):
    response: _Sent | None = None


class _RpcError(msgspec.Struct):
    code: int
    message: str = ""
    data: _ErrorData | None = None


class _RpcReply(msgspec.Struct):
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: _RpcError | None = None


class _Account(msgspec.Struct):
    number: str = ""


class _File(msgspec.Struct):
    data: str = ""


class _PendingEvent(msgspec.Struct, frozen=True):
    id: str
    data: bytes


class SignalChannel:
    """One account of a signal-cli daemon."""

    kind = "signal"

    def __init__(self, settings: ChannelSettings, http: HttpCaller) -> None:
        self.name = settings.name
        self.capabilities = Capabilities(
            max_units=MAX_UNITS,
            counts_utf16=True,
            can_edit=False,
            can_type=True,
            is_polled=True,
            max_file_bytes=MAX_FILE_BYTES,
        )
        self._base = settings.base_url
        self._account = settings.account
        self._http = http
        self._ids = itertools.count(1)
        self._last_id = ANY_EVENT
        self._started_ms = time.time() * 1000
        self._pending: deque[_PendingEvent] = deque()
        """Events that are not committed yet; an older daemon does not resend them."""
        self._news = asyncio.Event()
        self._reading: asyncio.Task[NoReturn] | None = None
        self._is_receiving = False
        self._idle_since = 0.0

    # ── receiving ───────────────────────────────────────────────────────────────────────────

    async def receive(self, inbox: Inbox) -> None:
        """Handle the events of the stream; the daemon receives messages only while it is read."""
        self._is_receiving = True
        try:
            while True:
                await self._handle_pending(inbox)
                if self._reading is None:
                    self._reading = asyncio.create_task(self._read(), name="holdfast-signal")
                news = asyncio.ensure_future(self._news.wait())
                try:
                    both = {news, self._reading}
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
                self._news.clear()
                if self._reading.done() and not self._pending:
                    # Raise only now, so that events which were read before the failure are handled
                    # first.
                    reading, self._reading = self._reading, None
                    reading.result()
        except asyncio.CancelledError:
            await self.close()
            raise
        finally:
            self._is_receiving = False
            self._idle_since = time.monotonic()

    async def _read(self) -> NoReturn:
        """Read events into memory as they arrive.

        While the store is unavailable the stream stays open for a while: an older daemon does not
        resend what it wrote to a connection that closed.
        """
        url = f"{self._base}/api/v1/events?account={quote(self._account, safe='')}"
        headers = {"last-event-id": self._last_id}
        lines = self._http.lines(url, seconds=SILENCE_SECONDS, headers=headers)
        event_id, data = "", b""
        is_open = False
        try:
            async with aclosing(lines):
                async for line in lines:
                    is_open = True
                    if line.startswith(b"id:"):
                        event_id = line[3:].strip().decode("ascii", "replace")
                    elif line.startswith(b"data:"):
                        data += line[5:].strip()
                    elif not line and data:
                        self._pending.append(_PendingEvent(event_id, data))
                        event_id, data = "", b""
                        self._news.set()
                    if self._is_abandoned():
                        break
        except HttpUnavailable as exc:
            if not is_open:
                self._last_id = ANY_EVENT  # a daemon that was away numbers its events anew
            hint = f" (does it know the account {self._account}?)" if "400" in exc.message else ""
            raise DeliveryDelayed(f"signal-cli: {exc.message}{hint}") from exc
        raise DeliveryDelayed("the event stream of signal-cli ended", 1.0)

    def _is_abandoned(self) -> bool:
        """Whether to stop reading; unread messages wait on Signal's server."""
        if len(self._pending) >= MAX_PENDING:
            return True
        return not self._is_receiving and time.monotonic() - self._idle_since > MAX_IDLE_SECONDS

    async def _handle_pending(self, inbox: Inbox) -> None:
        while self._pending:
            event = self._pending[0]
            await self._handle_event(event.data, inbox)
            # Remove it only now: an event that was not handled is retried.
            self._pending.popleft()
            self._last_id = event.id or self._last_id

    async def _handle_event(self, raw: bytes, inbox: Inbox) -> None:
        """Forward an event; record it if it cannot be read."""
        try:
            envelope = read_event(raw)
        except msgspec.DecodeError as exc:
            digest = blake2b(raw, digest_size=8).hexdigest()
            await inbox.reject(f"{self._account}:event:{digest}", str(exc))
            return
        if envelope is None or self._is_old(envelope.server_delivered_timestamp):
            return
        message = read_message(envelope, self._account)
        if message is not None:
            await inbox.handle(message)

    def _is_old(self, delivered_ms: int) -> bool:
        """Whether the daemon replays an event from long before this process started."""
        return 0 < delivered_ms < self._started_ms - REPLAY_SECONDS * 1000

    async def webhook(
        self,
        headers: Mapping[str, str],  # noqa: ARG002 - of the port
        body: bytes,  # noqa: ARG002 - of the port
        inbox: Inbox,  # noqa: ARG002 - of the port
    ) -> bytes:
        """Reject every request: signal-cli sends none."""
        raise WebhookRejected("a Signal channel has no webhook")

    # ── sending ─────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        place: ChatPlace,
        text: str,
        *,
        reply_to: str = "",
        plain: bool,
        buttons: Sequence[Button] = (),  # noqa: ARG002 - Signal has none; the text has the words
    ) -> str:
        """Send a message; its id is the time that the daemon gave it."""
        content = _content(text, plain=plain)
        return str(await self._send({**_target(place), **content, **self._quote(reply_to)}))

    async def send_file(self, place: ChatPlace, file: OutgoingFile, *, reply_to: str = "") -> str:
        """Send a file as an attachment without a text."""
        data = base64.b64encode(file.content).decode()
        name = re.sub('[;,=%+"]', "_", file.name)
        parameters = {
            **_target(place),
            **self._quote(reply_to),
            "attachments": [f"data:{file.media_type};filename={name};base64,{data}"],
        }
        return str(await self._send(parameters, seconds=UPLOAD_SECONDS))

    def _quote(self, reply_to: str) -> dict[str, Any]:
        """Return the parameters of a reply to a message."""
        if not reply_to:
            return {}
        timestamp, _, author = reply_to.partition(":")
        return {
            "quoteTimestamp": int(timestamp),
            "quoteAuthor": author or self._account,
            "quoteMessage": "",
        }

    async def edit(
        self,
        place: ChatPlace,
        external_id: str,
        text: str,
        *,
        plain: bool,
        buttons: Sequence[Button] = (),  # noqa: ARG002 - Signal has none; the text has the words
    ) -> None:
        """Send a later version of a message."""
        edited = {"editTimestamp": int(external_id)}
        await self._send({**_target(place), **_content(text, plain=plain), **edited})

    async def show_typing(self, place: ChatPlace) -> None:
        """Show that an answer is being written, for about fifteen seconds."""
        await self._call("sendTyping", _target(place))

    async def download(self, attachment: Attachment, max_bytes: int) -> bytes:
        """Return a file that the daemon has stored."""
        chat, _, name = attachment.reference.rpartition("|")
        if attachment.size > max_bytes:
            raise DeliveryRefused(f"the file has {attachment.size} bytes")
        parameters = {"id": name, **_target(ChatPlace(chat))}
        # The sender says how large a file is.
        max_reply = max_bytes * 4 // 3 + RPC_BYTES
        raw = await self._call(
            "getAttachment", parameters, seconds=FILE_SECONDS, max_bytes=max_reply
        )
        try:
            content = base64.b64decode(msgspec.json.decode(raw, type=_File).data, validate=True)
        except (binascii.Error, msgspec.DecodeError) as exc:
            raise DeliveryRefused("the file cannot be read") from exc
        if len(content) > max_bytes:
            raise DeliveryRefused(f"the file has {len(content)} bytes")
        return content

    async def check(self) -> str:
        """Return the account; raise if the daemon does not have it."""
        try:
            raw = await self._call("listAccounts", {})
        except DeliveryRefused as exc:
            if str(METHOD_NOT_FOUND) not in exc.message:
                raise
            return self._account  # the daemon was started for one account and lists none
        numbers = [one.number for one in msgspec.json.decode(raw, type=list[_Account])]
        if self._account not in numbers:
            listed = ", ".join(numbers) or "none"
            raise DeliveryDelayed(f"signal-cli has no account {self._account}; it has {listed}")
        return self._account

    async def check_webhook(self) -> None:
        """Do nothing: Signal has no webhooks."""

    async def close(self) -> None:
        """Close the event stream; the HTTP client is shared."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None

    # ── calls ───────────────────────────────────────────────────────────────────────────────

    async def _send(self, parameters: Mapping[str, Any], *, seconds: float = CALL_SECONDS) -> int:
        """Send to one chat and return the message's time; in a group one recipient is enough."""
        raw = await self._call("send", parameters, seconds=seconds)
        sent = msgspec.json.decode(raw, type=_Sent)
        if sent.results and all(result.type != "SUCCESS" for result in sent.results):
            _raise_results(sent.results)
        return sent.timestamp

    async def _call(
        self,
        method: str,
        parameters: Mapping[str, Any],
        *,
        seconds: float = CALL_SECONDS,
        max_bytes: int | None = None,
    ) -> bytes:
        """Return the result of a method; each failure says whether it is about the message."""
        body = {
            "jsonrpc": "2.0",
            "id": str(next(self._ids)),
            "method": method,
            "params": {"account": self._account, **parameters},
        }
        if method == "listAccounts":
            del body["params"]
        result = await post(
            self._http,
            method,
            f"{self._base}/api/v1/rpc",
            headers={"content-type": "application/json"},
            body=msgspec.json.encode(body),
            seconds=seconds,
            may_repeat=method in ("listAccounts", "getAttachment"),
            max_bytes=max_bytes + 1 if max_bytes is not None else None,
        )
        if max_bytes is not None and len(result.body) > max_bytes:
            raise DeliveryRefused(f"{method}: the reply has more than {max_bytes} bytes")
        reply = read_reply(method, result, _RpcReply)
        if reply.error is not None:
            _raise(method, reply.error)
        return bytes(reply.result)


def _target(place: ChatPlace) -> dict[str, Any]:
    if is_direct_chat("signal", place.chat):
        return {"recipient": [place.chat]}
    return {"groupId": place.chat}


def _content(text: str, *, plain: bool) -> dict[str, Any]:
    if plain:
        return {"message": text}
    shown, styles = to_signal(text)
    return {"message": shown, **({"textStyles": styles} if styles else {})}


def _raise(method: str, error: _RpcError) -> NoReturn:
    """Raise the delivery error for an error code of the daemon."""
    text = f"{method}: {error.message} ({error.code})"
    results = error.data.response.results if error.data and error.data.response else []
    if error.code == RATE_LIMIT:
        _raise_limit(text, results)
    if results:
        _raise_results(results)
    if error.code == IO_ERROR:
        raise DeliveryDelayed(text, is_uncertain=True)
    if error.code == UNTRUSTED_KEY:
        raise DeliveryImpossible(f"{text}; trust the new safety number with signal-cli first")
    if error.code == INVALID_PARAMS and "account" in error.message:
        # A wrong account affects every message: wait until it is corrected.
        raise DeliveryDelayed(text, WRONG_ACCOUNT_SECONDS)
    if "group" in error.message.lower():
        raise DeliveryImpossible(text)
    raise DeliveryRefused(text)


def _raise_limit(text: str, results: Sequence[_SendResult]) -> NoReturn:
    """Raise the delivery error for a rate limit; an operator can end one with a captcha."""
    waits = [result.retry_after_seconds for result in results if result.retry_after_seconds]
    seconds = max(waits, default=RATE_LIMIT_SECONDS)
    token = next((result.token for result in results if result.token), None)
    if token is None:
        raise DeliveryDelayed(text, seconds)
    command = f"signal-cli submitRateLimitChallenge --challenge {token} --captcha CAPTCHA"
    reason = f"{text}; Signal wants a captcha to be solved: {command}"
    raise DeliveryDelayed(reason, min(seconds, CAPTCHA_SECONDS))


def _raise_results(results: Sequence[_SendResult]) -> NoReturn:
    """Raise the delivery error for a message that no recipient got."""
    kinds = {result.type for result in results}
    text = f"send: {', '.join(sorted(kinds))}"
    if "RATE_LIMIT_FAILURE" in kinds:
        _raise_limit(text, results)
    if kinds & {"NETWORK_FAILURE", "INVALID_PRE_KEY_FAILURE"}:
        raise DeliveryDelayed(text, is_uncertain="NETWORK_FAILURE" in kinds)
    if "IDENTITY_FAILURE" in kinds:
        raise DeliveryImpossible(f"{text}; trust the new safety number with signal-cli first")
    raise DeliveryImpossible(text)
