"""An upstream that sends anything: every turn ends in shape, no lane is stuck."""

import asyncio
import contextlib
import gzip
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.gateway_process import running_gateway
from tests.soak.test_http_fuzz import PEAK_BYTES, Report, in_parallel, is_alive, peak_bytes
from tests.store_urls import sqlite_url

pytestmark = pytest.mark.soak

SEED = 20_261_117
TURNS = 120
SECONDS = 180.0
Json = dict[str, Any]
Answer = Callable[[random.Random], bytes]

TEXT: Json = {"type": "output_text", "text": "hello", "annotations": []}
ITEM: Json = {
    "id": "msg_" + "a" * 40, "type": "message", "status": "completed", "role": "assistant",
    "content": [TEXT],
}  # fmt: skip
WHOLE: Json = {"id": "r", "status": "completed", "output": [ITEM], "usage": None}
AT: Json = {"item_id": ITEM["id"], "output_index": 0, "content_index": 0}


def _head(kind: str, *more: str) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {kind}", *more, "", ""]
    return "\r\n".join(lines).encode()


def _sized(body: bytes, *more: str, kind: str = "application/json") -> bytes:
    return _head(kind, f"Content-Length: {len(body)}", *more) + body


def _events(*events: Json) -> bytes:
    return b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)


def _stream(body: bytes) -> bytes:
    return _head("text/event-stream", "Connection: close") + body


def _mutated(chance: random.Random) -> bytes:
    data = bytearray(_sized(json.dumps(WHOLE).encode()))
    for _ in range(chance.randint(1, 6)):
        place = chance.randrange(len(data))
        data[place : place + chance.randint(0, 5)] = chance.randbytes(chance.randint(0, 4))
    return bytes(data)


def _endless(_: random.Random) -> bytes:
    added = {"type": "response.output_item.added", "output_index": 0, "item": ITEM}
    delta = {"type": "response.output_text.delta", **AT, "delta": "word "}
    return _stream(_events(added) + _events(delta) * 100_000)


def _one_byte_short(_: random.Random) -> bytes:
    body = json.dumps(WHOLE).encode()
    return _head("application/json", f"Content-Length: {len(body) + 1}") + body


ANSWERS: dict[str, Answer] = {
    "good": lambda _: _sized(json.dumps(WHOLE).encode()),
    "mutated": _mutated,
    "nothing": lambda _: b"",
    "noise": lambda chance: chance.randbytes(2000),
    "gzip bomb": lambda _: _sized(gzip.compress(b" " * 200_000_000), "Content-Encoding: gzip"),
    "not gzip": lambda _: _sized(b"{}", "Content-Encoding: gzip"),
    "endless stream": _endless,
    "long event": lambda _: _stream(b"data: " + b"x" * 40_000_000),
    "long line": lambda _: _stream(b"x" * 40_000_000),
    "long body": lambda _: _sized(b" " * 80_000_000),
    "deep": lambda _: _sized(b'{"output":' + b"[" * 1_000_000),
    "many items": lambda _: _sized(json.dumps({**WHOLE, "output": [ITEM] * 50_000}).encode()),
    "long head": lambda _: _head("application/json", *["X-A: " + "a" * 1000] * 2000),
    "many heads": lambda _: b"HTTP/1.1 100 Continue\r\n\r\n" * 50_000,
    "trailers": lambda _: (
        _head("application/json", "Transfer-Encoding: chunked")
        + b"2\r\n{}\r\n0\r\n" + b"X-A: aaaa\r\n" * 200_000
    ),
    "bad chunks": lambda _: (
        _head("application/json", "Transfer-Encoding: chunked") + b"ffffffffffffffffff\r\n{}"
    ),
    "one byte short": _one_byte_short,
    "two answers": lambda _: _sized(b"{}") * 2,
    "cut stream": lambda _: _stream(_events({"type": "response.created", "response": WHOLE})),
    "error in stream": lambda _: _stream(_events({"error": {"message": "x" * 100_000}})),
}  # fmt: skip


@contextlib.asynccontextmanager
async def _hostile_upstream(sent: Counter[str]) -> AsyncIterator[str]:
    chance = random.Random(SEED)
    names = list(ANSWERS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            await reader.readexactly(size)
            name = names[sum(sent.values()) % len(names)]
            sent[name] += 1
            writer.write(ANSWERS[name](chance))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


async def _turn(client: httpx.AsyncClient, number: int, outcomes: Counter[str]) -> None:
    headers = {"X-Session-Key": f"hostile-{number % 8}"}
    body: Json = {"model": "m", "input": f"turn {number}", "stream": number % 3 == 0}
    try:
        reply = await client.post("/v1/responses", json=body, headers=headers)
    except httpx.ReadError:
        # A reader that does not keep up with a stream is disconnected; this process is slow.
        assert body["stream"]
        outcomes["disconnected"] += 1
        return
    if "text/event-stream" in reply.headers["content-type"]:
        assert reply.text.endswith("data: [DONE]\n\n")
        last = json.loads(reply.text.split("data: ")[-2])
        outcomes[last["type"]] += 1
        return
    outcomes[str(reply.status_code)] += 1
    assert reply.status_code != 500 or "internal" not in reply.text
    if reply.status_code >= 400:
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}


async def wait_until_idle(client: httpx.AsyncClient) -> None:
    """Return once no session runs."""
    async with asyncio.timeout(SECONDS):
        while True:
            sessions = (await client.get("/v1/sessions", params={"limit": 100})).json()["data"]
            if all(one["status"] == "idle" and not one["queued_turns"] for one in sessions):
                return


async def test_every_turn_ends_whatever_the_upstream_sends(
    tmp_path: Path, record_property: Report
) -> None:
    sent: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    env = {"HOLDFAST_HEALS_TRANSIENT_RETRIES": "0"}
    async with _hostile_upstream(sent) as url:
        arguments = ("--upstream", url, "--upstream-api", "responses")
        with running_gateway(sqlite_url(tmp_path), *arguments, env=env) as gateway:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:
                await in_parallel(_turn(client, number, outcomes) for number in range(TURNS))
                await wait_until_idle(client)
            assert await is_alive(gateway)
            peak = peak_bytes(gateway)
    record_property(
        "soak", f"hostile upstream: {TURNS} turns, {dict(outcomes)}, {dict(sent)}, peak {peak:,}"
    )
    assert set(sent) == set(ANSWERS)
    assert peak < PEAK_BYTES
