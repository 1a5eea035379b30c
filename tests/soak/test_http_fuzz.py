"""Hostile HTTP and JSON against a real gateway: it stays alive, answers in shape, and stays small.

Counts and the peak memory of the process are part of the run's summary.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.acceptance.gateway_process import GatewayProcess, running_gateway
from tests.store_urls import sqlite_url

pytestmark = pytest.mark.soak

SEED = 20_261_116
RAW_REQUESTS = 3_000
JSON_REQUESTS = 3_000
LARGE_BODIES = 12
AT_A_TIME = 16
PEAK_BYTES = 300 * 1024 * 1024
SECONDS = 120.0
REPLY_SECONDS = 5.0

Report = Callable[[str, object], None]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway with the demo model on SQLite."""
    with running_gateway(sqlite_url(tmp_path)) as process:
        yield process


def gateway_process(gateway: GatewayProcess) -> psutil.Process:
    assert gateway._process is not None
    return psutil.Process(gateway._process.pid)


def peak_bytes(gateway: GatewayProcess) -> int:
    """Return the largest resident size that the process ever had."""
    status = Path(f"/proc/{gateway_process(gateway).pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


async def _exchange(gateway: GatewayProcess, data: bytes, *, half_close: bool = True) -> bytes:
    """Send bytes over a connection of their own; return what comes back within a few seconds."""
    url = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    reply = b""
    try:
        with contextlib.suppress(ConnectionError, TimeoutError):
            writer.write(data)
            await writer.drain()
            if half_close:
                writer.write_eof()
            async with asyncio.timeout(REPLY_SECONDS):
                while piece := await reader.read(65536):
                    reply += piece
    finally:
        writer.transport.abort()
    return reply


async def in_parallel(jobs: Iterator[Awaitable[None]]) -> None:
    """Run jobs, `AT_A_TIME` of them side by side."""

    async def work() -> None:
        for job in jobs:
            await job

    await asyncio.gather(*(work() for _ in range(AT_A_TIME)))


async def is_alive(gateway: GatewayProcess) -> bool:
    async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:
        return (await client.get("/healthz")).status_code == 200


# ── raw HTTP ────────────────────────────────────────────────────────────────────────────────

_BODY = json.dumps({"model": "holdfast-demo", "input": "hi", "store": True}).encode()
VALID = [
    b"GET /v1/sessions?limit=2 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"X-Session-Key: fuzz\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY),
    b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\nX-Trailer: a\r\n\r\n"
    % (len(_BODY), _BODY),
    (
        b"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ),
    b"DELETE /v1/sessions/ses_x HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\n\r\n",
]
FRAGMENTS = [
    b"\r\n", b"\n", b"\0", b":", b" ", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"0\r\n\r\n",
    b"ffffffffffffffff\r\n", b"Host: evil\r\n", b"\xff\xfe", b"%00", b"/../", b"HTTP/9.9",
    b"GET ", b"x" * 5000,
]  # fmt: skip


def _mutated(chance: random.Random) -> bytes:
    data = bytearray(b"".join(chance.choices(VALID, k=chance.randint(1, 3))))
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(4):
            case 0:
                data[place:place] = chance.choice(FRAGMENTS)
            case 1:
                del data[place : place + chance.randint(1, 40)]
            case 2:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case _:
                data[place:place] = data[place : place + chance.randint(1, 200)]
        data = data or bytearray(b"x")
    return bytes(data)


async def test_mutated_http_never_breaks_the_server(
    gateway: GatewayProcess, record_property: Report
) -> None:
    chance = random.Random(SEED)
    statuses: Counter[str] = Counter()

    async def send(data: bytes) -> None:
        reply = await _exchange(gateway, data)
        status = reply[9:12].decode("latin-1") if reply.startswith(b"HTTP/1.1 ") else "none"
        statuses[status] += 1
        assert status != "500", data

    await in_parallel(send(_mutated(chance)) for _ in range(RAW_REQUESTS))
    assert await is_alive(gateway)
    peak = peak_bytes(gateway)
    record_property("soak", f"raw HTTP: {RAW_REQUESTS} requests, {dict(statuses)}, peak {peak:,}")
    assert peak < PEAK_BYTES


# ── JSON ────────────────────────────────────────────────────────────────────────────────────

WORDS = [
    "model", "input", "messages", "role", "content", "type", "user", "assistant", "tool", "message",
    "function_call", "function_call_output", "call_id", "output", "arguments", "name", "id",
    "store", "stream", "metadata", "instructions", "previous_response_id", "conversation",
    "item_reference", "reasoning", "encrypted_content", "items", "text", "input_text", "",
    "\0", "\ud7ff", "x" * 300, "holdfast-demo",
]  # fmt: skip
PATHS = [
    "/v1/responses", "/v1/chat/completions", "/v1/conversations", "/v1/responses/compact",
    "/v1/responses/input_tokens", "/v1/transcript", "/v1/transcript/lane/turn_x",
    "/v1/sessions/ses_x/reset", "/v1/sessions/ses_x/items", "/v1/turns/turn_x/cancel",
]  # fmt: skip


def _value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(4 if depth > 4 else 7)
    if kind == 0:
        return chance.choice([None, True, False])
    if kind == 1:
        return chance.choice([0, -1, 1e308, 2**63, 2**64, -0.0, 0.1])
    if kind in (2, 3):
        return chance.choice(WORDS)
    if kind == 4:
        return [_value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice(WORDS): _value(chance, depth + 1) for _ in range(chance.randrange(6))}


def _body(chance: random.Random) -> bytes:
    likely = {
        "model": "holdfast-demo",
        "input": chance.choice(["hi", [{"role": "user", "content": "hi"}]]),
        "messages": [{"role": "user", "content": "hi"}],
        "items": [{"type": "message", "role": "user", "content": "hi"}],
    }
    extra = _value(chance, 1)
    value = {**likely, **extra} if isinstance(extra, dict) else likely
    body = bytearray(json.dumps(value if chance.random() < 0.8 else _value(chance)).encode())
    if chance.random() < 0.3:
        place = chance.randrange(len(body) + 1)
        body[place : place + chance.randint(0, 3)] = bytes([chance.randrange(256)])
    return bytes(body)


async def test_odd_json_is_answered_in_shape(
    gateway: GatewayProcess, record_property: Report
) -> None:
    chance = random.Random(SEED)
    statuses: Counter[int] = Counter()
    async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:

        async def send(path: str, body: bytes, headers: dict[str, str]) -> None:
            reply = await client.post(path, content=body, headers=headers)
            statuses[reply.status_code] += 1
            assert reply.status_code < 500 or reply.status_code == 503, (path, body, reply.text)
            if reply.status_code >= 400:
                assert set(reply.json()["error"]) == {"message", "type", "param", "code"}

        def jobs() -> Iterator[Awaitable[None]]:
            for number in range(JSON_REQUESTS):
                headers = {"content-type": "application/json"}
                if chance.random() < 0.5:
                    headers["x-session-key"] = f"fuzz-{number % 50}"
                yield send(chance.choice(PATHS), _body(chance), headers)

        await in_parallel(jobs())
    assert await is_alive(gateway)
    peak = peak_bytes(gateway)
    record_property("soak", f"JSON: {JSON_REQUESTS} requests, {dict(statuses)}, peak {peak:,}")
    assert peak < PEAK_BYTES


# ── size ────────────────────────────────────────────────────────────────────────────────────


def _bombs() -> list[tuple[str, bytes]]:
    head = b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"

    def with_length(body: bytes) -> bytes:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    items = b'{"role":"user","content":"a"},' * 600_000
    parts = b"{}," * 4_000_000
    return [
        ("endless head", head + b"X-A: aaaa\r\n" * 1_000_000),
        ("endless trailers", chunked + b"X-A: aaaa\r\n" * 1_000_000),
        ("one long trailer", chunked + b"X-A: " + b"a" * 20_000_000),
        ("many items", with_length(b'{"model":"m","input":[' + items[:-1] + b"]}")),
        ("many parts", with_length(b'{"input":[{"role":"user","content":[' + parts[:-1] + b"]}]}")),
        ("deep nesting", with_length(b'{"input":' + b"[" * 2_000_000)),
        ("too long", with_length(b" " * (65 * 1024 * 1024))),
    ]


async def test_bombs_are_rejected_and_the_process_stays_small(
    gateway: GatewayProcess, record_property: Report
) -> None:
    statuses: dict[str, str] = {}
    for name, data in _bombs():
        reply = await _exchange(gateway, data, half_close=False)
        statuses[name] = reply[9:12].decode("latin-1") or "none"
        assert await is_alive(gateway)
    peak = peak_bytes(gateway)
    record_property("soak", f"bombs: {statuses}, peak {peak:,}")
    assert set(statuses.values()) <= {"400", "413", "431"}, statuses
    assert peak < PEAK_BYTES


async def test_large_bodies_at_a_time_keep_health_checks_answered(
    gateway: GatewayProcess, record_property: Report
) -> None:
    text = "a large body, " * 1_400_000
    statuses: Counter[int] = Counter()
    checks = 0
    async with httpx.AsyncClient(base_url=gateway.url, timeout=SECONDS) as client:

        async def send(number: int) -> None:
            body = {"model": "holdfast-demo", "input": text, "store": number % 2 == 0}
            statuses[(await client.post("/v1/responses", json=body)).status_code] += 1

        sending = asyncio.gather(*(send(number) for number in range(LARGE_BODIES)))
        while not sending.done():
            assert await is_alive(gateway)
            checks += 1
        await sending
    peak = peak_bytes(gateway)
    record_property(
        "soak",
        f"large bodies: {LARGE_BODIES} of {len(text):,} bytes, {dict(statuses)}, "
        f"{checks} health checks meanwhile, peak {peak:,}",
    )
    assert set(statuses) <= {200, 429, 503}  # by the part of one address, or by all
    assert checks > 0
    assert peak < PEAK_BYTES
