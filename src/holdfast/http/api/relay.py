"""Requests without a session: answered statelessly, or relayed to the upstream unchanged."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.core.decisions.api_keys import NotAllowed
from holdfast.core.errors import HoldfastError, InvalidInput, ProviderFailure
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.response import write_response
from holdfast.core.tools.requested import hosted_servers, read_tools, show_functions
from holdfast.engine.turns.stateless import StatelessExecutor, StatelessStream
from holdfast.http.formats.chat import ChatChunks, completion
from holdfast.http.server.errors import (
    ClientLeft,
    UnsupportedMediaType,
    error_reply,
    error_value,
)
from holdfast.http.server.sse import DONE, KEEP_ALIVE, EventReply
from holdfast.http.server.types import (
    JSON,
    AnyReply,
    Header,
    Reply,
    Request,
    StreamingReply,
    json_reply,
)
from holdfast.ports.meter import Meter
from holdfast.ports.provider import RelayRequest, RelayResponse, Upstreams
from holdfast.ports.request_context import current_request

TOO_LONG = "upstream_answer_too_long"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
STATELESS_GROUPS = frozenset(
    {"embeddings", "moderations", "images", "audio", "completions", "rerank"}
)
"""Relayed endpoints that store nothing upstream, by the first segment of their path."""
STATEFUL_GROUPS = frozenset(
    {
        "files", "uploads", "batches", "vector_stores", "fine_tuning", "videos", "containers",
        "evals",
    }
)  # fmt: skip
"""Relayed endpoints that store data in the upstream account, which all tenants share."""


RELAYED_TYPES = frozenset({"multipart/form-data", "application/octet-stream"})
"""Types other than JSON that relayed endpoints accept: uploads of files and their parts."""


NO_SERVERS = (
    "the upstream of this model runs no MCP servers; "
    "configure the server at the gateway, and name it by its server_label alone"
)


ResultT = TypeVar("ResultT")


class RelayService:
    """Answer requests that create no turn.

    Nobody but the client can read such an answer: the upstream's work ends when the client leaves.
    """

    def __init__(
        self,
        upstreams: Upstreams,
        stateless: StatelessExecutor,
        meter: Meter,
        *,
        keep_alive_seconds: float,
    ) -> None:
        self._upstreams = upstreams
        self._stateless = stateless
        self._meter = meter
        self._keep_alive_seconds = keep_alive_seconds

    def dropped_tools(self, turn_request: TurnRequest) -> Sequence[str]:
        """Return the types of hosted tools that the model's upstream does not have."""
        requested = read_tools(turn_request)
        if requested is not None:
            turn_request = show_functions(turn_request, requested, ())
        dropped = self._upstreams.dropped_tools(turn_request.model, turn_request.fields)
        if "mcp" in dropped:
            raise InvalidInput(NO_SERVERS, param="tools")
        return dropped

    def check_servers(self, turn_request: TurnRequest) -> None:
        """Raise for MCP servers in a Chat request that neither gateway nor upstream runs."""
        raw = turn_request.chat_fields.get("tools")
        if raw is None or b'"mcp"' not in bytes(raw):
            return
        others = hosted_servers(turn_request)
        if others and self._upstreams.takes_chat(turn_request.model, turn_request.chat_fields):
            raise InvalidInput(NO_SERVERS, param="tools")

    async def response(
        self, request: Request, turn_request: TurnRequest, items: list[NewItem]
    ) -> AnyReply:
        """Answer a Responses request without storing anything."""
        _reject_gateway_tools(turn_request)
        if not turn_request.is_stream:
            facts = await _while_connected(request, self._stateless.answer(turn_request, items))
            return Reply(write_response(facts))
        stream = await _while_connected(request, self.stream(turn_request, items))
        return EventReply(stream, self._keep_alive_seconds)

    async def stream(self, turn_request: TurnRequest, items: list[NewItem]) -> StatelessStream:
        """Return the event stream after its first event or `keep_alive_seconds`.

        An early failure thus gets its own HTTP status, and a slow model does not delay the head.
        The caller closes the stream.
        """
        stream = self._stateless.stream(turn_request, items)
        try:
            await stream.begin(self._keep_alive_seconds)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def chat(
        self, request: Request, turn_request: TurnRequest, items: list[NewItem]
    ) -> AnyReply:
        """Answer a Chat request without storing anything; relay it if the upstream uses Chat."""
        _reject_gateway_tools(turn_request)
        detect = self._upstreams.provider(turn_request.model).detect
        if detect is not None:
            await detect()
        if self._upstreams.takes_chat(turn_request.model, turn_request.chat_fields):
            return await self._relay(
                request, "/chat/completions", turn_request.model, may_repeat=True
            )
        if not turn_request.is_stream:
            facts = await _while_connected(request, self._stateless.answer(turn_request, items))
            return json_reply(completion(facts))
        stream = await _while_connected(request, self.stream(turn_request, items))
        return EventReply(stream, self._keep_alive_seconds, encode=ChatChunks(turn_request))

    async def endpoint(self, request: Request) -> AnyReply | None:
        """Relay one of OpenAI's other endpoints; return None if the path is not one of them."""
        path = request.path.removeprefix("/v1")
        group = path.strip("/").partition("/")[0]
        is_known = group in STATELESS_GROUPS or group in STATEFUL_GROUPS
        if path == request.path or not is_known or ".." in path.split("/"):
            return None
        if group in STATEFUL_GROUPS and not request.is_admin:
            raise NotAllowed("all tenants share the upstream account: this path needs an admin key")
        kind = _content_type(request)
        is_json = kind == "application/json" or kind.endswith("+json")
        body = await request.body()
        if body and not is_json and kind not in RELAYED_TYPES:
            # Browsers send other types, and none, cross-origin without a preflight request.
            raise UnsupportedMediaType(
                f"send the body as application/json or multipart/form-data, not {kind[:128]!r}"
            )
        model = _model_of(body) if is_json else None
        query = request.query_string.decode("latin-1")
        path = quote(path, safe="/:@!$&'()*+,;=~")
        target = f"{path}?{query}" if query else path
        return await self._relay(request, target, model, may_repeat=group in STATELESS_GROUPS)

    async def _relay(
        self, request: Request, path: str, model: str | None, *, may_repeat: bool
    ) -> AnyReply:
        body = await request.body()
        forwarded = RelayRequest(
            method=request.method,
            path=path,
            headers={"content-type": request.header(b"content-type") or "application/json"}
            | ({"accept": accept} if (accept := request.header(b"accept")) else {}),
            body=body or None,
            model=model,
            may_repeat=may_repeat,
        )
        # A request that changes the upstream's account is not left half done.
        forwarding = self._forward(request, forwarded)
        return await (_while_connected(request, forwarding) if may_repeat else forwarding)

    async def _forward(self, request: Request, forwarded: RelayRequest) -> AnyReply:
        attempt = _Attempt(self._meter)
        try:
            relayed = await self._upstreams.relay(forwarded)
        except ProviderFailure as failure:
            attempt.end(failure.failure_class)
            raise
        except asyncio.CancelledError:
            attempt.end("left")
            raise
        if relayed is None:
            return error_reply(404, f"no upstream serves {request.path}", code="unknown_url")
        return await self._reply(relayed, attempt)

    async def _reply(self, relayed: RelayResponse, attempt: "_Attempt") -> AnyReply:
        headers = [(k.encode(), v.encode("latin-1")) for k, v in relayed.headers.items()]
        if "text/event-stream" in relayed.headers.get("content-type", ""):
            return RelayReply(relayed, self._keep_alive_seconds, headers, attempt.end)
        try:
            body = await relayed.read()
        finally:
            await relayed.close()
            attempt.end(relayed.outcome)
        return Reply(body, status=relayed.status, headers=headers or [JSON])


async def _while_connected(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Return the result of `work`; cancel it if the client leaves first.

    A client that shuts down its sending side counts as gone, as at other proxies: that is all that
    is seen of one that closes its connection before its answer has begun.
    """
    task = asyncio.ensure_future(work)
    left = asyncio.ensure_future(request.wait_disconnected(or_half_closed=True))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientLeft("the client closed its connection before the answer")
    finally:
        for waiting in (task, left):
            waiting.cancel()
        await asyncio.gather(task, left, return_exceptions=True)


class _Attempt:
    """One forwarded request, as it is counted."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._started_at = time.monotonic()

    def end(self, outcome: str) -> None:
        """Count the attempt."""
        context = current_request.get()
        name = context.upstream if context is not None else None
        if name is not None:
            self._meter.upstream_answered(name, outcome, time.monotonic() - self._started_at)


class RelayReply(StreamingReply):
    """Relay an upstream's event stream, with comments while it is idle."""

    def __init__(
        self,
        relayed: RelayResponse,
        keep_alive_seconds: float,
        headers: list[Header],
        end: Callable[[str], None],
    ) -> None:
        super().__init__(headers)
        self.status = relayed.status
        self._relayed = relayed
        self._seconds = keep_alive_seconds
        self._end = end

    async def write_body(self, request: Request) -> bytes:
        """Relay the upstream's bytes; while the client keeps up, write them at once."""
        sink = _RelaySink(request, self._seconds)
        relaying = asyncio.ensure_future(self._relayed.copy_to(sink))
        try:
            while not relaying.done():
                await asyncio.wait({relaying}, timeout=sink.seconds_left())
                if not relaying.done():
                    await sink.keep_alive()
            relaying.result()
        except HoldfastError as error:
            # A truncated stream must not look like a complete one.
            is_too_long = getattr(error, "provider_code", None) == TOO_LONG
            code = TOO_LONG if is_too_long else "upstream_truncated"
            value = error_value(502, error.message, code=code)
            return b"data: %s\n\n" % msgspec.json.encode(value) + DONE
        finally:
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
        return b""

    async def close(self) -> None:
        """Close the upstream connection."""
        await self._relayed.close()
        self._end(self._relayed.outcome)


class _RelaySink:
    """Write the upstream's bytes to the client, with backpressure."""

    def __init__(self, request: Request, seconds: float) -> None:
        self._request = request
        self._seconds = seconds
        self._unsent: list[bytes] = []
        self._last = b""
        self._loop = asyncio.get_running_loop()
        self._last_data_at = self._loop.time()

    def write(self, piece: bytes) -> bool:
        """Write a piece at once, or buffer it and return False if the client does not keep up."""
        self._last = piece
        self._last_data_at = self._loop.time()
        if not self._unsent and self._request.push(bytes, piece):
            return True
        self._unsent.append(piece)
        return False

    async def drain(self) -> None:
        """Send the buffered pieces, waiting for the client."""
        unsent, self._unsent = self._unsent, []
        for piece in unsent:
            await self._request.send(piece)

    def seconds_left(self) -> float:
        """Return the time until the next keep-alive comment."""
        return max(self._last_data_at + self._seconds - self._loop.time(), 0.0)

    async def keep_alive(self) -> None:
        """Send a comment if the stream is idle and not in the middle of an event."""
        if self.seconds_left() > 0:
            return
        self._last_data_at = self._loop.time()
        if not self._last or self._last.endswith(_EVENT_ENDS):
            await self._request.send(KEEP_ALIVE)


def _content_type(request: Request) -> str:
    return (request.header(b"content-type") or "").partition(";")[0].strip().lower()


def _model_of(body: bytes) -> str | None:
    try:
        value: Any = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None


def _reject_gateway_tools(turn_request: TurnRequest) -> None:
    """Raise for tools that the gateway runs: their calls have to be stored before they run."""
    has_tools = "tools" in turn_request.fields or "tools" in turn_request.chat_fields
    if has_tools and read_tools(turn_request) is not None:
        raise InvalidInput(
            "tools that the gateway runs need a stored turn: send X-Session-Key or store: true",
            param="tools",
        )
