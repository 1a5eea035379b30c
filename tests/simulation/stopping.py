"""Clients that read a streamed answer, stop reading, and send their request or a history again."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.errors import TurnCancelled
from holdfast.core.ids import Tenant
from holdfast.core.model.items import NewItem, message
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.stream_events import StreamEvent
from holdfast.http.request.session_headers import read_session_headers
from holdfast.http.request.submit_turn import target_from_headers
from holdfast.http.server.sse import ResponseEvents
from holdfast.http.server.types import Header, Request, ValueT
from tests.simulation.plan import Op
from tests.simulation.replica import Answer, Replica, StoredAnswer
from tests.simulation.upstream import FIELD, REPLAYED

if TYPE_CHECKING:
    from tests.simulation.clients import Clients

_encode = msgspec.json.Encoder().encode
STRANGER = "another key"


@dataclass(slots=True)
class Sent:
    """A streamed request as its client knows it; times are lengths of the world's journal."""

    op: Op
    items: tuple[NewItem, ...]
    headers: tuple[Header, ...]
    caller: str
    is_repeat: bool
    """Whether it is marked as a repeat of the op's first request."""
    at: int
    turn_id: str = ""
    read_from: int | None = None
    """When its process began to send it events."""
    text: str = ""
    """What it has read of the answer."""
    has_output: bool = False
    left_at: int | None = None
    error: str | None = None

    @property
    def is_refused(self) -> bool:
        """Whether it got an answer, and no turn."""
        return not self.turn_id and self.error not in (None, "lost", "store_unavailable")


class Connection(Request):
    """The connection of a client that reads so many events of an answer."""

    def __init__(self, sent: Sent, events: int, now: Callable[[], int]) -> None:
        key = (b"x-session-key", sent.op.key.encode())
        caller = (b"authorization", sent.caller.encode())
        super().__init__("POST", "/v1/responses", b"", [key, caller, *sent.headers])
        self.tenant = Tenant(sent.op.tenant)
        self.content, self.is_read = b"\n".join(item.body for item in sent.items), True
        self.last = ""
        self._sent, self._left, self._now = sent, events, now

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Write nothing: the client needs no head."""

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Write nothing: the client reads the events when they are encoded."""

    def push(self, encode: Callable[[ValueT], bytes], value: ValueT) -> bool:
        """Write a value at once."""
        encode(value)
        return True

    def show(self, events: Sequence[StreamEvent]) -> None:
        """Let the client read events, and leave after the last one that it wants."""
        for event in events:
            if self.is_half_closed:
                break
            self._left -= 1
            self.last = event.type
            if event.type.startswith("response.output_"):
                self._sent.has_output = True
            if event.type == "response.output_text.delta":
                self._sent.text += msgspec.json.decode(event.body)["delta"]
            if not self._left:
                self.leave()

    def leave(self) -> None:
        """Close the connection."""
        if self._sent.left_at is None:
            self._sent.left_at = self._now()
        self.is_half_closed = self.disconnected = True
        if self.on_disconnected is not None:
            self.on_disconnected()


class _Shown(ResponseEvents):
    """Shows a client the events that are written to its connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __call__(self, events: Sequence[StreamEvent]) -> bytes:
        """Return events as bytes, after the client has read them."""
        self._connection.show(events)
        return super().__call__(events)


async def stop_reading(clients: "Clients", op: Op, rng: random.Random) -> None:
    """Read a part of an answer, or all of it, and meanwhile or afterwards send another request."""
    question = message("user", f"{op.tenant}|{op.key}|{op.id}")
    once = ((b"idempotency-key", op.idempotency_key.encode()),) if op.idempotency_key else ()
    first = _sent(clients, op, (question,), once)
    reading = asyncio.ensure_future(_send(clients, rng, first, op.choice if op.leaves else -1))
    if op.leaves:
        await reading
    await asyncio.sleep(op.tool_seconds)
    items: tuple[NewItem, ...] = (question,)
    more = list(once)
    if op.resends == "history":
        shown = (message("assistant", first.text),) if first.text else ()
        items = (question, *shown, message("user", f"{op.tenant}|{op.key}|{op.id}n"))
    if op.resends == "retry":
        more.append((b"x-stainless-retry-count", b"1"))
    if op.on_busy != "enqueue":
        more.append((b"x-on-busy", op.on_busy.encode()))
    expected = clients.once_seen(op) if op.expects else None
    if expected is not None:
        more.append((b"x-expected-session-id", expected.encode()))
    again = _sent(clients, op, items, tuple(more))
    again.is_repeat = op.resends == "retry" or op.idempotency_key is not None
    if op.by_id:
        again.caller = STRANGER
    await _send(clients, rng, again, -1)
    await reading


def _sent(
    clients: "Clients", op: Op, items: tuple[NewItem, ...], headers: tuple[Header, ...]
) -> Sent:
    return Sent(op, items, headers, op.tenant, False, len(clients.world.disk.journal))


async def _send(clients: "Clients", rng: random.Random, sent: Sent, events: int) -> None:
    """Send a request, and read so many events of its answer; all if the number is negative."""
    journal = clients.world.disk.journal
    sent.at = len(journal)
    clients.sent.append(sent)
    connection = Connection(sent, events, lambda: len(journal))
    heard = await clients.ask(sent.op, rng, lambda r: _serve(r, sent, connection))
    sent.error = heard.error
    connection.leave()


async def _serve(replica: Replica, sent: Sent, connection: Connection) -> Answer:
    """Serve a streamed request as the API does; return what its client got."""
    fields = {FIELD: msgspec.Raw(_encode(sent.op.script))}
    asked = TurnRequest(api="responses", model=REPLAYED, fields=fields, is_stream=True)
    headers = read_session_headers(connection)
    submitter = replica.submitter
    target = target_from_headers(headers)
    ticket = await submitter.submit(connection, asked, headers, target, sent.items)
    sent.turn_id = ticket.turn.id
    reply = submitter.stream(connection, ticket, _Shown(connection))
    sent.read_from = len(replica.world.disk.journal)
    await reply.send(connection)
    if connection.last in ("response.failed", "response.incomplete"):
        raise TurnCancelled(ticket.turn.id, connection.last)
    is_whole = connection.last == "response.completed"
    stored = StoredAnswer("", sent.text) if is_whole else None
    return Answer(ticket.turn.id, ticket.session.id, "completed" if stored else "left", stored)
