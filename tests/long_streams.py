"""Long streamed answers: an upstream that streams any size in any pieces, and its reader."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import aiohttp

from holdfast.providers.settings import UpstreamSettings

Json = dict[str, Any]
Api = Literal["chat", "responses"]
What = Literal["text", "arguments"]
PATHS: dict[str, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
LINE_BYTES = 64 * 1024
TOOL: Json = {"name": "write", "parameters": {"type": "object"}}


def letters(size: int) -> str:
    """Return a text of which every part shows where it belongs.

    Its first pieces differ: a server that repeats its first chunk is taken to send each one twice.
    """
    return (ALPHABET + "".join(f"{number:08d}" for number in range(size // 8 + 1)))[:size]


class LongAnswer:
    """What the upstream answers: a text or a call's arguments, in pieces of one size."""

    def __init__(self, size: int, piece: int, what: What = "text") -> None:
        self.piece = piece
        self.what = what
        self.text = letters(size) if what == "text" else json.dumps({"file": letters(size)})

    def pieces(self) -> Iterator[str]:
        """Return the deltas."""
        for start in range(0, len(self.text), self.piece):
            yield self.text[start : start + self.piece]

    def chat(self) -> Iterator[Json]:
        """Return the chunks of a Chat server."""
        if self.what == "arguments":
            call: Json = {"index": 0, "id": "call_1", "type": "function"}
            yield _chunk({"tool_calls": [{**call, "function": {"name": "write", "arguments": ""}}]})
        for piece in self.pieces():
            if self.what == "text":
                yield _chunk({"content": piece})
            else:
                yield _chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield _chunk({}, "stop" if self.what == "text" else "tool_calls")

    def responses(self) -> Iterator[Json]:
        """Return the events of a Responses server."""
        name = "response.output_text" if self.what == "text" else "response.function_call_arguments"
        at: Json = {"item_id": "item_1", "output_index": 0}
        if self.what == "text":
            at["content_index"] = 0
        whole = self._item(self.text)
        yield {"type": "response.output_item.added", "output_index": 0, "item": self._item("")}
        if self.what == "text":
            empty = {"type": "output_text", "text": "", "annotations": []}
            yield {"type": "response.content_part.added", **at, "part": empty}
        for number, piece in enumerate(self.pieces()):
            yield {"type": f"{name}.delta", "sequence_number": number, **at, "delta": piece}
        field = "text" if self.what == "text" else "arguments"
        yield {"type": f"{name}.done", **at, field: self.text}
        yield {"type": "response.output_item.done", "output_index": 0, "item": whole}
        response = {"id": "resp_1", "status": "completed", "output": [whole], "usage": None}
        yield {"type": "response.completed", "response": response}

    def _item(self, text: str) -> Json:
        item: Json = {"id": "item_1", "status": "completed"}
        if self.what == "arguments":
            call = {"type": "function_call", "call_id": "call_1", "name": "write"}
            return {**item, **call, "arguments": text}
        part = {"type": "output_text", "text": text, "annotations": []}
        return {**item, "type": "message", "role": "assistant", "content": [part] if text else []}


def _chunk(delta: Json, finish: str | None = None) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]}


class LongUpstream:
    """A server that streams `answer` to every request, as fast as its client reads."""

    def __init__(self) -> None:
        self.answer = LongAnswer(1, 1)
        self.url = ""
        self.requests = 0
        self.is_held = False
        """Whether an answer stops after its first half, until its client leaves."""
        self.began = asyncio.Semaphore(0)
        """Released when the first half of an answer was sent, or a request arrived."""
        self.left = asyncio.Semaphore(0)
        """Released when a client closed its connection before it had the whole answer."""

    def upstream(self, api: Api) -> UpstreamSettings:
        """Return the server as an upstream."""
        return UpstreamSettings(url=f"{self.url}/v1", key="sk-long", api=api)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = json.loads(await reader.readexactly(int(length)))
            self.requests += 1
            path = head.split(b" ")[1].decode()
            events = self.answer.chat() if "chat" in path else self.answer.responses()
            if self.is_held:
                await self._hold(reader, writer, events, is_stream=bool(body.get("stream")))
                return
            self.began.release()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
            writer.write(b"Connection: close\r\n\r\n")
            for event in events:
                writer.write(b"data: %b\n\n" % json.dumps(event).encode())
                await writer.drain()
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            """The gateway left."""
        finally:
            writer.close()

    async def _hold(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        events: Iterator[Json],
        *,
        is_stream: bool,
    ) -> None:
        """Begin the answer, and wait until the client closes its connection."""
        if is_stream:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
            for event in (next(events), next(events)):
                writer.write(b"data: %b\n\n" % json.dumps(event).encode())
            await writer.drain()
        self.began.release()
        try:
            rest = await reader.read(1)
        except ConnectionError:
            rest = b""
        if not rest:
            self.left.release()


@asynccontextmanager
async def long_upstream() -> AsyncIterator[LongUpstream]:
    """Run the server for the length of a block."""
    upstream = LongUpstream()
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0, limit=2**24)
    upstream.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield upstream
    finally:
        server.close()
        await server.wait_closed()


class Received:
    """What a client got of a stream."""

    def __init__(self, body: bytes, *, is_cut: bool) -> None:
        self.is_cut = is_cut
        """Whether the connection was closed before the end of the body."""
        lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        self.is_done = bool(lines) and lines[-1] == b"[DONE]"
        self.events: list[Json] = [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def text(self) -> str:
        """The text or the arguments, from the deltas."""
        return "".join(map(_delta_of, self.events))

    @property
    def is_finished(self) -> bool:
        """Whether the stream said that the answer is complete."""
        last = next((event for event in reversed(self.events) if event.get("choices") != []), {})
        if "choices" in last:
            return self.is_done and last["choices"][0]["finish_reason"] is not None
        return self.is_done and last.get("type") == "response.completed"

    @property
    def error(self) -> str | None:
        """The code of the error that the stream ended with."""
        last = self.events[-1] if self.events else {}
        error = last.get("error") or last.get("response", {}).get("error")
        if last.get("type") == "error" and error is None:
            error = last
        return error["code"] if error else None


def _delta_of(event: Json) -> str:
    if "choices" not in event:
        delta = event.get("delta", "")
        return delta if isinstance(delta, str) else ""
    text = ""
    for choice in event["choices"]:
        delta = choice["delta"]
        text += delta.get("content") or ""
        for call in delta.get("tool_calls") or ():
            text += call["function"].get("arguments") or ""
    return text


def request_body(api: Api, what: What = "text", **more: Any) -> Json:
    """Return a streamed request."""
    body: Json = {"model": "m", "stream": True, **more}
    if what == "arguments":
        tool: Json = {"type": "function", "function": TOOL}
        body["tools"] = [tool if api == "chat" else {"type": "function", **TOOL}]
    if api == "chat":
        return {**body, "messages": [{"role": "user", "content": "hi"}]}
    return {**body, "input": "hi"}


async def read_stream(
    url: str,
    api: Api,
    body: Json,
    key: str | None = "k",
    *,
    pause: float = 0.0,
    headers: dict[str, str] | None = None,
) -> Received:
    """Send a request and read its stream, with a pause after each piece."""
    named = {"X-Session-Key": key} if key is not None else {}
    pieces: list[bytes] = []
    async with (
        aiohttp.ClientSession(read_bufsize=LINE_BYTES) as session,
        session.post(f"{url}{PATHS[api]}", json=body, headers={**named, **(headers or {})}) as got,
    ):
        assert got.status == 200, await got.text()
        try:
            async for piece in got.content.iter_any():
                pieces.append(piece)
                await asyncio.sleep(pause)
        except (aiohttp.ClientPayloadError, ConnectionError):
            return Received(b"".join(pieces), is_cut=True)
    return Received(b"".join(pieces), is_cut=False)
