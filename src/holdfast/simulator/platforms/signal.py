"""The HTTP daemon of signal-cli: JSON-RPC calls and the event stream, with its rules.

The daemon passes events only to readers of the stream and then deletes them on Signal's server;
without a reader they wait on the server. Newer daemons number events and resend those after
`Last-Event-ID`; `is_numbered=False` simulates older ones, which cannot.
"""

import asyncio
import base64
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from holdfast.simulator.platforms.server import PlatformAnswer, PlatformCall
from holdfast.simulator.platforms.simulated_platform import SimulatedChatPlatform

ACCOUNT = "+4915100000000"
OWN_UUID = "00000000-0000-4000-8000-000000000000"
GROUP = base64.b64encode(b"a group of thirty-two bytes here").decode()
MAX_BUFFERED = 1000
_NUMBER = re.compile(r"\+\d{3,15}")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STYLE = re.compile(r"(\d+):(\d+):(BOLD|ITALIC|STRIKETHROUGH|MONOSPACE|SPOILER)")
_DATA_URI = re.compile(r"data:([\w.+-]+/[\w.+-]+);filename=([^;,=%+]+);base64,([^,]*)")
_SEND_FIELDS = frozenset(
    {
        "account", "recipient", "groupId", "message", "textStyles", "quoteTimestamp", "quoteAuthor",
        "quoteMessage", "editTimestamp", "attachments",
    }
)  # fmt: skip


class _RpcFailure(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data


@dataclass
class SignalAttachment:
    """A file of a message."""

    name: str
    media_type: str
    content: bytes


@dataclass
class SignalMessage:
    """A message that the account sent."""

    timestamp: int
    chat: str
    text: str
    styles: list[str] = field(default_factory=list)
    quote: int | None = None
    attachments: list[SignalAttachment] = field(default_factory=list)


def user_uuid(user: int) -> str:
    """Return the UUID of a simulated person."""
    return f"00000000-0000-4000-8000-{user:012d}"


class SignalSimulator(SimulatedChatPlatform[str]):
    """One account and its chats."""

    def __init__(self, account: str = ACCOUNT, port: int = 0, *, is_numbered: bool = True) -> None:
        super().__init__(port)
        self.account = account
        self._is_numbered = is_numbered
        self._waiting: list[dict[str, Any]] = []
        """Envelopes that Signal's server keeps for the account."""
        self._buffer: list[tuple[int, dict[str, Any]]] = []
        self._last: dict[str, Any] = {}
        self._next_event = 1
        self._clock = 1_700_000_000_000
        self._stream: asyncio.Queue[tuple[int, dict[str, Any]]] | None = None
        self.sent: list[SignalMessage] = []
        self.unregistered: set[str] = set()
        self.files: dict[str, bytes] = {}
        self.resumed_behind: list[str] = []
        """The `Last-Event-ID` of every stream that was opened."""

    def down(self) -> None:
        """Stop the daemon; its numbered events are lost, those that wait on the server are not."""
        super().down()
        self._stream = None
        self._buffer.clear()
        self._next_event = 1

    # ── what people do ──────────────────────────────────────────────────────────────────────

    def say(self, text: str, *, user: int = 7, group: str | None = None, **more: Any) -> int:
        """Write a message as a person; return its timestamp."""
        with self._lock:
            self._clock += 1
            data = {"timestamp": self._clock, "message": text, **more}
            if group is not None:
                data["groupInfo"] = {"groupId": group, "type": "DELIVER"}
            self._arrive({**self._source(user), "timestamp": self._clock, "dataMessage": data})
            return self._clock

    def edit(self, timestamp: int, text: str, *, user: int = 7) -> None:
        """Edit a message as a person."""
        with self._lock:
            self._clock += 1
            data = {"timestamp": self._clock, "message": text}
            edit = {"targetSentTimestamp": timestamp, "dataMessage": data}
            self._arrive({**self._source(user), "timestamp": self._clock, "editMessage": edit})

    def write_from_phone(self, text: str) -> None:
        """Write with another device of the account's owner: a sync message."""
        with self._lock:
            self._clock += 1
            sync = {"sentMessage": {"timestamp": self._clock, "message": text}}
            source = {"source": self.account, "sourceNumber": self.account, "sourceUuid": OWN_UUID}
            self._arrive({**source, "timestamp": self._clock, "syncMessage": sync})

    def deliver_again(self) -> None:
        """Deliver the last message again."""
        with self._lock:
            self._arrive(self._last)

    def _source(self, user: int) -> dict[str, Any]:
        number = f"+49{user:07d}"
        return {
            "source": number, "sourceNumber": number, "sourceUuid": user_uuid(user),
            "sourceName": f"User{user}", "sourceDevice": 1,
        }  # fmt: skip

    def _arrive(self, envelope: dict[str, Any]) -> None:
        self._last = envelope
        self._waiting.append(envelope)
        self._pass_on()

    def _pass_on(self) -> None:
        """Pass the waiting envelopes to the readers of the stream."""
        stream, loop = self._stream, self._server.loop
        if stream is None or loop is None or not loop.is_running():
            return
        while self._waiting:
            envelope = self._waiting.pop(0)
            delivered = {**envelope, "serverDeliveredTimestamp": int(time.time() * 1000)}
            event = (self._next_event, {"envelope": delivered, "account": self.account})
            self._next_event += 1
            self._buffer = [*self._buffer, event][-MAX_BUFFERED:]
            loop.call_soon_threadsafe(stream.put_nowait, event)
        self._lock.notify_all()

    # ── what the account did ────────────────────────────────────────────────────────────────

    def texts(self, chat: str | None = None) -> list[str]:
        """Return the messages that the account sent."""
        return [message.text for message in self.sent if chat in (None, message.chat)]

    def _make_error(self, **fields: Any) -> PlatformAnswer:
        return _error(None, fields["error"], "failed on purpose", fields.get("data"))

    @property
    def last_event(self) -> int:
        """The number of the last event that was sent."""
        return self._next_event - 1

    # ── the daemon ──────────────────────────────────────────────────────────────────────────

    async def _handle(self, call: PlatformCall) -> PlatformAnswer:
        match call.method, call.path:
            case "GET", "/api/v1/check":
                return PlatformAnswer(b"")
            case "GET", "/api/v1/events":
                return await self._events(call)
            case "POST", "/api/v1/rpc":
                return await self._rpc(call)
        return PlatformAnswer(b"", status=404)

    async def _events(self, call: PlatformCall) -> PlatformAnswer:
        account = parse_qs(call.query).get("account", [self.account])[0]
        if account != self.account:
            return PlatformAnswer(b"", status=400)
        stream: asyncio.Queue[tuple[int, dict[str, Any]]] = asyncio.Queue()
        assert call.send is not None
        await call.send(b":\n")
        with self._lock:
            last = call.headers.get("last-event-id")
            self.resumed_behind.append(last or "")
            if last is not None and self._is_numbered:
                seen = int(last) if last.isdecimal() else 0
                for event in self._buffer:
                    if event[0] > seen:
                        stream.put_nowait(event)
            self._stream = stream
            self._pass_on()
        while self._stream is stream:
            try:
                async with asyncio.timeout(1.0):
                    number, body = await stream.get()
            except TimeoutError:
                await call.send(b":\n")
                continue
            head = f"id:{number}\n" if self._is_numbered else ""
            await call.send(f"{head}event:receive\ndata:{json.dumps(body)}\n\n".encode())
        return PlatformAnswer(b"")

    async def _rpc(self, call: PlatformCall) -> PlatformAnswer:
        try:
            request = call.json()
        except ValueError:
            return _error(None, -32700, "Unrecognized token")
        number, method = request.get("id"), str(request.get("method"))
        parameters = request.get("params") or {}

        def perform(method: str, parameters: dict[str, Any]) -> PlatformAnswer:
            try:
                return _ok(number, self._call(method, parameters))
            except _RpcFailure as exc:
                return _error(number, exc.code, exc.message, exc.data)

        return self.run_call(method, parameters, perform)

    def _call(self, method: str, parameters: dict[str, Any]) -> Any:
        if method == "version":
            return {"version": "0.13.19"}
        if method == "listAccounts":
            return [{"number": self.account}]
        if method not in ("send", "sendTyping", "getAttachment"):
            raise _RpcFailure(-32601, "Method not implemented")
        if parameters.get("account") != self.account:
            raise _RpcFailure(-32602, "Specified account does not exist")
        chat = self._chat(parameters)
        if method == "getAttachment":
            return self._attachment(str(parameters.get("id")))
        if method == "sendTyping":
            return {}
        return self._send(chat, parameters)

    def _chat(self, parameters: dict[str, Any]) -> str:
        if "groupId" in parameters:
            group = str(parameters["groupId"])
            if len(group) != len(GROUP):
                raise _RpcFailure(-1, f"Invalid group id: {group}")
            return group
        recipients = parameters.get("recipient")
        if not isinstance(recipients, list) or len(recipients) != 1:
            raise _RpcFailure(-32602, "No recipients given")
        if not (_NUMBER.fullmatch(recipients[0]) or _UUID.fullmatch(recipients[0])):
            raise _RpcFailure(-1, f"Invalid phone number: {recipients[0]}")
        return str(recipients[0])

    def _attachment(self, name: str) -> dict[str, str]:
        if name not in self.files:
            raise _RpcFailure(-1, f"Could not find attachment with ID: {name}")
        return {"data": base64.b64encode(self.files[name]).decode()}

    def _send(self, chat: str, parameters: dict[str, Any]) -> dict[str, Any]:
        unknown = set(parameters) - _SEND_FIELDS
        files = [_read_data_uri(attachment) for attachment in parameters.get("attachments", [])]
        text = parameters.get("message", " ".join(f"[{file.name}]" for file in files))
        if unknown or not isinstance(text, str) or not text:
            raise _RpcFailure(-32602, f"Invalid parameters: {sorted(unknown) or 'message'}")
        styles = parameters.get("textStyles", [])
        length = len(text.encode("utf-16-le")) // 2
        for style in styles:
            match = _STYLE.fullmatch(style)
            if match is None or int(match[1]) + int(match[2]) > length:
                raise _RpcFailure(-1, f"Invalid style: {style}")
        self._clock += 1
        kind = "UNREGISTERED_FAILURE" if chat in self.unregistered else "SUCCESS"
        result = {"recipientAddress": {"uuid": chat}, "type": kind}
        sent = {"timestamp": self._clock, "results": [result]}
        if kind != "SUCCESS":
            raise _RpcFailure(-1, "Failed to send message", {"response": sent})
        quote = parameters.get("quoteTimestamp")
        edited = parameters.get("editTimestamp")
        for message in self.sent:
            if edited is not None and message.timestamp == edited:
                message.text, message.styles = text, styles
                return sent
        self.sent.append(SignalMessage(self._clock, chat, text, styles, quote, files))
        return sent


def _read_data_uri(uri: str) -> SignalAttachment:
    """Return the file in `data:TYPE;filename=NAME;base64,DATA`."""
    match = _DATA_URI.fullmatch(uri)
    if match is None:
        raise _RpcFailure(-1, f"Failed to add attachment: {uri[:40]}: No such file or directory")
    try:
        content = base64.b64decode(match[3], validate=True)
    except ValueError as exc:
        raise _RpcFailure(-1, "Failed to add attachment: illegal base64 character") from exc
    return SignalAttachment(match[2], match[1], content)


def _ok(number: Any, result: Any) -> PlatformAnswer:
    return PlatformAnswer({"jsonrpc": "2.0", "result": result, "id": number})


def _error(number: Any, code: int, message: str, data: Any = None) -> PlatformAnswer:
    error = {"code": code, "message": message, "data": data}
    return PlatformAnswer({"jsonrpc": "2.0", "error": error, "id": number})
