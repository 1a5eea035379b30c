"""An upstream that answers at once: what is measured in front of it is never its own slowness.

Whole answers come from one write. Streams send one event at a time, a little apart, as models do.
Run it as `python -m benchmarks.stub PORT`; it speaks the Responses and the Chat API.
"""

import asyncio
import itertools
import sys
from collections.abc import Iterator
from typing import cast

CHUNKS = 64
"""Text deltas of one streamed answer."""
PACE_SECONDS = 0.002
"""The time between two of them."""
TEXT = "Certainly. Here is a sentence of the usual length, and here is another one."
_USAGE = (
    '{"input_tokens":10,"input_tokens_details":{"cached_tokens":0},"output_tokens":16,'
    '"output_tokens_details":{"reasoning_tokens":0},"total_tokens":26}'
)
_CHAT_USAGE = '{"prompt_tokens":10,"completion_tokens":16,"total_tokens":26}'
_HEAD = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_names = itertools.count(1)


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


def completion(name: str) -> str:
    """Return a chat completion."""
    return (
        f'{{"id":"chatcmpl-{name}","object":"chat.completion","created":1700000000,'
        f'"model":"stub","choices":[{{"index":0,"finish_reason":"stop","message":'
        f'{{"role":"assistant","content":"{TEXT}"}}}}],"usage":{_CHAT_USAGE}}}'
    )


def _whole(text: str) -> bytes:
    body = text.encode()
    return (_HEAD % len(body)).encode() + body


def _chunk(event: str) -> bytes:
    raw = event.encode()
    return b"%x\r\n%s\r\n" % (len(raw), raw)


def _event(kind: str, number: int, rest: str) -> str:
    return f'event: {kind}\ndata: {{"type":"{kind}","sequence_number":{number},{rest}}}\n\n'


def _events(name: str) -> list[bytes]:
    """Return a streamed response, one chunk an event."""
    at = f'"item_id":"msg_{name}","output_index":0,"content_index":0'
    empty = '{"type":"output_text","text":"","annotations":[]}'
    told = [
        ("response.created", f'"response":{response(name, status="in_progress")}'),
        ("response.in_progress", f'"response":{response(name, status="in_progress")}'),
        (
            "response.output_item.added",
            f'"output_index":0,"item":{_message(name, "", "in_progress")}',
        ),
        ("response.content_part.added", f'{at},"part":{empty}'),
    ]
    told += [
        ("response.output_text.delta", f'{at},"delta":" word{n}","logprobs":[]')
        for n in range(CHUNKS)
    ]
    text = "".join(f" word{n}" for n in range(CHUNKS))
    told += [
        ("response.output_text.done", f'{at},"text":"{text}","logprobs":[]'),
        ("response.content_part.done", f'{at},"part":{empty}'),
        ("response.output_item.done", f'"output_index":0,"item":{_message(name, text)}'),
        ("response.completed", f'"response":{response(name, text)}'),
    ]
    return [_chunk(_event(kind, n, rest)) for n, (kind, rest) in enumerate(told)]


def _chat_events(name: str) -> list[bytes]:
    head = f'data: {{"id":"chatcmpl-{name}","object":"chat.completion.chunk"'
    head += ',"created":1700000000,"model":"stub"'
    deltas = ['{"role":"assistant","content":""}']
    deltas += [f'{{"content":" word{n}"}}' for n in range(CHUNKS)]
    told = [
        f'{head},"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}\n\n'
        for delta in deltas
    ]
    told.append(f'{head},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}\n\n')
    told.append("data: [DONE]\n\n")
    return [_chunk(text) for text in told]


class Stub(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, mark, rest = self._buffer.partition(b"\r\n\r\n")
            if not mark:
                return
            _, found, after = head.lower().partition(b"content-length:")
            length = int(after.partition(b"\r\n")[0]) if found else 0
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            self._answer(head, rest[:length])

    def _answer(self, head: bytes, body: bytes) -> None:
        name = f"{next(_names):024d}"
        is_chat = b"/chat/" in head[:64]
        if b'"stream":true' in body or b'"stream": true' in body:
            events = _chat_events(name) if is_chat else _events(name)
            self._transport.write(_STREAM_HEAD)
            self._next(iter(events))
        else:
            self._transport.write(_whole(completion(name) if is_chat else response(name)))

    def _next(self, events: Iterator[bytes]) -> None:
        chunk = next(events, None)
        if self._transport.is_closing():
            return
        if chunk is None:
            self._transport.write(b"0\r\n\r\n")
        else:
            self._transport.write(chunk)
            asyncio.get_running_loop().call_later(PACE_SECONDS, self._next, events)


async def _serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", port, backlog=2048)
    print("listening", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until told to stop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
