"""A Slack workspace: people, events, and socket mode with redelivery, as strict as the real one."""

import asyncio
import contextlib
import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from holdfast.simulator.platforms.server import PlatformAnswer, PlatformCall
from holdfast.simulator.platforms.simulated_platform import SimulatedChatPlatform
from holdfast.simulator.platforms.slack_api import (
    APP_ID,
    BOT_ID,
    BOT_USER,
    TEAM,
    PostedMessage,
    SlackWebApi,
    make_error,
)

MAX_CONNECTIONS = 10


@dataclass
class _Connection:
    """One open WebSocket."""

    number: int
    frames: "asyncio.Queue[dict[str, Any] | None]"
    is_ending: bool = False
    """Whether it was told to disconnect: no more events are sent to it."""


@dataclass
class _Delivery:
    """An event on its way to the app."""

    payload: dict[str, Any]
    kind: str = "events_api"
    attempt: int = 0
    connection: int = 0


@dataclass
class Envelopes:
    """The envelopes that socket mode delivered."""

    sent: list[dict[str, Any]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)


class SlackSimulator(SimulatedChatPlatform[str]):
    """One workspace with one app."""

    def __init__(
        self, bot_token: str = "xoxb-TEST", app_token: str = "xapp-TEST", *, port: int = 0
    ) -> None:
        super().__init__(port, self._serve_socket)
        self.bot_token, self.app_token = bot_token, app_token
        self._api = SlackWebApi(self)
        self._connections: list[_Connection] = []
        self._waiting: list[_Delivery] = []
        self._in_flight: dict[str, _Delivery] = {}
        self._history: list[_Delivery] = []
        self._numbers: dict[str, int] = {}
        self._written: dict[str, dict[str, Any]] = {}
        self.envelopes = Envelopes()
        self.opened_sockets = 0
        self.mentions_first = False
        """Whether `app_mention` comes before the `message` of the same text."""

    @property
    def url(self) -> str:
        """The base URL of the Web API."""
        return f"{self._server.url}/api"

    def down(self) -> None:
        """Stop answering; open connections are cut."""
        super().down()
        with self._lock:
            for connection in list(self._connections):
                self._forget(connection)

    async def _handle(self, call: PlatformCall) -> PlatformAnswer:
        return await self._api.handle(call)

    # ── what people do ──────────────────────────────────────────────────────────────────────

    def say(
        self,
        text: str,
        *,
        user: str = "U7",
        channel: str | None = None,
        thread: str | None = None,
        **more: Any,
    ) -> str:
        """Write a message as a person; return its `ts`. Without a channel it is direct."""
        with self._lock:
            message: dict[str, Any] = {"user": user, "text": text, "ts": self.next_ts(), **more}
            if thread is not None:
                message["thread_ts"] = thread
                parent = self.find(thread)
                message["parent_user_id"] = parent["user"] if parent is not None else "U0"
            channel = channel or self.direct_channel(user)
            self.publish(channel, message)
            return str(message["ts"])

    def publish(self, channel: str, message: dict[str, Any]) -> None:
        """Send the app the event for a message that is now in a channel."""
        self._written[message["ts"]] = {**message, "channel": channel}
        kind = self._api.channel_type(channel)
        events = [{"type": "message", "channel": channel, "channel_type": kind, **message}]
        is_person = "bot_id" not in message
        if is_person and f"<@{BOT_USER}>" in str(message.get("text")) and kind != "im":
            mention = {"type": "app_mention", "channel": channel, **message}
            mention.pop("files", None)
            events.insert(0 if self.mentions_first else 1, mention)
        for event in events:
            self._emit(event)

    def edit(self, ts: str, text: str) -> None:
        """Edit a message as its author."""
        with self._lock:
            before = self._written[ts]
            edited = {"user": before.get("user"), "ts": self.next_ts()}
            self._change(before, {**before, "text": text, "edited": edited})

    def unfurl(self, ts: str) -> None:
        """Unfurl a link of a message: a change that nobody made."""
        with self._lock:
            before = self._written[ts]
            attachments = [{"from_url": "https://example.org", "text": "a page"}]
            self._change(before, {**before, "attachments": attachments})

    def _change(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        self._written[before["ts"]] = after
        channel = str(before["channel"])
        self._emit(
            {
                "type": "message", "subtype": "message_changed", "hidden": True,
                "channel": channel, "channel_type": self._api.channel_type(channel),
                "ts": self.next_ts(), "message": _inner(after), "previous_message": _inner(before),
            }
        )  # fmt: skip

    def delete(self, ts: str) -> None:
        """Delete a message as the person."""
        with self._lock:
            before = self._written.pop(ts)
            channel = str(before["channel"])
            self._emit(
                {
                    "type": "message", "subtype": "message_deleted", "hidden": True,
                    "channel": channel, "channel_type": self._api.channel_type(channel),
                    "ts": self.next_ts(), "deleted_ts": ts, "previous_message": _inner(before),
                }
            )  # fmt: skip

    def press(self, posted: PostedMessage, label: str, *, user: str = "U7") -> None:
        """Press a button of a message as a person."""
        with self._lock:
            buttons = [element for block in posted.blocks for element in block.get("elements", ())]
            button = next(element for element in buttons if element["text"]["text"] == label)
            action = {
                "type": "button", "action_id": button["action_id"], "value": button["value"],
                "block_id": "b", "action_ts": self.next_ts(),
            }  # fmt: skip
            payload = {
                "type": "block_actions", "team": {"id": TEAM}, "user": {"id": user},
                "channel": {"id": posted.channel}, "actions": [action], "api_app_id": APP_ID,
                "container": {"type": "message", "message_ts": posted.ts},
                "message": {
                    "ts": posted.ts, "thread_ts": posted.thread, "bot_id": BOT_ID,
                    "text": posted.texts[-1],
                },
            }  # fmt: skip
            self._deliver(_Delivery(payload, "interactive"))

    def deliver_again(self, count: int = 1) -> None:
        """Redeliver the last events that people caused, as after a timeout."""
        with self._lock:
            for delivery in self._history[-count:]:
                again = _Delivery(delivery.payload, delivery.kind, delivery.attempt + 1)
                self._deliver(again, is_kept=False)

    # ── socket mode ─────────────────────────────────────────────────────────────────────────

    def refresh(self) -> None:
        """Ask every connection to reconnect, as Slack does every few hours."""
        with self._lock:
            for connection in self._connections:
                connection.is_ending = True
                frame = {"type": "disconnect", "reason": "refresh_requested", "debug_info": {}}
                self._put(connection, frame)

    def cut(self) -> None:
        """Close every connection without a close frame."""
        with self._lock:
            for connection in self._connections:
                self._put(connection, None)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def _put(self, connection: _Connection, frame: dict[str, Any] | None) -> None:
        loop = self._server.loop
        if loop is not None and loop.is_running():
            loop.call_soon_threadsafe(connection.frames.put_nowait, frame)

    def _emit(self, event: dict[str, Any]) -> None:
        payload = {
            "token": "legacy", "team_id": TEAM, "api_app_id": APP_ID, "type": "event_callback",
            "event": event, "event_id": f"Ev{self._number('event')}",
            "event_time": int(time.time()),
        }  # fmt: skip
        message = event.get("message") or event
        self._deliver(_Delivery(payload), is_kept="bot_id" not in message)

    def _deliver(self, delivery: _Delivery, *, is_kept: bool = True) -> None:
        if is_kept:
            self._history.append(delivery)
        self._waiting.append(delivery)
        self._flush()
        self._lock.notify_all()

    def _flush(self) -> None:
        """Send waiting deliveries, distributed over the connections."""
        usable = [one for one in self._connections if not one.is_ending]
        while self._waiting and usable:
            delivery = self._waiting.pop(0)
            number = self._number("envelope")
            connection = usable[number % len(usable)]
            delivery.connection = connection.number
            envelope = {
                "envelope_id": f"env-{number}", "type": delivery.kind,
                "accepts_response_payload": delivery.kind == "interactive",
                "payload": delivery.payload,
            }  # fmt: skip
            if delivery.kind == "events_api":
                envelope["retry_attempt"] = delivery.attempt
                envelope["retry_reason"] = "timeout" if delivery.attempt else ""
            self._in_flight[f"env-{number}"] = delivery
            self.envelopes.sent.append(envelope)
            self._put(connection, envelope)

    async def _serve_socket(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        ticket = parse_qs(scope["query_string"].decode()).get("ticket", [""])[0]
        if not self._api.redeem(ticket):
            await send({"type": "websocket.close", "code": 4001})
            return
        await send({"type": "websocket.accept"})
        connection = self._open()
        reading = asyncio.ensure_future(self._read(receive))
        try:
            while True:
                frame = asyncio.ensure_future(connection.frames.get())
                await asyncio.wait({frame, reading}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done() or frame.result() is None:
                    frame.cancel()
                    return
                await send({"type": "websocket.send", "text": json.dumps(frame.result())})
        finally:
            reading.cancel()
            with self._lock:
                self._forget(connection)
            with contextlib.suppress(RuntimeError):
                await send({"type": "websocket.close", "code": 1000})

    def _open(self) -> _Connection:
        with self._lock:
            connection = _Connection(self._number("connection"), asyncio.Queue())
            self.opened_sockets += 1
            hello = {"type": "hello", "num_connections": len(self._connections) + 1}
            connection.frames.put_nowait(hello)
            if len(self._connections) >= MAX_CONNECTIONS:
                connection.is_ending = True
                reason = {"type": "disconnect", "reason": "too_many_websockets"}
                connection.frames.put_nowait(reason)
            self._connections.append(connection)
            self._flush()
            self._lock.notify_all()
            return connection

    def _forget(self, connection: _Connection) -> None:
        """Remove a connection; unacknowledged deliveries are sent again."""
        if connection in self._connections:
            self._connections.remove(connection)
        lost = [
            name for name, one in self._in_flight.items() if one.connection == connection.number
        ]
        again = [self._in_flight.pop(name) for name in lost]
        for delivery in again:
            delivery.attempt += 1
        self._waiting[:0] = again
        self._flush()
        self._lock.notify_all()

    async def _read(self, receive: Any) -> None:
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                return
            reply = json.loads(message.get("text") or "{}")
            with self._lock:
                name = reply.get("envelope_id")
                # An acknowledgement counts on any connection, but only once.
                if self._in_flight.pop(name, None) is not None:
                    self.envelopes.acknowledged.append(name)
                self._lock.notify_all()

    @property
    def unacknowledged(self) -> int:
        """How many deliveries are waiting or in flight."""
        return len(self._in_flight) + len(self._waiting)

    # ── what the app did ────────────────────────────────────────────────────────────────────

    @property
    def notices(self) -> list[tuple[str, str]]:
        """Ephemeral messages: the person and the text."""
        return self._api.notices

    @property
    def posted(self) -> list[PostedMessage]:
        """The messages of the app."""
        return self._api.posted

    @property
    def blocked(self) -> set[str]:
        """Channels that the app is not in; tests add ids."""
        return self._api.blocked

    @property
    def scopes(self) -> set[str]:
        """The optional scopes that the app has."""
        return self._api.scopes

    @property
    def files(self) -> dict[str, tuple[str, str, bytes]]:
        """Files of the workspace by id: name, media type and content."""
        return self._api.files

    def texts(self, chat: str | None = None) -> list[str]:
        """Return the current texts of the app's messages."""
        return [message.text for message in self.posted if chat in (None, message.channel)]

    def _make_error(self, **fields: Any) -> PlatformAnswer:
        return make_error(**fields)

    # ── for the Web API ─────────────────────────────────────────────────────────────────────

    @property
    def lock(self) -> threading.Condition:
        """Guards the workspace; notified after every change."""
        return self._lock

    @property
    def socket_url(self) -> str:
        """The address of socket mode, without a ticket."""
        return self._server.url.replace("http", "ws", 1) + "/link/"

    @property
    def server_url(self) -> str:
        """The address of the server, for files."""
        return self._server.url

    def find(self, ts: str) -> dict[str, Any] | None:
        """Return a message of the workspace."""
        return self._written.get(ts)

    def direct_channel(self, user: str) -> str:
        """Return the direct chat of a person with the app."""
        return f"D{user[1:]}"

    def next_ts(self) -> str:
        """Return the timestamp of the next message, which is its id in its channel."""
        return f"{1_700_000_000 + self._number('ts')}.000100"

    def _number(self, name: str) -> int:
        self._numbers[name] = self._numbers.get(name, 0) + 1
        return self._numbers[name]


def _inner(message: dict[str, Any]) -> dict[str, Any]:
    return {"type": "message", **{k: v for k, v in message.items() if k != "channel"}}
