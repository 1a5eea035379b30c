"""An upstream that answers by script and keeps every byte that it receives.

It speaks Chat Completions and Responses, whole and streamed, just as far as the conversations need
it. Its ids are counted and its times are constant.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.freeze.values import Data

CREATED = 1_700_000_000
REASONS = {
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 408: "Timeout",
    409: "Conflict", 413: "Too Large", 422: "Unprocessable", 429: "Too Many", 500: "Error",
    502: "Bad Gateway", 503: "Unavailable", 529: "Overloaded",
}  # fmt: skip


class ScriptedUpstream:
    """A server on a free port; `script` holds the answers to the next requests.

    An answer is data: what is said (`say`), called (`calls`), refused (`refuse`) or thought
    (`reason`), or a `status` with a `body`, or `raw` bytes. With `hold`, it is sent only after
    `release`; with `cut`, the connection ends after so many events of a stream.
    """

    def __init__(self) -> None:
        self.script: list[Data] = []
        self.requests: list[tuple[bytes, bytes]] = []
        """The head and body of each request, as received."""
        self.url = ""
        self._arrived = asyncio.Condition()
        self._released = asyncio.Event()
        self._count = 0
        self._server: asyncio.Server | None = None
        self._left = 0

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/v1"

    async def stop(self) -> None:
        """Close the listener."""
        assert self._server is not None
        self._released.set()
        self._server.close()

    async def until_requests(self, count: int) -> None:
        """Wait until so many requests were received."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.requests) >= count)

    async def until_left(self, count: int) -> None:
        """Wait until the gateway has closed so many requests that were held."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: self._left >= count)

    def release(self) -> None:
        """Send the answers that are held."""
        self._released.set()
        self._released = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_length(head))
                async with self._arrived:
                    self.requests.append((head, body))
                    self._arrived.notify_all()
                answer = self.script.pop(0) if self.script else {"say": "ok"}
                if not await self._send(head, body, answer, reader, writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _send(
        self,
        head: bytes,
        body: bytes,
        answer: Mapping[str, Data],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> bool:
        """Send an answer; return whether the connection stays."""
        pieces = list(self._pieces(head, body, answer))
        held = answer.get("hold")
        for number, piece in enumerate(pieces):
            if held is not None and number == min(held, len(pieces) - 1):
                await writer.drain()
                if not await self._wait(reader):
                    return False
            if number == answer.get("cut"):
                await writer.drain()
                return False
            writer.write(piece)
        await writer.drain()
        return "raw" not in answer and b"connection: close" not in pieces[0]

    async def _wait(self, reader: asyncio.StreamReader) -> bool:
        """Wait for the release; return whether the gateway still listens."""
        released = asyncio.create_task(self._released.wait())
        closed = asyncio.create_task(reader.read(1))
        await asyncio.wait({released, closed}, return_when=asyncio.FIRST_COMPLETED)
        is_here = released.done()
        for task in (released, closed):
            task.cancel()
        await asyncio.gather(released, closed, return_exceptions=True)
        if not is_here:
            async with self._arrived:
                self._left += 1
                self._arrived.notify_all()
        return is_here

    # ── answers ─────────────────────────────────────────────────────────────────────────────

    def _pieces(self, head: bytes, body: bytes, answer: Mapping[str, Data]) -> Iterator[bytes]:
        """Yield the bytes of an answer: of a stream its head, then one piece for each event."""
        method, path = head.split(b" ", 2)[:2]
        if "raw" in answer:
            yield str(answer["raw"]).encode()
            return
        if "status" in answer or method != b"POST":
            yield _whole(answer.get("status", 200), answer.get("body", {}), answer.get("headers"))
            return
        self._count += 1
        asked = json.loads(body)
        is_chat = path.split(b"?")[0].endswith(b"/chat/completions")
        if path.endswith(b"/conversations"):
            yield _whole(200, {"id": f"conv_up{self._count}", "object": "conversation"}, None)
        elif not asked.get("stream"):
            value = _completion if is_chat else _response
            yield _whole(200, value(self._count, asked, answer), answer.get("headers"))
        else:
            yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
            events = _chunks if is_chat else _events
            yield from events(self._count, asked, answer)


def _length(head: bytes) -> int:
    for field in head.lower().split(b"\r\n"):
        if field.startswith(b"content-length:"):
            return int(field.partition(b":")[2])
    return 0


def _whole(status: int, body: Data, headers: Mapping[str, str] | None) -> bytes:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    fields = {"content-type": "application/json", **(headers or {})}
    fields["content-length"] = str(len(content))
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} {REASONS.get(status, 'OK')}\r\n{lines}\r\n".encode() + content


def _usage(answer: Mapping[str, Data]) -> tuple[int, int]:
    return 10, len(str(answer.get("say", "")).split()) + len(answer.get("calls", ()))


def _completion(number: int, asked: Data, answer: Mapping[str, Data]) -> Data:
    message: dict[str, Data] = {"role": "assistant", "content": answer.get("say")}
    if "refuse" in answer:
        message["refusal"] = answer["refuse"]
    if "reason" in answer:
        message["reasoning_content"] = answer["reason"]
    if "calls" in answer:
        message["tool_calls"] = [_chat_call(call) for call in answer["calls"]]
    came, went = _usage(answer)
    return {
        "id": f"chatcmpl-up{number}", "object": "chat.completion", "created": CREATED,
        "model": asked.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(answer)}],
        "usage": {"prompt_tokens": came, "completion_tokens": went, "total_tokens": came + went},
    }  # fmt: skip


def _chat_call(call: Mapping[str, str]) -> Data:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": call["id"], "type": "function", "function": function}


def _finish(answer: Mapping[str, Data]) -> str:
    if "incomplete" in answer:
        return "length" if answer["incomplete"] == "max_output_tokens" else "content_filter"
    return "tool_calls" if "calls" in answer else "stop"


def _chunks(number: int, asked: Data, answer: Mapping[str, Data]) -> Iterator[bytes]:
    def chunk(delta: Data, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _data({**shared, "choices": [choice]})

    shared = {
        "id": f"chatcmpl-up{number}", "object": "chat.completion.chunk", "created": CREATED,
        "model": asked.get("model"),
    }  # fmt: skip
    yield chunk({"role": "assistant", "content": ""})
    if "reason" in answer:
        yield chunk({"reasoning_content": answer["reason"]})
    if "refuse" in answer:
        yield chunk({"refusal": answer["refuse"]})
    for word in _words(answer):
        yield chunk({"content": word})
    for index, call in enumerate(answer.get("calls", ())):
        begun = {**_chat_call({**call, "arguments": ""}), "index": index}
        yield chunk({"tool_calls": [begun]})
        rest = {"index": index, "function": {"arguments": call["arguments"]}}
        yield chunk({"tool_calls": [rest]})
    yield chunk({}, _finish(answer))
    if (asked.get("stream_options") or {}).get("include_usage"):
        came, went = _usage(answer)
        usage = {"prompt_tokens": came, "completion_tokens": went, "total_tokens": came + went}
        yield _data({**shared, "choices": [], "usage": usage})
    yield b"data: [DONE]\n\n"


def _words(answer: Mapping[str, Data]) -> list[str]:
    return str(answer.get("say") or "").replace(" ", "\0 ").split("\0") if answer.get("say") else []


def _data(value: Data) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def _items(number: int, answer: Mapping[str, Data]) -> list[dict[str, Data]]:
    items: list[dict[str, Data]] = []
    if "reason" in answer:
        summary = [{"type": "summary_text", "text": answer["reason"]}]
        items.append({"id": f"rs_up{number}", "type": "reasoning", "summary": summary})
    if "refuse" in answer or "say" in answer:
        part: dict[str, Data] = {"type": "refusal", "refusal": answer.get("refuse")}
        if "say" in answer:
            part = {"type": "output_text", "text": answer["say"], "annotations": []}
        items.append(
            {
                "id": f"msg_up{number}", "type": "message", "role": "assistant",
                "status": "incomplete" if "incomplete" in answer else "completed",
                "content": [part],
            }
        )  # fmt: skip
    for index, call in enumerate(answer.get("calls", ())):
        items.append(
            {
                "id": f"fc_up{number}_{index}", "type": "function_call", "status": "completed",
                "call_id": call["id"], "name": call["name"], "arguments": call["arguments"],
            }
        )  # fmt: skip
    return items


def _response(number: int, asked: Data, answer: Mapping[str, Data]) -> dict[str, Data]:
    came, went = _usage(answer)
    reason = answer.get("incomplete")
    return {
        "id": f"resp_up{number}", "object": "response", "created_at": CREATED,
        "status": "incomplete" if reason else "completed", "model": asked.get("model"),
        "incomplete_details": {"reason": reason} if reason else None, "error": None,
        "output": _items(number, answer),
        "usage": {
            "input_tokens": came, "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": went, "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": came + went,
        },
    }  # fmt: skip


def _events(number: int, asked: Data, answer: Mapping[str, Data]) -> Iterator[bytes]:
    whole = _response(number, asked, answer)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[tuple[str, dict[str, Data]]] = [
        ("response.created", {"response": begun}), ("response.in_progress", {"response": begun}),
    ]  # fmt: skip
    for index, item in enumerate(whole["output"]):
        events += _item_events(index, item)
    end = "response.incomplete" if "incomplete" in answer else "response.completed"
    if "fail" in answer:
        whole = {**whole, "status": "failed", "error": answer["fail"]}
        end = "response.failed"
    events.append((end, {"response": whole}))
    for count, (kind, value) in enumerate(events):
        told = {"type": kind, "sequence_number": count, **value}
        yield f"event: {kind}\n".encode() + _data(told)


def _item_events(index: int, item: dict[str, Data]) -> Sequence[tuple[str, dict[str, Data]]]:
    place = {"item_id": item["id"], "output_index": index}
    added = {**item, "status": "in_progress"}
    events: list[tuple[str, dict[str, Data]]] = []
    if item["type"] == "message":
        added["content"] = []
        place["content_index"] = 0
        (part,) = item["content"]
        is_text = part["type"] == "output_text"
        kind = "output_text" if is_text else "refusal"
        text = part["text"] if is_text else part["refusal"]
        empty = {**part, ("text" if is_text else "refusal"): ""}
        events.append(("response.content_part.added", {**place, "part": empty}))
        delta = f"response.{kind}.delta"
        events += [(delta, {**place, "delta": word}) for word in _words({"say": text})]
        done = {"text": text} if is_text else {"refusal": text}
        events.append((f"response.{kind}.done", {**place, **done}))
        events.append(("response.content_part.done", {**place, "part": part}))
    elif item["type"] == "function_call":
        added["arguments"] = ""
        given = item["arguments"]
        name = "response.function_call_arguments"
        events.append((f"{name}.delta", {**place, "delta": given}))
        events.append((f"{name}.done", {**place, "arguments": given}))
    first = ("response.output_item.added", {"output_index": index, "item": added})
    last = ("response.output_item.done", {"output_index": index, "item": item})
    return [first, *events, last]


def script_of(answers: Any) -> list[Data]:
    """Return the answers of a step: one, several, or none."""
    if answers is None:
        return []
    return list(answers) if isinstance(answers, list) else [answers]
