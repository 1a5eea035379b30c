"""Requests of which nothing is kept: answered statelessly, or passed on as they came."""

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.core.decisions.api_keys import NotAllowed
from holdfast.core.errors import HoldfastError
from holdfast.core.model.items import NewItem
from holdfast.core.model.request import TurnRequest
from holdfast.core.openai.response import write_response
from holdfast.engine.turns.stateless import StatelessExecutor, StatelessStream
from holdfast.http.formats.chat import ChatChunks, completion
from holdfast.http.server.errors import UnsupportedType, problem, problem_value
from holdfast.http.server.sse import DONE, KEEP_ALIVE, EventReply
from holdfast.http.server.types import (
    JSON,
    AnyReply,
    Header,
    LongReply,
    Reply,
    Request,
    Send,
    Wire,
    json_reply,
)
from holdfast.ports.provider import RelayRequest, RelayResponse, Upstreams

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
FORGETTING = frozenset({"embeddings", "moderations", "images", "audio", "completions", "rerank"})
"""OpenAI's other endpoints that keep nothing, by the first word of their path."""
KEEPING = frozenset(
    {
        "files", "uploads", "batches", "vector_stores", "fine_tuning", "videos", "containers",
        "evals",
    }
)  # fmt: skip
"""Those that keep something in the upstream's account, which all tenants share."""


class Relaying:
    """Requests that take no turn."""

    def __init__(
        self, upstreams: Upstreams, passing: StatelessExecutor, *, keep_alive_seconds: float
    ) -> None:
        self._upstreams = upstreams
        self._passing = passing
        self._keep_alive_seconds = keep_alive_seconds

    def dropped_tools(self, request: TurnRequest) -> Sequence[str]:
        """Return the types of hosted tools that the model's upstream does not have."""
        return self._upstreams.dropped_tools(request.model, request.fields)

    async def response(self, asked: TurnRequest, items: list[NewItem]) -> AnyReply:
        """Answer a Responses request of which nothing is kept."""
        if not asked.is_stream:
            return Reply(write_response(await self._passing.answer(asked, items)))
        return EventReply(await self.stream(asked, items), self._keep_alive_seconds)

    async def stream(self, asked: TurnRequest, items: list[NewItem]) -> StatelessStream:
        """Return the events, to be closed, once there is one or a while has gone without any.

        So a failure that comes at once has a status of its own, and a slow model none to wait for.
        """
        stream = self._passing.stream(asked, items)
        try:
            await stream.begin(self._keep_alive_seconds)
        except BaseException:
            await stream.close()
            raise
        return stream

    async def chat(self, request: Request, asked: TurnRequest, items: list[NewItem]) -> AnyReply:
        """Answer a Chat request of which nothing is kept: as it is, where Chat is spoken."""
        if self._upstreams.upstream_api(asked.model) == "chat":
            return await self._pass_on(request, "/chat/completions", asked.model, may_repeat=True)
        if not asked.is_stream:
            return json_reply(completion(await self._passing.answer(asked, items)))
        stream = await self.stream(asked, items)
        return EventReply(stream, self._keep_alive_seconds, tell=ChatChunks(asked))

    async def endpoint(self, request: Request) -> AnyReply | None:
        """Pass one of OpenAI's other endpoints on; None where it is none of them."""
        path = request.path.removeprefix("/v1")
        group = path.strip("/").partition("/")[0]
        is_known = group in FORGETTING or group in KEEPING
        if path == request.path or not is_known or ".." in path.split("/"):
            return None
        if group in KEEPING and not request.is_admin:
            raise NotAllowed("what the upstream keeps belongs to all tenants: use an admin key")
        kind = _content_type(request)
        is_json = kind in ("", "application/json") or kind.endswith("+json")
        if not is_json and request.header(b"origin") is not None:
            # A web page may post forms to any address; this one is not for it.
            raise UnsupportedType("a web page may send JSON alone")
        model = _model_of(await request.body()) if is_json else None
        query = request.query_string.decode("latin-1")
        path = quote(path, safe="/:@!$&'()*+,;=~")
        target = f"{path}?{query}" if query else path
        return await self._pass_on(request, target, model, may_repeat=group in FORGETTING)

    async def _pass_on(
        self, request: Request, path: str, model: str | None, *, may_repeat: bool
    ) -> AnyReply:
        body = await request.body()
        relayed = await self._upstreams.relay(
            RelayRequest(
                method=request.method,
                path=path,
                headers={"content-type": request.header(b"content-type") or "application/json"}
                | ({"accept": accept} if (accept := request.header(b"accept")) else {}),
                body=body or None,
                model=model,
                may_repeat=may_repeat,
            )
        )
        if relayed is None:
            return problem(404, f"no upstream serves {request.path}", code="unknown_url")
        return await self._reply(relayed)

    async def _reply(self, relayed: RelayResponse) -> AnyReply:
        headers = [(k.encode(), v.encode("latin-1")) for k, v in relayed.headers.items()]
        if "text/event-stream" in relayed.headers.get("content-type", ""):
            return RelayReply(relayed, self._keep_alive_seconds, headers)
        try:
            body = await relayed.read()
        finally:
            await relayed.close()
        return Reply(body, status=relayed.status, headers=headers or [JSON])


class RelayReply(LongReply):
    """An upstream's stream, passed on as it comes, with comments while it is quiet."""

    def __init__(
        self, relayed: RelayResponse, keep_alive_seconds: float, headers: list[Header]
    ) -> None:
        super().__init__(headers)
        self.status = relayed.status
        self._relayed = relayed
        self._seconds = keep_alive_seconds

    async def pour(self, send: Send, wire: Wire | None) -> bytes:
        """Send what comes, by the shortest way while the client keeps up."""
        passage = _Passage(send, wire, self._seconds)
        pouring = asyncio.ensure_future(self._relayed.copy_to(passage))
        try:
            while not pouring.done():
                await asyncio.wait({pouring}, timeout=passage.seconds_left())
                if not pouring.done():
                    await passage.keep_alive()
            pouring.result()
        except HoldfastError as error:
            # A stream that broke off must not look like one that ended.
            value = problem_value(502, error.message, code="upstream_truncated")
            return b"data: %s\n\n" % msgspec.json.encode(value) + DONE
        finally:
            pouring.cancel()
            await asyncio.gather(pouring, return_exceptions=True)
        return b""

    async def close(self) -> None:
        """Let go of the upstream."""
        await self._relayed.close()


class _Passage:
    """Where pieces of a stream pass through."""

    def __init__(self, send: Send, wire: Wire | None, seconds: float) -> None:
        self._send = send
        self._wire = wire
        self._seconds = seconds
        self._unsent: list[bytes] = []
        self._last = b""
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()

    def write(self, piece: bytes) -> bool:
        """Write a piece out at once, or hold it until there is room."""
        self._last = piece
        self._heard_at = self._loop.time()
        if self._wire is not None and not self._unsent and self._wire.is_writable:
            self._wire.write(piece)
            return True
        self._unsent.append(piece)
        return False

    async def drain(self) -> None:
        """Send what is held."""
        unsent, self._unsent = self._unsent, []
        for piece in unsent:
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})

    def seconds_left(self) -> float:
        """Return for how long it may still be quiet."""
        return max(self._heard_at + self._seconds - self._loop.time(), 0.0)

    async def keep_alive(self) -> None:
        """Send a comment if it has been quiet for long, unless it is the middle of an event."""
        if self.seconds_left() > 0:
            return
        self._heard_at = self._loop.time()
        if not self._last or self._last.endswith(_EVENT_ENDS):
            await self._send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})


def _content_type(request: Request) -> str:
    return (request.header(b"content-type") or "").partition(";")[0].strip().lower()


def _model_of(body: bytes) -> str | None:
    try:
        value: Any = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None
