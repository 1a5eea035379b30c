"""Requests of which nothing is kept: answered statelessly, or passed on as they came."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.core.access import NotAllowed
from holdfast.core.errors import HoldfastError
from holdfast.core.items import NewItem
from holdfast.core.request import TurnRequest
from holdfast.core.response import write_response
from holdfast.engine.passing import PassedStream, Passing
from holdfast.ingress.http.asgi import JSON, AnyReply, Reply, Request, StreamReply, json_reply
from holdfast.ingress.http.bodies import UnsupportedType
from holdfast.ingress.http.completions import ChatChunks, completion
from holdfast.ingress.http.problems import problem, problem_value
from holdfast.ingress.http.sse import DONE, KEEP_ALIVE, EventReply
from holdfast.ports.provider import Relayed, RelayRequest, Upstreams

T = TypeVar("T")
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
        self, upstreams: Upstreams, passing: Passing, *, keep_alive_seconds: float
    ) -> None:
        self._upstreams = upstreams
        self._passing = passing
        self._keep_alive_seconds = keep_alive_seconds

    async def response(self, asked: TurnRequest, items: list[NewItem]) -> AnyReply:
        """Answer a Responses request of which nothing is kept."""
        if not asked.is_stream:
            return Reply(write_response(await self._passing.answer(asked, items)))
        return EventReply(await self.stream(asked, items), self._keep_alive_seconds)

    async def stream(self, asked: TurnRequest, items: list[NewItem]) -> PassedStream:
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
        if self._upstreams.speaks(asked.model) == "chat":
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

    async def _reply(self, relayed: Relayed) -> AnyReply:
        headers = [(k.encode(), v.encode("latin-1")) for k, v in relayed.headers.items()]
        if "text/event-stream" in relayed.headers.get("content-type", ""):
            reply = StreamReply(self._relayed_stream(relayed), headers)
            reply.status = relayed.status
            return reply
        try:
            body = b"".join([chunk async for chunk in relayed.chunks()])
        finally:
            await relayed.close()
        return Reply(body, status=relayed.status, headers=headers or [JSON])

    async def _relayed_stream(self, relayed: Relayed) -> AsyncIterator[bytes]:
        try:
            async for chunk in quiet(relayed.chunks(), self._keep_alive_seconds):
                yield chunk if chunk is not None else KEEP_ALIVE
        except HoldfastError as error:
            # A stream that broke off must not look like one that ended.
            value = problem_value(502, error.message, code="upstream_truncated")
            yield b"data: %s\n\n" % msgspec.json.encode(value)
            yield DONE
        finally:
            await relayed.close()


async def quiet(source: AsyncIterator[T], seconds: float) -> AsyncGenerator[T | None, None]:
    """Yield what comes, and `None` whenever it was quiet for so long."""
    coming: asyncio.Future[T] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(_next(source))
            await asyncio.wait({coming}, timeout=seconds)
            if not coming.done():
                yield None
                continue
            try:
                event = coming.result()
            except StopAsyncIteration:
                return
            finally:
                coming = None
            yield event
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


def _content_type(request: Request) -> str:
    return (request.header(b"content-type") or "").partition(";")[0].strip().lower()


def _model_of(body: bytes) -> str | None:
    try:
        value: Any = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    model = value.get("model") if isinstance(value, dict) else None
    return model if isinstance(model, str) else None
