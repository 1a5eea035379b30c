"""Load: wrk where there is one, so that Python is not what is measured; else a client of ours.

Every request carries a session key. Many keys are used one after the other, so that turns of one
session hardly ever meet; one key sends everybody through one lane.
"""

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path

import msgspec

from benchmarks.processes import Server

WARM_UP_SHARE = 0.34
QUESTION = "What is the weather like today, and what will it be like tomorrow?"
_UNITS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "m": 60_000.0}

_SCRIPT = """
local n = 0
request = function()
  n = n + 1
  wrk.headers["X-Session-Key"] = "{prefix}" .. (n % {keys})
  wrk.headers["Content-Type"] = "application/json"
  {authorization}
  return wrk.format("POST", "{path}", nil, '{body}')
end
"""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked, by how many at a time."""

    path: str = "/v1/responses"
    is_stream: bool = False
    connections: int = 32
    keys: int = 1024
    prefix: str = "key-"
    seconds: float = 3.0
    authorization: str = ""

    @property
    def body(self) -> bytes:
        """The body of every request."""
        asked: dict[str, object] = {"model": "stub"}
        if self.path.endswith("/chat/completions"):
            asked["messages"] = [{"role": "user", "content": QUESTION}]
        else:
            asked["input"] = QUESTION
        if self.is_stream:
            asked["stream"] = True
        return msgspec.json.encode(asked)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    failures: int
    cpu_us: float
    """Processor time of the server for each request."""
    rss_mb: float


def measure(server: Server, shape: Shape, folder: Path) -> Measured:
    """Load a server for a while, and return what it did and what that cost it."""
    # What is loaded at the first request is no part of any.
    asyncio.run(_first(server.port, shape))
    run = _wrk if shutil.which("wrk") and shape.seconds >= 1 else _own
    # Who leaves in a queue leaves turns behind, which are carried out all the same.
    prefix = f"warm-{shape.prefix}" if shape.keys == 1 else shape.prefix
    seconds = shape.seconds * WARM_UP_SHARE
    run(server, msgspec.structs.replace(shape, seconds=seconds, prefix=prefix), folder)
    server.until_idle()
    before = server.cpu_seconds()
    done, per_second, p50, p99, failures = run(server, shape, folder)
    cpu = server.cpu_seconds() - before
    server.until_idle()
    return Measured(
        requests=done,
        requests_per_second=per_second,
        p50_ms=p50,
        p99_ms=p99,
        failures=failures,
        cpu_us=cpu / max(done, 1) * 1e6,
        rss_mb=server.rss_mb(),
    )


async def _first(port: int, shape: Shape) -> None:
    line = await Line.open(port)
    try:
        await line.post(shape.path, shape.body, key="the-first", authorization=shape.authorization)
    finally:
        await line.close()


Counted = tuple[int, float, float, float, int]


def _wrk(server: Server, shape: Shape, folder: Path) -> Counted:
    script = folder / "load.lua"
    authorization = ""
    if shape.authorization:
        authorization = f'wrk.headers["Authorization"] = "{shape.authorization}"'
    script.write_text(
        _SCRIPT.format(
            prefix=shape.prefix, keys=shape.keys, path=shape.path, body=shape.body.decode(),
            authorization=authorization,
        )
    )  # fmt: skip
    done = subprocess.run(
        [
            "wrk", "-t1", f"-c{shape.connections}", f"-d{max(round(shape.seconds), 1)}s",
            "--timeout", "20s", "--latency", "-s", str(script), server.url,
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return _read_wrk(done.stdout)


def _read_wrk(text: str) -> Counted:
    count = re.search(r"(\d+) requests in", text)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", text)
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    torn = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    failures = int(bad[1]) if bad else 0
    failures += sum(int(one) for one in torn.groups()) if torn else 0
    return (
        int(count[1]) if count else 0,
        float(rate[1]) if rate else 0.0,
        _latency(text, "50%"),
        _latency(text, "99%"),
        failures,
    )


def _latency(text: str, which: str) -> float:
    found = re.search(rf"^\s+{which}\s+([\d.]+)(us|ms|s|m)\s*$", text, re.MULTILINE)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def _own(server: Server, shape: Shape, _: Path) -> Counted:
    return asyncio.run(_own_load(server.port, shape))


async def _own_load(port: int, shape: Shape) -> Counted:
    took: list[float] = []
    failures = 0
    began = time.perf_counter()
    until = began + shape.seconds
    numbers = iter(range(10**9))

    async def client() -> None:
        nonlocal failures
        line = await Line.open(port)
        try:
            while time.perf_counter() < until:
                key = f"{shape.prefix}{next(numbers) % shape.keys}"
                at = time.perf_counter()
                status = await line.post(shape.path, shape.body, key=key)
                took.append((time.perf_counter() - at) * 1000)
                failures += status != 200
        finally:
            await line.close()

    await asyncio.gather(*(client() for _ in range(shape.connections)))
    seconds = time.perf_counter() - began
    took.sort()
    return (
        len(took), len(took) / seconds, took[len(took) // 2], took[int(len(took) * 0.99)], failures,
    )  # fmt: skip


class Line:
    """One kept connection over which one request is sent after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int) -> "Line":
        """Return a connection."""
        return cls(*await asyncio.open_connection("127.0.0.1", port, limit=2**26))

    async def post(
        self, path: str, body: bytes, *, key: str | None = None, authorization: str = ""
    ) -> int:
        """Send a request, read its answer to the end, return its status."""
        named = f"x-session-key: {key}\r\n" if key is not None else ""
        named += f"authorization: {authorization}\r\n" if authorization else ""
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"{named}content-length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: (\d+)", answer)
        if length is not None:
            await self._reader.readexactly(int(length[1]))
        else:
            await self._reader.readuntil(b"0\r\n\r\n")
        return int(answer[9:12])

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()
