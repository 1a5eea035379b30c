"""The Responses API over a WebSocket: frames are calls, answered one after the other.

A connection remembers its last response, so that chaining works with `store` false.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

from holdfast.simulator.apis import responses
from holdfast.simulator.delivery.errors import Problem, invalid
from holdfast.simulator.delivery.exchange import handle_call
from holdfast.simulator.delivery.http_outlet import Message, Receive, Send, Transport, flush, reset
from holdfast.simulator.faults.effects import Ending
from holdfast.simulator.server.keys import key_of, key_problem
from holdfast.simulator.server.routes import Found, Route, as_v1
from holdfast.simulator.state.call import ApiAnswer, Call, StreamedEvent
from holdfast.simulator.state.json import Json, NotJson, decode_object, encode
from holdfast.simulator.state.memory import StoredResponse
from holdfast.simulator.state.world import World

MakeCall = Callable[..., Call]


class SocketOutlet:
    """One answer over a WebSocket: each event is a frame, an error is one frame too."""

    def __init__(self, socket: "_Socket", stream_id: object) -> None:
        self._socket = socket
        self._stream_id = stream_id
        self.has_failed = False

    async def send_body(
        self, status: int, headers: dict[str, str], body: bytes, *, keep: int | None = None
    ) -> None:
        """Send a whole JSON answer, which on a WebSocket is always an error."""
        self.has_failed = True
        error: Json = decode_object(body).get("error", {})
        if headers:
            error = error | {"headers": headers}
        frame = {"type": "error", "status": status, "error": error}
        if self._stream_id is not None:
            frame["stream_id"] = self._stream_id
        text = encode(frame)
        await self.send_piece(text if keep is None else text[:keep])

    async def open_stream(self, headers: dict[str, str]) -> None:
        """Do nothing: frames need no opening."""

    def encode(self, event: StreamedEvent) -> bytes:
        """Return an event as a frame's text."""
        if self._stream_id is None:
            return encode(event.data)
        return encode(event.data | {"stream_id": self._stream_id})

    async def send_events(self, events: list[StreamedEvent]) -> None:
        """Send a frame for each event."""
        for event in events:
            await self.send_piece(self.encode(event))

    async def send_piece(self, piece: bytes) -> None:
        """Send one frame."""
        if not self._socket.gone.is_set():
            text = piece.decode("utf-8", "ignore")
            await self._socket.send({"type": "websocket.send", "text": text})

    async def end_stream(self, *, done: bool) -> None:
        """Do nothing: the terminal event is the end."""

    async def break_off(self, ending: Ending) -> None:
        """Close the socket: with a close frame, a bare FIN or a RST."""
        if ending == "clean":
            await self._socket.send({"type": "websocket.close", "code": 1000})
        elif ending == "eof":
            self._socket.transport.close()
        else:
            await flush(self._socket.transport)
            reset(self._socket.transport)
        await self.wait_gone()

    async def wait_gone(self) -> None:
        """Return when the client has disconnected."""
        await self._socket.gone.wait()


class _Socket:
    """An open WebSocket: frames are read while answers are sent."""

    def __init__(self, receive: Receive, send: Send, transport: Transport) -> None:
        self._receive = receive
        self.send = send
        self.transport = transport
        self.gone = asyncio.Event()
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()

    async def read(self) -> None:
        """Queue frames until the client disconnects; None ends them."""
        while True:
            message: Message = await self._receive()
            if message["type"] == "websocket.disconnect":
                self.gone.set()
                self.frames.put_nowait(None)
                return
            text = message.get("text")
            raw = text.encode() if text is not None else message.get("bytes") or b""
            self.frames.put_nowait(raw)


class ResponsesSockets:
    """Serves WebSocket connections to /v1/responses."""

    def __init__(self, world: World, make_call: MakeCall) -> None:
        self._world = world
        self._make_call = make_call

    async def serve(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection to its end."""
        await receive()
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
        key = key_of(headers, query)
        is_ours = as_v1(scope["path"]) == "/v1/responses"
        has_api = "responses" in self._world.profile.apis
        if not is_ours or not has_api or key_problem(self._world, "responses", key):
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept"})
        socket = _Socket(receive, send, scope["simulator.transport"])
        reader = asyncio.ensure_future(socket.read())
        try:
            await self._answer_frames(socket, scope["path"], query, headers, key)
        finally:
            reader.cancel()

    async def _answer_frames(
        self, socket: _Socket, path: str, query: dict[str, str], headers: dict[str, str], key: str
    ) -> None:
        memory: dict[str, StoredResponse] = {}
        while (raw := await socket.frames.get()) is not None:
            body, handler = _read_frame(raw)
            found = Found(Route("responses", "create", handler))
            call = self._make_call(found, "WS", path, query, headers, raw, body, key)
            call.socket_memory = memory
            outlet = SocketOutlet(socket, body.get("stream_id"))
            await handle_call(self._world, call, handler, outlet)
            if outlet.has_failed:
                # A failed continuation also deletes its parent.
                memory.pop(str(body.get("previous_response_id")), None)
            if socket.gone.is_set():
                return


def _read_frame(raw: bytes) -> tuple[Json, Callable[[World, Call], ApiAnswer]]:
    """Return the call of a frame, always streamed, and its handler."""
    try:
        frame = decode_object(raw)
    except NotJson as exc:
        return {}, _refuse(invalid(f"The frame is not a JSON object: {exc}", None))
    kind = frame.pop("type", None)
    body = frame | {"stream": True}
    if kind == "response.steer":
        return body, _fail_to_steer
    if kind != "response.create":
        problem = invalid(
            f"Invalid value: '{kind}'. Supported values are: 'response.create' and "
            "'response.steer'.",
            "type",
            "invalid_value",
        )
        return body, _refuse(problem)
    if body.get("background") is True:
        return body, _refuse(invalid("background is not supported over WebSocket", "background"))
    return body, responses.create


def _refuse(problem: Problem) -> Callable[[World, Call], ApiAnswer]:
    def refuse(world: World, call: Call) -> ApiAnswer:  # noqa: ARG001 - a handler's signature
        raise problem

    return refuse


def _fail_to_steer(world: World, call: Call) -> ApiAnswer:  # noqa: ARG001 - a handler's signature
    error = {
        "code": "steering_not_supported",
        "message": "This response does not support steering.",
    }
    event = {
        "type": "response.steer.failed",
        "sequence_number": 0,
        "previous_response_id": call.body.get("previous_response_id"),
        "error": error,
    }
    return ApiAnswer(events=[StreamedEvent("response.steer.failed", event)])
