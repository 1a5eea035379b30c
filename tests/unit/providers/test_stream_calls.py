"""How many of our Python functions a chunk passes on its way from the socket to the engine."""

import asyncio
import json
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from holdfast.ports.provider import AnyEvent, ModelCall
from holdfast.providers.http.client import PooledClient
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.openai_chat.adapter import ChatProvider
from holdfast.providers.openai_responses.adapter import ResponsesProvider
from holdfast.providers.settings import UpstreamSettings
from tests.unit.providers.http.raw_server import RawConnection, raw_server

CHUNKS = 200
MAX_CALLS = 4
"""data_received, the event reader, the adapter's sink and its output."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chat_events() -> list[bytes]:
    def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        body = {"id": "c", "object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(body)}\n\n".encode()

    texts = [event({"content": f" word{number}"}) for number in range(CHUNKS)]
    return [event({"role": "assistant", "content": ""}), *texts, event({}, "stop"),
            b"data: [DONE]\n\n"]  # fmt: skip


def responses_events() -> list[bytes]:
    def event(kind: str, **data: Any) -> bytes:
        body = json.dumps({"type": kind, **data})
        return f"event: {kind}\ndata: {body}\n\n".encode()

    item = {"id": "msg_0123456789abcdef", "type": "message", "role": "assistant", "content": []}
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "x", "annotations": []}
    done = {**item, "content": [part]}
    response = {"id": "resp_1", "status": "completed", "output": [done]}
    return [
        event("response.output_item.added", sequence_number=1, output_index=0, item=item),
        *(
            event("response.output_text.delta", sequence_number=number + 2, delta="w", **place)
            for number in range(CHUNKS)
        ),
        event("response.completed", sequence_number=CHUNKS + 2, response=response),
    ]


class Counting:
    """An engine's sink that takes every event."""

    def __init__(self) -> None:
        self.deltas = 0
        self.came = asyncio.Event()

    def write(self, events: Sequence[AnyEvent]) -> bool:
        self.deltas += sum(event.type == "response.output_text.delta" for event in events)
        self.came.set()
        return True

    async def drain(self) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "events"),
    [(ChatProvider, chat_events()), (ResponsesProvider, responses_events())],
    ids=["chat", "responses"],
)
async def test_a_chunk_passes_few_functions(
    make: type[ChatProvider] | type[ResponsesProvider], events: list[bytes]
) -> None:
    sink = Counting()
    seen = asyncio.Event()

    async def script(connection: RawConnection) -> None:
        await connection.request()
        await connection.say(HEAD)
        for place, event in enumerate(events):
            sink.came.clear()
            await connection.say(b"%x\r\n%b\r\n" % (len(event), event))
            if 2 < place < len(events) - 3:
                await sink.came.wait()  # so every chunk arrives alone
        await connection.say(b"0\r\n\r\n")
        await seen.wait()

    calls = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal calls
        calls += event == "call" and "src/holdfast/" in frame.f_code.co_filename

    call = ModelCall(model="m", items=[b'{"role":"user","content":"hi"}'], is_stream=True)
    async with asyncio.timeout(20), raw_server(script) as server:
        client = PooledClient()
        try:
            provider = make(
                Upstream(UpstreamSettings(url=server.url), client), lambda kind: f"{kind}_new"
            )
            sys.setprofile(profile)
            await provider.stream(call, sink)
        finally:
            sys.setprofile(None)
            seen.set()
            await client.close()
    assert sink.deltas == CHUNKS
    assert calls / CHUNKS < MAX_CALLS + 1, calls / CHUNKS
