"""An upstream that answers immediately, so that it is never the bottleneck of a measurement.

Whole answers are one write. Streams send one event at a time, with a short pause, as models do. Run
it as `python -m benchmarks.servers.stub PORT [PACE]`; it serves the Responses and the Chat API.
"""

import asyncio
import itertools
import sys
from collections.abc import Iterator
from typing import cast

CHUNKS = 64
"""Text deltas of one streamed answer."""
PACE_SECONDS = 0.002
"""Time between two deltas."""
TEXT = "Certainly. Here is a sentence of the usual length, and here is another one."
_USAGE = (
    '{"input_tokens":10,"input_tokens_details":{"cached_tokens":0},"output_tokens":16,'
    '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":26}'
)
_CHAT_USAGE = '{"prompt_tokens":10,"completion_tokens":16,"total_tokens":26}'
_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ids = itertools.count(1)


def _message(name: str, text: str, status: str = "completed") -> str:
    part = f'{{"type":"output_text","text":"{text}","annotations":[],"logprobs":[]}}'
    content = f"[{part}]" if text else "[]"
    return (
        f'{{"id":"msg_{name}","type":"message","status":"{status}","role":"assistant",'
        f'"content":{content}}}'
    )


def response(name: str, text: str = TEXT, status: str = "completed") -> str:
    """Return a response of the Responses API."""
    output = f"[{_message(name, text)}]" if status == "completed" else "[]"
    usage = _USAGE if status == "completed" else "null"
    return (
        f'{{"id":"resp_{name}","object":"response","created_at":1700000000,"status":"{status}",'
        f'"model":"stub","output":{output},"usage":{usage},"error":null}}'
    )


def completion(name: str, text: str = TEXT) -> str:
    """Return a chat completion."""
    return (
        f'{{"id":"chatcmpl-{name}","object":"chat.completion","created":1700000000,'
        f'"model":"stub","choices":[{{"index":0,"finish_reason":"stop","message":'
        f'{{"role":"assistant","content":"{text}"}}}}],"usage":{_CHAT_USAGE}}}'
    )


def whole(text: str) -> bytes:
    """Return an HTTP response with a JSON body."""
    body = text.encode()
    return (_HEAD % len(body)).encode() + body


def _chunk(event: str) -> bytes:
    raw = event.encode()
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def _event(kind: str, number: int, rest: str) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{number},{rest}}}\n\n'


def events(name: str, chunks: int = CHUNKS) -> list[bytes]:
    """Return a streamed response, one HTTP chunk per event."""
    at = f'"item_id":"msg_{name}","output_index":0,"content_index":0'
    empty = '{"type":"output_text","text":"","annotations":[]}'
    pairs = [
        ("response.created", f'"response":{response(name, status="in_progress")}'),
        ("response.in_progress", f'"response":{response(name, status="in_progress")}'),
        (
            "response.output_item.added",
            f'"output_index":0,"item":{_message(name, "", "in_progress")}',
        ),
        ("response.content_part.added", f'{at},"part":{empty}'),
    ]
    pairs += [
        ("response.output_text.delta", f'{at},"delta":" word{n}","logprobs":[]')
        for n in range(chunks)
    ]
    text = "".join(f" word{n}" for n in range(chunks))
    pairs += [
        ("response.output_text.done", f'{at},"text":"{text}","logprobs":[]'),
        ("response.content_part.done", f'{at},"part":{empty}'),
        ("response.output_item.done", f'"output_index":0,"item":{_message(name, text)}'),
        ("response.completed", f'"response":{response(name, text)}'),
    ]
    return [_chunk(_event(kind, n, rest)) for n, (kind, rest) in enumerate(pairs)]


def chat_events(name: str, chunks: int = CHUNKS) -> list[bytes]:
    """Return a streamed chat completion, one HTTP chunk per event."""
    head = f'data: {{"id":"chatcmpl-{name}","object":"chat.completion.chunk"'
    head += ',"created":1700000000,"model":"stub"'
    deltas = ['{"role":"assistant","content":""}']
    deltas += [f'{{"content":" word{n}"}}' for n in range(chunks)]
    lines = [
        f'{head},"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}\n\n'
        for delta in deltas
    ]
    lines.append(f'{head},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}\n\n')
    lines.append("data: [DONE]\n\n")
    return [_chunk(line) for line in lines]


class RequestReader:
    """Splits the bytes of a connection into requests with a content length."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = 0

    def read(self, data: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Add bytes and yield the head and body of each complete request."""
        self._buffer += data
        # A large body arrives in many pieces: parse it only when it is complete.
        while len(self._buffer) >= self._needed:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end])
            _, mark, after = head.lower().partition(b"content-length:")
            length = int(after.partition(b"\r\n")[0]) if mark else 0
            self._needed = end + 4 + length
            if len(self._buffer) < self._needed:
                return
            body = bytes(self._buffer[end + 4 : self._needed])
            del self._buffer[: self._needed]
            self._needed = 0
            yield head, body


class Stub(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, pace_seconds: float) -> None:
        self._pace_seconds = pace_seconds
        self._reader = RequestReader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for head, body in self._reader.read(data):
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        name = f"{next(_ids):024d}"
        is_chat = b"/chat/" in head[:64]
        if b'"stream":true' in body or b'"stream": true' in body:
            self._transport.write(STREAM_HEAD)
            self._send_next(iter(chat_events(name) if is_chat else events(name)))
        else:
            self._transport.write(whole(completion(name) if is_chat else response(name)))

    def _send_next(self, chunks: Iterator[bytes]) -> None:
        chunk = next(chunks, None)
        if self._transport.is_closing():
            return
        if chunk is None:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._transport.write(chunk)
            asyncio.get_running_loop().call_later(self._pace_seconds, self._send_next, chunks)


async def _serve(port: int, pace_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Stub(pace_seconds), "127.0.0.1", port, backlog=2048)
    print("listening", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until stopped."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        pace = float(sys.argv[2]) if len(sys.argv) > 2 else PACE_SECONDS
        runner.run(_serve(int(sys.argv[1]), pace))


if __name__ == "__main__":
    main()
