"""A provider's stream that is cut at any byte is a failure, never an answer."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.core.errors import ProviderFailure
from holdfast.engine.clock import RandomIds
from holdfast.ports.provider import Answer, ModelCall, Provider
from holdfast.providers.http.client import PooledClient
from holdfast.providers.http.upstream import Upstream
from holdfast.providers.openai_chat.adapter import ChatProvider
from holdfast.providers.openai_responses.adapter import ResponsesProvider
from holdfast.providers.settings import UpstreamSettings
from tests.streaming import DiscardingSink
from tests.unit.providers.http.raw_server import RawConnection, chunked, raw_server

CALL = ModelCall(model="m", items=[b'{"role":"user","content":"hi"}'], is_stream=True)
MESSAGE = {
    "id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
    "content": [{"type": "output_text", "text": "yo", "annotations": []}],
}  # fmt: skip


def _sse(*values: dict[str, Any]) -> bytes:
    return b"".join(b"data: %s\n\n" % msgspec.json.encode(value) for value in values)


RESPONSES = _sse(
    {"type": "response.created", "response": {"id": "resp_1"}},
    {"type": "response.output_item.added", "output_index": 0, "item": {**MESSAGE, "content": []}},
    {"type": "response.output_text.delta", "output_index": 0, "item_id": "msg_1", "delta": "yo"},
    {"type": "response.output_item.done", "output_index": 0, "item": MESSAGE},
    {"type": "response.completed", "response": {"id": "resp_1", "status": "completed",
                                                "output": [MESSAGE]}},
)  # fmt: skip
CHAT = _sse(
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    {"choices": [{"index": 0, "delta": {"content": "yo"}}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
)
CASES: list[tuple[Callable[..., Provider], bytes]] = [
    (ResponsesProvider, RESPONSES),
    (ChatProvider, CHAT),
]


async def end_of(provider: Provider) -> str | None:
    """Return how a stream ended."""
    try:
        answer = await provider.stream(CALL, DiscardingSink())
    except ProviderFailure as failure:
        return failure.provider_code
    return "answered" if isinstance(answer, Answer) else None


@pytest.mark.parametrize(("make", "stream"), CASES, ids=["responses", "chat"])
@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "torn"])
async def test_a_stream_cut_at_any_byte_gives_no_answer(
    make: Callable[..., Provider], stream: bytes, is_clean: bool
) -> None:
    cut = 0

    async def cutting(connection: RawConnection) -> None:
        while await connection.request():
            raw = chunked(stream[:cut]) if cut else chunked()
            await connection.say(raw if is_clean else raw[:-5])
            if not is_clean:
                return

    async with raw_server(cutting) as server:
        client = PooledClient()
        try:
            provider = make(
                Upstream(UpstreamSettings(url=f"{server.url}/v1"), client), RandomIds().new
            )
            answered = []
            for cut in range(len(stream) + 1):
                code = await end_of(provider)
                assert code in ("answered", "upstream_truncated")
                answered += [cut] if code == "answered" else []
        finally:
            await client.close()
    assert answered == [len(stream)]
