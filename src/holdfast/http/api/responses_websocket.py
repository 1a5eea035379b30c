"""The Responses API over WebSocket: one request after the other, events as frames.

A connection remembers its latest unstored responses, so that they can be continued although
nothing of them is kept. Its turns belong to the server like any others.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.model.items import NewItem, read_item
from holdfast.core.model.request import TURN_PREFIX, TurnRequest, response_id
from holdfast.core.model.session import Usage
from holdfast.core.openai.response import RecordedAnswer, ResponseFacts, usage_value
from holdfast.core.openai.stream_events import (
    CREATED,
    IN_PROGRESS,
    TERMINAL,
    StreamEvent,
    lifecycle_event,
    terminal_event,
)
from holdfast.engine.logging import log
from holdfast.engine.turns.turn_service import TurnTicket
from holdfast.http.api.relay import Relaying
from holdfast.http.api.responses import ResponsesApi
from holdfast.http.request.body import Fields, parse_fields, take
from holdfast.http.request.responses_request import ResponseRequest, read_response_request
from holdfast.http.request.session_headers import SessionHeaders, read_session_headers
from holdfast.http.request.submit_turn import Target, TurnDesk, session_of
from holdfast.http.request.websocket_memory import ConnectionState
from holdfast.http.server.errors import problem_value, reply_to
from holdfast.http.server.types import Request
from holdfast.http.server.websocket import Socket

MAX_LANES = 32
MAX_WAITING = 16
LIMIT_CODE = "websocket_connection_limit_reached"

Admit = Callable[[Request], Awaitable[None]]
"""Finds out who asks, and refuses those who may not: at the handshake, and at every request."""

_encode = msgspec.json.Encoder().encode
_ENDS = frozenset(TERMINAL.values())


class UnknownEvent(InvalidInput):
    """A frame is of no type that a client may send."""

    code = "unknown_event"


class ResponsesSocket:
    """Serves connections to /v1/responses."""

    def __init__(
        self, responses: ResponsesApi, turns: TurnDesk, relaying: Relaying, admit: Admit
    ) -> None:
        self.responses = responses
        self.relaying = relaying
        self.turns = turns
        self.admit = admit

    async def serve(self, request: Request, socket: Socket) -> None:
        """Serve one connection to its end, or to the end of the time it may last."""
        headers = replace(read_session_headers(request), idempotency_key=None, retry_count=0)
        if not await socket.accept([(b"x-request-id", request.id.encode())]):
            return
        connection = _Connection(self, request, headers, socket)
        try:
            async with asyncio.timeout(self.turns.streams.websocket_seconds):
                await connection.listen()
        except TimeoutError:
            value = problem_value(400, "this connection has lasted its time", code=LIMIT_CODE)
            await socket.send(_encode({"type": "error", "status": 400, **value}))
            await socket.close()
        finally:
            await connection.close()


class _Connection:
    def __init__(
        self,
        house: ResponsesSocket,
        request: Request,
        headers: SessionHeaders,
        socket: Socket,
    ) -> None:
        self._responses = house.responses
        self._relaying = house.relaying
        self._turns = house.turns
        self._admit = house.admit
        self._request = request
        self._headers = headers
        self._socket = socket
        self._state = ConnectionState()
        self._lanes: dict[str | None, asyncio.Queue[tuple[Fields, bytes]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._tickets: set[TurnTicket] = set()

    async def listen(self) -> None:
        """Take frames in until the client leaves."""
        while (frame := await self._socket.receive()) is not None:
            lane: str | None = None
            try:
                fields = parse_fields(frame)
                lane = take(fields, "stream_id", str)
                await self._take(fields, frame, lane)
            except HoldfastError as error:
                await self._refuse(error, lane)

    async def close(self) -> None:
        """Leave the turns to themselves, or cancel them where that is the policy."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._turns.streams.on_disconnect == "cancel":
            for ticket in self._tickets:
                await ticket.abandon()

    async def _take(self, fields: Fields, frame: bytes, lane: str | None) -> None:
        kind = take(fields, "type", str)
        if kind == "response.steer":
            await self._refuse_steering(fields)
        elif kind != "response.create":
            raise UnknownEvent(f"a client may send response.create, not {kind!r}", param="type")
        else:
            await self._queue(lane).put((fields, frame))

    def _queue(self, lane: str | None) -> "asyncio.Queue[tuple[Fields, bytes]]":
        """Return the queue of a lane: one request after the other, lanes beside each other."""
        queue = self._lanes.get(lane)
        if queue is None:
            if len(self._lanes) >= MAX_LANES:
                raise InvalidInput(f"a connection has at most {MAX_LANES} lanes", param="stream_id")
            queue = self._lanes[lane] = asyncio.Queue(MAX_WAITING)
            work = asyncio.create_task(self._work(lane, queue), name="holdfast-socket-lane")
            self._tasks.append(work)
        return queue

    async def _work(self, lane: str | None, queue: "asyncio.Queue[tuple[Fields, bytes]]") -> None:
        while True:
            fields, frame = await queue.get()
            raw = fields.get("previous_response_id")
            parent: Any = msgspec.json.decode(raw) if raw is not None else None
            try:
                await self._answer(fields, frame, lane)
            except HoldfastError as error:
                self._state.forget(parent if isinstance(parent, str) else None)
                await self._refuse(error, lane)
            except Exception:  # noqa: BLE001 - the top of a task: logged, and answered in shape
                log.exception("socket.broke", request_id=self._request.id)
                await self._refuse(HoldfastError("something broke on our side"), lane)

    async def _answer(self, fields: Fields, frame: bytes, lane: str | None) -> None:
        request = self._request.frame(frame)
        await self._admit(request)
        does_generate = take(fields, "generate", bool, True)
        fields.pop("stream_options", None)
        wanted = read_response_request(fields)
        asked = replace(wanted.asked, is_stream=True)
        if asked.is_background:
            raise InvalidInput("background is not supported over WebSocket", param="background")
        wanted, target, before = await self._placed(replace(wanted, asked=asked))
        wanted = await self._responses.resolved(request, wanted, target)
        if not does_generate:
            await self._register(wanted, before, lane)
            return
        if asked.is_stored or target.session_id is not None or target.key is not None:
            ticket = await self._turns.take(
                request, wanted.asked, self._headers, target, wanted.items
            )
            self._tickets.add(ticket)
            last = await self._forward(ticket, lane)
            self._tickets.discard(ticket)
        else:
            last = await self._pass(wanted, lane)
        self._remember(asked, (*before, *wanted.items), last)

    async def _placed(
        self, wanted: ResponseRequest
    ) -> tuple[ResponseRequest, Target, tuple[NewItem, ...]]:
        """Return the request, where it goes, and the history that only we must remember with it.

        A parent that this connection remembers is brought along in full.
        """
        parent = self._state.get(wanted.asked.previous_response_id)
        if parent is not None:
            whole = replace(wanted, items=[*parent.items, *wanted.items])
            return whole, session_of(self._headers), ()
        target = await self._responses.place(self._request, self._headers, wanted)
        before: tuple[NewItem, ...] = ()
        if not wanted.asked.is_stored and target.parent is not None:
            history = await self._turns.history(self._request, target)
            before = tuple(read_item(body) for body in history)
        return wanted, target, before

    async def _forward(self, ticket: TurnTicket, lane: str | None) -> dict[str, Any]:
        """Send a response's events, and return the response as the last one shows it."""
        reader = ticket.reader()
        response: dict[str, Any] = {}
        while (events := await reader.take(self._turns.streams.keep_alive_seconds)) is not None:
            for event in events:
                await self._send(event, lane)
                if event.type in _ENDS:
                    response = msgspec.json.decode(event.body)["response"]
        self._turns.gateway.delivered(ticket.turn.id, ticket.step)
        return response

    async def _pass(self, wanted: ResponseRequest, lane: str | None) -> dict[str, Any]:
        """Have a request answered of which nothing is kept but what we remember."""
        response: dict[str, Any] = {}
        stream = await self._relaying.stream(wanted.asked, wanted.items)
        try:
            while (events := await stream.take(self._turns.streams.keep_alive_seconds)) is not None:
                for event in events:
                    await self._send(event, lane)
                    if event.type in _ENDS:
                        response = msgspec.json.decode(event.body)["response"]
        finally:
            await stream.close()
        return response

    def _remember(
        self, asked: TurnRequest, given: tuple[NewItem, ...], response: dict[str, Any]
    ) -> None:
        if response.get("status") not in ("completed", "incomplete"):
            self._state.forget(asked.previous_response_id)
        elif not asked.is_stored:
            said = (read_item(_encode(item)) for item in response["output"])
            self._state.keep(response["id"], (*given, *said))

    async def _register(
        self, wanted: ResponseRequest, before: tuple[NewItem, ...], lane: str | None
    ) -> None:
        """Remember a request without asking the model: its id can be continued from here."""
        name = response_id(self._turns.gateway.ids.new(TURN_PREFIX.rstrip("_")), 0)
        self._state.keep(name, (*before, *wanted.items))
        now = time.time()
        answer = RecordedAnswer(usage=msgspec.Raw(usage_value(Usage())), completed_at=now)
        facts = ResponseFacts(
            id=name, request=wanted.asked, created_at=now, status="completed", answer=answer
        )
        await self._send(lifecycle_event(CREATED, 0, facts, "in_progress"), lane)
        await self._send(lifecycle_event(IN_PROGRESS, 1, facts, "in_progress"), lane)
        await self._send(terminal_event(2, facts), lane)

    async def _send(self, event: StreamEvent, lane: str | None) -> None:
        body = event.body
        if lane is not None:
            body = body[:-1] + b',"stream_id":' + _encode(lane) + b"}"
        await self._socket.send(body)

    async def _refuse(self, error: HoldfastError, lane: str | None) -> None:
        reply = reply_to(error)
        value: dict[str, Any] = {"type": "error", "status": reply.status}
        value |= msgspec.json.decode(reply.body)
        value["error"]["headers"] = {
            name.decode(): text.decode() for name, text in reply.headers if name != b"content-type"
        }
        if lane is not None:
            value["stream_id"] = lane
        await self._socket.send(_encode(value))

    async def _refuse_steering(self, fields: Fields) -> None:
        steer = {
            "input": fields.get("input"),
            "previous_response_id": fields.get("previous_response_id"),
        }
        error = {
            "code": "steering_not_supported",
            "message": "a running response cannot be steered; send what you have to say when it "
            "has ended, or by HTTP with X-On-Busy: interrupt",
            "type": "invalid_request_error",
        }
        event = {
            "type": "response.steer.failed",
            "sequence_number": 0,
            "error": error,
            "steer": steer,
        }
        await self._socket.send(_encode(event))
