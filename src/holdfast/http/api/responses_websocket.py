"""The Responses API over WebSocket: requests and events as frames.

A connection caches its latest unstored responses, so that they can be continued. Its turns run in
the gateway like any others and do not end with the connection.
"""

import asyncio
import time
from collections import deque
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.decisions.api_keys import NotAuthenticated
from holdfast.core.errors import HoldfastError, InvalidInput, LaneFull, release_frames
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
from holdfast.http.api.relay import RelayService
from holdfast.http.api.responses import ResponsesApi
from holdfast.http.request.auth import Authenticator
from holdfast.http.request.body import Fields, parse_fields, pop_field
from holdfast.http.request.responses_request import ResponseRequest, parse_response_request
from holdfast.http.request.session_headers import SessionHeaders, read_session_headers
from holdfast.http.request.submit_turn import SessionTarget, TurnSubmitter, target_from_headers
from holdfast.http.request.websocket_memory import ResponseCache, continue_items, is_synthetic
from holdfast.http.request.websocket_steering import (
    MAX_PENDING,
    RunningResponse,
    Steer,
    SteerError,
    accepted_event,
    check_steering,
    failed_event,
    pending_event,
    required_input,
)
from holdfast.http.server.access_log import (
    is_warned,
    log_websocket_answer,
    log_websocket_closed,
    log_websocket_opened,
)
from holdfast.http.server.errors import error_event, error_value, reply_for_error
from holdfast.http.server.memory_budget import UNCOUNTED_BYTES, Holding
from holdfast.http.server.types import Request
from holdfast.http.server.websocket import POLICY, WebSocket
from holdfast.ports.request_context import begin_context

MAX_STREAMS = 32
MAX_QUEUED = 16
MAX_ENDED = 64
LIMIT_CODE = "websocket_connection_limit_reached"


_encode = msgspec.json.Encoder().encode
_ENDS = frozenset(TERMINAL.values())


class UnknownEvent(InvalidInput):
    """Clients may not send frames of this type."""

    code = "unknown_event"


class ResponsesWebSocket:
    """Serve WebSocket connections to /v1/responses."""

    def __init__(
        self,
        responses: ResponsesApi,
        turns: TurnSubmitter,
        relay: RelayService,
        authenticator: Authenticator,
    ) -> None:
        self.responses = responses
        self.relay = relay
        self.turns = turns
        self.authenticator = authenticator

    async def serve(self, request: Request, websocket: WebSocket) -> None:
        """Serve one connection until it closes or `websocket_seconds` have passed."""
        headers = replace(read_session_headers(request), idempotency_key=None, retry_count=0)
        if not await websocket.accept([(b"x-request-id", request.id.encode())]):
            return
        log_websocket_opened(request)
        connection = _Connection(self, request, headers, websocket)
        try:
            async with asyncio.timeout(self.turns.streams.websocket_seconds):
                await self._serve_until_revoked(connection, request)
        except TimeoutError:
            value = error_value(
                400, "the connection has reached its maximum duration", code=LIMIT_CODE
            )
            await websocket.send(_encode({"type": "error", "status": 400, **value}))
            await websocket.close()
        finally:
            await connection.close()
            log_websocket_closed(request, websocket, turns=connection.turns)

    async def _serve_until_revoked(self, connection: "_Connection", request: Request) -> None:
        receiving = asyncio.ensure_future(connection.receive_frames())
        revoked = asyncio.ensure_future(self.authenticator.until_revoked(request))
        try:
            await asyncio.wait({receiving, revoked}, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                receiving.result()
            else:
                await connection.end(NotAuthenticated("the API key is no longer valid"))
        finally:
            for task in (receiving, revoked):
                task.cancel()
            await asyncio.gather(receiving, revoked, return_exceptions=True)


class _Connection:
    def __init__(
        self,
        server: ResponsesWebSocket,
        request: Request,
        headers: SessionHeaders,
        websocket: WebSocket,
    ) -> None:
        self._responses = server.responses
        self._relay = server.relay
        self._decoder = server.responses.decoder
        self._turns = server.turns
        self._authenticator = server.authenticator
        self._request = request
        self._headers = headers
        self._websocket = websocket
        self._cache = ResponseCache()
        self._queues: dict[str | None, asyncio.Queue[tuple[Fields, bytes]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._tickets: set[TurnTicket] = set()
        self._running: dict[str, RunningResponse] = {}
        """Responses whose events are being sent, by id."""
        self._ended: deque[str] = deque(maxlen=MAX_ENDED)
        """The ids of the latest responses that have ended."""
        self._pending: dict[str | None, list[Steer]] = {}
        """Input that waits for the outputs of the client's tools, by stream."""
        self.turns = 0
        """Requests that were answered."""
        self._held: dict[int, Holding] = {}
        """What large frames count that are not answered yet, by object id."""

    async def receive_frames(self) -> None:
        """Queue request frames until the client disconnects."""
        while (frame := await self._websocket.receive()) is not None:
            await self._take(frame)
            del frame  # an idle connection holds no frame

    async def _take(self, frame: bytes) -> None:
        stream_id: str | None = None
        try:
            await self._reserve(frame)
            fields = parse_fields(frame)
            stream_id = pop_field(fields, "stream_id", str)
            await self._enqueue(fields, frame, stream_id)
        except HoldfastError as error:
            self._release(frame)
            await self._send_error(error, stream_id)

    async def _reserve(self, frame: bytes) -> None:
        """Count a large frame towards the body bytes of the process until it is answered."""
        held, budget = self._websocket.take_holding(), self._request.budget
        if held is None and budget is not None and len(frame) > UNCOUNTED_BYTES:
            held = budget.open(self._websocket.party)
        if held is not None:
            self._held[id(frame)] = held
            await held.grow(len(frame))
            held.finish(len(frame))

    def _release(self, frame: bytes) -> None:
        held = self._held.pop(id(frame), None)
        if held is not None:
            held.close()

    async def close(self) -> None:
        """Stop sending; cancel the turns if `on_disconnect` is "cancel"."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        for held in self._held.values():
            held.close()
        if self._turns.cancels_on_disconnect:
            for ticket in self._tickets:
                await ticket.abandon()

    async def end(self, error: HoldfastError) -> None:
        """Send an error and close the connection."""
        await self._send_error(error, None)
        await self._websocket.close(POLICY)

    async def _enqueue(self, fields: Fields, frame: bytes, stream_id: str | None) -> None:
        kind = pop_field(fields, "type", str)
        if kind == "response.steer":
            await self._steer(fields, frame)
            self._release(frame)
        elif kind != "response.create":
            raise UnknownEvent(
                f"the type of a frame must be response.create, not {kind!r}", param="type"
            )
        else:
            await self._queue(stream_id).put((fields, frame))

    def _queue(self, stream_id: str | None) -> "asyncio.Queue[tuple[Fields, bytes]]":
        """Return the queue of a stream: serial within a stream, streams in parallel."""
        queue = self._queues.get(stream_id)
        if queue is None:
            if len(self._queues) >= MAX_STREAMS:
                raise InvalidInput(
                    f"a connection has at most {MAX_STREAMS} streams", param="stream_id"
                )
            queue = self._queues[stream_id] = asyncio.Queue(MAX_QUEUED)
            worker = self._answer_queued(stream_id, queue)
            self._tasks.append(asyncio.create_task(worker, name="holdfast-websocket-stream"))
        return queue

    async def _answer_queued(
        self, stream_id: str | None, queue: "asyncio.Queue[tuple[Fields, bytes]]"
    ) -> None:
        while True:
            fields, frame = await queue.get()
            await self._answer_frame(fields, frame, stream_id)
            del fields, frame  # an idle connection holds no frame

    async def _answer_frame(self, fields: Fields, frame: bytes, stream_id: str | None) -> None:
        """Answer a frame; every error becomes an event."""
        parent: str | None = None
        self.turns += 1
        outcome = "abandoned"
        begin_context(self._request.id, self._request.tenant)
        try:
            parent = pop_field(fields, "previous_response_id", str)
            outcome = await self._answer(fields, frame, stream_id)
        except HoldfastError as error:
            self._cache.discard(parent)
            status = await self._send_error(error, stream_id)
            outcome = "failed" if is_warned(status) else "rejected"
            release_frames(error)
        except Exception:  # noqa: BLE001 - top of the task: logged and answered
            outcome = "failed"
            log.exception("request.websocket_failed", request_id=self._request.id)
            await self._send_error(HoldfastError("internal server error"), stream_id)
        finally:
            log_websocket_answer(self._request, outcome, bytes_in=len(frame))
            self._release(frame)

    async def _answer(self, fields: Fields, frame: bytes, stream_id: str | None) -> str:
        """Answer a request, and return the status of its response."""
        request = self._request.with_body(frame)
        await self._authenticator.authenticate(request)
        generates = pop_field(fields, "generate", bool, True)
        fields, items = await self._decoder.frame(frame)
        for name in ("type", "stream_id", "generate", "stream_options"):
            fields.pop(name, None)
        parsed = parse_response_request(fields, items)
        turn_request = replace(parsed.turn_request, is_stream=True)
        if turn_request.is_background:
            raise InvalidInput("background is not supported over WebSocket", param="background")
        parsed, target, history = await self._locate(replace(parsed, turn_request=turn_request))
        parsed = await self._responses.resolve_references(request, parsed, target)
        if not generates:
            await self._register(parsed, history, stream_id)
            return "completed"
        if turn_request.is_stored or target.session_id is not None or target.key is not None:
            ticket = await self._turns.submit(
                request, parsed.turn_request, self._headers, target, parsed.items
            )
            response = await self._follow(RunningResponse(ticket, parsed.turn_request, stream_id))
        else:
            response = await self._answer_stateless(parsed, stream_id)
        self._remember(turn_request, (*history, *parsed.items), response)
        return str(response.get("status", "failed"))

    async def _locate(
        self, parsed: ResponseRequest
    ) -> tuple[ResponseRequest, SessionTarget, tuple[NewItem, ...]]:
        """Return the request, its target, and the stored history to cache with its response.

        The items of a cached parent become part of the request. So does the history of a stored
        one, if nothing of the request itself is to be stored.
        """
        parent = self._cache.get(parsed.turn_request.previous_response_id)
        if parent is not None:
            is_bound = self._headers.is_bound
            items = continue_items(parent.items, parsed.items, is_projected=is_bound)
            return replace(parsed, items=items), target_from_headers(self._headers), ()
        target = await self._responses.target(self._request, self._headers, parsed)
        if parsed.turn_request.is_stored or target.parent is None:
            return parsed, target, ()
        if not self._headers.is_bound:
            parsed = await self._responses.resolve_references(self._request, parsed, target)
            items = await self._turns.with_history(self._request, target, parsed.items)
            return replace(parsed, items=items), SessionTarget(), ()
        bodies = await self._turns.history(self._request, target)
        # The session has calls without synthetic outputs, and must not get them from here.
        history = [item for item in map(read_item, bodies) if not is_synthetic(item)]
        return parsed, target, tuple(history)

    async def _follow(self, running: RunningResponse) -> dict[str, Any]:
        """Send a response's events, then those of the input that steered it."""
        ticket, stream_id = running.ticket, running.stream_id
        self._tickets.add(ticket)
        self._running[ticket.response_id] = running
        response = await self._forward(ticket, stream_id)
        self._tickets.discard(ticket)
        del self._running[ticket.response_id]
        self._ended.append(ticket.response_id)
        required = required_input(response)
        steers = [*self._pending.pop(stream_id, ()), *running.steers]
        for steer in steers:
            successor = await steer.ticket
            if successor is None:
                continue
            if required:
                await self._defer(steer, successor, required, stream_id)
            elif not steer.is_pending or not await self._has_joined(successor):
                await self._follow(RunningResponse(successor, running.request, stream_id))
        return response

    async def _defer(
        self,
        steer: Steer,
        ticket: TurnTicket,
        required: list[dict[str, Any]],
        stream_id: str | None,
    ) -> None:
        """Tell the client once that the input waits and joins the request with the outputs."""
        self._pending.setdefault(stream_id, []).append(steer)
        if not steer.is_pending:
            steer.is_pending = True
            await self._websocket.send(pending_event(steer, ticket, required, stream_id))

    async def _has_joined(self, ticket: TurnTicket) -> bool:
        """Whether the input of a turn was answered together with another turn's input."""
        self._tickets.discard(ticket)
        view = await self._turns.gateway.read.turn(ticket.turn.tenant, ticket.turn.id)
        return view is not None and view.turn.merged_into is not None

    async def _steer(self, fields: Fields, frame: bytes) -> None:
        """Accept input for a response that this connection is receiving, or send it back."""
        request = self._request.with_body(frame)
        await self._authenticator.authenticate(request)
        try:
            _, items = await self._decoder.frame(frame)
            previous = check_steering(fields, items)
        except InvalidInput as exc:
            await self._websocket.send(failed_event("invalid_input", exc.message, fields, None))
            return
        running = self._running.get(previous)
        if running is None:
            is_known = previous in self._ended
            code: SteerError = "response_already_completed" if is_known else "response_not_found"
            words = "has ended" if is_known else "is not running on this connection"
            event = failed_event(code, f"the response {previous!r} {words}", fields, None)
            await self._websocket.send(event)
        elif len(running.steers) >= MAX_PENDING:
            text = f"{MAX_PENDING} inputs wait already"
            event = failed_event("too_many_pending_steers", text, fields, running.stream_id)
            await self._websocket.send(event)
        else:
            await self._accept_steer(request, running, fields, items)

    async def _accept_steer(
        self, request: Request, running: RunningResponse, fields: Fields, items: list[NewItem]
    ) -> None:
        """Submit the input as a turn that joins the running one, and tell the client."""
        session_id = running.ticket.session.id
        headers = replace(
            self._headers, key=None, session_id=session_id, on_busy="steer", history="new"
        )
        turn_request = replace(
            running.request, previous_response_id=None, waits_for_parent=False, history_hash=b""
        )
        # Listed before it is accepted: the running response may end meanwhile.
        steer = Steer(running.ticket.response_id)
        running.steers.append(steer)
        ticket: TurnTicket | None = None
        try:
            target = SessionTarget(session_id=session_id)
            ticket = await self._turns.submit(request, turn_request, headers, target, items)
            self._tickets.add(ticket)
            self.turns += 1
            event = accepted_event(steer, ticket, running.stream_id)
        except HoldfastError as exc:
            is_full = isinstance(exc, LaneFull)
            code: SteerError = "too_many_pending_steers" if is_full else "successor_creation_failed"
            event = failed_event(code, exc.message, fields, running.stream_id)
        try:
            await self._websocket.send(event)
        finally:
            # Its own events come after this one.
            steer.ticket.set_result(ticket)

    async def _forward(self, ticket: TurnTicket, stream_id: str | None) -> dict[str, Any]:
        """Send a response's events, and return the response of the terminal event."""
        reader = ticket.reader()
        response: dict[str, Any] = {}
        while (events := await reader.take(self._turns.streams.keep_alive_seconds)) is not None:
            for event in events:
                await self._send(event, stream_id)
                if event.type in _ENDS:
                    response = msgspec.json.decode(event.body)["response"]
        self._turns.gateway.delivered.add((ticket.turn.id, ticket.step))
        return response

    async def _answer_stateless(
        self, parsed: ResponseRequest, stream_id: str | None
    ) -> dict[str, Any]:
        """Answer a request without storing it, and return its response."""
        response: dict[str, Any] = {}
        stream = await self._relay.stream(parsed.turn_request, parsed.items)
        try:
            while (events := await stream.take(self._turns.streams.keep_alive_seconds)) is not None:
                for event in events:
                    await self._send(event, stream_id)
                    if event.type in _ENDS:
                        response = msgspec.json.decode(event.body)["response"]
        finally:
            await stream.close()
        return response

    def _remember(
        self, request: TurnRequest, items: tuple[NewItem, ...], response: dict[str, Any]
    ) -> None:
        if response.get("status") not in ("completed", "incomplete"):
            self._cache.discard(request.previous_response_id)
        elif not request.is_stored:
            output = (read_item(_encode(item)) for item in response["output"])
            self._cache.add(response["id"], (*items, *output))

    async def _register(
        self, parsed: ResponseRequest, history: tuple[NewItem, ...], stream_id: str | None
    ) -> None:
        """Cache a request without calling the model: later requests can continue its id."""
        name = response_id(self._turns.gateway.ids.new(TURN_PREFIX.rstrip("_")), 0)
        self._cache.add(name, (*history, *parsed.items))
        now = time.time()
        answer = RecordedAnswer(usage=msgspec.Raw(usage_value(Usage())), completed_at=now)
        facts = ResponseFacts(
            id=name, request=parsed.turn_request, created_at=now, status="completed", answer=answer
        )
        await self._send(lifecycle_event(CREATED, 0, facts, "in_progress"), stream_id)
        await self._send(lifecycle_event(IN_PROGRESS, 1, facts, "in_progress"), stream_id)
        await self._send(terminal_event(2, facts), stream_id)

    async def _send(self, event: StreamEvent, stream_id: str | None) -> None:
        body = event.body
        if stream_id is not None:
            body = body[:-1] + b',"stream_id":' + _encode(stream_id) + b"}"
        await self._websocket.send(body)

    async def _send_error(self, error: HoldfastError, stream_id: str | None) -> int:
        """Send an error, and return its status."""
        reply = reply_for_error(error)
        value = error_event(reply)
        if stream_id is not None:
            value["stream_id"] = stream_id
        await self._websocket.send(_encode(value))
        return reply.status
