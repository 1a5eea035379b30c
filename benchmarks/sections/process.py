"""The process as a whole: memory, disk, recovery after a crash, stalls of the event loop."""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.counting.disk import bytes_per_turn
from benchmarks.http_client import PATHS, Connection, turn_body
from benchmarks.load import QUESTION
from benchmarks.report import Report
from benchmarks.servers import processes
from benchmarks.servers.processes import Server

SESSIONS = 1000
ORPHANS = 10_000
BODY_MB = (1, 8, 32)
STALL_ROUNDS = 5
_MAX_SECONDS = 300

_LEAVE_ORPHANS = """
import asyncio, os, sys
import holdfast

async def main(url, count):
    async with holdfast.open(url) as engine:
        numbers = iter(range(count))
        async def begin():
            for number in numbers:
                session = await engine.session(f"orphan-{number}")
                await session.turn("a question that is never answered").__aenter__()
        await asyncio.gather(*(begin() for _ in range(64)))
        os._exit(0)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def run(report: Report, *, is_short: bool = False) -> None:
    """Measure memory, disk, recovery and stalls."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        _measure_memory(report, folder, 10 if is_short else SESSIONS)
        found = bytes_per_turn(folder, *((16, 2) if is_short else ()))
        report.add("process", case="bytes on disk per reference turn", bytes=found)
        _measure_recovery(report, folder, 20 if is_short else ORPHANS)
        _measure_stalls(report, folder, is_short=is_short)


def _measure_memory(report: Report, folder: Path, sessions: int) -> None:
    url = f"sqlite:///{folder}/memory.db"
    with (
        processes.stub(folder) as stub,
        processes.gateway(url, stub.url, folder, api="chat") as server,
    ):
        at_start = server.rss_mb()
        asyncio.run(_small_turns(server, sessions))
        server.wait_until_idle()
        report.add(
            "process",
            case=f"memory after a small turn in each of {sessions:,} sessions",
            mb=server.rss_mb(),
            mb_at_start=at_start,
        )


async def _small_turns(server: Server, sessions: int) -> None:
    body = msgspec.json.encode(turn_body("chat", QUESTION))
    connection = await Connection.open(server.port)
    try:
        for number in range(sessions):
            assert await connection.post(PATHS["chat"], body, key=f"key-{number}") == 200
    finally:
        await connection.close()


def _measure_recovery(report: Report, folder: Path, count: int) -> None:
    """Time a start on a store with orphaned turns, minus a start without them."""
    url = f"sqlite:///{folder}/orphans.db"
    upstream = "http://127.0.0.1:9"
    with processes.gateway(url, upstream, folder) as server:
        normal = _seconds_until_recovered(server)
    subprocess.run(
        [sys.executable, "-c", _LEAVE_ORPHANS, url, str(count)], check=True, timeout=_MAX_SECONDS
    )
    with processes.gateway(url, upstream, folder) as server:
        recovered = _seconds_until_recovered(server)
    report.add(
        "process",
        case=f"recovery of {count:,} orphaned turns",
        seconds=recovered - normal,
        start_seconds=normal,
    )


def _seconds_until_recovered(server: Server) -> float:
    """Return the time from the start of the process until no session is running."""
    ready = time.perf_counter()
    asyncio.run(_wait_until_nothing_runs(server))
    return server.seconds_to_start + time.perf_counter() - ready


async def _wait_until_nothing_runs(server: Server) -> None:
    connection = await Connection.open(server.port)
    try:
        while True:
            running = await connection.call("GET", "/v1/sessions?status=running&limit=1")
            if not running.json()["data"]:
                return
            await asyncio.sleep(0.01)
    finally:
        await connection.close()


def _measure_stalls(report: Report, folder: Path, *, is_short: bool) -> None:
    """Measure the longest time that the event loop does not respond while a body is handled."""
    url = f"sqlite:///{folder}/stalls.db"
    with (
        processes.stub(folder) as stub,
        processes.gateway(url, stub.url, folder) as server,
    ):
        for size in (1,) if is_short else BODY_MB:
            # Other load on the machine only adds time: the best of several rounds counts.
            rounds = [
                asyncio.run(_stall_ms(server, size, number))
                for number in range(1 if is_short else STALL_ROUNDS)
            ]
            report.add("process", case=f"longest stall with a body of {size} MB", ms=min(rounds))


async def _stall_ms(server: Server, size_mb: int, number: int) -> float:
    parts = [{"type": "input_text", "text": "x" * 1000} for _ in range(1000)]
    messages = [{"type": "message", "role": "user", "content": parts} for _ in range(size_mb)]
    body = msgspec.json.encode({"model": "stub", "input": messages})
    connection = await Connection.open(server.port)
    prober = asyncio.create_task(_longest_probe(server))
    try:
        key = f"large-{size_mb}-{number}"
        assert await connection.post(PATHS["responses"], body, key=key) == 200
    finally:
        prober.cancel()
        await connection.close()
    return await prober


async def _longest_probe(server: Server) -> float:
    """Request the health until cancelled; return the longest response time in milliseconds."""
    connection = await Connection.open(server.port)
    longest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            began = time.perf_counter()
            await connection.request("GET", "/healthz", b"", {})
            longest = max(longest, (time.perf_counter() - began) * 1000)
    return longest
